//! Nodes built in memory, one broken rule at a time.

use super::super::geometry::tests::sample_geometry;
use super::*;

/// Builds a node of `size` bytes with these leaf entries: first file block, length, start.
pub(crate) fn leaf(size: usize, extents: &[(u32, u16, u32)]) -> Vec<u8> {
    let mut bytes = header(size, extents.len(), 0);
    for &(first, length, start) in extents {
        let extent = DiskExtent {
            first: first.into(),
            length: length.into(),
            start_hi: 0.into(),
            start_lo: start.into(),
        };
        bytes.extend(extent.as_bytes());
    }
    bytes.resize(size, 0);
    bytes
}

/// Builds a node of `size` bytes with these children: first file block, block.
pub(crate) fn inner(size: usize, depth: u16, children: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = header(size, children.len(), depth);
    for &(first, child) in children {
        let index = DiskExtentIndex {
            first: first.into(),
            child_lo: child.into(),
            child_hi: 0.into(),
            unused: 0.into(),
        };
        bytes.extend(index.as_bytes());
    }
    bytes.resize(size, 0);
    bytes
}

fn header(size: usize, entries: usize, depth: u16) -> Vec<u8> {
    let header = DiskExtentHeader {
        magic: EXTENT_MAGIC.into(),
        entries: u16::try_from(entries).unwrap().into(),
        max: u16::try_from((size - 12) / 12).unwrap().into(),
        depth: depth.into(),
        generation: 0.into(),
    };
    header.as_bytes().to_vec()
}

fn rules(geometry: &Geometry) -> ExtentBlockRules<'_> {
    ExtentBlockRules {
        geometry,
        inode_seed: 99,
    }
}

fn broken(mut bytes: Vec<u8>) -> ExtentRule {
    let geometry = sample_geometry();
    rules(&geometry).seal(7, &mut bytes);
    rules(&geometry).check(&bytes).unwrap_err()
}

#[test]
fn sealed_nodes_pass() {
    let geometry = sample_geometry();
    for mut bytes in [
        leaf(1024, &[]),
        leaf(
            1024,
            &[
                (0, 1, 100),
                (1, 0x8000, 200 - 198 + 98),
                (0x9000, 0x8005, 300),
            ],
        ),
        inner(1024, 5, &[(0, 100), (9, 101)]),
    ] {
        let mut geometry = geometry.clone();
        geometry.blocks_count = 1 << 20;
        rules(&geometry).seal(7, &mut bytes);
        rules(&geometry).check(&bytes).unwrap();
        bytes[5] ^= 0;
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(rules(&geometry).check(&bytes), Err(ExtentRule::Checksum));
    }
}

#[test]
fn invalid_header_is_corrupt() {
    let mut bytes = leaf(1024, &[]);
    bytes[0] ^= 1;
    assert_eq!(broken(bytes), ExtentRule::Magic);
    assert_eq!(broken(Vec::new()), ExtentRule::Magic);
    let with = |at: usize, value: u8| {
        let mut bytes = leaf(1024, &[]);
        bytes[at] = value;
        broken(bytes)
    };
    assert_eq!(with(4, 0), ExtentRule::Capacity);
    assert_eq!(with(4, 85), ExtentRule::Capacity);
    assert_eq!(with(2, 85), ExtentRule::Entries);
    assert_eq!(broken(inner(1024, 1, &[])), ExtentRule::Entries);
    assert_eq!(broken(inner(1024, 6, &[(0, 100)])), ExtentRule::Depth);
}

#[test]
fn overlapping_extents_are_corrupt() {
    assert_eq!(
        broken(leaf(1024, &[(0, 2, 100), (1, 1, 200)])),
        ExtentRule::Order
    );
    assert_eq!(
        broken(leaf(1024, &[(5, 1, 100), (0, 1, 200)])),
        ExtentRule::Order
    );
    assert_eq!(
        broken(inner(1024, 1, &[(5, 100), (5, 101)])),
        ExtentRule::Order
    );
}

#[test]
fn invalid_extents_are_corrupt() {
    assert_eq!(broken(leaf(1024, &[(0, 0, 100)])), ExtentRule::Length);
    assert_eq!(
        broken(leaf(1024, &[(u32::MAX, 1, 100)])),
        ExtentRule::Length
    );
    assert_eq!(broken(leaf(1024, &[(0, 1, 1)])), ExtentRule::Target);
    assert_eq!(broken(leaf(1024, &[(0, 2, 8191)])), ExtentRule::Target);
    assert_eq!(broken(inner(1024, 1, &[(0, 8192)])), ExtentRule::Child);
}

#[test]
fn lookup_finds_extents_holes_and_children() {
    let bytes = leaf(1024, &[(2, 3, 100), (8, 0x8001, 200)]);
    let node = ExtentNode::decode(&bytes).unwrap();
    assert_eq!(node.lookup(FileBlock(0)), Found::Hole(Some(FileBlock(2))));
    assert_eq!(node.lookup(FileBlock(5)), Found::Hole(Some(FileBlock(8))));
    assert_eq!(node.lookup(FileBlock(9)), Found::Hole(None));
    let Found::Extent(extent) = node.lookup(FileBlock(4)) else {
        panic!("block 4 is mapped");
    };
    assert_eq!((extent.start, extent.unwritten), (BlockNr(100), false));
    let Found::Extent(extent) = node.lookup(FileBlock(8)) else {
        panic!("block 8 is mapped");
    };
    assert_eq!((extent.count, extent.unwritten), (1, true));

    let bytes = inner(1024, 1, &[(2, 100), (8, 101)]);
    let node = ExtentNode::decode(&bytes).unwrap();
    assert_eq!(node.lookup(FileBlock(0)), Found::Hole(Some(FileBlock(2))));
    let child = |first, block| Child {
        first: FileBlock(first),
        block: BlockNr(block),
    };
    let found = Found::Child(child(2, 100), Some(FileBlock(8)));
    assert_eq!(node.lookup(FileBlock(7)), found);
    assert_eq!(node.lookup(FileBlock(8)), Found::Child(child(8, 101), None));
}
