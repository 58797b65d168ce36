//! One test per rule of an index block, on blocks built in memory.

use zerocopy::IntoBytes;

use super::super::geometry::tests::sample_geometry;
use super::*;

const BLOCK: usize = 1024;

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_entries(block: &mut [u8], at: usize, limit: u16, entries: &[(u32, u32)]) {
    for (index, &(hash, child)) in entries.iter().enumerate() {
        put(block, at + index * 8, &hash.to_le_bytes());
        put(block, at + index * 8 + 4, &child.to_le_bytes());
    }
    let count = u16::try_from(entries.len()).unwrap();
    put(block, at, &limit.to_le_bytes());
    put(block, at + 2, &count.to_le_bytes());
}

fn head(inode: u32, rec_len: u16, name_len: u8) -> DiskDirEntry {
    DiskDirEntry {
        inode: inode.into(),
        rec_len: rec_len.into(),
        name_len,
        file_type: 2,
    }
}

fn root(entries: &[(u32, u32)]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let disk = DiskHtreeRoot {
        dot: head(2, 12, 1),
        dot_name: *b".\0\0\0",
        dotdot: head(3, 1012, 2),
        dotdot_name: *b"..\0\0",
        reserved_zero: 0.into(),
        hash_version: 1,
        info_length: 8,
        indirect_levels: 0,
        unused_flags: 0,
    };
    put(&mut block, 0, disk.as_bytes());
    put_entries(&mut block, 32, 123, entries);
    block
}

fn node(entries: &[(u32, u32)]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    put(&mut block, 0, head(0, 1024, 0).as_bytes());
    put_entries(&mut block, 8, 126, entries);
    block
}

fn root_rule(at: usize, value: u8) -> HtreeRule {
    let mut block = root(&[(0, 1), (10, 2)]);
    block[at] = value;
    HtreeRoot::decode(&block, &sample_geometry()).unwrap_err()
}

#[test]
fn root_has_hash_levels_parent_and_blocks() {
    let block = root(&[(0, 1), (10, 2), (11, 0xf000_0003)]);
    let root = HtreeRoot::decode(&block, &sample_geometry()).unwrap();
    assert_eq!((root.hash_version, root.levels), (1, 0));
    assert_eq!(root.parent, InodeNr::new(3));
    assert_eq!(root.dot, Some(InodeNr::ROOT));
    let entries = root.entries;
    assert_eq!(entries.len(), 3);
    assert_eq!(entries.block(2), Some(FileBlock(3)));
    assert_eq!(entries.block(3), None);
    assert_eq!([0, 1, 2].map(|index| entries.hash(index)), [0, 10, 11]);
    let positions = [0, 8, 10, 12, u32::MAX].map(|hash| entries.position(hash));
    assert_eq!(positions, [0, 0, 1, 2, 2]);
}

#[test]
fn invalid_root_is_corrupt() {
    assert_eq!(root_rule(4, 16), HtreeRule::Dots);
    assert_eq!(root_rule(8, b'x'), HtreeRule::Dots);
    assert_eq!(root_rule(16, 0), HtreeRule::Dots);
    assert_eq!(root_rule(24, 1), HtreeRule::Info);
    assert_eq!(root_rule(29, 9), HtreeRule::Info);
    assert_eq!(root_rule(31, 1), HtreeRule::Info);
    assert_eq!(root_rule(30, 2), HtreeRule::Levels);
    assert_eq!(root_rule(32, 124), HtreeRule::Limit);
    assert_eq!(root_rule(34, 0), HtreeRule::Count);
    assert_eq!(root_rule(34, 124), HtreeRule::Count);
    assert_eq!(
        HtreeRoot::decode(&[0; 20], &sample_geometry()).unwrap_err(),
        HtreeRule::Dots
    );
}

#[test]
fn large_dir_allows_one_more_level() {
    let mut block = root(&[(0, 1)]);
    block[30] = 2;
    let mut geometry = sample_geometry();
    geometry.features.incompat |= Incompat::LARGE_DIR;
    assert!(HtreeRoot::decode(&block, &geometry).is_ok());
    block[30] = 3;
    let rule = HtreeRoot::decode(&block, &geometry).unwrap_err();
    assert_eq!(rule, HtreeRule::Levels);
}

#[test]
fn invalid_node_is_corrupt() {
    let geometry = sample_geometry();
    let rule = |block: &[u8]| decode_node(block, &geometry).unwrap_err();
    assert!(decode_node(&node(&[(0, 1), (2, 2), (2, 3)]), &geometry).is_ok());
    assert_eq!(rule(&node(&[(0, 1), (4, 2), (2, 3)])), HtreeRule::Order);
    assert_eq!(rule(&root(&[(0, 1)])), HtreeRule::Node);
    let mut block = node(&[(0, 1)]);
    block[0] = 1;
    assert_eq!(rule(&block), HtreeRule::Node);
}

#[test]
fn sealed_blocks_verify_and_changed_ones_fail() {
    for mut block in [root(&[(0, 1), (10, 2)]), node(&[(0, 1), (10, 2)])] {
        let at = if is_node(&block) { 8 } else { 32 };
        assert_eq!(verify_checksum(5, &block), Err(HtreeRule::Checksum));
        seal(5, &mut block);
        assert_eq!(verify_checksum(5, &block), Ok(()));
        assert_eq!(verify_checksum(6, &block), Err(HtreeRule::Checksum));
        block[at + 8] ^= 1;
        assert_eq!(verify_checksum(5, &block), Err(HtreeRule::Checksum));
        block[at + 2] = 255;
        assert_eq!(verify_checksum(5, &block), Err(HtreeRule::Count));
    }
}
