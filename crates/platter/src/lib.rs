//! Linux filesystems in user space.
#![forbid(unsafe_code)]

pub mod escape;
pub mod spec;
pub mod signature;
pub mod error;
pub mod image;
pub mod problem;
mod data_map;
mod salvage;
mod entries;
pub mod volume;
mod driver;
pub mod probe;
pub mod open;
pub mod accounts;
pub mod archive;
pub mod copy;

#[cfg(test)]
mod sample;

pub use accounts::Accounts;
pub use error::{Cause, Error, Result};
pub use escape::Escaped;
pub use image::Image;
pub use open::{OpenOptions, Recovery};
pub use platter_block as block;
pub use platter_cache::MemoryBudget;
pub use platter_vfs as vfs;
pub use probe::{Probe, Signature};
pub use problem::{Effect, Problem};
pub use signature::{Format, FormatClass};
pub use spec::{ImageSpec, PartitionSelector};
pub use volume::{File, LoadedEntry, Volume};
