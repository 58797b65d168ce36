//! How to open a filesystem.

use std::sync::Arc;
use std::time::Duration;

use platter_block::BlockDevice;

use crate::context::RealtimeDevice;
use crate::preallocation::Preallocation;

/// What to do about a log that holds changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Recovery {
    /// Replay it in memory. The device is not written.
    #[default]
    InMemory,
    /// Do not replay it: the filesystem may be inconsistent (`-o norecovery`).
    Skip,
}

/// What becomes of changes while a filesystem is mounted for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Logging {
    /// They go through the log.
    #[default]
    Logged,
    /// The log is not written: the filesystem is new, and a crash leaves nothing of it.
    New,
    /// The log is not written, and contents only go to blocks that were free before: the device is a layer above
    /// another one, to which the changes are committed later.
    Scratch,
}

/// How to open a filesystem.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// What to do about a log that holds changes.
    pub recovery: Recovery,
    /// The device of an external log (`-o logdev=`).
    pub log: Option<Arc<dyn BlockDevice>>,
    /// The realtime device (`-o rtdev=`).
    pub realtime: Option<RealtimeDevice>,
    /// First byte of the copy of the superblock to begin with, instead of the primary one (`-o sb=`).
    pub superblock_offset: Option<u64>,
    /// Open a filesystem although the device ends before it does: what is there can be read, and the
    /// rest gives I/O errors.
    pub truncated: bool,
    /// How often changes are made durable without being asked; `None` for never.
    pub commit_interval: Option<Duration>,
    /// What becomes of changes.
    pub logging: Logging,
    /// Bytes of the log in use at most, if not all of it: what is in the log is written to its place earlier, as with
    /// a log of that size.
    pub log_bytes_max: Option<u64>,
    /// What files get beyond their end when they grow, in filesystems whose changes are logged (`-o allocsize=`).
    pub preallocation: Preallocation,
}
