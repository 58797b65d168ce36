//! Linux filesystems in user space.
#![forbid(unsafe_code)]

pub mod escape;
pub mod spec;
pub mod signature;
pub mod error;
mod data_map;
mod entries;
pub mod volume;
pub mod archive;

pub use error::{Cause, Error, Result};
pub use escape::Escaped;
pub use platter_block as block;
pub use platter_vfs as vfs;
pub use signature::{Format, FormatClass};
pub use spec::{ImageSpec, PartitionSelector};
pub use volume::{File, Volume};
