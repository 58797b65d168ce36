//! Inodes found by their numbers.

use platter_ondisk::Rule;

use super::*;
use crate::context::tests::{broken_rule, sample_context, sample_context_of};
use crate::ondisk::agi::tests::sample_sector;
use crate::ondisk::btree::tests::inobt_leaf;
use crate::ondisk::inode::tests::sample;

/// Inode 131 is the fourth of block 16.
fn block() -> Vec<u8> {
    let mut block = vec![0; 4096];
    block[3 * 512..4 * 512].copy_from_slice(&sample());
    block
}

fn number(number: u64) -> InodeNr {
    InodeNr::new(number).unwrap()
}

#[test]
fn inode_is_found_in_its_cluster() {
    let block = block();
    let context = sample_context(&[(16, &block)]);
    let inode = read(&context, number(131)).unwrap();
    assert_eq!((inode.links, inode.permissions), (1, 0o644));
    let error = read(&context, number(130)).unwrap_err();
    assert_eq!(error.to_string(), "inode at inode 130: bad magic number");
}

#[test]
fn readahead_of_a_directory_takes_what_is_near_its_inode() {
    let context = sample_context(&[]);
    // A cluster of 16 KiB at block 16, and two directory blocks on both sides.
    assert_eq!(
        around_dir(&context, number(131)),
        Some(14 * 4096..22 * 4096)
    );
    assert_eq!(around_dir(&context, number(4 << 15)), None);
}

#[test]
fn number_that_no_inode_has_is_corrupt() {
    let context = sample_context(&[]);
    for bad in [1, 4 << 15] {
        let rule = broken_rule(read(&context, number(bad)));
        assert_eq!(rule, InodeNumberRule::OutOfRange.text());
    }
    assert!(!is_allocated(&context, number(1)).unwrap());
}

#[test]
fn free_inode_is_not_read() {
    let mut block = block();
    let free = &mut block[3 * 512..4 * 512];
    free[2..4].fill(0);
    crate::ondisk::inode::DiskInodeV3::seal(free);
    let context = sample_context(&[(16, &block)]);
    assert_eq!(find(&context, number(131)).unwrap(), None);
    let rule = broken_rule(read(&context, number(131)));
    assert_eq!(rule, InodeNumberRule::Deleted.text());
}

/// Group 1 with its header and this leaf of its inode B-tree.
fn context_with(leaf: &[u8]) -> FsContext {
    let superblock = crate::ondisk::superblock::tests::sample().decode().unwrap();
    sample_context_of(superblock, &header_and(leaf))
}

fn header_and(leaf: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut first = vec![0; 4096];
    first[1024..1536].copy_from_slice(&sample_sector());
    vec![(4096, first), (4096 + 3, leaf.to_vec())]
}

#[test]
fn inode_is_located_by_the_mount_object() {
    let block = block();
    let context = sample_context(&[(16, &block)]);
    let verified = crate::xfs_mount::checks_of_thread();
    read(&context, number(131)).unwrap();
    assert_eq!(crate::xfs_mount::checks_of_thread(), verified + 1);
}

#[test]
fn unaligned_chunks_are_found_in_the_tree() {
    let mut superblock = crate::ondisk::superblock::tests::sample().decode().unwrap();
    superblock.inode_alignment = 0;
    let leaf = inobt_leaf(&[]);
    let context = sample_context_of(superblock, &header_and(&leaf));
    let rule = broken_rule(read(&context, number((1 << 15) + 131)));
    assert_eq!(rule, InodeNumberRule::NoChunk.text());
}

#[test]
fn tree_shows_which_inodes_are_in_use() {
    let chunk = crate::ondisk::btree::InodeChunk {
        start: crate::ondisk::AgInode(128),
        holes: 0xff00,
        count: 32,
        free_count: 1,
        free: 0xffff_ffff_0000_0010,
    };
    let context = context_with(&inobt_leaf(&[chunk]));
    let is_allocated = |within: u64| {
        let number = number((1 << 15) + within);
        is_allocated(&context, number).unwrap()
    };
    assert!(is_allocated(128) && is_allocated(159));
    for free in [127, 132, 160, 191, 192] {
        assert!(!is_allocated(free), "{free}");
    }
}
