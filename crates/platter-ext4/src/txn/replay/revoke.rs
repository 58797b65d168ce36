//! The second walk: which logged copies are older than a later use of their block.

use std::collections::HashMap;

use platter_ondisk::Corrupt;
use platter_vfs::Result;

use super::walk::LogWalk;
use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::descriptor::Tags;
use crate::ondisk::jbd2::revoke::RevokedBlocks;
use crate::ondisk::jbd2::{BlockKind, Sequence};
use crate::txn::journal::Journal;

/// The last transaction that revoked each block.
#[derive(Debug, Default)]
pub(super) struct RevokeTable {
    last: HashMap<BlockNr, Sequence>,
}

impl RevokeTable {
    /// Records that `sequence` revoked `block`.
    pub(super) fn insert(&mut self, block: BlockNr, sequence: Sequence) {
        let last = self.last.entry(block).or_insert(sequence);
        if last.is_before(sequence) {
            *last = sequence;
        }
    }

    /// Whether the copy of `block` that `sequence` logged must not be replayed.
    pub(super) fn covers(&self, block: BlockNr, sequence: Sequence) -> bool {
        self.last
            .get(&block)
            .is_some_and(|last| !last.is_before(sequence))
    }
}

/// The revoke records of all transactions before `end`.
///
/// Records of blocks outside the filesystem are dropped, which bounds the table by its size.
pub(super) fn collect(
    journal: &Journal,
    end: Sequence,
    filesystem_blocks: u64,
) -> Result<RevokeTable> {
    let format = journal.superblock().format;
    let mut table = RevokeTable::default();
    let mut walk = LogWalk::new(journal);
    let mut next = journal.superblock().sequence;
    while next.is_before(end) {
        match walk.next_block(next)? {
            Some(BlockKind::Descriptor) => {
                let count = Tags::decode(walk.block(), &format).count();
                walk.skip(u32::try_from(count).unwrap_or(u32::MAX));
            }
            Some(BlockKind::Revoke) => {
                let locus = journal.locus(walk.here());
                let blocks = RevokedBlocks::decode(walk.block(), &format)
                    .map_err(|corrupt| Corrupt { locus, ..corrupt })?;
                blocks
                    .filter(|block| block.0 < filesystem_blocks)
                    .for_each(|block| table.insert(block, next));
            }
            Some(BlockKind::Commit) => next = next.next(),
            Some(BlockKind::SuperblockV1 | BlockKind::SuperblockV2) | None => break,
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_revoke_counts_across_wrap_around() {
        let mut table = RevokeTable::default();
        let block = BlockNr(7);
        table.insert(block, Sequence(0));
        table.insert(block, Sequence(u32::MAX));
        assert!(table.covers(block, Sequence(u32::MAX - 1)));
        assert!(table.covers(block, Sequence(0)));
        assert!(!table.covers(block, Sequence(1)));
        assert!(!table.covers(BlockNr(8), Sequence(0)));
    }
}
