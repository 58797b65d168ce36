//! Linux filesystems in user space: open ext2/3/4 images and disks, read and walk them,
//! copy files out, stream them as tar, check them. No root, no mount, nothing written to the image.
//!
//! An [`ImageSpec`] names an image, [`OpenOptions`] open it as a [`Volume`], and the volume gives
//! [`File`]s by path. An [`Image`] is what lies below: bytes to [probe](Image::probe), with
//! partitions. Paths and names are bytes; errors name image, path, structure, place and rule.
//!
//! ```no_run
//! use platter::vfs::{FileKind, WalkOrder};
//!
//! let volume = platter::OpenOptions::new().open(&"disk.img@2".parse()?)?;
//! for entry in volume.open("/etc")?.loaded_entries(WalkOrder::Name) {
//!     let entry = entry?;
//!     let (file, attr) = entry.file?;
//!     if attr.kind == FileKind::Regular {
//!         println!("{} {}", attr.size_bytes, platter::Escaped(file.path()));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod escape;
pub mod spec;
pub mod signature;
pub mod options;
pub mod error;
pub mod image;
pub mod devices;
pub mod image_set;
mod counting;
pub mod problem;
mod data_map;
mod salvage;
mod entries;
mod pipeline;
pub mod volume;
mod driver;
pub mod probe;
pub mod open;
pub mod archive;
pub mod populate;
pub mod make;
pub mod resize;
pub mod accounts;
pub mod copy;
pub mod edit;

#[cfg(test)]
mod sample;

pub use accounts::Accounts;
pub use devices::DeviceRole;
pub use edit::Edit;
pub use error::{Cause, Error, Result};
pub use escape::Escaped;
pub use image::Image;
pub use image_set::ImageSet;
pub use make::Maker;
pub use open::OpenOptions;
pub use options::{MountOption, OnError, OptionError, Recovery, WriteOptions};
pub use platter_block as block;
pub use platter_cache::MemoryBudget;
pub use platter_vfs as vfs;
pub use probe::{Probe, Signature};
pub use problem::{Effect, Problem};
pub use signature::{Format, FormatClass};
pub use spec::{ImageSpec, PartitionSelector};
pub use volume::{File, LoadedEntry, Volume};
