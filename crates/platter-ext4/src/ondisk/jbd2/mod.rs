//! The journal's own format, JBD2: big-endian, shared by ext3 and ext4 (and OCFS2).
//!
//! A log of transactions in blocks of the filesystem's size. A transaction is descriptor blocks,
//! each followed by the blocks it describes, revoke blocks, and one commit block; all carry its
//! sequence number. Behind the log may lie an area of fast commits, whose records are ext4's own
//! and little-endian. Spec: `ext4/journal`.

pub mod header;
pub mod format;
pub mod superblock;
pub mod descriptor;
pub mod revoke;
pub mod commit;
pub mod fast_commit;

pub use format::{Checksums, LogFormat};
pub use header::{BlockKind, Header, JBD2_MAGIC, LogBlock, Sequence};
pub use superblock::JournalSuperblock;

use platter_ondisk::Rule;

/// What the blocks of the log must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogRule {
    /// The journal inode maps every block of the log.
    Hole,
    /// The blocks of the log lie within the device.
    OutsideDevice,
    /// The runs of the log's map follow each other.
    MapOrder,
    /// A descriptor or revoke block of a committed transaction has its checksum.
    BlockChecksum,
    /// A commit block has its checksum.
    CommitChecksum,
    /// A logged block has the checksum of its tag.
    DataChecksum,
    /// `t_blocknr`: a logged block belongs to the filesystem.
    TargetOutside,
    /// `t_blocknr`: a logged block is not one of the log itself.
    TargetInsideLog,
    /// `r_count` stays within the revoke block.
    RevokeCount,
}

impl Rule for LogRule {
    const STRUCTURE: &'static str = "journal";

    fn text(self) -> &'static str {
        match self {
            Self::Hole => "the log has a hole",
            Self::OutsideDevice => "the log lies outside the device",
            Self::MapOrder => "the map of the log is not in order",
            Self::BlockChecksum => "checksum of a descriptor or revoke block does not match",
            Self::CommitChecksum => "checksum of a commit block does not match",
            Self::DataChecksum => "checksum of a logged block does not match",
            Self::TargetOutside => "a logged block belongs outside the filesystem",
            Self::TargetInsideLog => "a logged block belongs inside the log",
            Self::RevokeCount => "a revoke block claims more records than it holds",
        }
    }
}
