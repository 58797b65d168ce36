//! Opening a filesystem: superblock, features, journal, orphans; and what is asked of it as a
//! whole.

mod describe;
mod label;
mod lifetime;
mod flusher;
mod options;
mod copies;
mod mmp;
mod recovery;
mod statfs;
mod trim;
mod unused;
mod writing;
mod offline;
mod image_commit;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::Corrupt;
use platter_vfs::{
    Clock, Condition, Counters, Description, Error, Filesystem, InodeId, Quotas, Result, StatFs,
    Trim, Unsupported,
};

use crate::FsContext;
use crate::fs_context::SharingStatistics;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::{
    DiskSuperblock, ENCODING_UTF8_12_1, LOCUS, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES,
    SuperblockRule,
};
use crate::ondisk::{Features, Geometry, InodeNr, Superblock};
use crate::ops::{self, SuperBlock};
use crate::orphan::Orphans;
use crate::recovery::RecoveryReport;
use lifetime::Lifetime;
use writing::Writing;

pub use copies::find_superblock_copy;
pub use image_commit::ImageCommit;
pub(crate) use offline::Offline;
pub use options::{DataMode, MountOptions, OnError, Recovery};
pub use unused::Unused;

/// A mounted ext2, ext3 or ext4 filesystem.
#[derive(Debug)]
pub struct Ext4 {
    sb: Arc<SuperBlock>,
    recovery: Option<RecoveryReport>,
    /// Absent where nothing may be changed.
    writing: Option<Writing>,
}

impl Ext4 {
    /// Opens the filesystem on `device`.
    ///
    /// # Errors
    /// `Unsupported` for features this driver does not know, or does not write, by name; `Busy` for
    /// writing on a device that another host has mounted.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let at = superblock_offset(options);
        let mut opened = Opened::read(&*device, at, options)?;
        let mut guard = None;
        let mut device = device;
        let mut lifetime = None;
        if !options.read_only {
            let counted = Arc::new(Lifetime::new(device, clock.monotonic()));
            device = counted.device();
            lifetime = Some(counted);
            writing::refuse_unwritable(&*device, &opened, options)?;
            guard = mmp::Guard::take(&opened.fs(&device, &budget), options, &clock)?;
        }
        let mut recovery = None;
        if opened.needs_recovery() && options.recovery != Recovery::Skip {
            let recovered = recovery::recover(device, &opened, options, at, &budget, &clock)?;
            device = recovered.device;
            recovery = Some(recovered.report);
            opened = Opened::read(&*device, at, options)?;
        }
        let fs = opened.fs(&device, &budget);
        let Some(lifetime) = lifetime else {
            let orphans = Orphans::collect(&fs)?;
            return Ok(Self {
                sb: SuperBlock::new(fs, None, None, orphans, budget, clock, OnError::Continue),
                recovery,
                writing: None,
            });
        };
        let sb = writing::begin(fs, options, budget, clock)?;
        let writing = writing::start(&sb, options, guard, lifetime)?;
        Ok(Self {
            sb,
            recovery,
            writing: Some(writing),
        })
    }

    /// Reads what the superblock of `device` says, without opening the filesystem: its features may
    /// be ones this driver does not know.
    pub fn identify(device: &dyn BlockDevice) -> Result<Superblock> {
        let disk = read_superblock(device, SUPERBLOCK_OFFSET_BYTES)?;
        Ok(Superblock::decode(&disk)?)
    }

    /// The filesystem below its inodes, for checks.
    #[must_use]
    pub fn fs(&self) -> &FsContext {
        &self.sb.fs
    }

    /// What a crash left half done.
    #[must_use]
    pub fn orphans(&self) -> &Orphans {
        &self.sb.orphans
    }

    /// What the sharing of equal attributes came to; `None` where nothing is shared anew.
    #[must_use]
    pub fn sharing(&self) -> Option<SharingStatistics> {
        Some(self.fs().sharing()?.statistics())
    }

    /// What recovery did, if there was one.
    #[must_use]
    pub fn recovery(&self) -> Option<&RecoveryReport> {
        self.recovery.as_ref()
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if let Some(writing) = &self.writing {
            writing.abandon();
        }
        self.sb.close();
    }
}

impl Filesystem for Ext4 {
    fn describe(&self) -> Description {
        describe::description(self)
    }

    fn counters(&self) -> Counters {
        let counted = self.fs().log().map(|log| log.statistics().named());
        let counted = counted.into_iter().flatten();
        counted.map(|(name, count)| (name.into(), count)).collect()
    }

    fn is_read_only(&self) -> bool {
        let has_failed = self.fs().log().is_none_or(|log| log.failure().is_some());
        has_failed || self.writing.as_ref().is_none_or(Writing::has_ended)
    }

    fn time_granularity(&self) -> u32 {
        // The part of a second is after the first 128 bytes.
        if self.fs().geometry.inode_bytes > 128 {
            1
        } else {
            1_000_000_000
        }
    }

    fn root(&self) -> Result<Arc<dyn platter_vfs::Inode>> {
        self.inode(InodeNr::ROOT.id())
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn platter_vfs::Inode>> {
        let number = u32::try_from(id.number).ok().filter(|_| id.tree == 0);
        let found = match number.and_then(InodeNr::new) {
            Some(number) => self.sb.find(number)?,
            None => None,
        };
        match found {
            Some(node) => Ok(node),
            None => Err(Condition::Stale.into()),
        }
    }

    fn inode_of_handle(&self, id: InodeId) -> Result<Arc<dyn platter_vfs::Inode>> {
        let number = u32::try_from(id.number).ok().and_then(InodeNr::new);
        // What the table holds of an inode that was never used may be anything.
        let is_in_use = match number {
            Some(number) => self.sb.is_in_use(number)?,
            None => false,
        };
        if !is_in_use {
            return Err(Condition::Stale.into());
        }
        self.inode(id)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        statfs::stat_fs(&self.sb)
    }

    fn stat_fs_at(&self, inode: InodeId) -> Result<StatFs> {
        statfs::stat_fs_at(&self.sb, inode)
    }

    fn sync(&self) -> Result<()> {
        ops::sync_fs(&self.sb)
    }

    fn label(&self) -> Result<Vec<u8>> {
        label::label(self.fs())
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        if self.writing.is_none() {
            return Err(Condition::ReadOnly.into());
        }
        let _writer = self.sb.writers.enter();
        label::set_label(&self.sb, label)
    }

    fn trim(&self, asked: &Trim) -> Result<u64> {
        let _writer = self.sb.writers.enter();
        trim::trim(&self.sb, asked)
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

    fn quotas(&self) -> Option<&dyn Quotas> {
        self.sb.quotas()
    }

    fn unmount(&self) -> Result<()> {
        let ended = self.writing.as_ref().map_or(Ok(()), Writing::unmount);
        self.sb.close();
        ended
    }
}

/// A superblock that was read and validated, before it is acted on.
struct Opened {
    superblock: Superblock,
    geometry: Geometry,
}

impl Opened {
    fn read(device: &dyn BlockDevice, at: u64, options: &MountOptions) -> Result<Self> {
        Self::try_read(device, at, options).map_err(|mut error| {
            if let Error::Corrupt(corruption) = &mut error
                && corruption.locus == LOCUS
            {
                corruption.locus = corruption.locus.at_offset(at);
            }
            error
        })
    }

    fn try_read(device: &dyn BlockDevice, at: u64, options: &MountOptions) -> Result<Self> {
        let disk = read_superblock(device, at)?;
        let superblock = Superblock::decode(&disk)?;
        refuse_unreadable(&superblock.features)?;
        refuse_unknown_encoding(&superblock)?;
        let mut geometry = Geometry::decode(&disk, &superblock)?;
        let may_be_truncated = options.truncated && options.read_only;
        if !may_be_truncated && geometry.len_bytes() > device.geometry().len_bytes {
            return Err(Corrupt::new(LOCUS, SuperblockRule::DeviceTooShort).into());
        }
        geometry.superblock_block.0 = at >> geometry.block_bits;
        Ok(Self {
            superblock,
            geometry,
        })
    }

    fn fs(&self, device: &Arc<dyn BlockDevice>, budget: &Arc<MemoryBudget>) -> FsContext {
        let (superblock, geometry) = (self.superblock.clone(), self.geometry.clone());
        FsContext::new(Arc::clone(device), superblock, geometry, Arc::clone(budget))
    }

    fn needs_recovery(&self) -> bool {
        let features = self.superblock.features;
        features.has_journal() && features.incompat.contains(Incompat::RECOVER)
    }
}

/// The superblock at byte `at`.
fn read_superblock(device: &dyn BlockDevice, at: u64) -> Result<DiskSuperblock> {
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    let len_bytes = device.geometry().len_bytes;
    if at
        .checked_add(SUPERBLOCK_LEN_BYTES as u64)
        .is_none_or(|end| end > len_bytes)
    {
        return Err(Corrupt::new(LOCUS, SuperblockRule::Magic).into());
    }
    device.read_at(at, &mut bytes)?;
    Ok(zerocopy::transmute!(bytes))
}

fn superblock_offset(options: &MountOptions) -> u64 {
    let kib = options.superblock_kib;
    kib.map_or(SUPERBLOCK_OFFSET_BYTES, |kib| kib.saturating_mul(1024))
}

fn refuse_unreadable(features: &Features) -> Result<()> {
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        let reason = "the device holds the journal of another filesystem";
        return Err(unsupported("journal_dev".into(), Some(reason)));
    }
    let names = features.unreadable();
    if names.is_empty() {
        return Ok(());
    }
    Err(unsupported(names.join(", "), None))
}

/// Names that ignore case are looked up by the rules of one version of Unicode.
fn refuse_unknown_encoding(superblock: &Superblock) -> Result<()> {
    let is_casefolded = superblock.features.incompat.contains(Incompat::CASEFOLD);
    if !is_casefolded || superblock.encoding == ENCODING_UTF8_12_1 {
        return Ok(());
    }
    let feature = format!("casefold with encoding {}", superblock.encoding);
    Err(unsupported(feature, Some("only utf8-12.1 is")))
}

fn unsupported(feature: String, reason: Option<&'static str>) -> Error {
    let unsupported = Unsupported {
        filesystem: "ext4",
        feature,
        reason,
    };
    unsupported.into()
}
