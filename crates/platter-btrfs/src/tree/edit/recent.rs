//! The ways to the leaves that were changed last: most changes are next to others.

use platter_vfs::Result;

use super::{Path, Step};
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::{TreeBlock, TreeBlocks};

/// The most ways that are remembered.
const PATHS_MAX: usize = 8;

/// Ways to leaves of one tree that belong to the running transaction, as all blocks on them do.
///
/// # Invariants
/// - A key from `low` on, and below the end of the leaf, belongs to that leaf.
/// - The indices and ends of the steps are those that a search would find. So all are forgotten when a pointer
///   is added or removed.
#[derive(Debug, Default)]
pub struct RecentPaths {
    generation: Generation,
    paths: Vec<RecentPath>,
    /// Where a path to be replaced is looked for.
    hand: usize,
}

#[derive(Debug)]
struct RecentPath {
    low: Key,
    path: Path,
    /// It was found since the hand passed by.
    is_used: bool,
}

impl RecentPath {
    fn leads_to(&self, key: Key) -> bool {
        let end = self.path.leaf().and_then(|leaf| leaf.end);
        self.low <= key && end.is_none_or(|end| key < end)
    }

    fn is_to(&self, leaf: LogicalAddr) -> bool {
        self.path.leaf().is_some_and(|step| step.logical == leaf)
    }
}

impl RecentPaths {
    /// Forgets those of other transactions.
    pub(super) fn begin(&mut self, generation: Generation) {
        if self.generation != generation {
            self.generation = generation;
            self.forget_all();
        }
    }

    /// The path to the leaf that a key belongs to, with any index in the leaf.
    pub(super) fn find(&self, key: Key) -> Option<&Path> {
        let found = self.paths.iter().find(|it| it.leads_to(key));
        found.map(|it| &it.path)
    }

    /// The leaf that a key belongs to in the tree as it is, which does not change meanwhile; `None` if it is not
    /// known.
    pub fn leaf(&self, blocks: &TreeBlocks, tree: TreeId, key: Key) -> Result<Option<TreeBlock>> {
        let Some(leaf) = self.find(key).and_then(Path::leaf) else {
            return Ok(None);
        };
        let expected = Expected {
            level: Some(0),
            generation: Some(self.generation),
            tree: Some(tree),
            ..Expected::default()
        };
        blocks.read(leaf.logical, &expected).map(Some)
    }

    /// As [`find`](Self::find), of a path that is about to be followed again.
    pub(super) fn find_used(&mut self, key: Key) -> Option<&Path> {
        let found = self.paths.iter_mut().find(|it| it.leads_to(key))?;
        found.is_used = true;
        Some(&found.path)
    }

    /// Remembers the path to a leaf that keys from `low` on belong to.
    pub(super) fn add(&mut self, low: Key, path: &Path) {
        let Some(leaf) = path.leaf() else { return };
        let new = RecentPath {
            low,
            path: *path,
            is_used: false,
        };
        if let Some(known) = self.paths.iter_mut().find(|it| it.is_to(leaf.logical)) {
            *known = new;
            return;
        }
        if self.paths.len() < PATHS_MAX {
            self.paths.push(new);
            return;
        }
        // Twice around, none is left that was used.
        for _ in 0..2 * PATHS_MAX {
            self.hand = (self.hand + 1) % PATHS_MAX;
            if let Some(slot) = self.paths.get_mut(self.hand)
                && !std::mem::take(&mut slot.is_used)
            {
                *slot = new;
                return;
            }
        }
    }

    /// The first key of a leaf, by its pointer, changed from `old` to `new`.
    pub(super) fn move_bound(&mut self, leaf: LogicalAddr, old: Key, new: Key) {
        for it in &mut self.paths {
            if it.is_to(leaf) {
                it.low = new;
            } else if let Some(step) = it.path.leaf_mut()
                && step.end == Some(old)
            {
                step.end = Some(new);
            }
        }
    }

    /// All, with the first key that belongs to each.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Path)> {
        self.paths.iter().map(|it| (it.low, &it.path))
    }

    /// Forgets all.
    pub fn forget_all(&mut self) {
        self.paths.clear();
    }
}

impl Path {
    pub(super) fn leaf_mut(&mut self) -> Option<&mut Step> {
        let last = self.len.checked_sub(1)?;
        self.steps.get_mut(last)
    }
}
