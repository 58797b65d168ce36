//! What is to be defragmented, as `BTRFS_IOC_DEFRAG_RANGE` says it.

use std::ops::Range;

/// A request to write extents of a file anew, so that it has fewer or compressed ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defragment {
    /// The bytes of the file.
    pub range: Range<u64>,
    /// Extents that are at least so long stay as they are, unless they are to be compressed.
    pub extent_bytes: u64,
    /// What to compress by, in the words of the format; `None` leaves it to the file.
    pub compression: Option<String>,
}

impl Default for Defragment {
    /// All of a file, and the length of `btrfs filesystem defragment`.
    fn default() -> Self {
        Self {
            range: 0..u64::MAX,
            extent_bytes: 32 << 20,
            compression: None,
        }
    }
}
