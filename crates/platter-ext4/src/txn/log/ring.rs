//! The blocks that the log goes round in.

use crate::ondisk::jbd2::{JournalSuperblock, LogBlock};

/// The part of a journal that transactions are written to: after its last block comes its first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    first: u32,
    end: u32,
}

impl Ring {
    pub(super) fn of(superblock: &JournalSuperblock) -> Self {
        Self {
            first: superblock.first.0,
            end: superblock.end.0,
        }
    }

    /// Its first block.
    pub(super) fn first(self) -> LogBlock {
        LogBlock(self.first)
    }

    /// How many blocks it has.
    pub(super) fn len_blocks(self) -> u32 {
        self.end - self.first
    }

    /// How many blocks follow each other from `at` on, itself included.
    pub(super) fn run_blocks(self, at: LogBlock) -> u32 {
        self.end - at.0
    }

    /// The block `count` blocks after `at`, at most one time round.
    pub(super) fn after(self, at: LogBlock, count: u32) -> LogBlock {
        let to_end = self.run_blocks(at);
        LogBlock(if count < to_end {
            at.0 + count
        } else {
            self.first + (count - to_end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_block_follows_the_last() {
        let ring = Ring { first: 3, end: 10 };
        assert_eq!(ring.len_blocks(), 7);
        assert_eq!(ring.after(LogBlock(3), 6), LogBlock(9));
        assert_eq!(ring.after(LogBlock(3), 7), LogBlock(3));
        assert_eq!(ring.after(LogBlock(9), 1), LogBlock(3));
        assert_eq!(ring.after(LogBlock(8), 4), LogBlock(5));
        assert_eq!(ring.run_blocks(LogBlock(9)), 1);
    }
}
