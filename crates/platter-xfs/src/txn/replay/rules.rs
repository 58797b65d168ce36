//! What recovery needs the log to hold to, beyond the rules of single structures.

use platter_ondisk::rules;

rules! {
    /// What a log must hold to for its recovery.
    pub enum ReplayRule of "log" {
        /// The blocks of the log bear one cycle number, or two that follow each other.
        Cycles => "cycle numbers of the log are inconsistent",
        /// Before the head of the log lies a record.
        NoRecord => "couldn't find the last log record",
        /// `h_lsn` names the place of its record.
        RecordLsn => "log record has a bad LSN",
        /// `h_tail_lsn` names a record of the log.
        TailLsn => "tail of the log has a bad LSN",
        /// `h_fs_uuid`.
        RecordUuid => "log record has a mismatched uuid",
        /// `h_crc`.
        RecordChecksum => "log record CRC mismatch",
        /// A transaction is started once.
        TransactionStart => "transaction is started twice",
        /// A region belongs to an item.
        Region => "log region belongs to no item",
        /// A logged buffer lies in the filesystem, and outside its log.
        BufferPlace => "logged buffer lies outside the filesystem",
        /// The regions of a buffer item fit its map.
        BufferRegions => "regions of a logged buffer do not fit its map",
        /// A logged inode or quota record lies in its buffer.
        ObjectPlace => "logged object lies outside its buffer",
        /// The buffer of a logged inode holds inodes.
        BufferInodeMagic => "bad magic number in the buffer of a logged inode",
        /// A logged fork fits into the inode.
        InodeFork => "logged inode fork does not fit",
        /// The tree of a fork whose owner changes.
        OwnerTree => "bad block in the tree of a logged inode",
        /// A logged quota record.
        Dquot => "bad logged quota record",
    }
}
