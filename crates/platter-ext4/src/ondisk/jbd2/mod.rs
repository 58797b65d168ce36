//! The on-disk format of the journal, JBD2: big-endian, shared by ext3 and ext4 (and OCFS2).
//!
//! The log is a sequence of transactions in blocks of the filesystem's size. A transaction consists
//! of descriptor blocks, each followed by the blocks it describes, revoke blocks, and one commit
//! block; all have its sequence number. An area of fast commits may follow the log, whose records
//! are specific to ext4 and little-endian. Spec: `ext4/journal`.

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

use platter_ondisk::rules;

rules! {
    /// The rules of the blocks of the log.
    pub enum LogRule of "journal" {
        /// The journal inode maps every block of the log.
        Hole => "journal inode has a hole",
        /// The blocks of the log are within the device.
        OutsideDevice => "journal block is outside the device",
        /// The runs of the journal's block mapping are contiguous.
        MapOrder => "journal block mapping is out of order",
        /// No two blocks of the journal are one block of the device.
        Overlap => "journal blocks overlap",
        /// The checksum of a descriptor or revoke block of a committed transaction.
        BlockChecksum => "checksum of a descriptor or revoke block does not match",
        /// The checksum of a commit block.
        CommitChecksum => "checksum of a commit block does not match",
        /// The checksum of a logged block in its tag.
        DataChecksum => "checksum of a logged block does not match",
        /// `t_blocknr`: a logged block is within the filesystem.
        TargetOutside => "logged block number is outside the filesystem",
        /// `t_blocknr`: a logged block is not part of the log.
        TargetInsideLog => "logged block number is inside the journal",
        /// `r_count` is within the revoke block.
        RevokeCount => "r_count exceeds the revoke block",
    }
}
