//! Windows: clusters kept behind the last ones of a file that grows, so that what it takes next
//! follows them though other files take some meanwhile.
//!
//! What is kept is a wish: it counts as free, and when nothing else is left anybody gets it.

use std::collections::VecDeque;
use std::ops::Range;

use super::group::{Clusters, count};
use super::search::Search;
use super::{Space, Taken};
use crate::ondisk::{BlockNr, GroupNr, InodeNr};

/// The first window of a file, in blocks; it is as long as what the file took so far later on.
const WINDOW_BLOCKS_MIN: u32 = 16;
/// The longest window: 8 MiB at 4 KiB a block.
const WINDOW_BLOCKS_MAX: u32 = 2048;
/// So many directories that grow have a window.
const DIRECTORY_WINDOWS_MAX: usize = 32;

/// What is kept for one file. To be [closed](Space::close_window) when the file is; else others get
/// the blocks only under pressure.
#[derive(Debug, Default)]
pub struct Window {
    /// Where the file would go on.
    next: Option<BlockNr>,
    /// Clusters taken in the order of the file so far.
    taken: u32,
    kept: Option<Kept>,
}

/// Clusters that are kept, if the group still knows of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// Never given out twice.
    pub(super) id: u64,
    pub(super) group: GroupNr,
    pub(super) start: u32,
}

impl Window {
    /// Where the file would go on.
    #[cfg(test)]
    pub(super) fn goal(&self) -> Option<BlockNr> {
        self.next
    }

    /// Goes on from clusters that were taken.
    pub(super) fn follow(&mut self, taken: &Taken, clusters: u32, kept: Option<Kept>) {
        self.taken = self.taken.saturating_add(clusters);
        self.next = Some(taken.clusters.end);
        self.kept = kept;
    }
}

/// The windows of the directories that grew last: nobody closes a directory.
#[derive(Debug, Default)]
pub(super) struct DirectoryWindows(VecDeque<(InodeNr, Window)>);

impl DirectoryWindows {
    /// The window of a directory, which may be a new one.
    pub(super) fn remove(&mut self, directory: InodeNr) -> Window {
        let at = self.0.iter().position(|&(other, _)| other == directory);
        let found = at.and_then(|at| self.0.remove(at));
        found.map(|(_, window)| window).unwrap_or_default()
    }

    /// Takes a window in, and gives back the oldest one if there are too many.
    pub(super) fn insert(&mut self, directory: InodeNr, window: Window) -> Option<Window> {
        self.0.push_back((directory, window));
        if self.0.len() <= DIRECTORY_WINDOWS_MAX {
            return None;
        }
        self.0.pop_front().map(|(_, window)| window)
    }
}

impl Space {
    /// Gives back what is kept with a window: its file is closed, removed or cut off.
    pub fn close_window(&self, window: &mut Window) {
        self.close(window.kept.take());
        window.next = None;
    }

    pub(super) fn close(&self, kept: Option<Kept>) {
        let Some(kept) = kept else {
            return;
        };
        if let Some(mut held) = self.loaded_clusters(kept.group) {
            self.unkeep(&mut held, kept);
            self.slot(kept.group).note(&held);
        }
    }

    /// Has a search that goes on where the window's file ended use what is kept, and keep more.
    pub(super) fn look_ahead(&self, window: &mut Window, search: &mut Search) {
        let goal = |goal| self.blocks_of(search.group, &(goal..goal)).start;
        let kept = window.kept.take();
        if window.next.is_none() || window.next != search.goal.map(goal) {
            window.taken = 0;
            return self.close(kept);
        }
        let ratio = self.geometry.cluster_blocks;
        let least = WINDOW_BLOCKS_MIN / ratio;
        search.ahead = window
            .taken
            .clamp(least, (WINDOW_BLOCKS_MAX / ratio).max(least));
        if kept.is_some_and(|kept| kept.group == search.group) {
            search.kept = kept;
        } else {
            self.close(kept);
        }
    }

    /// Keeps clusters of a group behind those that were taken.
    pub(super) fn keep(
        &self,
        held: &mut Clusters,
        group: GroupNr,
        clusters: Range<u32>,
    ) -> Option<Kept> {
        if clusters.is_empty() {
            return None;
        }
        let kept = Kept {
            id: self.counters.next_window(),
            group,
            start: clusters.start,
        };
        self.counters.kept.add(u64::from(count(&clusters)));
        held.keep(clusters, kept.id);
        Some(kept)
    }

    /// Makes what is kept free, if it still is kept.
    pub(super) fn unkeep(&self, held: &mut Clusters, kept: Kept) {
        let given = held.unkeep(kept.start, Some(kept.id));
        self.counters.kept.sub(u64::from(given));
    }

    /// Gives back everything that is kept, and tells whether that was anything.
    pub(super) fn close_all_windows(&self) -> bool {
        if self.counters.kept.get() == 0 {
            return false;
        }
        let groups: Vec<_> = self.loaded.lock().iter().copied().collect();
        for group in groups {
            if let Some(mut held) = self.loaded_clusters(group) {
                let mut given = 0;
                while let Some(start) = held.first_kept() {
                    given += held.unkeep(start, None);
                }
                self.slot(group).note(&held);
                self.counters.kept.sub(u64::from(given));
            }
        }
        true
    }
}

impl Clusters {
    /// Keeps free clusters under a number.
    fn keep(&mut self, clusters: Range<u32>, id: u64) {
        self.kept.insert(clusters.start, (clusters.end, id));
        self.take(clusters);
    }

    /// Makes the clusters free that are kept from `start` on, with this number if one is given, and
    /// tells how many those were.
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
