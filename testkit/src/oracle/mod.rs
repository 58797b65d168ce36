//! The makers and checkers of e2fsprogs, btrfs-progs and xfsprogs.

mod verdict;
pub mod mke2fs;
pub mod debugfs;
pub mod e2fsck;
pub mod btrfs;
pub mod xfs;
mod fsck;

pub use fsck::fsck;
pub use verdict::Verdict;
