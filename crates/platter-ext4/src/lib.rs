//! ext2, ext3 and ext4 in one driver.
//!
//! Modules stand in the order of their dependencies: each uses only those above it.
#![forbid(unsafe_code)]

pub mod ondisk;
pub mod txn;
pub mod quota;
pub mod fs_context;
pub mod superblock;
pub mod groups;
pub mod alloc;
pub mod inode;
pub mod mapping;
pub mod file;
pub mod quota_file;
pub mod xattr;
pub mod directory;
pub mod orphan;
pub mod recovery;
pub mod ops;
pub mod mount;
pub mod mkfs;
pub mod resize;
pub mod check;

pub use alloc::ContentsShare;
pub use fs_context::{FsContext, SharingStatistics};
pub use mount::{
    DataMode, Ext4, ImageCommit, MountOptions, OnError, Recovery, Unused, find_superblock_copy,
};

/// Where the fields of what all threads share lie.
pub const LAYOUTS: [platter_cache::layout::Layout; 5] = [
    ops::LAYOUT,
    fs_context::LAYOUT,
    fs_context::SHARING_LAYOUT,
    txn::LOG_LAYOUT,
    alloc::LAYOUT,
];
