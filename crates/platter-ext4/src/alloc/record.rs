//! Marking allocated and freed blocks in a transaction: bitmap, descriptor, and superblock counts.

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::group::{Clusters, count};
use super::{Allocator, SpaceRule, Taken, recording, search, slot};
use crate::FsContext;
use crate::ondisk::bitmap;
use crate::ondisk::superblock::SuperblockVerifier;
use crate::ondisk::{BlockNr, GroupNr};
use crate::txn::{CommitClient, Handle};

/// Marks blocks allocated in memory in the bitmap and counts, as part of a transaction.
/// Modifies [`RECORD_CREDITS`](super::RECORD_CREDITS) blocks.
///
/// # Errors
/// The blocks are freed, unless the transaction was aborted.
pub fn record(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    taken: Taken,
) -> Result<()> {
    for (group, clusters) in space.clusters_of(taken.clusters.clone()) {
        let recorded = record_in_group(space, fs, handle, group, clusters);
        if let Err(error) = recorded {
            search::give_back(space, taken);
            return Err(error);
        }
    }
    Ok(())
}

fn record_in_group(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    group: GroupNr,
    clusters: Range<u32>,
) -> Result<()> {
    let mut held = slot::clusters(space, fs, group)?;
    let recorded = count(&clusters);
    assign(space, handle, group, &mut held, clusters, true)?;
    held.unfinished = held.unfinished.saturating_sub(recorded);
    space.counters.free.sub(u64::from(recorded));
    Ok(())
}

/// Frees blocks, which can be allocated again once the transaction is durable. With bigalloc,
/// all clusters that the range overlaps are freed. Modifies
/// [`free_credits`](Allocator::free_credits) blocks.
///
/// Blocks that held metadata must be [forgotten](Handle::forget) as well.
///
/// # Errors
/// `Corrupt` if one of them is free already, or not allocatable: nothing is changed.
pub fn free_blocks(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    blocks: Range<BlockNr>,
) -> Result<()> {
    if space.excluded.is_some() {
        return space.mark(fs, handle, blocks, false);
    }
    check_freeable(space, fs, &blocks)?;
    let mut is_changed = false;
    for (group, clusters) in space.clusters_of(blocks) {
        if let Err(error) = free_in_group(space, fs, handle, group, clusters) {
            // Only a concurrent free of the same blocks can intervene.
            return Err(if is_changed {
                handle.abort(error)
            } else {
                error
            });
        }
        is_changed = true;
    }
    Ok(())
}

/// Checks that blocks can be freed, which reads the bitmaps of their groups: before an operation that
/// frees them after other changes.
///
/// # Errors
/// Those of [`free_blocks`].
pub fn check_freeable(space: &Allocator, fs: &FsContext, blocks: &Range<BlockNr>) -> Result<()> {
    if space.excluded.is_some() {
        return Ok(());
    }
    let length = blocks.end.0.saturating_sub(blocks.start.0);
    let is_inside = space.geometry.contains(blocks.start, length);
    let own = space.fixed.within(blocks.start.0..blocks.end.0).next();
    if !is_inside || own.is_some() {
        let locus = Locus::block(own.map_or(blocks.start.0, |own| own.start));
        return Err(Corrupt::new(locus, SpaceRule::FreedOwn).into());
    }
    for (group, clusters) in space.clusters_of(blocks.clone()) {
        let held = slot::clusters(space, fs, group)?;
        check_allocated(space, group, &held, &clusters)?;
    }
    Ok(())
}

fn check_allocated(
    space: &Allocator,
    group: GroupNr,
    held: &Clusters,
    clusters: &Range<u32>,
) -> Result<()> {
    if held.is_recorded(clusters.clone(), true) {
        return Ok(());
    }
    let first = space.blocks_of(group, clusters).start.0;
    let locus = Locus::group(u64::from(group.0)).at_block(first);
    Err(Corrupt::new(locus, SpaceRule::BlockFreedTwice).into())
}

fn free_in_group(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    group: GroupNr,
    clusters: Range<u32>,
) -> Result<()> {
    let freed = count(&clusters);
    let blocks = space.blocks_of(group, &clusters);
    let mut held = slot::clusters(space, fs, group)?;
    check_allocated(space, group, &held, &clusters)?;
    assign(space, handle, group, &mut held, clusters, false)?;
    held.unfinished += freed;
    space.counters.free.add(u64::from(freed));
    space.counters.pending.add(u64::from(freed));
    space.counters.release(u64::from(freed));
    handle.free_when_durable(blocks);
    Ok(())
}

/// Initializes the block bitmap of a group without one. Modifies at most two blocks.
pub(super) fn initialize_bitmap(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    group: GroupNr,
) -> Result<()> {
    let mut held = slot::clusters(space, fs, group)?;
    if held.recording.is_absent() {
        recording::join(space, handle, group, &mut held.recording)?;
    }
    Ok(())
}

/// Sets or clears bits of a group's bitmap, all of which change.
fn assign(
    space: &Allocator,
    handle: &mut Handle<'_>,
    group: GroupNr,
    held: &mut Clusters,
    clusters: Range<u32>,
    taken: bool,
) -> Result<()> {
    debug_assert!(
        held.is_recorded(clusters.clone(), !taken),
        "bits change that are written"
    );
    recording::join(space, handle, group, &mut held.recording)?;
    bitmap::assign_range(&mut held.recorded, clusters, taken);
    Ok(())
}

/// Makes freed clusters allocatable.
fn reuse(space: &Allocator, blocks: Range<BlockNr>) {
    for (group, clusters) in space.clusters_of(blocks) {
        let freed = count(&clusters);
        // The bitmap of a group with pending frees stays in memory.
        if let Some(mut held) = slot::loaded_clusters(space, group) {
            held.untake(clusters);
            space.slot(group).note(&held);
        }
        // In this order: a thread that sees no pending clusters also sees the increment.
        space.counters.returned.add(1);
        space.counters.pending.sub(u64::from(freed));
    }
}

impl CommitClient for Allocator {
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()> {
        let (clusters, free_inodes) = recording::write_pending(self, handle)?;
        let geometry = &self.geometry;
        let ratio = u64::from(geometry.cluster_blocks);
        let mut blocks = self.counters.free.get().saturating_mul(ratio);
        let mut inodes = self.counters.free_inodes.get();
        let mut stored = self.stored.lock();
        if self.excluded.is_some() {
            // The counters do not include what was marked.
            let change = clusters.saturating_mul(i64::from(geometry.cluster_blocks));
            blocks = stored.0.saturating_add_signed(change);
            inodes = stored.1.saturating_add_signed(free_inodes);
        }
        if *stored == (blocks, inodes) {
            return Ok(());
        }
        let verifier = SuperblockVerifier::new(geometry);
        handle.edit(geometry.superblock_block, &verifier, |bytes| {
            if let Some(disk) = verifier.find_mut(bytes) {
                disk.set_free_counts(blocks, u32::try_from(inodes).unwrap_or(u32::MAX));
            }
            Ok(())
        })?;
        *stored = (blocks, inodes);
        Ok(())
    }

    fn committed(&self, freed: &[Range<BlockNr>]) {
        for blocks in freed {
            reuse(self, blocks.clone());
        }
    }
}
