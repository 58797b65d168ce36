//! Opens bytes as an image, with small caches and a clock that stands still.

use std::sync::Arc;

use platter_block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::{FixedClock, Result, Timestamp};

/// Opens the filesystem that `image` is.
pub fn open(image: Vec<u8>, cache_bytes: u64) -> Result<Ext4> {
    let device = Arc::new(MemoryDevice::new("mutant", image));
    let budget = Arc::new(MemoryBudget::new(cache_bytes));
    let clock = FixedClock::new(Timestamp::default(), 0);
    Ext4::mount(device, &MountOptions::default(), budget, &clock)
}
