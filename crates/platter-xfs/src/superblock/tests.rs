//! Superblocks and their copies on devices in memory.

use platter_block::MemoryDevice;
use platter_ondisk::Rule;

use super::*;
use crate::ondisk::superblock::tests::{Sample, sample};

const AG_BYTES: u64 = 4096 * 4096;

/// Four groups, whose copies are as `mkfs.xfs` leaves them: in progress, and without the root inode but for
/// those of the last and the middle group.
fn device(primary: impl FnOnce(&mut Vec<u8>)) -> Arc<dyn BlockDevice> {
    let mut bytes = vec![0; usize::try_from(AG_BYTES * 4).unwrap()];
    let mut put = |at: u64, sector: &[u8]| {
        let at = usize::try_from(at).unwrap();
        bytes[at..at + 512].copy_from_slice(sector);
    };
    let mut sector = sample().sector();
    primary(&mut sector);
    put(0, &sector);
    for group in 1..4 {
        let Sample(mut copy) = sample();
        copy.in_progress = 1;
        if group == 1 {
            copy.root_inode.set(u64::MAX);
        }
        put(group * AG_BYTES, &Sample(copy).sector());
    }
    Arc::new(MemoryDevice::new("disk", bytes))
}

fn is_refused(device: &dyn BlockDevice, rule: SuperblockRule) -> bool {
    let refused = read(device).unwrap_err().to_string();
    refused.contains(rule.text())
}

#[test]
fn copy_takes_the_place_of_a_bad_primary_superblock() {
    // A wrong checksum, nothing at all, and a geometry that leads nowhere.
    let bad: [fn(&mut Vec<u8>); 3] = [
        |sector| sector[200] ^= 1,
        |sector| sector.fill(0),
        |sector| sector[84..88].fill(0xff),
    ];
    for change in bad {
        let device = device(change);
        assert!(read(&*device).is_err());
        let at = find_copy(&*device).unwrap();
        assert!(at == 3 * AG_BYTES || at == 2 * AG_BYTES, "{at}");
        let with_copy = with_copy(device, at).unwrap();
        assert_eq!(read(&*with_copy).unwrap(), sample().decode().unwrap());
    }
}

#[test]
fn superblock_of_an_unfinished_mkfs_is_no_primary_one() {
    let device = device(|sector| {
        let Sample(mut copy) = sample();
        copy.in_progress = 1;
        *sector = Sample(copy).sector();
    });
    assert!(is_refused(&*device, SuperblockRule::InProgress));
    assert!(find_copy(&*device).is_some());
}

#[test]
fn copies_that_are_not_where_they_should_be_are_none() {
    let mut bytes = vec![0; 8 << 20];
    bytes[2 << 20..(2 << 20) + 512].copy_from_slice(&sample().sector());
    let device = MemoryDevice::new("disk", bytes);
    assert_eq!(find_copy(&device), None);
    assert!(is_refused(&device, SuperblockRule::Magic));
    let short: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("disk", vec![0; 512]));
    assert!(with_copy(short, 512).is_err());
}
