//! Mappings in the inode and in a B-tree.

use platter_ondisk::Rule;
use zerocopy::FromBytes;

use super::*;
use crate::context::tests::{broken_rule, sample_context};
use crate::ondisk::btree::{DiskLongHeaderV5, checksum_offset};
use crate::ondisk::checksum;
use crate::ondisk::inode::tests::{inode_with, put_mappings};

fn mapping(offset: u64, start: u64, count: u64) -> Mapping {
    Mapping {
        offset: FileBlock(offset),
        start,
        count,
        is_unwritten: false,
    }
}

fn file(mappings: &[Mapping]) -> Inode {
    inode_with(|disk, literal| {
        disk.core
            .data_extents
            .set(u32::try_from(mappings.len()).unwrap());
        put_mappings(literal, mappings);
    })
}

#[test]
fn runs_are_found_between_holes() {
    let context = sample_context(&[]);
    let unwritten = Mapping {
        is_unwritten: true,
        ..mapping(20, 200, 5)
    };
    let map = ForkMap::of_data(&context, &file(&[mapping(10, 100, 5), unwritten])).unwrap();
    let run = |block| map.lookup(&context, FileBlock(block)).unwrap();
    assert_eq!((run(3).count, run(3).backing), (7, Backing::Hole));
    assert_eq!((run(12).count, run(12).backing), (3, Backing::Written(102)));
    assert_eq!((run(15).count, run(15).backing), (5, Backing::Hole));
    assert_eq!(
        (run(24).count, run(24).backing),
        (1, Backing::Unwritten(204))
    );
    assert_eq!(run(25).end().0, FileBlock::MAX.0 + 1);
    assert_eq!(map.end(&context).unwrap(), FileBlock(25));
}

#[test]
fn mappings_out_of_order_are_corrupt() {
    let context = sample_context(&[]);
    let inode = file(&[mapping(10, 100, 5), mapping(14, 200, 5)]);
    let rule = broken_rule(ForkMap::of_data(&context, &inode));
    assert_eq!(rule, MappingRule::Order.text());
}

#[test]
fn attribute_forks_have_no_unwritten_extents() {
    let context = sample_context(&[]);
    let inode = inode_with(|disk, literal| {
        disk.core.fork_offset = 10;
        disk.core.attr_extents.set(1);
        let unwritten = Mapping {
            is_unwritten: true,
            ..mapping(0, 100, 1)
        };
        put_mappings(&mut literal[80..], &[unwritten]);
    });
    let rule = broken_rule(ForkMap::of_attrs(&context, &inode));
    assert_eq!(rule, MappingRule::Unwritten.text());
}

/// Block 50 as the only leaf of a fork's B-tree.
fn leaf(mappings: &[Mapping]) -> Vec<u8> {
    let mut block = vec![0; 4096];
    let (header, body) = DiskLongHeaderV5::mut_from_prefix(&mut block).unwrap();
    header
        .common
        .magic
        .set(BtreeKind::Bmap.magic(true).unwrap());
    header
        .common
        .records
        .set(u16::try_from(mappings.len()).unwrap());
    header.common.left.set(u64::MAX);
    header.common.right.set(u64::MAX);
    header.block.set(50 * 8);
    header.uuid = [0x5a; 16];
    header.owner.set(131);
    put_mappings(body, mappings);
    checksum::seal(&mut block, checksum_offset(BtreeKind::Bmap));
    block
}

fn file_with_tree(extents: u32) -> Inode {
    inode_with(|disk, literal| {
        disk.core.data_format = 3;
        disk.core.data_extents.set(extents);
        literal[..4].copy_from_slice(&[0, 1, 0, 1]);
        // The first key is block 10; pointers follow the 20 keys that fit.
        literal[4 + 7] = 10;
        literal[4 + 20 * 8 + 7] = 50;
    })
}

#[test]
fn runs_are_found_in_a_tree() {
    let block = leaf(&[mapping(10, 100, 5), mapping(20, 200, 5)]);
    let context = sample_context(&[(50, &block)]);
    let map = ForkMap::of_data(&context, &file_with_tree(2)).unwrap();
    let run = |block| map.lookup(&context, FileBlock(block)).unwrap();
    assert_eq!((run(3).count, run(3).backing), (7, Backing::Hole));
    assert_eq!((run(12).count, run(12).backing), (3, Backing::Written(102)));
    assert_eq!((run(15).count, run(15).backing), (5, Backing::Hole));
    assert_eq!(map.end(&context).unwrap(), FileBlock(25));
    let mut all = Vec::new();
    let walked = map.mappings(&context, &mut |mapping| {
        all.push(mapping.start);
        Ok(ControlFlow::Continue(()))
    });
    walked.unwrap();
    assert_eq!(all, [100, 200]);
}

#[test]
fn inode_counts_the_mappings_of_its_tree() {
    let block = leaf(&[mapping(10, 100, 5)]);
    let context = sample_context(&[(50, &block)]);
    let map = ForkMap::of_data(&context, &file_with_tree(2)).unwrap();
    let walked = map.mappings(&context, &mut |_| Ok(ControlFlow::Continue(())));
    assert_eq!(broken_rule(walked), MappingRule::Count.text());
}
