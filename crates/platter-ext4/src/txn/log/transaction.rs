//! A transaction: what handles change together, and then what is made durable of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use platter_cache::Buffer;
use platter_cache::commit::RunningTransaction;

use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::Sequence;

/// What handles add to.
///
/// # Invariants
/// - The buffer cache has the versions of its blocks, each of its last change by a handle of this
///   transaction.
/// - No block is both changed and revoked: the later of the two counts.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) sequence: Sequence,
    /// Records in a revoke block.
    revokes_per_block: usize,
    pub(super) blocks: BTreeSet<u64>,
    /// Of the changed blocks those that nothing durable refers to.
    pub(super) created: BTreeSet<u64>,
    /// Blocks whose copies in the log must not be replayed.
    pub(super) revoked: BTreeSet<u64>,
    /// Blocks that may be used again once this is durable.
    pub(super) freed: Vec<Range<BlockNr>>,
}

/// A transaction that no handle is part of any more.
///
/// # Invariants
/// Its versions are sealed and validated, and do not change.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) sequence: Sequence,
    pub(super) blocks: BTreeMap<u64, Buffer>,
    pub(super) created: BTreeSet<u64>,
    pub(super) revoked: BTreeSet<u64>,
    pub(super) freed: Vec<Range<BlockNr>>,
}

impl Transaction {
    pub(super) fn new(sequence: Sequence, revokes_per_block: usize) -> Self {
        Self {
            sequence,
            revokes_per_block,
            blocks: BTreeSet::new(),
            created: BTreeSet::new(),
            revoked: BTreeSet::new(),
            freed: Vec::new(),
        }
    }

    /// Adds a block that was changed.
    pub(super) fn change(&mut self, block: u64) {
        self.revoked.remove(&block);
        self.blocks.insert(block);
    }

    /// What is made durable of it, with the versions of its blocks.
    pub(super) fn close(self, blocks: BTreeMap<u64, Buffer>) -> Closed {
        Closed {
            sequence: self.sequence,
            blocks,
            created: self.created,
            revoked: self.revoked,
            freed: self.freed,
        }
    }

    /// Takes a block out of the changed ones, if it is one of them.
    pub(super) fn forget(&mut self, block: u64) {
        self.created.remove(&block);
        self.blocks.remove(&block);
    }

    /// Takes the blocks that were freed out of the changed ones, and returns them: what comes to lie
    /// there must not meet their versions.
    pub(super) fn drop_freed(&mut self) -> Vec<u64> {
        let mut dropped = Vec::new();
        for freed in &self.freed {
            dropped.extend(self.blocks.range(freed.start.0..freed.end.0));
        }
        for &block in &dropped {
            self.forget(block);
        }
        dropped
    }
}

impl RunningTransaction for Transaction {
    type Number = Sequence;

    fn number(&self) -> Sequence {
        self.sequence
    }

    fn next(&self) -> Self {
        Self::new(self.sequence.next(), self.revokes_per_block)
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.freed.is_empty() && self.revoked.is_empty()
    }

    fn len_blocks(&self) -> u32 {
        let revokes = self.revoked.len().div_ceil(self.revokes_per_block);
        u32::try_from(self.blocks.len() + revokes).unwrap_or(u32::MAX)
    }
}
