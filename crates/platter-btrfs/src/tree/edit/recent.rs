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
    /// The one that was found or added last.
    current: usize,
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

    /// Whether the leaf that a key belongs to is known, and belongs to a transaction.
    #[must_use]
    pub fn has_leaf(&self, generation: Generation, key: Key) -> bool {
        self.generation == generation && self.find(key).is_some()
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

    /// Makes the path to the leaf that a key belongs to the current one. Returns that leaf's step.
    pub(super) fn follow(&mut self, key: Key) -> Option<Step> {
        let at = self.paths.iter().position(|it| it.leads_to(key))?;
        let found = self.paths.get_mut(at)?;
        found.is_used = true;
        self.current = at;
        found.path.leaf()
    }

    /// Sets the index in the leaf of the current path.
    pub(super) fn set_index(&mut self, index: usize) {
        let path = self.paths.get_mut(self.current).map(|it| &mut it.path);
        if let Some(step) = path.and_then(Path::leaf_mut) {
            step.index = index;
        }
    }

    /// The path that was found or added last.
    pub(super) fn current(&self) -> Option<&Path> {
        self.paths.get(self.current).map(|it| &it.path)
    }

    /// Remembers the path to a leaf that keys from `low` on belong to.
    pub(super) fn add(&mut self, low: Key, path: &Path) {
        let Some(leaf) = path.leaf() else { return };
        let known = self.paths.iter().position(|it| it.is_to(leaf.logical));
        self.current = known.unwrap_or_else(|| self.place());
        let new = RecentPath {
            low,
            path: *path,
            is_used: false,
        };
        match self.paths.get_mut(self.current) {
            Some(slot) => *slot = new,
            None => self.paths.push(new),
        }
    }

    /// Where a new path goes.
    fn place(&mut self) -> usize {
        if self.paths.len() < PATHS_MAX {
            return self.paths.len();
        }
        // Once around, none is left that was used.
        for _ in 0..PATHS_MAX {
            self.hand = (self.hand + 1) % PATHS_MAX;
            let slot = self.paths.get_mut(self.hand);
            if slot.is_none_or(|slot| !std::mem::take(&mut slot.is_used)) {
                break;
            }
        }
        self.hand
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
