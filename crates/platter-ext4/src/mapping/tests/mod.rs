//! Mappings built in memory: lookups, and corruption.

mod model;

use platter_ondisk::{Rule, Verify};
use platter_vfs::Error;

use super::indirect::IndirectRule;
use super::*;
use crate::fs_context::tests::sample_fs;
use crate::ondisk::InodeNr;
use crate::ondisk::extent::tests::{inner, leaf};
use crate::ondisk::extent::{ExtentBlockRules, ExtentRule};
use crate::ondisk::geometry::tests::sample_geometry;
use crate::ondisk::inode::tests::sample;

fn inode(flags: InodeFlags, block: &[u8]) -> Inode {
    let geometry = sample_geometry();
    let number = InodeNr::new(12).unwrap();
    let bytes = sample(&geometry, number, |disk, _| {
        disk.flags.set(flags.bits());
        disk.block[..block.len()].copy_from_slice(block);
    });
    Inode::decode(&bytes, number, &geometry).unwrap()
}

/// Builds a file whose extent root is `root`, on a filesystem with these nodes.
fn extents(root: &[u8], nodes: &[(u64, Vec<u8>)]) -> (FsContext, Result<BlockMap>) {
    let inode = inode(InodeFlags::EXTENTS, root);
    let mut nodes = nodes.to_vec();
    let geometry = sample_geometry();
    for (block, node) in &mut nodes {
        let rules = ExtentBlockRules {
            geometry: &geometry,
            inode_seed: inode.checksum_seed,
        };
        rules.seal(*block, node);
    }
    let nodes: Vec<_> = nodes.iter().map(|(at, node)| (*at, &node[..])).collect();
    let fs = sample_fs(&nodes);
    let map = BlockMap::decode(&fs, &inode);
    (fs, map)
}

fn indirect(pointers: &[u32; 15], blocks: &[(u64, Vec<u32>)]) -> (FsContext, BlockMap) {
    let bytes = |numbers: &[u32]| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    };
    let inode = inode(InodeFlags::empty(), &bytes(pointers));
    let blocks: Vec<_> = blocks
        .iter()
        .map(|(at, numbers)| (*at, bytes(numbers)))
        .collect();
    let blocks: Vec<_> = blocks.iter().map(|(at, block)| (*at, &block[..])).collect();
    let fs = sample_fs(&blocks);
    let map = BlockMap::decode(&fs, &inode).unwrap();
    (fs, map)
}

fn run(first: u32, count: u32, backing: Backing) -> Run {
    Run {
        first: FileBlock(first),
        count,
        backing,
    }
}

fn rule(error: Error) -> String {
    let Error::Corrupt(corruption) = error else {
        panic!("{error} is no corruption");
    };
    corruption.rule.into_owned()
}

#[test]
fn extent_tree_of_two_levels_is_mapped() {
    let root = inner(60, 2, &[(0, 100), (50, 101)]);
    let (fs, map) = extents(
        &root,
        &[
            (100, inner(1024, 1, &[(0, 102)])),
            (101, inner(1024, 1, &[(50, 103)])),
            (102, leaf(1024, &[(0, 4, 200), (10, 0x8002, 300)])),
            (103, leaf(1024, &[(50, 1, 400)])),
        ],
    );
    let map = map.unwrap();
    let lookup = |block| map.lookup(&fs, FileBlock(block)).unwrap();
    assert_eq!(lookup(1), run(1, 3, Backing::Written(BlockNr(201))));
    assert_eq!(lookup(5), run(5, 5, Backing::Hole));
    assert_eq!(lookup(11), run(11, 1, Backing::Unwritten(BlockNr(301))));
    assert_eq!(lookup(12), run(12, 38, Backing::Hole));
    assert_eq!(lookup(50), run(50, 1, Backing::Written(BlockNr(400))));
    assert_eq!(lookup(51).backing, Backing::Hole);
    assert_eq!(lookup(51).end(), FileBlock::MAX);
    assert_eq!(map.block(&fs, FileBlock(3)).unwrap(), Some(BlockNr(203)));
    assert_eq!(map.block(&fs, FileBlock(10)).unwrap(), None);

    let mut nodes = Vec::new();
    let mut runs = Vec::new();
    let visited = map.visit(&fs, &mut |piece| {
        match piece {
            Piece::Node(_, block) => nodes.push(block.0),
            Piece::Run(run) => runs.push(run.first.0),
        }
        ControlFlow::Continue(())
    });
    visited.unwrap();
    assert_eq!(nodes, [100, 102, 101, 103]);
    assert_eq!(runs, [0, 10, 50]);
}

#[test]
fn extent_node_not_matching_its_parent_is_corrupt() {
    let broken = |root: &[u8], node: Vec<u8>| {
        let (fs, map) = extents(root, &[(100, node)]);
        rule(map.unwrap().lookup(&fs, FileBlock(9)).unwrap_err())
    };
    let root = inner(60, 1, &[(5, 100)]);
    let depth = ExtentRule::Depth.text();
    assert_eq!(broken(&root, inner(1024, 1, &[(5, 100)])), depth);
    let first = ExtentRule::FirstBlock.text();
    assert_eq!(broken(&root, leaf(1024, &[(6, 1, 200)])), first);
    let checksum = ExtentRule::Magic.text();
    assert_eq!(broken(&root, vec![0; 1024]), checksum);
}

#[test]
fn cyclic_extent_tree_terminates() {
    let root = inner(60, 5, &[(0, 100)]);
    let (fs, map) = extents(&root, &[(100, inner(1024, 4, &[(0, 100)]))]);
    let error = map.unwrap().lookup(&fs, FileBlock(0)).unwrap_err();
    assert_eq!(rule(error), ExtentRule::Depth.text());
}

#[test]
fn extent_root_is_validated_with_the_inode() {
    let (_, map) = extents(&[0; 60], &[]);
    assert_eq!(rule(map.unwrap_err()), ExtentRule::Magic.text());
    let (_, map) = extents(&leaf(60, &[(0, 1, 9000)]), &[]);
    assert_eq!(rule(map.unwrap_err()), ExtentRule::Target.text());
}

#[test]
fn indirect_blocks_are_mapped_to_the_third_level() {
    let mut pointers = [0; 15];
    pointers[..4].copy_from_slice(&[100, 101, 0, 300]);
    pointers[12..].copy_from_slice(&[110, 111, 112]);
    let leaf: Vec<u32> = (500..756).collect();
    let (fs, map) = indirect(
        &pointers,
        &[
            (110, leaf.clone()),
            (111, vec![0, 113]),
            (113, vec![0, 900, 901]),
            (112, vec![114]),
            (114, vec![0, 115]),
            (115, vec![1000]),
        ],
    );
    let lookup = |block| map.lookup(&fs, FileBlock(block)).unwrap();
    assert_eq!(lookup(0), run(0, 2, Backing::Written(BlockNr(100))));
    assert_eq!(lookup(2), run(2, 1, Backing::Hole));
    assert_eq!(lookup(4), run(4, 8, Backing::Hole));
    assert_eq!(lookup(12), run(12, 256, Backing::Written(BlockNr(500))));
    assert_eq!(lookup(267), run(267, 1, Backing::Written(BlockNr(755))));
    // After the first tree: a hole of 256 blocks, then the second indirect block.
    assert_eq!(lookup(268), run(268, 256, Backing::Hole));
    assert_eq!(lookup(525), run(525, 2, Backing::Written(BlockNr(900))));
    assert_eq!(lookup(12 + 256 + 512), run(780, 65536 - 512, Backing::Hole));
    let third = 12 + 256 + 65536;
    assert_eq!(lookup(third), run(third, 256, Backing::Hole));
    assert_eq!(
        lookup(third + 256),
        run(third + 256, 1, Backing::Written(BlockNr(1000)))
    );
    let past_all = third + 256 * 256 * 256;
    assert_eq!(lookup(past_all).end(), FileBlock::MAX);

    let mut nodes = Vec::new();
    let mut blocks = 0;
    let visited = map.visit(&fs, &mut |piece| {
        match piece {
            Piece::Node(_, block) => nodes.push(block.0),
            Piece::Run(run) => blocks += run.count,
        }
        ControlFlow::Continue(())
    });
    visited.unwrap();
    assert_eq!(nodes, [110, 111, 113, 112, 114, 115]);
    assert_eq!(blocks, 3 + 256 + 2 + 1);
}

#[test]
fn block_number_outside_the_filesystem_is_corrupt() {
    let mut pointers = [0; 15];
    pointers[0] = 8192;
    pointers[1] = 100;
    pointers[12] = 110;
    pointers[13] = 1;
    let (fs, map) = indirect(&pointers, &[(110, vec![u32::MAX, 200])]);
    for block in [0, 12, 300] {
        let error = map.lookup(&fs, FileBlock(block)).unwrap_err();
        assert_eq!(rule(error), IndirectRule::Outside.text());
    }
    assert_eq!(map.block(&fs, FileBlock(1)).unwrap(), Some(BlockNr(100)));
    assert_eq!(map.block(&fs, FileBlock(13)).unwrap(), Some(BlockNr(200)));
}
