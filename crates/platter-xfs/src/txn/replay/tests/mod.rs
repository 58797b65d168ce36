//! Replay of logs that were written for one purpose each.

mod sample;
mod position;
mod items;
mod rules;

use platter_vfs::Error;

use crate::ondisk::features::{Incompat, LogIncompat};
use crate::ondisk::log::OpFlags;
use sample::{Sample, header, plain, transaction};

#[test]
fn transactions_interleave_and_cross_records() {
    let mut sample = Sample::new();
    let (first, second) = (plain(8, 0x11), plain(16, 0x22));
    let (none, cont) = (OpFlags::empty(), OpFlags::CONTINUE);
    let was = OpFlags::WAS_CONTINUED;
    sample.record(&[
        (1, OpFlags::START, vec![]),
        (1, none, header(1)),
        (2, OpFlags::START, vec![]),
        (2, cont, header(2)[..6].to_vec()),
        (1, none, first[0].clone()),
        (1, cont, first[1][..50].to_vec()),
    ]);
    sample.record(&[
        (2, was, header(2)[6..].to_vec()),
        (2, none, second[0].clone()),
        (2, none, second[1].clone()),
        (1, was | cont, first[1][50..100].to_vec()),
        (2, OpFlags::COMMIT, vec![]),
    ]);
    sample.record(&[
        (1, was | OpFlags::END, first[1][100..].to_vec()),
        (1, OpFlags::COMMIT, vec![]),
        (3, OpFlags::START, vec![]),
        (3, none, header(3)),
    ]);
    let report = sample.replay().unwrap();
    assert_eq!((report.transactions, report.items_replayed), (2, 2));
    assert_eq!(sample.data_at(8 * 512 + 128, 128), [0x11; 128]);
    assert_eq!(sample.data_at(16 * 512 + 128, 128), [0x22; 128]);
    assert_eq!(sample.data_at(8 * 512, 128), [0; 128]);
}

#[test]
fn uncommitted_transaction_is_not_replayed() {
    let mut sample = Sample::new();
    let mut operations = transaction(1, &plain(8, 0x11));
    operations.pop();
    sample.record(&operations);
    assert_eq!(sample.replay().unwrap().transactions, 0);
    assert_eq!(
        sample.data_at(0, sample::DATA_BYTES),
        vec![0; sample::DATA_BYTES]
    );
}

#[test]
fn operations_of_a_transaction_before_the_tail_are_passed() {
    let mut sample = Sample::new();
    sample.record(&[
        (9, OpFlags::WAS_CONTINUED, vec![1; 40]),
        (9, OpFlags::COMMIT, vec![]),
    ]);
    assert_eq!(sample.replay().unwrap().transactions, 0);
}

#[test]
fn unknown_features_of_a_dirty_log_are_all_named() {
    let mut sample = Sample::new();
    sample.transaction(1, &plain(8, 0x11));
    let features = &mut sample.superblock.features;
    features.log_incompat = LogIncompat::from_bits_retain(0x8000_0005);
    features.incompat |= Incompat::NEEDSREPAIR;
    let refused = sample.replay().unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
    let refused = refused.to_string();
    for name in [
        "log_incompat bit 2",
        "log_incompat bit 31",
        "needsrepair",
        "norecovery",
    ] {
        assert!(refused.contains(name), "{refused}");
    }
    assert!(!refused.contains("bit 0"), "{refused}");
    assert_eq!(sample.data_at(8 * 512 + 128, 128), [0; 128]);
}
