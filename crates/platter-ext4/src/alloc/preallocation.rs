//! Preallocation: clusters reserved after the last ones of a growing file, so that its next
//! allocation is contiguous although other files allocate meanwhile.
//!
//! A preallocation is only a preference: it counts as free, and is used by any request when there
//! is no other space.

use std::collections::VecDeque;
use std::ops::Range;

use super::group::{Clusters, count};
use super::search::Search;
use super::{Allocator, Taken, slot};
use crate::ondisk::{BlockNr, GroupNr, InodeNr};

/// Minimum length of a preallocation in blocks; later ones are as long as the file so far.
const PREALLOCATION_BLOCKS_MIN: u32 = 16;
/// Maximum length of a preallocation in blocks: 8 MiB with 4 KiB blocks.
const PREALLOCATION_BLOCKS_MAX: u32 = 2048;
/// Maximum number of growing directories with a preallocation.
const DIRECTORY_PREALLOCATIONS_MAX: usize = 32;

/// The preallocation of one file. To be [closed](close_preallocation) with the file; else other
/// files use the blocks only if there are no others.
#[derive(Debug, Default)]
pub struct Preallocation {
    /// The block after the last allocation.
    next: Option<BlockNr>,
    /// Clusters allocated sequentially so far.
    taken: u32,
    kept: Option<Kept>,
}

/// Preallocated clusters, as long as the group lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// Unique number.
    pub(super) id: u64,
    pub(super) group: GroupNr,
    pub(super) start: u32,
}

impl Preallocation {
    /// Returns the block after the last allocation.
    #[cfg(test)]
    pub(super) fn goal(&self) -> Option<BlockNr> {
        self.next
    }

    /// Continues after newly allocated clusters.
    pub(super) fn follow(&mut self, taken: &Taken, clusters: u32, kept: Option<Kept>) {
        self.taken = self.taken.saturating_add(clusters);
        self.next = Some(taken.clusters.end);
        self.kept = kept;
    }
}

/// The preallocations of the directories that grew last; directories are not closed.
#[derive(Debug, Default)]
pub(super) struct DirectoryPreallocations(VecDeque<(InodeNr, Preallocation)>);

impl DirectoryPreallocations {
    /// Removes the preallocation of a directory, or creates a new one.
    pub(super) fn remove(&mut self, directory: InodeNr) -> Preallocation {
        let at = self.0.iter().position(|&(other, _)| other == directory);
        let found = at.and_then(|at| self.0.remove(at));
        found
            .map(|(_, preallocation)| preallocation)
            .unwrap_or_default()
    }

    /// Adds a preallocation, and returns the oldest one if there are too many.
    pub(super) fn insert(
        &mut self,
        directory: InodeNr,
        preallocation: Preallocation,
    ) -> Option<Preallocation> {
        self.0.push_back((directory, preallocation));
        if self.0.len() <= DIRECTORY_PREALLOCATIONS_MAX {
            return None;
        }
        self.0.pop_front().map(|(_, preallocation)| preallocation)
    }
}

/// Releases a preallocation: its file is closed, deleted or truncated.
pub fn close_preallocation(space: &Allocator, preallocation: &mut Preallocation) {
    close(space, preallocation.kept.take());
    preallocation.next = None;
}

/// Releases preallocated clusters, if there are any.
pub(super) fn close(space: &Allocator, kept: Option<Kept>) {
    let Some(kept) = kept else {
        return;
    };
    if let Some(mut held) = slot::loaded_clusters(space, kept.group) {
        unkeep(space, &mut held, kept);
        space.slot(kept.group).note(&held);
    }
}

/// Lets a search that continues the file use its preallocation, and extend it.
pub(super) fn look_ahead(
    space: &Allocator,
    preallocation: &mut Preallocation,
    search: &mut Search,
) {
    let goal = |goal| space.blocks_of(search.group, &(goal..goal)).start;
    let kept = preallocation.kept.take();
    if preallocation.next.is_none() || preallocation.next != search.goal.map(goal) {
        preallocation.taken = 0;
        return close(space, kept);
    }
    let ratio = space.geometry.cluster_blocks;
    let least = PREALLOCATION_BLOCKS_MIN / ratio;
    search.ahead = preallocation
        .taken
        .clamp(least, (PREALLOCATION_BLOCKS_MAX / ratio).max(least));
    if kept.is_some_and(|kept| kept.group == search.group) {
        search.kept = kept;
    } else {
        close(space, kept);
    }
}

/// Preallocates clusters of a group after the allocated ones.
pub(super) fn keep(
    space: &Allocator,
    held: &mut Clusters,
    group: GroupNr,
    clusters: Range<u32>,
) -> Option<Kept> {
    if clusters.is_empty() {
        return None;
    }
    let kept = Kept {
        id: space.counters.next_preallocation(),
        group,
        start: clusters.start,
    };
    space.counters.kept.add(u64::from(count(&clusters)));
    held.keep(clusters, kept.id);
    Some(kept)
}

/// Releases a preallocation, if it still exists.
pub(super) fn unkeep(space: &Allocator, held: &mut Clusters, kept: Kept) {
    let given = held.unkeep(kept.start, Some(kept.id));
    space.counters.kept.sub(u64::from(given));
}

/// Releases all preallocations, and returns whether there were any.
pub(super) fn close_all(space: &Allocator) -> bool {
    if space.counters.kept.get() == 0 {
        return false;
    }
    let groups: Vec<_> = space.loaded.lock().iter().copied().collect();
    for group in groups {
        if let Some(mut held) = slot::loaded_clusters(space, group) {
            let mut given = 0;
            while let Some(start) = held.first_kept() {
                given += held.unkeep(start, None);
            }
            space.slot(group).note(&held);
            space.counters.kept.sub(u64::from(given));
        }
    }
    true
}

impl Clusters {
    /// Preallocates free clusters under a number.
    fn keep(&mut self, clusters: Range<u32>, id: u64) {
        self.kept.insert(clusters.start, (clusters.end, id));
        self.take(clusters);
    }

    /// Releases the preallocation that begins at `start`, if it has this number or none is given,
    /// and returns its length.
    fn unkeep(&mut self, start: u32, id: Option<u64>) -> u32 {
        let kept = self.kept.get(&start).copied();
        let kept = kept.filter(|&(_, of)| id.is_none_or(|id| id == of));
        let Some((end, _)) = kept else {
            return 0;
        };
        self.kept.remove(&start);
        self.untake(start..end);
        end - start
    }

    fn first_kept(&self) -> Option<u32> {
        self.kept.keys().next().copied()
    }
}
