//! How to open a filesystem.

use std::sync::Arc;
use std::time::Duration;

use platter_block::BlockDevice;
use platter_cache::mbcache::Design;

use crate::alloc::ContentsShare;
pub use crate::fs_context::DataMode;
pub use crate::ops::OnError;

/// What to do about a journal that holds changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Recovery {
    /// Replay it in memory. The device is not written.
    #[default]
    InMemory,
    /// Replay it onto the device and mark it as replayed.
    OnDevice,
    /// Leave it alone: the filesystem may be inconsistent (`-o norecovery`).
    Skip,
}

/// How to open a filesystem.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Refuse changes.
    pub read_only: bool,
    /// What to do about a journal that holds changes.
    pub recovery: Recovery,
    /// The device of an external journal.
    pub journal: Option<Arc<dyn BlockDevice>>,
    /// Where to find the superblock instead of byte 1024, in units of 1 KiB (`-o sb=`).
    pub superblock_kib: Option<u64>,
    /// Open a filesystem although the device ends before it does, as a copy that was broken off:
    /// what is there can be read, and the rest gives I/O errors. For reading only.
    pub truncated: bool,
    /// What to do about corruption that is found; `None` for what the superblock says.
    pub on_error: Option<OnError>,
    /// How long changes may stay before they are made durable by themselves, in a thread of the
    /// mount's own, which does so earlier when none follow; `None` for never, so that everything
    /// happens in the caller's threads.
    pub commit_interval: Option<Duration>,
    /// How contents of files are written; `None` for what the superblock says.
    pub data_mode: Option<DataMode>,
    /// What of the free space contents of files may take.
    pub share: ContentsShare,
    /// Write past the journal, where there is one: for a device that does not outlive the mount.
    pub unjournaled: bool,
    /// Have files share blocks of equal attributes, and attributes share large values, found by a
    /// cache of this design (`-o no_mbcache` for not).
    pub mbcache: Option<Design>,
    /// Whether the limits of users, groups and projects apply, with the `quota` feature (`-o usrquota`,
    /// `grpquota`, `prjquota`). Usage is counted either way.
    pub quota_limits: [bool; 3],
    /// The name of this host, for others that may use the same device.
    pub node_name: Vec<u8>,
}

impl Default for MountOptions {
    /// Reading, with recovery in memory.
    fn default() -> Self {
        Self {
            read_only: true,
            recovery: Recovery::InMemory,
            journal: None,
            superblock_kib: None,
            truncated: false,
            on_error: None,
            commit_interval: None,
            data_mode: None,
            share: ContentsShare::default(),
            unjournaled: false,
            mbcache: Some(Design::default()),
            quota_limits: [false; 3],
            node_name: b"platter".to_vec(),
        }
    }
}
