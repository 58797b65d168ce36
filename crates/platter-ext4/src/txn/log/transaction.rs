//! A transaction: what handles changed together.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use platter_cache::Buffer;

use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::Sequence;

/// What handles add to.
///
/// # Invariants
/// - Each block has the version of its last change by a handle of this transaction.
/// - No block is both changed and revoked: the later of the two counts.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub(super) sequence: Sequence,
    /// Handles that have not ended.
    pub(super) handles: u32,
    /// What they may still add, together.
    pub(super) reserved_blocks: u32,
    pub(super) blocks: BTreeMap<u64, Buffer>,
    /// Of the changed blocks those that nothing durable refers to.
    pub(super) created: BTreeSet<u64>,
    /// Blocks whose copies in the log must not be replayed.
    pub(super) revoked: BTreeSet<u64>,
    /// Blocks that may be used again once this is durable.
    pub(super) freed: Vec<Range<BlockNr>>,
}

impl Transaction {
    pub(super) fn new(sequence: Sequence) -> Self {
        Self {
            sequence,
            ..Self::default()
        }
    }

    /// Whether it changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.freed.is_empty() && self.revoked.is_empty()
    }

    /// Adds a version of a block, and gives the one it replaces.
    pub(super) fn change(&mut self, block: u64, version: Buffer) -> Option<Buffer> {
        self.revoked.remove(&block);
        self.blocks.insert(block, version)
    }

    /// Takes a block out of the changed ones, if it is one of them.
    pub(super) fn forget(&mut self, block: u64) {
        self.created.remove(&block);
        self.blocks.remove(&block);
    }

    /// Takes the blocks that were freed out of the changed ones, and gives their versions: what
    /// comes to lie there must not meet them.
    pub(super) fn drop_freed(&mut self) -> Vec<(u64, Buffer)> {
        let mut dropped = Vec::new();
        for freed in &self.freed {
            let changed = self.blocks.range(freed.start.0..freed.end.0);
            dropped.extend(changed.map(|(&block, version)| (block, version.clone())));
        }
        for (block, _) in &dropped {
            self.forget(*block);
        }
        dropped
    }
}
