//! Allocation groups under change: their headers, their free lists, their trees. Spec:
//! `xfs/allocation_groups`.

mod rules;
mod blocks;
mod reserve;
pub(crate) mod alloc;
pub mod space;
pub(crate) mod rmap;
mod host;
pub(crate) mod refcount;
pub(crate) mod inodes;
mod groups;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use platter_vfs::writing::RangeSet;

use crate::ondisk::agf::Agf;
use crate::ondisk::agi::Agi;
use crate::ondisk::{AgBlock, AgNr, Geometry};
use crate::space::TreeLimits;

pub use blocks::{BlockChanges, BlockRole, Blocks, ChangedBlock, Verified};
pub use groups::{GroupCounts, Groups};
pub use reserve::{reserved_blocks, tree_limits};
pub use rules::GroupRule;
pub use space::{free_list_max, levels_max, min_free_list};

/// Blocks of a group in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgExtent {
    /// The group.
    pub ag: AgNr,
    /// The first block.
    pub start: AgBlock,
    /// How many.
    pub count: u32,
}

/// An allocation group under change.
#[derive(Debug)]
pub struct Group<'g> {
    geometry: &'g Geometry,
    ag: AgNr,
    blocks: &'g mut Blocks,
    agf: &'g mut Agf,
    agi: &'g mut Agi,
    free_list: &'g mut Arc<VecDeque<AgBlock>>,
    limits: &'g mut TreeLimits,
    /// Blocks that are free and about to be allocated by others.
    claims: &'g RangeSet<u32>,
    /// What was freed.
    freed: &'g mut Vec<AgExtent>,
    /// What was freed before, in checkpoints that may not be durable; `None` where nothing is replayed.
    busy: Option<&'g [(u64, Range<u32>)]>,
    /// Busy blocks were left out of a search.
    left_busy: &'g mut bool,
    /// What has one user left of several, or another place in a file.
    unshared: &'g mut Vec<AgExtent>,
    /// Blocks that the trees may come to need are not allocated.
    keeps_reserve: bool,
}

impl Group<'_> {
    /// The free space header.
    #[must_use]
    pub fn agf(&self) -> &Agf {
        self.agf
    }

    /// The inode header.
    #[must_use]
    pub fn agi(&self) -> &Agi {
        self.agi
    }

    /// Says that blocks have another place in a file, or another file: they are not overwritten before that is durable.
    pub(crate) fn note_moved(&mut self, start: AgBlock, count: u32) {
        let ag = self.ag;
        self.unshared.push(AgExtent { ag, start, count });
    }

    /// Makes the group reach so far. What lies between is to be freed afterwards, or was taken before.
    pub fn set_len(&mut self, len: u32) {
        self.agf.length = len;
        self.agi.length = len;
        *self.limits = tree_limits(self.geometry, len);
    }
}

#[cfg(test)]
impl Group<'_> {
    /// Makes an inode the first one of an unlinked list.
    pub(crate) fn set_unlinked(&mut self, list: usize, inode: crate::ondisk::AgInode) {
        self.agi.unlinked[list] = Some(inode);
    }

    /// Compares the counters of the header.
    fn check_totals(&self, free_blocks: u32, longest: u32) {
        assert_eq!(
            (self.agf.free_blocks, self.agf.longest),
            (free_blocks, longest)
        );
    }
}

#[cfg(test)]
pub(crate) mod tests;
