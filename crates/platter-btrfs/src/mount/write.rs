//! Opening a filesystem for writing.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Result};

use super::open;
use super::options::{MountOptions, Rescue};
use crate::log;
use crate::ondisk::superblock::SuperblockFlags;
use crate::pool::unsupported;
use crate::txn::{WriteContext, WriteOptions, superblocks};

/// Opens the filesystem on `devices` for transactions.
///
/// # Errors
/// `Unsupported`, by name, for features that this driver does not read or does not write.
pub fn open_for_writing(
    devices: &[Arc<dyn BlockDevice>],
    options: &MountOptions,
    writing: WriteOptions,
    budget: &Arc<MemoryBudget>,
    clock: Arc<dyn Clock>,
) -> Result<WriteContext> {
    refuse_read_only_options(options)?;
    let mut context = open::open(devices, options, budget)?;
    let dumps = SuperblockFlags::METADUMP | SuperblockFlags::METADUMP_V2;
    if context.superblock.flags.intersects(dumps) {
        let feature = "writing to a metadata dump without data".to_owned();
        return Err(unsupported(feature, None));
    }
    let overlays = context.take_overlays();
    let log_root = context.superblock.log_root;
    let opened = WriteContext::open_with_log(context, writing, clock)?;
    superblocks::agree_on_commit(&opened)?;
    superblocks::agree_on_log(&opened)?;
    if let Some(log_root) = log_root {
        log::apply(&opened, log_root, &overlays)?;
    }
    Ok(opened)
}

/// Refuses options by which a filesystem is read that is not whole.
fn refuse_read_only_options(options: &MountOptions) -> Result<()> {
    let reason = Some("mount read-only");
    if options.rescue != Rescue::default() {
        return Err(unsupported(
            "writing with rescue options".to_owned(),
            reason,
        ));
    }
    if options.superblock_offset.is_some() {
        let feature = "writing through a copy of the superblock";
        return Err(unsupported(feature.to_owned(), reason));
    }
    Ok(())
}
