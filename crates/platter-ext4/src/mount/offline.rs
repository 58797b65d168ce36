//! An unmounted filesystem, opened to be changed as a whole.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Filesystem, Result};

use super::writing::{open_empty_journal, refuse_unwritable};
use super::{Ext4, MountOptions, Opened, mmp, unsupported};
use crate::FsContext;
use crate::ondisk::features::RoCompat;
use crate::ondisk::superblock::{Remedy, SUPERBLOCK_OFFSET_BYTES};
use crate::superblock;
use crate::txn::Log;

/// A clean filesystem, whose journal is empty.
pub(crate) struct Offline {
    pub(crate) fs: FsContext,
    options: MountOptions,
    guard: Option<mmp::Guard>,
}

impl Offline {
    /// Opens the filesystem on `device`, and finishes first what a crash left undone.
    ///
    /// # Errors
    /// `Unsupported` where it has errors or was not unmounted, or cannot be written; `Busy` where
    /// another host has it mounted.
    pub(crate) fn open(
        device: &Arc<dyn BlockDevice>,
        budget: &Arc<MemoryBudget>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        let options = MountOptions {
            read_only: false,
            ..MountOptions::default()
        };
        let read = || Opened::read(&**device, SUPERBLOCK_OFFSET_BYTES, &options);
        let mut opened = read()?;
        refuse_unwritable(&**device, &opened, &options)?;
        let superblock = &opened.superblock;
        let has_orphans = superblock.last_orphan.is_some()
            || superblock
                .features
                .ro_compat
                .contains(RoCompat::ORPHAN_PRESENT);
        if opened.needs_recovery() || has_orphans {
            let (device, budget) = (Arc::clone(device), Arc::clone(budget));
            Ext4::mount(device, &options, budget, Arc::clone(clock))?.unmount()?;
            opened = read()?;
        }
        let state = opened.superblock.state;
        if state.has_errors() || !state.is_clean() {
            let feature = "changing a filesystem that is not clean".into();
            return Err(unsupported(feature, Some("check it first")));
        }
        let fs = opened.fs(device, budget);
        let guard = mmp::Guard::take(&fs, &options, clock)?;
        Ok(Self { fs, options, guard })
    }

    /// Opens it for changes in one transaction, and marks it as being changed.
    ///
    /// # Errors
    /// `Unsupported` where the journal lies on another device.
    pub(crate) fn begin(self, clock: &Arc<dyn Clock>) -> Result<Changing> {
        let features = self.fs.geometry.features;
        let fs = if features.has_journal() {
            let journal = open_empty_journal(&self.fs, &self.options)?;
            let clock = Arc::clone(clock);
            let fs = self.fs;
            fs.try_writable(|buffers| {
                let log = Log::with_journal(buffers, journal, &features, clock)?;
                Ok(log.for_one_transaction())
            })?
        } else {
            self.fs.writable(Log::without_journal)
        };
        let remedy = if features.has_journal() {
            Remedy::Replay
        } else {
            Remedy::Check
        };
        superblock::rewrite(&fs, |disk| disk.begin_change(remedy))?;
        Ok(Changing {
            fs,
            guard: self.guard,
        })
    }

    /// Leaves it as it is.
    pub(crate) fn leave(self) -> Result<()> {
        self.guard.map_or(Ok(()), mmp::Guard::release)
    }
}

/// A filesystem that is being changed.
pub(crate) struct Changing {
    pub(crate) fs: FsContext,
    guard: Option<mmp::Guard>,
}

impl Changing {
    /// Marks it as clean again, unchanged: nothing was committed.
    pub(crate) fn abandon(self) -> Result<()> {
        self.leave()
    }

    /// Checkpoints all changes, and marks it as clean again.
    pub(crate) fn end(self) -> Result<()> {
        if let Some(log) = self.fs.log() {
            log.close()?;
        }
        self.leave()
    }

    fn leave(self) -> Result<()> {
        superblock::rewrite(&self.fs, |disk| disk.end_change(true))?;
        self.guard.map_or(Ok(()), mmp::Guard::release)
    }
}
