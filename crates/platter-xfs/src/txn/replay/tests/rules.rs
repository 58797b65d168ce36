//! One log for each rule that recovery finds broken.

use platter_block::BlockDevice;
use platter_ondisk::{Rule, Uuid};

use super::sample::{LOG_SECTORS, Sample, buffer, header, plain, transaction};
use crate::ondisk::Geometry;
use crate::ondisk::inode::free::initialise;
use crate::ondisk::log::dinode::LogDinode;
use crate::ondisk::log::{
    BufferFlags, BufferType, DquotFormat, InodeFields, InodeFormat, OpFlags, RecordHeader,
};
use crate::ondisk::{BasicBlock, InodeNr, Lsn};
use crate::txn::replay::ReplayRule;

fn assert_broken(sample: &Sample, rule: ReplayRule) {
    assert_eq!(sample.broken_rule(), rule.text());
}

#[test]
fn cycles_that_do_not_follow_each_other_are_found() {
    let sample = Sample::at(5, 100);
    sample.log.write(LOG_SECTORS - 1, &[0, 0, 0, 2]).unwrap();
    assert_broken(&sample, ReplayRule::Cycles);
}

#[test]
fn log_without_a_record_is_found() {
    assert_broken(&Sample::at(5, 100), ReplayRule::NoRecord);
}

#[test]
fn lsn_that_names_another_place_is_found() {
    let mut sample = Sample::at(5, 100);
    let header = RecordHeader {
        lsn: Lsn::new(5, 99),
        ..crate::ondisk::log::record::tests::sample(512, 32 << 10)
    };
    sample.cycle = 5;
    sample.write(&RecordHeader { cycle: 5, ..header }, vec![0; 512]);
    assert_broken(&sample, ReplayRule::RecordLsn);
}

#[test]
fn tail_outside_the_log_is_found() {
    let mut sample = Sample::at(5, 100);
    sample.tail = Lsn::new(4, LOG_SECTORS);
    sample.transaction(1, &plain(8, 1));
    assert_broken(&sample, ReplayRule::TailLsn);
}

#[test]
fn record_of_another_filesystem_is_found() {
    let mut sample = Sample::new();
    sample.uuid = Uuid::from_bytes([1; 16]);
    sample.transaction(1, &plain(8, 1));
    assert_broken(&sample, ReplayRule::RecordUuid);
}

#[test]
fn wrong_checksum_before_the_records_in_flight_is_found() {
    let mut sample = Sample::new();
    for tid in 1..12 {
        sample.transaction(tid, &plain(8, 1));
    }
    sample.disk.write_at(600, &[9]).unwrap();
    assert_broken(&sample, ReplayRule::RecordChecksum);
}

#[test]
fn transaction_that_starts_twice_is_found() {
    let mut sample = Sample::new();
    let start = (1, OpFlags::START, Vec::new());
    sample.record(&[start.clone(), start]);
    assert_broken(&sample, ReplayRule::TransactionStart);
}

#[test]
fn region_of_no_item_is_found() {
    let mut sample = Sample::new();
    let long = [header(1), vec![0; 4]].concat();
    sample.record(&[(1, OpFlags::START, vec![]), (1, OpFlags::empty(), long)]);
    assert_broken(&sample, ReplayRule::Region);
    let mut sample = Sample::new();
    sample.record(&[
        (1, OpFlags::START, vec![]),
        (1, OpFlags::empty(), header(1)),
        (1, OpFlags::WAS_CONTINUED, vec![0; 4]),
    ]);
    assert_broken(&sample, ReplayRule::Region);
}

#[test]
fn buffer_outside_the_filesystem_is_found() {
    let mut sample = Sample::new();
    sample.transaction(1, &plain(1 << 40, 1));
    assert_broken(&sample, ReplayRule::BufferPlace);
}

#[test]
fn buffer_without_its_regions_is_found() {
    let mut sample = Sample::new();
    let item = buffer(8, BufferType::Unknown, BufferFlags::empty(), 1);
    sample.transaction(1, &item[..1]);
    assert_broken(&sample, ReplayRule::BufferRegions);
}

/// A log of one inode with these regions.
fn inode_log(format: InodeFormat, forkoff: u8, fork: Vec<u8>) -> Sample {
    let mut sample = Sample::new();
    let geometry = Geometry::new(&sample.superblock);
    let mut inode = vec![0; 512];
    initialise(&mut inode, &geometry, InodeNr::new(131).unwrap(), 1);
    sample.data.write_at(64 * 512, &inode).unwrap();
    let mut core = LogDinode::encode(&inode);
    (core[5], core[82]) = (2, forkoff);
    sample.record(&transaction(1, &[format.encode(), core, fork]));
    sample
}

fn format(fields: InodeFields) -> InodeFormat {
    InodeFormat {
        regions: 3,
        fields: fields | InodeFields::CORE,
        attr_len: 0,
        data_len: 0,
        inode: InodeNr::new(131).unwrap(),
        device: 0,
        block: BasicBlock(64),
        len: 8,
        offset: 0,
    }
}

#[test]
fn inode_outside_its_buffer_is_found() {
    let format = InodeFormat {
        offset: 4096,
        ..format(InodeFields::DATA_EXTENTS)
    };
    let sample = inode_log(format, 0, vec![0; 16]);
    assert_broken(&sample, ReplayRule::ObjectPlace);
}

#[test]
fn buffer_without_inodes_is_found() {
    let format = InodeFormat {
        block: BasicBlock(128),
        ..format(InodeFields::DATA_EXTENTS)
    };
    let sample = inode_log(format, 0, vec![0; 16]);
    assert_broken(&sample, ReplayRule::BufferInodeMagic);
}

#[test]
fn fork_that_does_not_fit_is_found() {
    let sample = inode_log(format(InodeFields::DATA_EXTENTS), 1, vec![0; 16]);
    assert_broken(&sample, ReplayRule::InodeFork);
    let mut root = vec![0; 72 + 2 * 16];
    root[7] = 3;
    let sample = inode_log(format(InodeFields::DATA_ROOT), 0, root);
    assert_broken(&sample, ReplayRule::InodeFork);
}

#[test]
fn tree_whose_owner_changes_has_valid_blocks() {
    let mut root = vec![0; 72 + 2 * 16];
    (root[5], root[7]) = (1, 1);
    root[72 + 2 * 8..72 + 3 * 8].copy_from_slice(&20_u64.to_be_bytes());
    let fields = InodeFields::DATA_ROOT | InodeFields::DATA_OWNER;
    let sample = inode_log(format(fields), 0, root);
    assert_broken(&sample, ReplayRule::OwnerTree);
}

#[test]
fn tree_whose_owner_changes_has_each_block_once() {
    let mut root = vec![0; 72 + 2 * 16];
    (root[5], root[7]) = (1, 2);
    for at in [72 + 2 * 8, 72 + 3 * 8] {
        root[at..at + 8].copy_from_slice(&20_u64.to_be_bytes());
    }
    let fields = InodeFields::DATA_ROOT | InodeFields::DATA_OWNER;
    let sample = inode_log(format(fields), 0, root);
    let mut block = vec![0; 4096];
    block[..4].copy_from_slice(b"BMA3");
    block[24..32].copy_from_slice(&160_u64.to_be_bytes());
    block[40..56].copy_from_slice(Geometry::new(&sample.superblock).meta_uuid.as_bytes());
    sample.data.write_at(20 * 4096, &block).unwrap();
    assert_broken(&sample, ReplayRule::OwnerTree);
}

#[test]
fn quota_record_without_its_magic_is_found() {
    let mut sample = Sample::new();
    let format = DquotFormat {
        id: 0,
        block: BasicBlock(40),
        blocks: 1,
        offset: 0,
    };
    sample.transaction(1, &[format.encode(), vec![0; 104]]);
    assert_broken(&sample, ReplayRule::Dquot);
}
