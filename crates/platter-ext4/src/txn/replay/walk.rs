//! One walk over the live part of the log, which wraps around.

use platter_vfs::Result;

use crate::ondisk::jbd2::{BlockKind, Header, LogBlock, Sequence};
use crate::txn::journal::Journal;

/// A position in the log that moves forward, and the block read last.
#[derive(Debug)]
pub(super) struct LogWalk<'j> {
    journal: &'j Journal,
    position: LogBlock,
    /// Blocks passed since the last commit block.
    passed_blocks: u32,
    here: LogBlock,
    block: Vec<u8>,
}

impl<'j> LogWalk<'j> {
    /// A walk from the start of the log's live part; from its first block if there is none.
    pub(super) fn new(journal: &'j Journal) -> Self {
        let superblock = journal.superblock();
        let position = superblock.start.unwrap_or(superblock.first);
        Self {
            journal,
            position,
            passed_blocks: 0,
            here: position,
            block: vec![0; journal.map().block_bytes() as usize],
        }
    }

    /// The kind of the next block of transaction `sequence`; the block is then [`Self::block`].
    ///
    /// `None` where the log ends: at a block that belongs to no transaction or to another one, or
    /// when the transaction is as long as the log without having been committed.
    pub(super) fn next_block(&mut self, sequence: Sequence) -> Result<Option<BlockKind>> {
        let superblock = self.journal.superblock();
        let ring_blocks = superblock.end.0 - superblock.first.0;
        if self.passed_blocks >= ring_blocks {
            return Ok(None);
        }
        self.read_next()?;
        let header = Header::decode(&self.block).filter(|header| header.sequence == sequence);
        let kind = header.map(|header| header.kind);
        if kind == Some(BlockKind::Commit) {
            self.passed_blocks = 0;
        }
        Ok(kind)
    }

    /// Reads the next block, whatever it is, such as a logged one.
    pub(super) fn read_next(&mut self) -> Result<&[u8]> {
        self.here = self.position;
        self.skip(1);
        self.journal.map().read(self.here, &mut self.block)?;
        Ok(&self.block)
    }

    /// Passes over `count` blocks.
    pub(super) fn skip(&mut self, count: u32) {
        let superblock = self.journal.superblock();
        let ring_blocks = u64::from(superblock.end.0 - superblock.first.0);
        let from_first = u64::from(self.position.0 - superblock.first.0) + u64::from(count);
        let wrapped = u32::try_from(from_first % ring_blocks).unwrap_or_default();
        self.position = LogBlock(superblock.first.0 + wrapped);
        self.passed_blocks = self.passed_blocks.saturating_add(count);
    }

    /// The place of the block that is read next.
    pub(super) fn position(&self) -> LogBlock {
        self.position
    }

    /// The block read last.
    pub(super) fn block(&self) -> &[u8] {
        &self.block
    }

    /// The place of the block read last.
    pub(super) fn here(&self) -> LogBlock {
        self.here
    }
}
