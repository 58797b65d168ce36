//! Opening a filesystem: superblock, features, log; and what is asked of it as a whole.

mod describe;
mod options;
mod statfs;
mod unused;
mod trim;
mod tune;
mod writing;
mod growfs;
mod devices_in_use;
mod split_blocks;
mod image_commit;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod inactivation_tests;
#[cfg(test)]
mod growfs_tests;
#[cfg(test)]
mod reuse_tests;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod tune_tests;
#[cfg(test)]
mod whole_file_tests;

use std::sync::Arc;

use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_cache::MemoryBudget;
use platter_vfs::clock::SystemClock;
use platter_vfs::{
    Clock, Condition, Description, Devices, Filesystem, InodeId, Result, StatFs, Trim, Tune,
};

use crate::context::FsContext;
use crate::inode;
use crate::ondisk::{Geometry, InodeNr, Superblock};
use crate::ops::{SuperBlock, free_inactive};
use crate::preallocation::Preallocation;
use crate::recovery::{Counters, RecoveryReport};
use crate::superblock;
use crate::txn::{Log, LogState};
use devices_in_use::DevicesInUse;
use writing::Writing;

pub use image_commit::ImageCommit;
pub use options::{Logging, MountOptions, Recovery};
pub use unused::Unused;
pub(crate) use writing::refuse_unwritable;

/// A mounted XFS filesystem.
#[derive(Debug)]
pub struct Xfs {
    superblock: Arc<SuperBlock>,
    recovery: Option<RecoveryReport>,
    /// Absent where nothing may be changed.
    writing: Option<Writing>,
    devices: DevicesInUse,
}

impl Xfs {
    /// Opens the filesystem on `device` for writing. A log that holds changes is replayed.
    ///
    /// # Errors
    /// `Unsupported` for features that this driver does not know, or does not write, by name.
    pub fn mount_writable(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let (superblock, report) = writing::begin(device, options, budget, clock)?;
        let writing = writing::start(&superblock, options)?;
        Ok(Self {
            devices: DevicesInUse::new(Arc::clone(&superblock)),
            superblock,
            recovery: Some(report),
            writing: Some(writing),
        })
    }

    /// Opens the filesystem on `device`.
    ///
    /// # Errors
    /// `Unsupported` for features this driver does not know, by name.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
        budget: Arc<MemoryBudget>,
    ) -> Result<Self> {
        let device = match options.superblock_offset {
            Some(at) => superblock::with_copy(device, at)?,
            None => device,
        };
        let mut superblock = superblock::read(&*device)?;
        superblock::refuse_unreadable(&superblock.features)?;
        if !options.truncated {
            superblock.check_device(device.geometry().len_bytes)?;
        }
        let mut device = device;
        let mut recovery = None;
        if options.recovery == Recovery::InMemory {
            let overlay = OverlayDevice::new(Arc::clone(&device), OverlayOptions::default());
            let overlay: Arc<dyn BlockDevice> = Arc::new(overlay);
            let report = crate::recovery::recover(&overlay, options.log.as_ref())?;
            if report.position.state == LogState::Dirty {
                device = overlay;
                superblock = superblock::read(&*device)?;
                superblock::refuse_unreadable(&superblock.features)?;
                if !options.truncated {
                    superblock.check_device(device.geometry().len_bytes)?;
                }
            }
            recovery = Some(report);
        }
        if options.superblock_offset.is_some() {
            // Copies do not keep the counters.
            Counters::read(&*device, &Geometry::new(&superblock))?.set(&mut superblock);
        }
        let realtime = options.realtime.clone();
        let context = FsContext::new(device, realtime, superblock, Arc::clone(&budget));
        let clock = Arc::new(SystemClock::default());
        let superblock = SuperBlock::new(context, budget, clock, Preallocation::Off);
        Ok(Self {
            devices: DevicesInUse::new(Arc::clone(&superblock)),
            superblock,
            recovery,
            writing: None,
        })
    }

    /// What recovery found and did; `None` where it was skipped.
    #[must_use]
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.as_ref()
    }

    /// Reads the superblock of `device` without opening the filesystem: its features may be ones this
    /// driver does not know.
    pub fn identify(device: &dyn BlockDevice) -> Result<Superblock> {
        superblock::read(device)
    }

    /// The filesystem below its inodes, for checks.
    #[must_use]
    pub fn context(&self) -> &FsContext {
        &self.superblock.context
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        self.devices.stop();
        if let Some(writing) = &self.writing {
            writing.abandon();
        }
        self.devices.wait();
        self.superblock.close();
    }
}

impl Filesystem for Xfs {
    fn describe(&self) -> Description {
        describe::description(self.context(), self.recovery())
    }

    fn is_read_only(&self) -> bool {
        let log = self.context().log();
        let has_failed = log.is_none_or(Log::is_shut_down);
        has_failed || self.writing.as_ref().is_none_or(Writing::has_ended)
    }

    fn root(&self) -> Result<Arc<dyn platter_vfs::Inode>> {
        self.inode(self.context().superblock.root_inode.id())
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn platter_vfs::Inode>> {
        let number = InodeNr::new(id.number).filter(|_| id.tree == 0);
        let found = match number {
            Some(number) => self.superblock.find(number)?,
            None => None,
        };
        match found {
            Some(inode) => Ok(inode),
            None => Err(Condition::Stale.into()),
        }
    }

    fn inode_of_handle(&self, id: InodeId) -> Result<Arc<dyn platter_vfs::Inode>> {
        // What lies where no inode chunk is may be anything.
        let is_allocated = match InodeNr::new(id.number) {
            Some(number) => {
                let (ag, _) = self.context().geometry().split_inode(number);
                let is_there = ag.0 < self.context().geometry().ag_count();
                let _group = is_there.then(|| self.context().space().lock(ag));
                inode::is_allocated(self.context(), number)?
            }
            None => false,
        };
        if !is_allocated {
            return Err(Condition::Stale.into());
        }
        self.inode(id)
    }

    fn read_ahead_dir(&self, dir: InodeId) {
        if let Some(number) = InodeNr::new(dir.number) {
            inode::read_ahead_dir(self.context(), number);
        }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        // Those that wait for it count as used until they are free.
        let _ = free_inactive(&self.superblock);
        Ok(statfs::stat_fs(self.context()))
    }

    fn sync(&self) -> Result<()> {
        self.superblock.sync()
    }

    fn label(&self) -> Result<Vec<u8>> {
        tune::label(self.context())
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        self.tune(&[Tune::Label(label.to_vec())])
    }

    fn tune(&self, changes: &[Tune]) -> Result<()> {
        if self.is_read_only() {
            return Err(Condition::ReadOnly.into());
        }
        let _writer = self.superblock.writers.enter();
        let _copies = self.superblock.copies.lock();
        tune::tune(self.context(), changes)
    }

    fn trim(&self, asked: &Trim) -> Result<u64> {
        if self.is_read_only() {
            return Err(Condition::ReadOnly.into());
        }
        let _writer = self.superblock.writers.enter();
        trim::trim(self.context(), asked)
    }

    fn freeze(&self) -> Result<()> {
        self.writing.as_ref().ok_or(Condition::ReadOnly)?.freeze()
    }

    fn thaw(&self) -> Result<()> {
        self.writing.as_ref().ok_or(Condition::ReadOnly)?.thaw()
    }

    fn shutdown(&self) -> Result<()> {
        self.writing.as_ref().map_or(Ok(()), Writing::shut_down)
    }

    fn devices(&self) -> Option<&dyn Devices> {
        Some(&self.devices)
    }

    fn unmount(&self) -> Result<()> {
        self.devices.stop();
        if let Some(writing) = &self.writing {
            // A command may wait for the end of a freeze; mostly there is none.
            let _ = writing.thaw();
        }
        self.devices.wait();
        let ended = self.writing.as_ref().map_or(Ok(()), Writing::unmount);
        self.superblock.close();
        ended
    }
}
