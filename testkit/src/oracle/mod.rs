//! The judges and makers of e2fsprogs.

pub mod mke2fs;
pub mod debugfs;
pub mod e2fsck;

pub use e2fsck::Verdict;
