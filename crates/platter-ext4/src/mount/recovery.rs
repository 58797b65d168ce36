//! Recovery at mount: the journal replayed into memory, or onto the device.

use std::sync::Arc;

use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Condition, Result};
use zerocopy::IntoBytes;

use super::{MountOptions, Opened, Recovery, read_superblock};
use crate::FsContext;
use crate::ondisk::BlockNr;
use crate::ondisk::features::Incompat;
use crate::ondisk::mmp::{self, MmpRules, MmpUse};
use crate::ondisk::superblock::{self, DiskSuperblock};
use crate::recovery::{Onto, RecoveryReport, open_journal};

/// A filesystem after recovery.
pub(super) struct Recovered {
    /// Where it is to be read: the device, or what memory holds above it.
    pub(super) device: Arc<dyn BlockDevice>,
    /// What was done.
    pub(super) report: RecoveryReport,
}

/// Replays the journal. `at` is where the superblock was found.
pub(super) fn recover(
    device: Arc<dyn BlockDevice>,
    opened: &Opened,
    options: &MountOptions,
    at: u64,
    budget: &Arc<MemoryBudget>,
    clock: &Arc<dyn Clock>,
) -> Result<Recovered> {
    let fs = |device: &Arc<dyn BlockDevice>| opened.fs(device, budget);
    // Where the filesystem is to be written, the MMP block was already updated.
    let on_device = !options.read_only || options.recovery == Recovery::OnDevice;
    if on_device && options.read_only {
        refuse_mounted_elsewhere(&fs(&device))?;
    }
    let target = |device: Arc<dyn BlockDevice>| -> Arc<dyn BlockDevice> {
        if on_device {
            return device;
        }
        Arc::new(OverlayDevice::new(device, OverlayOptions::default()))
    };
    // An external journal is marked as empty, too: in memory, it is not to be touched either.
    let external = options.journal.clone().map(target);
    let device = target(device);
    let mut journal = open_journal(&fs(&device), external.as_ref())?;
    let before = read_superblock(&*device, at)?;
    let onto = if on_device {
        Onto::Device
    } else {
        Onto::Overlay
    };
    let report = crate::recovery::recover(&mut journal, &device, onto, at, budget, clock)?;
    keep_errors(&*device, at, &before)?;
    Ok(Recovered { device, report })
}

/// Refuses to write a filesystem that another host has mounted for writing.
fn refuse_mounted_elsewhere(fs: &FsContext) -> Result<()> {
    let geometry = &fs.geometry;
    if !geometry.features.incompat.contains(Incompat::MMP) {
        return Ok(());
    }
    let has_checksum = geometry.features.has_metadata_csum();
    let rules = MmpRules {
        checksum_seed: has_checksum.then_some(geometry.checksum_seed),
    };
    let block = fs.read_block(BlockNr(fs.superblock.mmp_block), &rules)?;
    match mmp::decode(&block) {
        MmpUse::Clean => Ok(()),
        MmpUse::Checking | MmpUse::Mounted => Err(Condition::Busy.into()),
    }
}

/// Errors were recorded past the journal, which may hold an older superblock.
fn keep_errors(device: &dyn BlockDevice, at: u64, before: &DiskSuperblock) -> Result<()> {
    let mut disk = read_superblock(device, at)?;
    superblock::keep_errors(&mut disk, before);
    disk.seal();
    if disk.as_bytes() != read_superblock(device, at)?.as_bytes() {
        device.write_at(at, disk.as_bytes())?;
        device.flush()?;
    }
    Ok(())
}
