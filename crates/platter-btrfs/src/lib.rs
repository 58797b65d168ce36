//! btrfs in one driver.
//!
//! Modules stand in the order of their dependencies: each uses only those above it.
#![forbid(unsafe_code)]

pub mod ondisk;
pub mod chunk;
pub mod tree;
pub mod items;
pub mod context;
pub mod delayed_refs;
pub mod block_group;
pub mod qgroup;
pub mod txn;
pub mod compress;
pub mod data;
pub mod inode;
pub mod file;
pub mod verity;
pub mod directory;
pub mod xattr;
pub mod subvolume;
pub mod send;
pub mod log;
pub mod ops;
pub mod scrub;
pub mod pool;
pub mod mount;
pub mod mkfs;
pub mod check;
pub mod unmounted;

pub use compress::Method;
pub use mount::{
    Btrfs, Identity, MountOptions, Rescue, SubvolumeChoice, find_superblock_copy, identify,
    identify_all, open_for_writing,
};
pub use ops::DataPolicy;
pub use pool::{BalanceArgs, BalanceFilter};
pub use scrub::ScrubCounts;
pub use unmounted::PoolRequest;
