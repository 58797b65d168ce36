//! Reservations of space for blocks that are about to be dirty, and times of changes.

use std::collections::BTreeMap;
use std::ops::Range;

use platter_vfs::{Result, Timestamp};

use super::super::{Ext4Inode, InodeState};
use crate::alloc::Allocator;
use crate::fs_context::FsContext;
use crate::mapping::{Backing, Run, blocks_of_leaf, leaf_of};
use crate::ondisk::{FileBlock, InodeFlags};

/// Times of a file that is being written are no more exact than this, as in Linux, so that not
/// every write changes the inode.
const TICK_NANOSECONDS: i64 = 4_000_000;

/// Records a change of contents, unless one was recorded just now.
pub(super) fn touch(node: &Ext4Inode) -> Result<()> {
    let now = node.sb.clock.now();
    {
        let inode = &node.state.read().inode;
        if is_recent(inode.modified, now) && is_recent(inode.changed, now) {
            return Ok(());
        }
    }
    node.change(0, |_, state| {
        state.inode.modified = now;
        state.inode.changed = now;
        Ok(())
    })
}

/// Marks blocks as about to be dirty, and reserves space for them where they have none. Returns
/// those that were not dirty, as far as they are not mapped to written blocks.
pub(super) fn dirty(
    state: &mut InodeState,
    fs: &FsContext,
    space: &Allocator,
    blocks: Range<FileBlock>,
) -> Result<Vec<Range<u32>>> {
    let unplaced = holes(state, fs, space, blocks)?;
    let added = unplaced.into_iter().map(|run| state.delayed.add(run));
    Ok(added.flatten().collect())
}

/// Reserves space for all holes of a range. Returns the parts of the range that have no contents
/// on the device.
pub(super) fn holes(
    state: &mut InodeState,
    fs: &FsContext,
    space: &Allocator,
    blocks: Range<FileBlock>,
) -> Result<Vec<Range<FileBlock>>> {
    let (mut unplaced, mut clusters) = (Vec::new(), Vec::new());
    let mut leaves = BTreeMap::new();
    let mut at = blocks.start;
    while at < blocks.end {
        let run = state.map.lookup(fs, at)?.truncated(blocks.end.0 - at.0);
        at = run.end();
        match run.backing {
            Backing::Written(_) => continue,
            Backing::Unwritten(_) => {}
            Backing::Hole => {
                let missing = missing_clusters(state, fs, &run)?;
                clusters.extend(state.delayed.unreserved(missing));
                count_missing_leaves(state, fs, &run, &mut leaves)?;
            }
        }
        unplaced.push(run.first..run.end());
    }
    let of_clusters: u64 = clusters
        .iter()
        .map(|run| u64::from(run.end - run.start))
        .sum();
    let of_leaves: u64 = leaves.values().map(|&count| u64::from(count)).sum();
    // As in Linux, indirect blocks are counted when they are allocated.
    state.quota.reserve(fs, space, of_clusters)?;
    let reserved = space.reserve_delayed(of_clusters + of_leaves, space.contents_from());
    if let Err(error) = reserved {
        state.quota.release(fs, of_clusters);
        return Err(error);
    }
    for run in clusters {
        state.delayed.reserve(run);
    }
    for (leaf, count) in leaves {
        state.delayed.reserve_leaf(leaf, count);
    }
    Ok(unplaced)
}

/// Adds the leaf arrays of a hole that have no reservation yet, with the indirect blocks they
/// need. An indirect block that several lack is counted for each.
fn count_missing_leaves(
    state: &InodeState,
    fs: &FsContext,
    hole: &Run,
    leaves: &mut BTreeMap<u32, u32>,
) -> Result<()> {
    if state.inode.flags.contains(InodeFlags::EXTENTS) {
        return Ok(());
    }
    let mut at = hole.first;
    while at < hole.end() {
        let leaf = leaf_of(&fs.geometry, at);
        let missing = state.map.missing_nodes(fs, at)?;
        if missing > 0 && !state.delayed.has_leaf(leaf) {
            leaves.insert(leaf, missing);
        }
        at = FileBlock(blocks_of_leaf(&fs.geometry, leaf).end);
    }
    Ok(())
}

/// The clusters of a hole that no block of the file lies in.
fn missing_clusters(state: &InodeState, fs: &FsContext, hole: &Run) -> Result<Range<u32>> {
    let ratio = fs.geometry.cluster_blocks;
    let mut start = hole.first.0 / ratio;
    let mut end = hole.end().0.div_ceil(ratio);
    if ratio > 1 {
        if state.map.place_in_cluster(fs, start)?.is_some() {
            start += 1;
        }
        if start < end && state.map.place_in_cluster(fs, end - 1)?.is_some() {
            end -= 1;
        }
    }
    Ok(start..end.max(start))
}

/// Releases the reservations of blocks that will not be written.
pub(super) fn forget(
    state: &mut InodeState,
    fs: &FsContext,
    space: &Allocator,
    blocks: Range<FileBlock>,
) {
    if blocks.start < blocks.end {
        let reserved = state.delayed.forget(&fs.geometry, blocks);
        space.release_delayed(u64::from(reserved.count()));
        state.quota.release(fs, u64::from(reserved.clusters));
    }
}

/// Records that blocks are on the device, which used up `used` blocks of the reservation. Releases
/// what else was reserved for their clusters and their leaf array.
pub(super) fn place(
    state: &mut InodeState,
    fs: &FsContext,
    space: &Allocator,
    run: &Run,
    used: u32,
) {
    let reserved = state.delayed.place(&fs.geometry, run.first..run.end());
    let left = reserved.count().saturating_sub(used);
    state.quota.claim(fs, u64::from(reserved.clusters));
    space.release_delayed(u64::from(left));
}

/// Whether a time is no more than a tick before `now`.
fn is_recent(time: Timestamp, now: Timestamp) -> bool {
    let nanoseconds = |time: Timestamp| {
        time.seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::from(time.nanoseconds))
    };
    let age = nanoseconds(now).saturating_sub(nanoseconds(time));
    (0..TICK_NANOSECONDS).contains(&age)
}
