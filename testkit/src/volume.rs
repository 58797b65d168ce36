//! A fixture as platter opens it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use platter_block::partition::read_table;
use platter_block::{BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::SystemClock;

use crate::fixtures::Built;

/// Room for the caches of one volume.
const CACHE_BYTES: u64 = 32 << 20;

/// Opens a fixture for reading, replaying its journal in memory.
pub fn open(built: &Built) -> Result<Arc<Ext4>> {
    let options = MountOptions {
        journal: built.journal.as_deref().map(file).transpose()?,
        ..MountOptions::default()
    };
    mount(device(built)?, &options)
}

/// Opens the filesystem on a device.
pub fn mount(device: Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Arc<Ext4>> {
    let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
    Ok(Arc::new(Ext4::mount(
        device,
        options,
        budget,
        &SystemClock::new(),
    )?))
}

/// The device that holds a fixture's filesystem.
pub fn device(built: &Built) -> Result<Arc<dyn BlockDevice>> {
    let disk = file(&built.image)?;
    let Some(number) = built.partition else {
        return Ok(disk);
    };
    let table = read_table(&*disk)?.context("no partition table")?;
    Ok(Arc::new(table.open(disk, number)?))
}

fn file(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    Ok(Arc::new(FileDevice::open(path, OpenOptions::default())?))
}
