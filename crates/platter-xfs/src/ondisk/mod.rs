//! The bytes on the device: one file per structure of the format, with its rules.
//!
//! Nothing outside this module knows an offset. Bytes here are hostile: they never panic, and
//! what breaks a rule becomes [`platter_ondisk::Corrupt`]. Spec: `xfs`.
#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)
)]

pub mod types;
pub mod structure;
pub mod checksum;
pub mod chunks;
pub mod features;
pub mod superblock;
pub mod growth;
pub mod geometry;
#[macro_use]
mod identity;
pub mod btree;
pub mod agf;
pub mod agi;
pub mod agfl;
pub mod inode;
pub mod da;
pub mod dir;
pub mod attr;
pub mod symlink;
pub mod dquot;
pub mod realtime;
pub mod verifier;
pub mod log;

pub use agf::Agf;
pub use agfl::Agfl;
pub use agi::Agi;
pub use btree::extent::{self, Mapping};
pub use features::Features;
pub use geometry::{Geometry, InodeLocation};
pub use growth::{FsSize, Growth};
pub use identity::Site;
pub use inode::{Fork, ForkFormat, ForkKind, Inode, InodeFlags, InodeFlags2};
pub use structure::Structure;
pub use superblock::{DiskSuperblock, Superblock, SuperblockRule};
pub use types::{AgBlock, AgInode, AgNr, BasicBlock, FileBlock, FsBlock, InodeNr, Lsn, RtBlock};
pub use verifier::{BlockKind, BlockVerifier};
