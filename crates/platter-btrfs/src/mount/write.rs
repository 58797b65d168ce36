//! Opening a filesystem for writing.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Result};

use super::open;
use super::options::MountOptions;
use crate::txn::{WriteContext, WriteOptions};

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
    let context = open::open(devices, options, budget)?;
    WriteContext::open(context, writing, clock)
}
