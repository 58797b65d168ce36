//! Bytes as an image, with small caches and a clock that stands still.

use std::sync::Arc;

use platter::block::MemoryDevice;
use platter::{Image, MemoryBudget, OpenOptions};
use platter_vfs::{FixedClock, Timestamp};

/// The image that `bytes` are.
#[must_use]
pub fn image(bytes: Vec<u8>) -> Image {
    Image::new("mutant", Arc::new(MemoryDevice::new("mutant", bytes)))
}

/// How images are opened here.
#[must_use]
pub fn options(cache_bytes: u64) -> OpenOptions {
    OpenOptions::new()
        .budget(Arc::new(MemoryBudget::new(cache_bytes)))
        .clock(Arc::new(FixedClock::new(Timestamp::default(), 0)))
}
