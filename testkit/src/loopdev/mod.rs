//! Loop devices and kernel mounts that cannot outlive their owner.
//!
//! A mount here is never attached to the tree of mounts: it is a descriptor, reached through
//! `/proc`. When the last descriptor goes, by drop, panic or a kill, the kernel unmounts. The loop
//! device is detached with its last user, so it follows the mount.

mod device;
mod members;
mod rest;
mod mount;

pub use device::LoopDevice;
pub use members::{Members, list_lock};
pub use mount::{Access, Mount};
pub use rest::is_clean;

#[cfg(test)]
mod tests;
