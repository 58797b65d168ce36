//! What every writable filesystem keeps of its inodes outside its format: dirty and unstored inodes,
//! throttling of writers, unflushed writes, the gates of writes and of freezes, retries after `ENOSPC`, and the end of a
//! mount.

mod dirty_list;
mod flusher;
mod freeze_gate;
mod invalidations;
mod mount_end;
mod range_set;
mod retry;
mod unflushed;
mod unstored;
mod write_gate;

pub use dirty_list::{DirtyList, Reach, WRITEBACK_BATCH_MAX};
pub use flusher::{Flushed, start_flusher};
pub use freeze_gate::{FreezeGate, Writer};
pub use invalidations::{Invalidation, Invalidations};
pub use mount_end::{MountEnd, WritableMount};
pub use range_set::{RangeNumber, RangeSet};
pub use retry::{NoSpaceRetry, ReturnsSpace, retry_no_space};
pub use unflushed::{FileSync, UnflushedWrites};
pub use unstored::UnstoredInodes;
pub use write_gate::WriteGate;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::InodeId;

/// An inode object that the lists of its filesystem may keep in memory.
pub trait ListedInode: Send + Sync {
    /// Its identity.
    fn id(&self) -> InodeId;

    /// The lists that it is on.
    fn lists(&self) -> &InodeLists;
}

/// The lists of a filesystem that an inode is on; part of the inode object.
#[derive(Debug, Default)]
pub struct InodeLists {
    /// The [`DirtyList`].
    is_dirty: AtomicBool,
    /// The [`UnstoredInodes`].
    is_unstored: AtomicBool,
}

impl InodeLists {
    /// Whether the inode is on the list of dirty inodes.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// Whether the inode is among those that the running transaction stores when it closes.
    #[must_use]
    pub fn is_unstored(&self) -> bool {
        self.is_unstored.load(Ordering::Acquire)
    }
}
