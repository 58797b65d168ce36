//! B-tree blocks made in memory, one broken rule at a time.

use super::*;
use crate::ondisk::checksum;
use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};
use crate::ondisk::types::BasicBlock;

/// Block 9 of group 1 of the sample geometry, as a B-tree block with two records.
fn sample() -> Vec<u8> {
    let mut block = vec![0; 4096];
    let (header, body) = DiskShortHeaderV5::mut_from_prefix(&mut block).unwrap();
    header.common.magic.set(0x4142_3342);
    header.common.records.set(2);
    header.common.left.set(u32::MAX);
    header.common.right.set(77);
    header.block.set((4096 + 9) * 8);
    header.uuid = [0x5a; 16];
    header.owner.set(1);
    let (records, _) = <[DiskFreeExtent]>::mut_from_prefix_with_elems(body, 2).unwrap();
    records[1].start.set(20);
    seal(&mut block);
    block
}

fn seal(block: &mut [u8]) {
    checksum::seal(block, checksum_offset(BtreeKind::Bno));
}

fn site(geometry: &Geometry) -> Site<'_> {
    Site::new(geometry, BasicBlock((4096 + 9) * 8), 1)
}

fn broken(change: impl FnOnce(&mut DiskShortHeaderV5)) -> BtreeRule {
    let mut block = sample();
    change(DiskShortHeaderV5::mut_from_prefix(&mut block).unwrap().0);
    seal(&mut block);
    let geometry = sample_geometry();
    BtreeBlock::decode(&block, BtreeKind::Bno, &site(&geometry)).unwrap_err()
}

#[test]
fn leaf_has_records_and_siblings() {
    let (block, geometry) = (sample(), sample_geometry());
    let leaf = BtreeBlock::decode(&block, BtreeKind::Bno, &site(&geometry)).unwrap();
    assert_eq!((leaf.left, leaf.right), (None, Some(77)));
    let records = leaf.records::<DiskFreeExtent>();
    assert_eq!((records.len(), records[1].start.get()), (2, 20));
    assert!(leaf.records::<DiskInodeChunk>().is_empty());
    assert_eq!(leaf.pointer(0), None);
}

#[test]
fn rules_of_the_header_are_checked() {
    let change = |header: &mut DiskShortHeaderV5| header.common.magic.set(0x4142_5442);
    assert_eq!(broken(change), BtreeRule::Magic);
    assert_eq!(broken(|header| header.uuid[0] = 0), BtreeRule::Uuid);
    assert_eq!(broken(|header| header.block.set(9)), BtreeRule::BlockNumber);
    assert_eq!(broken(|header| header.owner.set(0)), BtreeRule::Owner);
    assert_eq!(
        broken(|header| header.common.level.set(99)),
        BtreeRule::Level
    );
    assert_eq!(
        broken(|header| header.common.records.set(506)),
        BtreeRule::Records
    );
    let rule = broken(|header| {
        header.common.level.set(1);
        header.common.records.set(0);
    });
    assert_eq!(rule, BtreeRule::Records);
    assert_eq!(
        broken(|header| header.common.right.set(4096)),
        BtreeRule::Sibling
    );
    assert_eq!(
        broken(|header| header.common.left.set(0)),
        BtreeRule::Sibling
    );
    let (mut block, geometry) = (sample(), sample_geometry());
    block[4095] = 1;
    let rule = BtreeBlock::decode(&block, BtreeKind::Bno, &site(&geometry)).unwrap_err();
    assert_eq!(rule, BtreeRule::Checksum);
}

#[test]
fn pointers_follow_all_keys_that_fit() {
    let geometry = sample_geometry_v4();
    let mut block = vec![0; 4096];
    let (header, body) = DiskShortHeader::mut_from_prefix(&mut block).unwrap();
    header.magic.set(0x4941_4254);
    header.level.set(1);
    header.records.set(2);
    header.left.set(u32::MAX);
    header.right.set(u32::MAX);
    // 4080 bytes hold 510 pairs of a key and a pointer of four bytes.
    body[510 * 4 + 3] = 33;
    let node = BtreeBlock::decode(&block, BtreeKind::Inobt, &site(&geometry)).unwrap();
    assert_eq!(node.pointer(0), Some(33));
    assert_eq!(node.child(0, &geometry, 1), Ok(FsBlock(4096 + 33)));
    assert_eq!(node.child(1, &geometry, 1), Err(BtreeRule::Pointer));
    assert_eq!(node.child(2, &geometry, 1), Err(BtreeRule::Pointer));
}

#[test]
fn root_in_an_inode_fills_its_fork() {
    let geometry = sample_geometry();
    let mut fork = vec![0; 4 + 3 * 16 + 7];
    fork[..4].copy_from_slice(&[0, 1, 0, 2]);
    // Keys of 8 bytes for each of the three that fit, then pointers.
    fork[4 + 3 * 8 + 7] = 50;
    let root = BtreeBlock::decode_root(&fork, BtreeKind::Bmap).unwrap();
    assert_eq!(root.child(0, &geometry, 131), Ok(FsBlock(50)));
    fork[3] = 4;
    let rule = BtreeBlock::decode_root(&fork, BtreeKind::Bmap).unwrap_err();
    assert_eq!(rule, BtreeRule::Records);
    fork[1] = 0;
    let rule = BtreeBlock::decode_root(&fork, BtreeKind::Bmap).unwrap_err();
    assert_eq!(rule, BtreeRule::Level);
}

#[test]
fn capacities_are_those_of_the_format() {
    let v4 = sample_geometry_v4();
    let v5 = sample_geometry();
    assert_eq!(BtreeKind::Bmap.records_max(0, &v4), 254);
    assert_eq!(BtreeKind::Bmap.records_max(0, &v5), 251);
    assert_eq!(BtreeKind::Rmap.records_max(0, &v5), 168);
    assert_eq!(BtreeKind::Rmap.records_max(1, &v5), 91);
    assert_eq!(BtreeKind::Inobt.records_max(0, &v5), 252);
}

#[test]
fn records_ascend_and_do_not_overlap() {
    let geometry = sample_geometry();
    let check = |first: (u32, u32), second: (u32, u32)| {
        let mut block = sample();
        let (_, body) = DiskShortHeaderV5::mut_from_prefix(&mut block).unwrap();
        let (records, _) = <[DiskFreeExtent]>::mut_from_prefix_with_elems(body, 2).unwrap();
        for (record, (start, count)) in records.iter_mut().zip([first, second]) {
            record.start.set(start);
            record.count.set(count);
        }
        seal(&mut block);
        let leaf = BtreeBlock::decode(&block, BtreeKind::Bno, &site(&geometry)).unwrap();
        leaf.check_records()
    };
    assert_eq!(check((10, 5), (15, 1)), Ok(()));
    assert_eq!(check((10, 6), (15, 1)), Err(BtreeRule::Order));
    assert_eq!(check((16, 1), (15, 1)), Err(BtreeRule::Order));
    assert_eq!(check((10, 0), (15, 1)), Err(BtreeRule::Record));
}

/// The inode B-tree of group 1 as one leaf, in block 3, with these chunks.
pub(crate) fn inobt_leaf(chunks: &[InodeChunk]) -> Vec<u8> {
    let mut block = vec![0; 4096];
    let (header, body) = DiskShortHeaderV5::mut_from_prefix(&mut block).unwrap();
    header.common.magic.set(0x4941_4233);
    header
        .common
        .records
        .set(u16::try_from(chunks.len()).unwrap());
    header.common.left.set(u32::MAX);
    header.common.right.set(u32::MAX);
    header.block.set((4096 + 3) * 8);
    header.uuid = [0x5a; 16];
    header.owner.set(1);
    let (records, _) = <[DiskInodeChunk]>::mut_from_prefix_with_elems(body, chunks.len()).unwrap();
    for (record, chunk) in records.iter_mut().zip(chunks) {
        *record = chunk.encode(true);
    }
    seal(&mut block);
    block
}
