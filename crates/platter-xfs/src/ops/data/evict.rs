//! Inodes that lost their last name and now their last user: all that they have becomes free.

use std::sync::atomic::Ordering;

use platter_vfs::{FileKind, Result};

use super::super::{Inode, attr_fork, inactivation};
use super::steps::{self, STEP_MAPPINGS, unmap_cost};
use crate::change::{Cost, Unmapped, unmap};
use crate::ondisk::{FileBlock, ForkFormat, ForkKind};

/// More extents than the target of a link has.
const TARGET_EXTENTS_MAX: u32 = 4;
/// What the blocks of metadata that one step frees take in the log.
const CANCELLED_BYTES: u64 = 16 << 10;

/// Frees what the inode holds, and has the inode become free, unless that was tried before. It is on a list of inodes
/// without a name until that is done: an error leaves it there, for the next mount.
pub(in crate::ops) fn evict(inode: &Inode) -> Result<()> {
    if inode.is_deleted.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    inode.pages.truncate(0);
    steps::release_all(inode);
    let (has_blocks, has_attributes) = {
        let stored = &inode.state.read().inode;
        let has_blocks = matches!(stored.data_format, ForkFormat::Extents | ForkFormat::Btree)
            && stored.data_extents > 0;
        (has_blocks, stored.attr_extents > 0)
    };
    // A link that is on a list has its target: Linux looks for it.
    let is_link = inode.kind == FileKind::Symlink;
    if has_blocks && !is_link {
        unmap_fork(inode, ForkKind::Data)?;
    }
    if has_attributes {
        // Linux reads them when it goes on with this: from the first block on.
        inode.change(unmap_cost(), |change, edit, _| {
            attr_fork::empty(change, edit)
        })?;
        unmap_fork(inode, ForkKind::Attr)?;
    }
    if has_blocks && is_link {
        return free_link(inode);
    }
    inactivation::free_later(&inode.superblock, inode.number)
}

/// Frees a link with the blocks of its target.
fn free_link(inode: &Inode) -> Result<()> {
    let cost = Cost {
        extents: 1 + TARGET_EXTENTS_MAX,
        inodes: 3,
        ..Cost::default()
    };
    inode.superblock.change(&cost, &[inode], |change, _| {
        let mut edit = change.inode(inode.number)?;
        let all = FileBlock(0)..FileBlock(u64::MAX);
        unmap(change, &mut edit, ForkKind::Data, all, TARGET_EXTENTS_MAX)?;
        change.remove_unlinked(&mut edit)?;
        change.free_inode(edit)
    })
}

/// Frees all blocks of a fork, step by step.
fn unmap_fork(inode: &Inode, kind: ForkKind) -> Result<()> {
    let cost = unmap_cost().and(Cost {
        bytes: CANCELLED_BYTES,
        ..Cost::default()
    });
    let mut end = FileBlock(u64::MAX);
    loop {
        let left = inode.change(cost, |change, edit, _| {
            unmap(change, edit, kind, FileBlock(0)..end, STEP_MAPPINGS)
        })?;
        match left {
            Unmapped::All => return Ok(()),
            Unmapped::Before(before) => end = before,
        }
    }
}
