//! The extents that the extent tree lists, and how far their references were found.

use std::collections::HashSet;
use std::ops::Range;

use bitflags::bitflags;

use super::ExtentUseRule;
use crate::ondisk::extent_item::ExtentRef;
use crate::ondisk::{LogicalAddr, TreeId};

bitflags! {
    /// What is known of an extent.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct ExtentState: u8 {
        /// It is data.
        const DATA = 1 << 0;
        /// What the block refers to is referred to by parent.
        const FULL_BACKREF = 1 << 1;
        /// There is more than one reference.
        const SHARED = 1 << 2;
        /// The block was visited.
        const VISITED = 1 << 3;
        /// The block was visited in a tree whose blocks are shared.
        const OF_FILES = 1 << 4;
        /// The tree that wrote the block refers to it.
        const OWNER_FOUND = 1 << 5;
        /// The block was visited in a relocation tree first, is one of its own, or a relocated block refers to it.
        const RELOCATED = 1 << 6;
    }
}

/// An extent. Kept for each, so it is small.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) len_bytes: u64,
    /// Hashes of the references that are stored, less those of the references that were found.
    sum: u64,
    pub(super) state: ExtentState,
    pub(super) level: u8,
}

/// A reference that was found in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) extent: LogicalAddr,
    pub(super) len_bytes: u64,
    /// The level of a tree block; `None` for data.
    pub(super) level: Option<u8>,
    /// The block that refers to it; `None` for the root of a tree.
    pub(super) parent: Option<LogicalAddr>,
    /// The reference, unless those of the parent are by parent.
    pub(super) own: ExtentRef,
    /// The tree that was walked.
    pub(super) tree: TreeId,
}

/// All extents, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Extents {
    list: Vec<Extent>,
    /// How many of them are tree blocks.
    pub(super) tree_blocks: u64,
    /// Visited blocks that are in no extent of the list.
    strays: HashSet<LogicalAddr>,
    /// References that were found before the list was complete.
    pub(super) deferred: Vec<Claim>,
    pub(super) is_complete: bool,
}

impl Extent {
    /// The end.
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.len_bytes)
    }

    pub(super) fn is_data(&self) -> bool {
        self.state.contains(ExtentState::DATA)
    }

    /// Whether the references that were found are those that are stored.
    pub(super) fn is_balanced(&self) -> bool {
        self.sum == 0
    }
}

impl Extents {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.list.iter()
    }

    /// The extents that begin in a range.
    pub(super) fn within(&self, range: &Range<u64>) -> &[Extent] {
        let before = |at: u64| self.list.partition_point(|extent| extent.start < at);
        let (first, end) = (before(range.start), before(range.end));
        self.list.get(first..end).unwrap_or_default()
    }

    pub(super) fn last(&self) -> Option<&Extent> {
        self.list.last()
    }

    /// Adds an extent after the last.
    pub(super) fn push(&mut self, start: u64, len_bytes: u64, state: ExtentState, level: u8) {
        self.tree_blocks += u64::from(!state.contains(ExtentState::DATA));
        self.list.push(Extent {
            start,
            len_bytes,
            sum: 0,
            state,
            level,
        });
    }

    /// The extent that begins at an address.
    pub(super) fn get(&self, start: LogicalAddr) -> Option<&Extent> {
        let index = self.index(start)?;
        self.list.get(index)
    }

    fn index(&self, start: LogicalAddr) -> Option<usize> {
        let found = self
            .list
            .binary_search_by_key(&start.0, |extent| extent.start);
        found.ok()
    }

    /// Adds a reference that is stored for the last extent.
    pub(super) fn store(&mut self, reference: ExtentRef) {
        if let Some(extent) = self.list.last_mut() {
            let hash = hash(reference, extent.len_bytes);
            let count = reference.count();
            extent.sum = extent.sum.wrapping_add(hash.wrapping_mul(count));
        }
    }

    /// Takes off a reference that was found. Returns it as it should be stored.
    pub(super) fn claim(&mut self, claim: &Claim) -> Result<ExtentRef, ExtentUseRule> {
        let reference = self.reference(claim);
        let Some(index) = self.index(claim.extent) else {
            return Err(ExtentUseRule::Unallocated);
        };
        let extent = &mut self.list[index];
        let is_as_claimed = match claim.level {
            None => extent.is_data(),
            Some(level) => !extent.is_data() && extent.level == level,
        };
        extent.sum = extent.sum.wrapping_sub(hash(reference, claim.len_bytes));
        if !is_as_claimed || extent.len_bytes != claim.len_bytes {
            return Err(ExtentUseRule::Kind);
        }
        Ok(reference)
    }

    /// The reference that a claim should be stored as.
    pub(super) fn reference(&self, claim: &Claim) -> ExtentRef {
        match (claim.parent, claim.level) {
            (Some(parent), Some(_)) if self.is_full(parent) => ExtentRef::SharedBlock { parent },
            (Some(parent), None) if self.is_full(parent) => {
                ExtentRef::SharedData { parent, count: 1 }
            }
            _ => claim.own,
        }
    }

    /// Whether what a block refers to is referred to by parent.
    pub(super) fn is_full(&self, block: LogicalAddr) -> bool {
        let extent = self.get(block);
        extent.is_some_and(|extent| extent.state.contains(ExtentState::FULL_BACKREF))
    }

    /// Whether a block was relocated, as far as it was visited.
    pub(super) fn is_relocated(&self, block: LogicalAddr) -> bool {
        let extent = self.get(block);
        extent.is_some_and(|extent| extent.state.contains(ExtentState::RELOCATED))
    }

    /// Marks a block as visited. Returns `false` if it was before.
    pub(super) fn visit(&mut self, block: LogicalAddr) -> bool {
        let Some(index) = self.index(block).filter(|_| self.is_complete) else {
            return self.strays.insert(block);
        };
        let state = &mut self.list[index].state;
        let is_first = !state.contains(ExtentState::VISITED);
        state.insert(ExtentState::VISITED);
        is_first
    }

    /// The list is complete: blocks that were visited before are marked in it.
    pub(super) fn complete(&mut self) -> Vec<Claim> {
        self.is_complete = true;
        for block in std::mem::take(&mut self.strays) {
            self.visit(block);
        }
        std::mem::take(&mut self.deferred)
    }

    /// Adds to what is known of an extent.
    pub(super) fn mark(&mut self, start: LogicalAddr, state: ExtentState) {
        if let Some(index) = self.index(start) {
            self.list[index].state.insert(state);
        }
    }

    /// Whether several references to a block are stored.
    pub(super) fn is_shared(&self, block: LogicalAddr) -> bool {
        let extent = self.get(block);
        extent.is_some_and(|extent| extent.state.contains(ExtentState::SHARED))
    }
}

/// A number that stands for one use of an extent of this length.
fn hash(reference: ExtentRef, len_bytes: u64) -> u64 {
    let numbers = match reference {
        ExtentRef::TreeBlock { tree } => [1, tree.0, 0, 0],
        ExtentRef::SharedBlock { parent } => [2, parent.0, 0, 0],
        ExtentRef::Data {
            tree,
            inode,
            offset,
            count: _,
        } => [3, tree.0, inode, offset],
        ExtentRef::SharedData { parent, count: _ } => [4, parent.0, 0, 0],
        ExtentRef::Owner { tree } => [5, tree.0, 0, 0],
    };
    let [kind, first, second, third] = numbers;
    super::names::hash(&[kind, first, second, third, len_bytes], b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(extent: u64, own: ExtentRef) -> Claim {
        Claim {
            extent: LogicalAddr(extent),
            len_bytes: 4096,
            level: None,
            parent: Some(LogicalAddr(4096)),
            own,
            tree: TreeId::FS,
        }
    }

    fn data(count: u32) -> ExtentRef {
        ExtentRef::Data {
            tree: TreeId::FS,
            inode: 257,
            offset: 0,
            count,
        }
    }

    #[test]
    fn references_on_both_sides_cancel() {
        let mut extents = Extents::default();
        extents.push(4096, 4096, ExtentState::FULL_BACKREF, 0);
        extents.push(8192, 4096, ExtentState::DATA, 0);
        extents.store(ExtentRef::SharedData {
            parent: LogicalAddr(4096),
            count: 2,
        });
        extents.push(12288, 4096, ExtentState::DATA, 0);
        extents.store(data(2));
        assert!(!extents.list[1].is_balanced());
        for _ in 0..2 {
            assert!(extents.claim(&claim(8192, data(1))).is_ok());
            let own = Claim {
                parent: Some(LogicalAddr(1)),
                ..claim(12288, data(1))
            };
            assert_eq!(extents.claim(&own), Ok(data(1)));
        }
        assert!(extents.list.iter().all(Extent::is_balanced));
        let unknown = extents.claim(&claim(16384, data(1)));
        assert_eq!(unknown, Err(ExtentUseRule::Unallocated));
    }

    #[test]
    fn blocks_are_visited_once() {
        let mut extents = Extents::default();
        assert!(extents.visit(LogicalAddr(4096)));
        extents.push(4096, 4096, ExtentState::empty(), 0);
        extents.complete();
        assert!(!extents.visit(LogicalAddr(4096)));
        assert!(extents.visit(LogicalAddr(8192)));
        assert!(!extents.visit(LogicalAddr(8192)));
    }
}
