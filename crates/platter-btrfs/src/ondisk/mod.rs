//! The bytes on the device: one file per structure of the format, with its rules.
//!
//! Nothing outside this directory knows an offset. Bytes here are hostile: they never panic, and
//! what breaks a rule becomes [`platter_ondisk::Corrupt`]. Spec: `btrfs` (structures and constants).
#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)
)]

pub mod types;
pub mod key;
pub mod checksum;
pub mod features;
pub mod timestamp;
pub mod dev_item;
pub mod chunk_item;
pub mod dev_extent;
pub mod dev_stats;
pub mod header;
pub mod superblock;
pub mod leaf;
pub mod leaf_edit;
pub mod node;
pub mod node_edit;
pub mod tree_block;
pub mod inode_item;
pub mod inode_ref;
pub mod dir_item;
pub mod file_extent;
pub mod csum_item;
pub mod root_item;
pub mod root_ref;
pub mod extent_item;
pub mod block_group;
pub mod free_space;
pub mod dir_log;
pub mod uuid_item;
pub mod send_stream;
pub mod qgroup;
pub mod balance;
pub mod dev_replace;
pub mod verity;
pub mod item;

pub use checksum::ChecksumKind;
pub use features::Features;
pub use key::{ItemKind, Key};
pub use superblock::Superblock;
pub use types::{DeviceAddr, DeviceId, Generation, LogicalAddr, TreeId};
