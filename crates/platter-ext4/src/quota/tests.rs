//! Limits and grace periods of one id.

use super::*;

fn dquot(limits: Limits) -> Dquot {
    Dquot {
        limits,
        space_bytes: 100,
        inodes: 10,
        ..Dquot::default()
    }
}

#[test]
fn limits_count_what_is_reserved() {
    let mut dquot = dquot(Limits {
        space_hard: 150,
        inodes_hard: 12,
        ..Limits::default()
    });
    assert!(!dquot.is_exceeded_by(50, 2, 0));
    assert!(dquot.is_exceeded_by(51, 0, 0));
    assert!(dquot.is_exceeded_by(0, 3, 0));
    dquot.reserve(30, 1);
    assert!(!dquot.is_exceeded_by(20, 1, 0));
    assert!(dquot.is_exceeded_by(21, 0, 0));
    assert!(dquot.is_exceeded_by(0, 2, 0));
    // What is not asked for is not refused, whatever is in use.
    dquot.limits.space_hard = 1;
    assert!(!dquot.is_exceeded_by(0, 1, 0));
}

#[test]
fn grace_periods_begin_above_soft_limits_and_end_below() {
    let mut dquot = dquot(Limits {
        space_soft: 99,
        inodes_soft: 11,
        ..Limits::default()
    });
    dquot.begin_grace(1000, (7, 5));
    assert_eq!((dquot.space_time, dquot.inode_time), (1007, 0));
    dquot.add(0, 2);
    dquot.begin_grace(1002, (7, 5));
    assert_eq!((dquot.space_time, dquot.inode_time), (1007, 1007));
    assert!(!dquot.is_exceeded_by(1, 1, 1006));
    assert!(dquot.is_exceeded_by(1, 0, 1007));
    dquot.subtract(1, 0);
    dquot.end_grace();
    assert_eq!((dquot.space_time, dquot.inode_time), (0, 1007));
}

#[test]
fn entry_without_usage_is_decoded_as_it_was() {
    let place = EntryPlace {
        block: BlockNr(5),
        offset: 16,
    };
    for (id, inodes) in [(0, 0), (0, 3), (9, 0)] {
        let dquot = Dquot {
            inodes,
            place: Some(place),
            ..Dquot::default()
        };
        let entry = dquot.encode(id);
        assert_ne!(entry.as_bytes(), [0; 72]);
        assert_eq!(Dquot::decode(&entry.unmarked(), place), dquot);
    }
}
