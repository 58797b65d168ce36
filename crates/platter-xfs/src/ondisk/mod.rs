//! The bytes on the device: one file per structure of the format, with its rules.
//!
//! Nothing outside this module knows an offset. Bytes here are hostile: they never panic, and
//! what breaks a rule becomes [`platter_ondisk::Corrupt`]. Spec: `xfs`.
#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)
)]

#[macro_use]
mod rules;
pub mod types;
pub mod structure;
pub mod checksum;
pub mod features;
pub mod superblock;
pub mod geometry;
pub mod log;

pub use features::Features;
pub use geometry::{Geometry, InodeLocation};
pub use structure::Structure;
pub use superblock::{DiskSuperblock, Superblock, SuperblockRule};
pub use types::{AgBlock, AgInode, AgNr, BasicBlock, FileBlock, FsBlock, InodeNr, Lsn};
