//! XFS in one driver.
//!
//! Modules stand in the order of their dependencies: each uses only those above it.
#![forbid(unsafe_code)]

#[macro_use]
pub mod ondisk;
pub mod xfs_mount;
pub mod superblock;
pub mod txn;
pub mod tree;
pub mod preallocation;
pub mod space;
mod sorted;
pub mod ag;
pub mod fork;
pub mod context;
pub mod btree;
pub mod inode;
pub mod mapping;
pub mod change;
pub mod file;
pub mod xattr;
pub mod directory;
pub mod metadir;
pub mod realtime;
pub mod recovery;
pub mod quota;
pub mod ops;
pub mod mkfs;
pub mod mount;
pub mod resize;
pub mod check;

pub use context::{FsContext, RealtimeDevice};
pub use mount::{ImageCommit, Logging, MountOptions, Recovery, Unused, Xfs};
pub use preallocation::Preallocation;

/// Where the fields of what all threads share lie, but those of the [mount object](xfs_mount::LAYOUTS).
pub const LAYOUTS: [platter_cache::layout::Layout; 2] = [txn::LOG_LAYOUT, space::LAYOUT];
