//! btrfs in one driver.
//!
//! Modules stand in the order of their dependencies: each uses only those above it.
#![forbid(unsafe_code)]

pub mod ondisk;
pub mod chunk;
pub mod tree;
