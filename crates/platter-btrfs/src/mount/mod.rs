//! Opening a filesystem: devices, superblock, chunks, roots; and what is asked of it as a whole.

mod options;
mod devices;
mod devices_in_use;
mod members;
mod chunks;
mod identity;
mod open;
mod statfs;
mod describe;
mod subvolume;
mod tune;
mod write;
mod writing;
#[cfg(test)]
mod subvolume_tests;
#[cfg(test)]
mod interrupted_deletion_tests;
#[cfg(test)]
mod defragment_tests;
#[cfg(test)]
mod quota_tests;
#[cfg(test)]
mod write_tests;
#[cfg(test)]
mod largest_file_tests;
#[cfg(test)]
mod rename_tests;
#[cfg(test)]
mod delayed_inode_tests;
#[cfg(test)]
mod full_tests;
#[cfg(test)]
mod reflink_tests;
#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod durability_tests;
#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod devices_in_use_tests;
#[cfg(test)]
mod truncation_tests;
#[cfg(test)]
mod moving_tests;
#[cfg(test)]
mod replace_tests;
#[cfg(test)]
mod trim_tests;
#[cfg(test)]
mod tune_tests;
#[cfg(test)]
mod left_by_kernel_tests;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{
    Clock, Condition, Counters, Description, Devices, Filesystem, Inode, InodeId, Result, StatFs,
    Subvolumes, Trim, Tune,
};

use crate::ondisk::Superblock;
use crate::ops::{MountedSubvolumes, SuperBlock, sync};
use crate::txn::{CommitReport, CommitTotals, WriteContext, trim};
use devices_in_use::DevicesInUse;
use writing::Writing;

pub(crate) use open::{open, open_for_check};

pub use devices::{find_superblock_copy, identify};
pub use identity::{Identity, identify_all};
pub use options::{MountOptions, Rescue, SubvolumeChoice};
pub use write::open_for_writing;

/// A mounted btrfs filesystem.
#[derive(Debug)]
pub struct Btrfs {
    fs: Arc<SuperBlock>,
    subvolumes: MountedSubvolumes,
    devices: DevicesInUse,
    /// Absent where nothing may be changed.
    writing: Option<Writing>,
}

impl Btrfs {
    /// Opens the filesystem that lies on `devices`, for reading.
    ///
    /// # Errors
    /// `Unsupported` for features that this driver does not read, by name; `NotFound` for a subvolume
    /// that does not exist.
    pub fn mount(
        devices: &[Arc<dyn BlockDevice>],
        options: &MountOptions,
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let context = open::open(devices, options, &budget)?;
        let root = subvolume::choose(&context, &options.subvolume)?;
        let others = match context.subvolumes() {
            Ok(others) => others,
            // They are found when they are reached.
            Err(_) if options.rescue.ignores_bad_roots => Vec::new(),
            Err(error) => return Err(error),
        };
        let fs = SuperBlock::new(context, &root, &others, budget, clock);
        Ok(Self::over(fs, None))
    }

    /// Opens the filesystem that lies on `devices`, for writing.
    ///
    /// # Errors
    /// Those of [`mount`](Self::mount); `Unsupported` for what this driver does not write, by name.
    pub fn mount_writable(
        devices: &[Arc<dyn BlockDevice>],
        options: &MountOptions,
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let fs = writing::begin(devices, options, budget, clock)?;
        let writing = writing::start(&fs, options.commit_interval)?;
        Ok(Self::over(fs, Some(writing)))
    }

    fn over(fs: Arc<SuperBlock>, writing: Option<Writing>) -> Self {
        Self {
            devices: DevicesInUse::new(Arc::clone(&fs)),
            subvolumes: MountedSubvolumes(Arc::clone(&fs)),
            fs,
            writing,
        }
    }

    /// The filesystem as its inodes see it, for checks.
    #[must_use]
    pub fn super_block(&self) -> &Arc<SuperBlock> {
        &self.fs
    }

    /// Ends the command on devices that runs, also one that waits for the end of a freeze, and lets none begin.
    fn end_devices(&self) {
        self.devices.stop();
        if let Some(writing) = &self.writing {
            // It need not be frozen.
            let _ = writing.thaw();
        }
        self.devices.wait();
    }

    /// What the last commit of this mount did; `None` if nothing is written.
    #[must_use]
    pub fn last_commit(&self) -> Option<CommitReport> {
        Some(self.fs.writing()?.last_commit())
    }

    /// Its superblock: of the devices' superblocks, the newest.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.fs.context().superblock
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        self.devices.stop();
        if let Some(writing) = &self.writing {
            // One that is frozen stays as it is.
            writing.abandon();
        }
        self.devices.wait();
        self.fs.close();
    }
}

impl Filesystem for Btrfs {
    fn describe(&self) -> Description {
        describe::describe(&self.fs)
    }

    fn counters(&self) -> Counters {
        let totals = self.fs.writing().map(WriteContext::commit_totals);
        let counted = totals.iter().flat_map(CommitTotals::named);
        counted.map(|(name, count)| (name.into(), count)).collect()
    }

    fn is_read_only(&self) -> bool {
        let writing = self.fs.writing();
        let has_failed = writing.is_none_or(|writing| writing.failure().is_some());
        has_failed || self.writing.as_ref().is_none_or(Writing::has_ended)
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        self.inode(self.fs.root())
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        Ok(self.fs.find(id)?.ok_or(Condition::Stale)?)
    }

    fn inode_of_handle(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        Ok(self.fs.find_by_handle(id)?.ok_or(Condition::Stale)?)
    }

    fn shown_number(&self, id: InodeId) -> u64 {
        self.fs.shown(id)
    }

    fn inode_shown_as(&self, number: u64) -> Option<InodeId> {
        self.fs.shown_as(number)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        Some(&self.subvolumes)
    }

    fn devices(&self) -> Option<&dyn Devices> {
        Some(&self.devices)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        statfs::stat_fs(&self.fs)
    }

    fn sync(&self) -> Result<()> {
        sync::sync_fs(&self.fs)
    }

    fn label(&self) -> Result<Vec<u8>> {
        let writing = self.fs.writing();
        Ok(match writing {
            Some(writing) => writing.superblock().label,
            None => self.fs.context().superblock.label.clone(),
        })
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        self.tune(&[Tune::Label(label.to_vec())])
    }

    fn tune(&self, changes: &[Tune]) -> Result<()> {
        let _writer = self.fs.writers.enter();
        tune::tune(&self.fs, changes)
    }

    fn trim(&self, asked: &Trim) -> Result<u64> {
        let _writer = self.fs.writers.enter();
        let writing = self.fs.writing().ok_or(Condition::ReadOnly)?;
        if asked.len_bytes < u64::from(self.fs.context().superblock.sector_bytes) {
            return Err(Condition::InvalidArgument.into());
        }
        trim::trim(writing, asked)
    }

    fn freeze(&self) -> Result<()> {
        self.writing.as_ref().ok_or(Condition::ReadOnly)?.freeze()
    }

    fn thaw(&self) -> Result<()> {
        self.writing.as_ref().ok_or(Condition::ReadOnly)?.thaw()
    }

    fn shutdown(&self) -> Result<()> {
        self.end_devices();
        self.writing.as_ref().map_or(Ok(()), Writing::shut_down)
    }

    fn unmount(&self) -> Result<()> {
        self.end_devices();
        let ended = self.writing.as_ref().map_or(Ok(()), Writing::unmount);
        self.fs.close();
        ended
    }
}

#[cfg(test)]
mod tests {
    use platter_vfs::{FileKind, FixedClock, Timestamp};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::context::tests::sample;
    use crate::ondisk::inode_item;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::{Key, TreeId};

    /// A filesystem with its root directory alone.
    fn mounted() -> Btrfs {
        let root = inode_item::tests::sample(FileKind::Directory).encode();
        let key = Key::new(256, ItemKind::INODE_ITEM, 0);
        let context = sample(&[(key, root.as_bytes())], &[]);
        let root = context.subvolume(TreeId::FS).unwrap().unwrap();
        let budget = Arc::new(MemoryBudget::new(1 << 20));
        let clock = Arc::new(FixedClock::new(Timestamp::default(), 0));
        let fs = SuperBlock::new(context, &root, &[], budget, clock);
        Btrfs::over(fs, None)
    }

    #[test]
    fn cached_inodes_do_not_outlive_the_mount() {
        for unmounts in [false, true] {
            let mounted = mounted();
            let fs = Arc::downgrade(&mounted.fs);
            mounted.root().unwrap().attr().unwrap();
            if unmounts {
                mounted.unmount().unwrap();
                mounted.root().unwrap().attr().unwrap();
            }
            drop(mounted);
            assert!(fs.upgrade().is_none());
        }
    }
}
