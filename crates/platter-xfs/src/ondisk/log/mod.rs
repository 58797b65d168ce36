//! The log: records, the operations in them, the transactions that operations make up, and the items
//! that transactions log. Headers of records and operations are big-endian; items are in the byte
//! order of the machine that logged them. Spec: `xfs/journaling_log`.

pub mod record;
pub mod operation;
pub mod item;
pub mod buffer;
pub mod inode;
pub mod dinode;
pub mod forks;
pub mod dquot;
pub mod icreate;
pub mod stamp;
pub mod intent;

use platter_ondisk::rules;

pub use buffer::{BufferFlags, BufferFormat, BufferType};
pub use dquot::{DquotFormat, QuotaOff};
pub use icreate::InodeCreate;
pub use inode::{InodeFields, InodeFormat};
pub use intent::{Done, Intent};
pub use item::{ItemHeader, ItemKind};
pub use operation::{Client, OpFlags, Operation, Operations, TransactionHeader};
pub use record::{LogByteOrder, RecordHeader};
pub use stamp::Stamp;

rules! {
    /// What the log must hold to.
    pub enum LogRule of "log" {
        /// `h_magicno`.
        RecordMagic => "bad magic number of a log record",
        /// `h_version`.
        RecordVersion => "unrecognised log version",
        /// `h_len`.
        RecordLength => "bad length of a log record",
        /// `h_size`.
        RecordSize => "bad buffer size of a log record",
        /// `oh_len` stays within its record.
        OperationLength => "bad length of a log operation",
        /// `oh_clientid`.
        OperationClient => "bad client id of a log operation",
        /// `oh_flags`.
        OperationFlags => "bad flags of a log operation",
        /// `h_num_logops` operations fit into the record.
        OperationCount => "log record holds fewer operations than it says",
        /// `th_magic`.
        TransactionMagic => "bad magic number of a transaction header",
        /// The type of a log item.
        ItemType => "unrecognised type of log item",
        /// The size of a log item: the number of its regions.
        ItemRegions => "bad number of regions of a log item",
        /// A region holds what the item says.
        ItemLength => "log item region has a bad length",
        /// `blf_map_size` and `blf_len`.
        BufferMap => "bad dirty region map of a buffer",
        /// `XFS_BLFT_*`.
        BufferKind => "unrecognised type of a logged buffer",
        /// A logged inode number belongs to the buffer it is in.
        InodePlace => "logged inode lies outside its buffer",
        /// `di_magic`.
        InodeMagic => "bad magic number of a logged inode",
        /// `di_format`.
        InodeFormat => "bad data fork format of a logged inode",
        /// `di_nextents`, `di_anextents` and `di_nblocks`.
        InodeExtents => "logged inode has more extents than blocks",
        /// `di_forkoff`.
        InodeForkOffset => "bad attribute fork offset of a logged inode",
        /// `ilf_fields`.
        InodeFields => "bad field flags of a logged inode",
        /// The fields of an inode create item.
        InodeCreate => "bad inode create item",
        /// The number of extents of an intent.
        IntentLength => "bad number of extents of an intent",
        /// Unused bits of an intent.
        IntentFlags => "bad flags of an intent",
    }
}
