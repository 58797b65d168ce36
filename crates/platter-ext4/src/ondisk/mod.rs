//! The on-disk format: one file per structure, with its rules.
//!
//! No code outside this directory uses an offset. Bytes are hostile: they never panic, and a broken
//! rule becomes [`platter_ondisk::Corrupt`]. Spec: `ext4` (the kernel's format document).
#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)
)]

pub mod types;
pub mod structure;
pub mod features;
pub mod superblock;
pub mod group_desc;
pub mod inode;
pub mod bitmap;
pub mod extent;
pub mod jbd2;
pub mod orphan;
pub mod mmp;
pub mod quota;
pub mod dir_entry;
pub mod htree;
pub mod xattr;

pub use features::Features;
pub use group_desc::GroupDesc;
pub use inode::{Inode, InodeFlags};
pub use structure::Structure;
pub use superblock::Superblock;
pub use superblock::geometry::{self, Creator, Geometry};
pub use types::{BlockNr, FileBlock, GroupNr, InodeNr};
