//! Platter compared with Linux and its tools: over every fixture, and over what one test needs alone.
#![expect(
    clippy::unwrap_used,
    reason = "a panic is how a test fails, in its helpers too"
)]

mod user_mount;
mod btrfs;
mod images;
mod fixtures;
mod usr;
mod layouts;
mod image;
mod directories;
mod attributes;
mod devices;
mod partitions;
mod recovery;
mod xfs;
mod xfs_log;
mod space_write;
mod mkfs;
mod resize;
mod trees;
mod journal_write;
mod map_write;
mod names_write;
mod names_limits;
mod mount_write;
mod large_blocks;
mod creators;
mod open_files;
mod handles;
mod access_times;
mod kept_attributes;
mod set_id_bits;
mod frozen;
mod xfstests;
mod ioctls;
mod idmapped;
mod xattr_write;
mod xattr_sharing;
mod edits;
mod xattr_script;
