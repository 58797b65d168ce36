//! The filesystems that tests exercise: how each is made, mounted and checked by us, by the kernel and
//! by its own checker.
//!
//! A [`Subject`] is a driver of ours with its peers; a [`Scene`] is one way to make a filesystem of a
//! subject. Crash tests, injected errors, the two threads against a model and the counts of requests
//! know these two alone.

mod pristine;
mod scene;
mod ext4;
mod xfs;
mod btrfs;

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{CheckSink, Clock, Filesystem};

use crate::edits::Maker;
use crate::fs_type::FsType;
use crate::loopdev::{Access, Mount};
use crate::oracle::{self, Verdict};
use crate::workload::{Abilities, Durability};

pub use btrfs::BtrfsSubject;
pub use ext4::Ext4Subject;
pub(crate) use pristine::open_images;
pub use pristine::{devices_of_files, store};
pub use scene::{Mode, Scene, scene, scenes};
pub(crate) use scene::{overlays, shared};
pub use xfs::{TORN_XFS, XfsSubject};

/// The devices of one filesystem, in the order of its members.
pub type Devices = Vec<Arc<dyn BlockDevice>>;

/// How a filesystem is mounted by its driver.
#[derive(Debug)]
pub struct MountRequest {
    /// Changes are refused, and nothing is replayed.
    pub read_only: bool,
    /// Memory of its caches.
    pub budget: Arc<MemoryBudget>,
    /// Time and randomness.
    pub clock: Arc<dyn Clock>,
}

/// Where a log lies, for counts of what is written into it.
#[derive(Debug, Clone)]
pub struct LogArea {
    /// Bytes of the first device.
    pub ranges: Vec<Range<u64>>,
    /// Bytes of a block of it.
    pub block_bytes: u64,
    /// Whether a block ends a transaction.
    pub is_commit: fn(&[u8]) -> bool,
}

/// A driver, and what judges it.
pub trait Subject: Sync + Debug {
    /// The type that the kernel mounts it as.
    fn fs_type(&self) -> FsType;

    /// What a power failure may undo.
    fn durability(&self, scene: &Scene) -> Durability;

    /// The operations it supports beyond those of every POSIX filesystem.
    fn abilities(&self, scene: &Scene) -> Abilities;

    /// What a device writes whole or not at all: at least the size of structures for which the format
    /// knows no remedy when they are torn.
    fn sector_bytes(&self) -> u32 {
        512
    }

    /// Makes a filesystem of `size_kib` in each of the images, which do not exist.
    fn make(&self, scene: &Scene, images: &[&Path], size_kib: u64) -> Result<()>;

    /// Mounts it by our driver.
    fn mount(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
    ) -> platter_vfs::Result<Arc<dyn Filesystem>>;

    /// Checks it by our driver.
    fn check(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        request: MountRequest,
        sink: &mut dyn CheckSink,
    ) -> platter_vfs::Result<()>;

    /// Of so many syncs in a workload, one is of everything.
    fn one_whole_sync_in(&self) -> u64 {
        5
    }

    /// Whether devices have a log of what single files were synced to, over what the last commit has.
    fn has_file_log(&self, devices: &[Arc<dyn BlockDevice>]) -> Result<bool> {
        let _ = devices;
        Ok(false)
    }

    /// What a write is of, so that it is known where power failures fell.
    fn kind_of_write(&self, offset: u64, data: &[u8]) -> &'static str {
        let _ = (offset, data);
        "anything"
    }

    /// The kinds of writes that there are, of which short workloads may lack some.
    fn kinds_of_writes(&self, scene: &Scene) -> Vec<&'static str> {
        let _ = scene;
        vec!["anything"]
    }

    /// Whether contents that shrink are stored compressed.
    fn compresses(&self) -> bool {
        false
    }

    /// Returns the area of the log, if the format has one in a fixed place.
    fn log_area(&self, device: &Arc<dyn BlockDevice>) -> Result<Option<LogArea>> {
        let _ = device;
        Ok(None)
    }

    /// Mounts it with the kernel; options are those of the type.
    fn kernel_mount(&self, images: &[&Path], options: &str, access: Access) -> Result<Mount> {
        Mount::images(self.fs_type(), images, options, access)
    }

    /// Has its own checker judge it, as it is, without a change.
    fn fsck(&self, images: &[&Path]) -> Result<Verdict> {
        oracle::fsck(self.fs_type(), images)
    }

    /// Has its own tools, or the kernel, replay its log, and the checker judge it then. Returns what is
    /// wrong.
    fn recover(&self, images: &[&Path]) -> Result<Vec<String>> {
        self.kernel_mount(images, "", Access::ReadWrite)?
            .unmount_all(images)?;
        Ok(self.fsck(images)?.complaints())
    }

    /// Returns what is wrong where I/O errors were encountered before, which may leave more to repair:
    /// of the `lines` that [`recover`](Self::recover) returned those that are errors nevertheless.
    fn after_errors(&self, _images: &[&Path], lines: &[String]) -> Result<Vec<String>> {
        Ok(lines.to_vec())
    }

    /// Has its own checker repair it, which must leave nothing. Only for subjects of
    /// [`Durability::Synced`], which need it after a power failure.
    fn repair(&self, images: &[&Path]) -> Result<()>;

    /// What sessions of edits make the same filesystem with, if there are such sessions for it.
    fn edit_maker(&self, scene: &Scene) -> Option<Maker> {
        let _ = scene;
        None
    }
}
