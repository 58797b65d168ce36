//! The search for free clusters: at the goal, in its group, near it, anywhere.

use std::ops::Range;

use platter_vfs::{Condition, Error, Result};

use super::group::{Request, count};
use super::preallocation::{Kept, Preallocation};
use super::{Allocator, Reserve, Taken};
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

impl Allocator {
    /// Allocates up to `want` adjacent blocks in memory, as near to `goal` as possible. Freed
    /// blocks may have to be made durable first: the caller has no handle, nor a lock that a thread
    /// with a handle may wait for.
    ///
    /// With bigalloc, whole clusters are allocated, and the blocks begin at a cluster boundary: if
    /// a block has a fixed offset in its cluster, `want` counts from the start of the cluster.
    ///
    /// # Errors
    /// `NoSpace`. `Corrupt` or `Io` if the only free blocks are in unusable groups.
    pub fn take(&self, fs: &FsContext, goal: BlockNr, want: u32, from: Reserve) -> Result<Taken> {
        self.take_growing(fs, &mut Preallocation::default(), goal, want, from)
    }

    /// Like [`take`](Self::take), for a file that may grow: if `goal` directly follows the last
    /// allocation with this preallocation, more clusters are preallocated after the new one.
    pub fn take_growing(
        &self,
        fs: &FsContext,
        preallocation: &mut Preallocation,
        goal: BlockNr,
        want: u32,
        from: Reserve,
    ) -> Result<Taken> {
        let mut search = self.search_for(goal, want, from);
        self.look_ahead(preallocation, &mut search);
        for _ in 0..SEARCHES_MAX {
            match self.search(fs, search)? {
                Outcome::Found(group, clusters, kept) => {
                    let taken = self.taken(group, &clusters, want, from);
                    preallocation.follow(&taken, count(&clusters), kept);
                    return Ok(taken);
                }
                Outcome::Refused => break,
                Outcome::Missed => self.finish(fs)?,
            }
        }
        Err(Condition::NoSpace.into())
    }

    /// Allocates up to `want` adjacent blocks and marks them in the bitmap: for metadata, with a
    /// handle. Modifies [`RECORD_CREDITS`](super::RECORD_CREDITS) blocks.
    ///
    /// # Errors
    /// Those of [`take`](Self::take). After `NoSpace`, dropping the handle and [a
    /// retry](platter_vfs::writing::NoSpaceRetry) may help.
    pub fn alloc(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        goal: BlockNr,
        want: u32,
        from: Reserve,
    ) -> Result<Range<BlockNr>> {
        let taken = self.take_now(fs, &mut Preallocation::default(), goal, want, from)?;
        let blocks = taken.blocks();
        self.record(fs, handle, taken)?;
        Ok(blocks)
    }

    /// Like [`alloc`](Self::alloc), for one further cluster of a directory that may grow: more are
    /// preallocated after it.
    pub fn alloc_for_directory(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        directory: InodeNr,
        goal: BlockNr,
        from: Reserve,
    ) -> Result<BlockNr> {
        let mut preallocation = self.directories.lock().remove(directory);
        let taken = self.take_now(fs, &mut preallocation, goal, 1, from);
        let oldest = self.directories.lock().insert(directory, preallocation);
        if let Some(mut oldest) = oldest {
            self.close_preallocation(&mut oldest);
        }
        let taken = taken?;
        let start = taken.start();
        self.record(fs, handle, taken)?;
        Ok(start)
    }

    /// Like [`take_growing`](Self::take_growing), from clusters that can be allocated now.
    fn take_now(
        &self,
        fs: &FsContext,
        preallocation: &mut Preallocation,
        goal: BlockNr,
        want: u32,
        from: Reserve,
    ) -> Result<Taken> {
        let mut search = self.search_for(goal, want, from);
        self.look_ahead(preallocation, &mut search);
        let Outcome::Found(group, clusters, kept) = self.search(fs, search)? else {
            return Err(Condition::NoSpace.into());
        };
        let taken = self.taken(group, &clusters, want, from);
        preallocation.follow(&taken, count(&clusters), kept);
        Ok(taken)
    }

    /// Frees blocks that were allocated in memory and not marked.
    pub fn give_back(&self, taken: Taken) {
        for (group, clusters) in self.clusters_of(taken.clusters) {
            let given = count(&clusters);
            if let Some(mut held) = self.loaded_clusters(group) {
                held.untake(clusters);
                self.slot(group).note(&held);
            }
            self.counters.unclaim(u64::from(given), taken.from);
        }
    }

    /// Whether freed blocks wait for a commit.
    #[must_use]
    pub(super) fn has_pending(&self) -> bool {
        self.counters.pending.get() > 0
    }

    /// Returns how often freed space became allocatable.
    pub fn returned(&self) -> u64 {
        self.counters.returned.get()
    }

    /// Waits until the blocks freed so far can be allocated. The caller has no handle or lock, as
    /// for [`take`](Self::take).
    pub fn finish(&self, fs: &FsContext) -> Result<()> {
        match fs.log() {
            Some(log) if self.has_pending() => log.commit_all(),
            _ => Ok(()),
        }
    }

    fn search_for(&self, goal: BlockNr, want: u32, from: Reserve) -> Search {
        let place = self
            .clusters_of(goal..BlockNr(goal.0.saturating_add(1)))
            .next();
        let want = want.max(1).div_ceil(self.geometry.cluster_blocks);
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
    fn search(&self, fs: &FsContext, mut search: Search) -> Result<Outcome> {
        let claimable = self.counters.claimable(search.from);
        if claimable == 0 {
            self.close(search.kept);
            return Ok(Outcome::Refused);
        }
        search.want = u32::try_from(claimable).map_or(search.want, |most| most.min(search.want));
        let outcome = self.search_all(fs, search);
        if matches!(outcome, Ok(Outcome::Missed)) && self.close_all_preallocations() {
            search.ahead = 0;
            return self.search_all(fs, search);
        }
        outcome
    }

    /// Passes over all groups, each with a lower minimum length than the one before.
    fn search_all(&self, fs: &FsContext, search: Search) -> Result<Outcome> {
        let good_run = (GOOD_RUN_BLOCKS / self.geometry.cluster_blocks).max(1);
        let mut need = search.want.min(good_run);
        let mut failure = None;
        loop {
            let outcome = self.pass(fs, search, need, &mut failure)?;
            if !matches!(outcome, Outcome::Missed) {
                self.pass_by(failure);
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
        &self,
        fs: &FsContext,
        search: Search,
        need: u32,
        failure: &mut Option<Error>,
    ) -> Result<Outcome> {
        let mut new_groups = 0;
        for group in self.groups_from(search.group) {
            let slot = self.slot(group);
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
            match self.take_in(fs, group, search, need) {
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
    fn take_in(
        &self,
        fs: &FsContext,
        group: GroupNr,
        search: Search,
        need: u32,
    ) -> Result<Outcome> {
        let mut held = self.clusters(fs, group)?;
        if let Some(kept) = search.kept.filter(|kept| kept.group == group) {
            self.unkeep(&mut held, kept);
        }
        let request = Request {
            goal: search.goal.filter(|_| group == search.group),
            want: search.want.saturating_add(search.ahead),
            need,
        };
        let Some(found) = held.find(request) else {
            self.slot(group).note(&held);
            return Ok(Outcome::Missed);
        };
        // Claimed only now, so that no thread is refused because of clusters that another did not
        // find.
        let want = count(&found).min(search.want);
        let granted = self.counters.claim(want, search.from);
        if granted == 0 {
            self.slot(group).note(&held);
            return Ok(Outcome::Refused);
        }
        let end = found.start + granted;
        held.take(found.start..end);
        let kept = if granted == want {
            self.keep(&mut held, group, end..found.end)
        } else {
            None
        };
        self.slot(group).note(&held);
        Ok(Outcome::Found(group, found.start..end, kept))
    }

    fn taken(&self, group: GroupNr, range: &Range<u32>, want: u32, from: Reserve) -> Taken {
        let clusters = self.blocks_of(group, range);
        let blocks = clusters.end.0 - clusters.start.0;
        Taken {
            clusters,
            blocks: u32::try_from(blocks).map_or(want, |blocks| blocks.min(want)),
            from,
        }
    }

    /// Returns all groups: first the flex group of the goal's group, from it on.
    fn groups_from(&self, goal: GroupNr) -> impl Iterator<Item = GroupNr> + use<> {
        let count = self.geometry.groups_count;
        let flex = self.geometry.groups_per_flex;
        let first = goal.0 - goal.0 % flex;
        let end = count.min(first.saturating_add(flex));
        (goal.0..end)
            .chain(first..goal.0)
            .chain(end..count)
            .chain(0..first)
            .map(GroupNr)
    }
}
