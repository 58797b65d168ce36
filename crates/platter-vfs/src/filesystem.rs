//! The filesystem trait: one mounted filesystem.

use std::fmt::Debug;
use std::sync::Arc;

use platter_ondisk::Uuid;

use crate::{
    Condition, Counters, Description, Devices, Inode, InodeId, Quotas, Result, StatFs, Subvolumes,
};

/// A change of what a filesystem says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tune {
    /// A new label.
    Label(Vec<u8>),
    /// A new UUID.
    Uuid(Uuid),
    /// A feature switched on or off, by its name in the format's own tools.
    Feature {
        /// Its name.
        name: String,
        /// Whether it is on afterwards.
        on: bool,
    },
}

/// Which free space to discard (`struct fstrim_range`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trim {
    /// The first byte of the filesystem to look at.
    pub start_bytes: u64,
    /// How many bytes to look at; may be more than there are.
    pub len_bytes: u64,
    /// Shorter runs of free space are left alone.
    pub min_bytes: u64,
}

/// One mounted filesystem. Dropping it without [`unmount`](Self::unmount) is a crash.
pub trait Filesystem: Send + Sync + Debug {
    /// What it says about itself.
    fn describe(&self) -> Description;

    /// What it counted since it was mounted: commits, and what they took.
    fn counters(&self) -> Counters {
        Counters::new()
    }

    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;

    /// The unit in which times are kept, in nanoseconds: a power of ten up to a second.
    fn time_granularity(&self) -> u32 {
        1
    }

    /// The root directory.
    fn root(&self) -> Result<Arc<dyn Inode>>;

    /// The inode with this identity.
    ///
    /// # Errors
    /// `Stale` when there is no such inode in use.
    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>>;

    /// The inode with this identity, which comes from a file handle: it may be made up, or of an inode
    /// that was deleted long ago.
    ///
    /// # Errors
    /// `Stale` when there is no such inode in use.
    fn inode_of_handle(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        self.inode(id)
    }

    /// Requests readahead of a directory that will be listed. A hint, which waits for nothing.
    fn read_ahead_dir(&self, dir: InodeId) {
        let _ = dir;
    }

    /// The inode number shown for an inode, as [`Attr::inode`](crate::Attr::inode) has it: no other
    /// inode has it while the filesystem is mounted.
    fn shown_number(&self, id: InodeId) -> u64 {
        id.number
    }

    /// The inode that is shown with this number, which need not exist; `None` where none can be.
    fn inode_shown_as(&self, number: u64) -> Option<InodeId> {
        Some(InodeId { tree: 0, number })
    }

    /// Space and inodes.
    fn stat_fs(&self) -> Result<StatFs>;

    /// Space and inodes as they are to the user of an inode: the limits of its project count, where there
    /// are any.
    fn stat_fs_at(&self, inode: InodeId) -> Result<StatFs> {
        let _ = inode;
        self.stat_fs()
    }

    /// Returns when everything done so far survives a crash.
    fn sync(&self) -> Result<()>;

    /// The label as it is now, without padding.
    fn label(&self) -> Result<Vec<u8>> {
        Ok(self.describe().label)
    }

    /// Sets the label.
    ///
    /// # Errors
    /// `InvalidArgument` for one that is too long.
    fn set_label(&self, label: &[u8]) -> Result<()> {
        let _ = label;
        Err(Condition::NotSupported.into())
    }

    /// Changes what the filesystem says of itself, all of `changes` or nothing.
    ///
    /// # Errors
    /// `NotSupported` for what cannot be changed.
    fn tune(&self, changes: &[Tune]) -> Result<()> {
        match changes {
            [] => Ok(()),
            [Tune::Label(label)] => self.set_label(label),
            _ => Err(Condition::NotSupported.into()),
        }
    }

    /// Makes everything done so far durable, and has changes wait until it is [thawed](Self::thaw): the
    /// devices hold a filesystem that needs no recovery, but for deleted files that are in use (`FIFREEZE`). Reading
    /// goes on, and times of access stay. An unmount thaws it.
    ///
    /// # Errors
    /// `Busy` where it is frozen; `ReadOnly` where nothing is written; those of writing, and it is not frozen.
    fn freeze(&self) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    /// Ends a freeze (`FITHAW`).
    ///
    /// # Errors
    /// `InvalidArgument` where it is not frozen; those of the device, after which nothing is written any more.
    fn thaw(&self) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    /// Its subvolumes, where the format has any.
    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        None
    }

    /// Its devices, where it is written and they can be changed meanwhile.
    fn devices(&self) -> Option<&dyn Devices> {
        None
    }

    /// Its quotas, where it counts any.
    fn quotas(&self) -> Option<&dyn Quotas> {
        None
    }

    /// Discards free space on the device. Returns how many bytes.
    ///
    /// # Errors
    /// `InvalidArgument` where nothing can meet the request.
    fn trim(&self, asked: &Trim) -> Result<u64> {
        let _ = asked;
        Err(Condition::NotSupported.into())
    }

    /// Makes everything done so far durable and ends all changes, for good: they fail with `ReadOnly`.
    /// The filesystem stays as it is on the device, for the next mount to recover.
    fn shutdown(&self) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    /// Writes everything back and leaves the disk clean. Further changes fail with `ReadOnly`.
    fn unmount(&self) -> Result<()>;
}
