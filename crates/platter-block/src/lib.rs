//! Block devices: what a filesystem driver reads from and writes to.
//!
//! Everything speaks [`BlockDevice`]: bytes at offsets, any number of threads at once, and a flush
//! that promises what is durable. Backends lie at the bottom, layers are stacked on them.
//!
//! | | |
//! |---|---|
//! | [`FileDevice`] | an image file or a real block device, locked |
//! | [`MemoryDevice`] | bytes in memory |
//! | [`ReadOnlyDevice`] | lets no change through |
//! | [`WindowDevice`] | a part of a device: a partition, found by [`partition`] |
//! | [`OverlayDevice`] | keeps writes in memory |
//! | [`ScratchDevice`] | keeps writes on another device |
//! | [`BurstDevice`] | keeps writes until the next flush, and has them written together |
//! | [`RevocableDevice`] | can be revoked while others hold references to it |
//! | [`CountingDevice`] | counts requests |
//! | [`sim`] | records writes, cuts the power, fails requests |
//!
//! A filesystem in the second partition of an image, writable without touching the image:
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use platter_block::{FileDevice, OpenOptions, OverlayDevice, OverlayOptions, partition};
//! use std::{path::Path, sync::Arc};
//!
//! let disk = Arc::new(FileDevice::open(Path::new("disk.img"), OpenOptions::default())?);
//! let table = partition::read_table(&*disk)?.ok_or("no partition table")?;
//! let window = Arc::new(table.open(disk, 2)?);
//! let overlay = OverlayDevice::new(window, OverlayOptions::default());
//! # drop(overlay);
//! # Ok(())
//! # }
//! ```

pub mod error;
pub mod device;
pub mod memory;
mod sys;
pub mod file;
pub mod guard;
pub mod window;
pub mod joined;
pub mod overlay;
pub mod scratch;
pub mod burst;
pub mod revocable;
pub mod stats;
pub mod partition;
pub mod sim;

pub use burst::{BatchPiece, BatchWriter, BurstDevice};
pub use device::{BlockDevice, Geometry};
pub use error::{IoError, Operation};
pub use file::{Access, FileDevice, OpenError, OpenOptions, Refusal};
pub use guard::ReadOnlyDevice;
pub use joined::JoinedDevice;
pub use memory::MemoryDevice;
pub use overlay::{OverlayDevice, OverlayOptions};
pub use partition::{Partition, PartitionTable, TableError};
pub use revocable::RevocableDevice;
pub use scratch::ScratchDevice;
pub use stats::{CountingDevice, Counts};
pub use window::WindowDevice;
