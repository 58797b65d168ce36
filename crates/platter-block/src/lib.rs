//! Block devices: what a filesystem driver reads from and writes to.
//!
//! Backends ([`MemoryDevice`], files, real block devices) and layers stacked on them (read-only
//! guard, partition window, overlay, simulated faults) all speak [`BlockDevice`].

pub mod error;
pub mod device;
pub mod memory;
mod sys;
pub mod file;
pub mod guard;
pub mod window;
pub mod overlay;
pub mod stats;
pub mod partition;
pub mod sim;

pub use device::{BlockDevice, Geometry};
pub use error::{IoError, Operation};
pub use file::{Access, FileDevice, OpenError, OpenOptions};
pub use guard::ReadOnlyDevice;
pub use memory::MemoryDevice;
pub use overlay::{OverlayDevice, OverlayOptions};
pub use partition::{Partition, PartitionTable, TableError};
pub use stats::{CountingDevice, Counts};
pub use window::WindowDevice;
