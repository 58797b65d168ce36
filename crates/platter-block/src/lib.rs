//! Block devices, which filesystem drivers read from and write to.
//!
//! All implement [`BlockDevice`]: bytes at offsets, any number of threads at once, and a flush that
//! makes completed writes durable. Layers are stacked on backends.
//!
//! | | |
//! |---|---|
//! | [`FileDevice`] | an image file or a real block device, locked |
//! | [`MemoryDevice`] | bytes in memory |
//! | [`ReadOnlyDevice`] | refuses writes |
//! | [`PartitionView`] | a part of a device: a partition, found by [`partition`] |
//! | [`OverlayDevice`] | keeps writes in memory |
//! | [`ScratchDevice`] | keeps writes on another device |
//! | [`BatchDevice`] | holds writes until the next flush and submits them as one batch |
//! | [`RevocableDevice`] | can be revoked while other references to it exist |
//! | [`CountingDevice`] | counts requests |
//! | [`GatheringDevice`] | reads announced ranges together |
//! | [`sim`] | records writes, simulates power failures, fails requests |
//!
//! A filesystem in the second partition of an image, writable without touching the image:
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use platter_block::{FileDevice, OpenOptions, OverlayDevice, OverlayOptions, partition};
//! use std::{path::Path, sync::Arc};
//!
//! let disk = Arc::new(FileDevice::open(Path::new("disk.img"), OpenOptions::default())?);
//! let table = partition::read_table(&*disk)?.ok_or("no partition table")?;
//! let view = Arc::new(table.open(disk, 2)?);
//! let overlay = OverlayDevice::new(view, OverlayOptions::default());
//! # drop(overlay);
//! # Ok(())
//! # }
//! ```

pub mod error;
pub mod lock;
pub mod device;
pub mod memory;
mod sys;
pub mod mounts;
pub mod file;
pub mod guard;
pub mod view;
pub mod concat;
pub mod overlay;
pub mod scratch;
pub mod batch;
pub mod revocable;
pub mod stats;
pub mod gather;
pub mod partition;
pub mod sim;

pub use batch::{BatchDevice, BatchPiece, BatchWriter};
pub use concat::ConcatDevice;
pub use device::{BlockDevice, Geometry};
pub use error::{IoError, Operation};
pub use file::{Access, FileDevice, OpenError, OpenOptions, Refusal};
pub use gather::GatheringDevice;
pub use guard::ReadOnlyDevice;
pub use memory::MemoryDevice;
pub use mounts::{MountEntry, MountTable, MountedDevice};
pub use overlay::{OverlayDevice, OverlayOptions};
pub use partition::{Partition, PartitionTable, TableError};
pub use revocable::RevocableDevice;
pub use scratch::ScratchDevice;
pub use stats::{CountingDevice, Counts};
pub use view::PartitionView;
