//! The search for free clusters: at the goal, in its group, near it, anywhere.

use std::ops::Range;

use platter_vfs::{Condition, Error, Result};

use super::group::{Request, count};
use super::preallocation::{Kept, Preallocation};
use super::{Allocator, Reserve, Taken, preallocation, record, slot};
use crate::FsContext;
use crate::ondisk::{BlockNr, GroupNr, InodeNr};
use crate::txn::Handle;

/// Length of a run that ends the search for longer ones, in blocks: 8 MiB with 4 KiB blocks.
const GOOD_RUN_BLOCKS: u32 = 2048;
/// Factor by which each pass of a search lowers its minimum length.
const NEED_STEP: u32 = 4;
/// Maximum number of unread bitmaps that a search for a long run reads.
const NEW_GROUPS_MAX: u32 = 16;
/// Maximum number of searches for clusters known to be free while other threads allocate and free.
const SEARCHES_MAX: u32 = 8;
/// Maximum number of clusters allocated at a time.
const TAKEN_CLUSTERS_MAX: u32 = 32_768;

/// The parameters of a search, in clusters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    pub(super) group: GroupNr,
    /// The preferred start, in `group`.
    pub(super) goal: Option<u32>,
    pub(super) want: u32,
    /// Number of clusters to preallocate after the allocated ones.
    pub(super) ahead: u32,
    /// The preallocation of this file in `group`.
    pub(super) kept: Option<Kept>,
    pub(super) from: Reserve,
}

/// The result of a search.
pub(super) enum Outcome {
    /// Allocated clusters, and the preallocation after them.
    Found(GroupNr, Range<u32>, Option<Kept>),
    /// There is not enough space.
    Refused,
    /// There is space, but not among the clusters that can be allocated now.
    Missed,
}

/// Allocates up to `want` adjacent blocks in memory, as near to `goal` as possible. Freed
/// blocks may have to be made durable first: the caller has no handle, nor a lock that a thread
/// with a handle may wait for.
///
/// With bigalloc, whole clusters are allocated, and the blocks begin at a cluster boundary: if
/// a block has a fixed offset in its cluster, `want` counts from the start of the cluster.
///
/// # Errors
/// `NoSpace`. `Corrupt` or `Io` if the only free blocks are in unusable groups.
pub fn take(
    space: &Allocator,
    fs: &FsContext,
    goal: BlockNr,
    want: u32,
    from: Reserve,
) -> Result<Taken> {
    take_growing(space, fs, &mut Preallocation::default(), goal, want, from)
}

/// Like [`take`], for a file that may grow: if `goal` directly follows the last
/// allocation with this preallocation, more clusters are preallocated after the new one.
pub fn take_growing(
    space: &Allocator,
    fs: &FsContext,
    preallocation: &mut Preallocation,
    goal: BlockNr,
    want: u32,
    from: Reserve,
) -> Result<Taken> {
    let mut search = search_for(space, goal, want, from);
    preallocation::look_ahead(space, preallocation, &mut search);
    for _ in 0..SEARCHES_MAX {
        match find(space, fs, search)? {
            Outcome::Found(group, clusters, kept) => {
                let taken = taken(space, group, &clusters, want, from);
                preallocation.follow(&taken, count(&clusters), kept);
                return Ok(taken);
            }
            Outcome::Refused => break,
            Outcome::Missed => finish_freed(space, fs)?,
        }
    }
    Err(Condition::NoSpace.into())
}

/// Allocates up to `want` adjacent blocks and marks them in the bitmap: for metadata, with a
/// handle. Modifies [`RECORD_CREDITS`](super::RECORD_CREDITS) blocks.
///
/// # Errors
/// Those of [`take`]. After `NoSpace`, dropping the handle and [a
/// retry](platter_vfs::writing::NoSpaceRetry) may help.
pub fn alloc_blocks(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    goal: BlockNr,
    want: u32,
    from: Reserve,
) -> Result<Range<BlockNr>> {
    let taken = take_now(space, fs, &mut Preallocation::default(), goal, want, from)?;
    let blocks = taken.blocks();
    record::record(space, fs, handle, taken)?;
    Ok(blocks)
}

/// Like [`alloc_blocks`], for one further cluster of a directory that may grow: more are
/// preallocated after it.
pub fn alloc_for_directory(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    directory: InodeNr,
    goal: BlockNr,
    from: Reserve,
) -> Result<BlockNr> {
    let mut preallocation = space.directories.lock().remove(directory);
    let taken = take_now(space, fs, &mut preallocation, goal, 1, from);
    let oldest = space.directories.lock().insert(directory, preallocation);
    if let Some(mut oldest) = oldest {
        preallocation::close_preallocation(space, &mut oldest);
    }
    let taken = taken?;
    let start = taken.start();
    record::record(space, fs, handle, taken)?;
    Ok(start)
}

/// Like [`take_growing`], from clusters that can be allocated now.
fn take_now(
    space: &Allocator,
    fs: &FsContext,
    preallocation: &mut Preallocation,
    goal: BlockNr,
    want: u32,
    from: Reserve,
) -> Result<Taken> {
    let mut search = search_for(space, goal, want, from);
    preallocation::look_ahead(space, preallocation, &mut search);
    let Outcome::Found(group, clusters, kept) = find(space, fs, search)? else {
        return Err(Condition::NoSpace.into());
    };
    let taken = taken(space, group, &clusters, want, from);
    preallocation.follow(&taken, count(&clusters), kept);
    Ok(taken)
}

/// Frees blocks that were allocated in memory and not marked.
pub fn give_back(space: &Allocator, taken: Taken) {
    for (group, clusters) in space.clusters_of(taken.clusters) {
        let given = count(&clusters);
        if let Some(mut held) = slot::loaded_clusters(space, group) {
            held.untake(clusters);
            space.slot(group).note(&held);
        }
        space.counters.unclaim(u64::from(given), taken.from);
    }
}

/// Waits until the blocks freed so far can be allocated. The caller has no handle or lock, as
/// for [`take`].
pub fn finish_freed(space: &Allocator, fs: &FsContext) -> Result<()> {
    match fs.log() {
        Some(log) if space.has_pending() => log.commit_all(),
        _ => Ok(()),
    }
}

fn search_for(space: &Allocator, goal: BlockNr, want: u32, from: Reserve) -> Search {
    let place = space
        .clusters_of(goal..BlockNr(goal.0.saturating_add(1)))
        .next();
    let want = want.max(1).div_ceil(space.geometry.cluster_blocks);
    Search {
        group: place.as_ref().map_or(GroupNr(0), |&(group, _)| group),
        goal: place.map(|(_, clusters)| clusters.start),
        want: want.min(TAKEN_CLUSTERS_MAX),
        ahead: 0,
        kept: None,
        from,
    }
}

/// Searches outside preallocations, and then in them as well.
fn find(space: &Allocator, fs: &FsContext, mut search: Search) -> Result<Outcome> {
    let claimable = space.counters.claimable(search.from);
    if claimable == 0 {
        preallocation::close(space, search.kept);
        return Ok(Outcome::Refused);
    }
    search.want = u32::try_from(claimable).map_or(search.want, |most| most.min(search.want));
    let outcome = search_all(space, fs, search);
    if matches!(outcome, Ok(Outcome::Missed)) && preallocation::close_all(space) {
        search.ahead = 0;
        return search_all(space, fs, search);
    }
    outcome
}

/// Passes over all groups, each with a lower minimum length than the one before.
fn search_all(space: &Allocator, fs: &FsContext, search: Search) -> Result<Outcome> {
    let good_run = (GOOD_RUN_BLOCKS / space.geometry.cluster_blocks).max(1);
    let mut need = search.want.min(good_run);
    let mut failure = None;
    loop {
        let outcome = pass(space, fs, search, need, &mut failure)?;
        if !matches!(outcome, Outcome::Missed) {
            space.pass_by(failure);
            return Ok(outcome);
        }
        if need == 1 {
            return failure.map_or(Ok(outcome), Err);
        }
        need = (need / NEED_STEP).max(1);
    }
}

/// Passes over all groups once. A group that cannot be read is skipped and its error recorded.
fn pass(
    space: &Allocator,
    fs: &FsContext,
    search: Search,
    need: u32,
    failure: &mut Option<Error>,
) -> Result<Outcome> {
    let mut new_groups = 0;
    for group in groups_from(space, search.group) {
        let slot = space.slot(group);
        let is_goal = group == search.group;
        let is_kept_here = is_goal && search.kept.is_some();
        // At the goal, a shorter run is acceptable.
        if !is_kept_here && !slot.may_hold(if is_goal { 1 } else { need }) {
            continue;
        }
        if need > 1 && !is_goal && !slot.is_known() {
            new_groups += 1;
            if new_groups > NEW_GROUPS_MAX {
                continue;
            }
        }
        match take_in_group(space, fs, group, search, need) {
            Ok(Outcome::Missed) => {}
            Ok(outcome) => return Ok(outcome),
            Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
                failure.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Outcome::Missed)
}

/// Allocates clusters of one group, if it has suitable ones.
fn take_in_group(
    space: &Allocator,
    fs: &FsContext,
    group: GroupNr,
    search: Search,
    need: u32,
) -> Result<Outcome> {
    let mut held = slot::clusters(space, fs, group)?;
    if let Some(kept) = search.kept.filter(|kept| kept.group == group) {
        preallocation::unkeep(space, &mut held, kept);
    }
    let request = Request {
        goal: search.goal.filter(|_| group == search.group),
        want: search.want.saturating_add(search.ahead),
        need,
    };
    let Some(found) = held.find(request) else {
        space.slot(group).note(&held);
        return Ok(Outcome::Missed);
    };
    // Claimed only now, so that no thread is refused because of clusters that another did not
    // find.
    let want = count(&found).min(search.want);
    let granted = space.counters.claim(want, search.from);
    if granted == 0 {
        space.slot(group).note(&held);
        return Ok(Outcome::Refused);
    }
    let end = found.start + granted;
    held.take(found.start..end);
    let kept = if granted == want {
        preallocation::keep(space, &mut held, group, end..found.end)
    } else {
        None
    };
    space.slot(group).note(&held);
    Ok(Outcome::Found(group, found.start..end, kept))
}

fn taken(space: &Allocator, group: GroupNr, range: &Range<u32>, want: u32, from: Reserve) -> Taken {
    let clusters = space.blocks_of(group, range);
    let blocks = clusters.end.0 - clusters.start.0;
    Taken {
        clusters,
        blocks: u32::try_from(blocks).map_or(want, |blocks| blocks.min(want)),
        from,
    }
}

/// Returns all groups: first the flex group of the goal's group, from it on.
fn groups_from(space: &Allocator, goal: GroupNr) -> impl Iterator<Item = GroupNr> + use<> {
    let count = space.geometry.groups_count;
    let flex = space.geometry.groups_per_flex;
    let first = goal.0 - goal.0 % flex;
    let end = count.min(first.saturating_add(flex));
    (goal.0..end)
        .chain(first..goal.0)
        .chain(end..count)
        .chain(0..first)
        .map(GroupNr)
}
