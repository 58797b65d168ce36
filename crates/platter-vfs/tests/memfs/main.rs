//! The operations of the shared layers, over the filesystem in memory.
#![allow(clippy::unwrap_used, reason = "tests")]

mod namei;
mod path;
mod permission;
mod tree_walk;
