//! Linux filesystems in user space: open images and disks, read and walk them, copy files out, stream them as
//! tar, check them, and change those of the formats that can be written. No root, no mount, and nothing is
//! written to an image that was not opened for writing.
//!
//! A [`Volume`] is what [`std::fs`] is for the filesystems of the host: it opens [`File`]s, which implement
//! [`Read`](std::io::Read), [`Write`](std::io::Write) and [`Seek`](std::io::Seek), creates, renames and
//! removes names, and lists directories. [`MountOptions`] open one: from a name like `disk.img@2`
//! ([`ImageSpec`]), from bytes in memory, or from any [`BlockDevice`](block::BlockDevice) (an [`Image`]).
//! [`FormatOptions`] make a new filesystem, and an [`Edit`] makes changes all at once or not at all.
//!
//! ```
//! use platter::{FormatOptions, Image, MountOptions};
//!
//! let image = Image::in_memory(4 << 20);
//! FormatOptions::default().format(&image)?;
//!
//! let volume = MountOptions::new().read_write().mount(&image)?;
//! volume.create_dir_all("/etc/app")?;
//! volume.write("/etc/app/motto", "as std::fs")?;
//! volume.close()?;
//!
//! let volume = MountOptions::new().mount(&image)?;
//! for entry in volume.read_dir("/etc/app")? {
//!     println!("{}", entry?.path().display());
//! }
//! assert_eq!(volume.read_to_string("/etc/app/motto")?, "as std::fs");
//! # Ok::<(), platter::Error>(())
//! ```
//!
//! Paths and names are bytes ([`AsPath`]); an [`Error`] names image, path, structure, place and rule, has a
//! stable [code](Error::code), and becomes a [`std::io::Error`]. What can be read and
//! not written is refused by name when it is opened for writing.
#![forbid(unsafe_code)]

mod path;
pub mod escape;
pub mod spec;
pub mod signature;
pub mod options;
pub mod error;
mod host_file;
pub mod progress;
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
pub mod usage;
mod driver;
pub mod probe;
pub mod open;
pub mod archive;
pub mod populate;
pub mod make;
pub mod pool;
pub mod resize;
pub mod accounts;
pub mod copy;
pub mod edit;
pub mod defragment;
pub mod dedupe;
pub mod stream;

#[cfg(test)]
mod sample;

/// The example of the readme, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use accounts::Accounts;
pub use devices::DeviceRole;
pub use edit::Edit;
pub use error::{Cause, Error, Result};
pub use escape::Escaped;
pub use image::Image;
pub use image_set::ImageSet;
pub use make::{FilesystemType, FormatOptions};
pub use open::MountOptions;
pub use options::{MountOption, OnError, OptionError, Recovery, WriteOptions};
pub use path::AsPath;
pub use platter_block as block;
pub use platter_cache::MemoryBudget;
pub use platter_vfs as vfs;
pub use platter_vfs::{Condition, Corruption, Credentials, FileKind};
pub use probe::{Probe, Signature};
pub use problem::{Effect, Problem};
pub use progress::Progress;
pub use signature::{Format, FormatClass};
pub use spec::{ImageSpec, PartitionSelector};
pub use volume::{
    DirEntry, File, LoadedEntry, Metadata, OpenOptions, ReadDir, SendRequest, Volume,
};
