//! What of a file is only in the page cache: dirty blocks that have no place of their own on the
//! device yet, and the space that was promised to them.

use std::ops::Range;

use crate::file::BlockSet;
use crate::ondisk::FileBlock;

/// Dirty blocks where the map has a hole or unwritten blocks.
///
/// # Invariants
/// A dirty block in a cluster of which the map has nothing has a promise, one for each cluster.
#[derive(Debug, Default)]
pub(in crate::ops) struct Delayed {
    dirty: BlockSet,
    /// Clusters of the file with a promise.
    promised: BlockSet,
}

impl Delayed {
    /// The dirty blocks.
    pub(in crate::ops) fn dirty(&self) -> &BlockSet {
        &self.dirty
    }

    /// Adds dirty blocks. Gives those that were not.
    pub(super) fn add(&mut self, blocks: Range<FileBlock>) -> Vec<Range<u32>> {
        let blocks = blocks.start.0..blocks.end.0;
        let new = self.dirty.gaps(blocks.clone()).collect();
        self.dirty.insert(blocks);
        new
    }

    /// Which clusters of a range have no promise.
    pub(super) fn unpromised(&self, clusters: Range<u32>) -> Vec<Range<u32>> {
        self.promised.gaps(clusters).collect()
    }

    /// Notes the promise of these clusters, which had none.
    pub(super) fn promise(&mut self, clusters: Range<u32>) {
        self.promised.insert(clusters);
    }

    /// Whether a cluster has a promise, and the first one behind it of which that is not true.
    pub(super) fn promise_of(&self, cluster: u32) -> (bool, u32) {
        match self.promised.next(cluster) {
            Some(promised) if promised.start == cluster => (true, promised.end),
            Some(promised) => (false, promised.start),
            None => (false, u32::MAX),
        }
    }

    /// Takes blocks that are on the device out, and the promises of the clusters that all of them
    /// lie in. Gives how many there were.
    pub(super) fn place(&mut self, blocks: Range<FileBlock>, ratio: u32) -> u32 {
        self.dirty.remove(blocks.start.0..blocks.end.0);
        let clusters = blocks.start.0 / ratio..blocks.end.0.div_ceil(ratio);
        self.promised.remove(clusters)
    }

    /// Takes blocks out that are no longer to be written, and the promises of clusters in which
    /// nothing is dirty any more. Gives how many.
    pub(super) fn forget(&mut self, blocks: Range<FileBlock>, ratio: u32) -> u32 {
        self.dirty.remove(blocks.start.0..blocks.end.0);
        let clusters = blocks.start.0 / ratio..blocks.end.0.div_ceil(ratio);
        let promised: Vec<u32> = self.promised.within(clusters).flatten().collect();
        let mut count = 0;
        for cluster in promised {
            let first = cluster * ratio;
            let mut dirty = self.dirty.within(first..first.saturating_add(ratio));
            if dirty.next().is_none() {
                count += self.promised.remove(cluster..cluster + 1);
            }
        }
        count
    }
}
