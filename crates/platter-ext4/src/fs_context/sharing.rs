//! Where metadata lies that files with equal contents can share: blocks of attributes, and inodes
//! that hold values of attributes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use platter_cache::MemoryBudget;
use platter_cache::mbcache::{Design, MbCache, Statistics};

/// What a mounted filesystem knows of metadata that can be shared.
#[derive(Debug)]
pub struct Sharing {
    /// Blocks of attributes, by the hash in their header.
    pub blocks: MbCache,
    /// Inodes that hold values, by the hash of the value.
    pub values: MbCache,
    shared_blocks: CachePadded<AtomicU64>,
    shared_values: CachePadded<AtomicU64>,
}

platter_cache::layout!(
    /// Of what can be shared.
    pub LAYOUT: Sharing {
        Hot: shared_blocks, shared_values;
        Apart: blocks, values;
    }
);

/// What sharing came to since the filesystem was mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharingStatistics {
    /// The cache of blocks of attributes.
    pub blocks: Statistics,
    /// The cache of inodes that hold values.
    pub values: Statistics,
    /// Times a file got a block that was there.
    pub shared_blocks: u64,
    /// Times an attribute got a value that was there.
    pub shared_values: u64,
}

impl Sharing {
    /// Knows nothing yet; what it will takes its memory from `budget`.
    #[must_use]
    pub fn new(design: Design, budget: &Arc<MemoryBudget>) -> Self {
        Self {
            blocks: MbCache::new(design, Arc::clone(budget)),
            values: MbCache::new(design, Arc::clone(budget)),
            shared_blocks: CachePadded::default(),
            shared_values: CachePadded::default(),
        }
    }

    /// Counts a block that got one more user.
    pub fn count_block(&self) {
        self.shared_blocks.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a value that got one more user.
    pub fn count_value(&self) {
        self.shared_values.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops some of what was not used lately, if there is too much: for a thread that has the time.
    pub fn shrink(&self) {
        self.blocks.shrink();
        self.values.shrink();
    }

    /// What it came to so far.
    #[must_use]
    pub fn statistics(&self) -> SharingStatistics {
        SharingStatistics {
            blocks: self.blocks.statistics(),
            values: self.values.statistics(),
            shared_blocks: self.shared_blocks.load(Ordering::Relaxed),
            shared_values: self.shared_values.load(Ordering::Relaxed),
        }
    }
}
