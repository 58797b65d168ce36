//! Delayed allocation of a file: dirty blocks in the page cache that have no physical block of their
//! own yet, and the space that is reserved for them.

use std::collections::BTreeMap;
use std::ops::Range;

use platter_vfs::writing::RangeSet;

use crate::mapping::{blocks_of_leaf, leaf_of};
use crate::ondisk::{FileBlock, Geometry};

/// Dirty blocks where the map has a hole or unwritten blocks.
///
/// # Invariants
/// - For each cluster with dirty blocks of which the map has nothing, one cluster is reserved.
/// - Where mapping a dirty block needs indirect blocks, they are reserved for the leaf array of the block.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    dirty: RangeSet<u32>,
    /// Clusters of the file with a reservation.
    clusters: RangeSet<u32>,
    /// Reserved indirect blocks by the index of the leaf array ([`leaf_of`]).
    leaves: BTreeMap<u32, u32>,
}

/// Clusters whose reservation ends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reserved {
    /// For data.
    pub(super) clusters: u32,
    /// For indirect blocks.
    pub(super) indirect: u32,
}

impl Reserved {
    /// Returns their number.
    pub(super) fn count(self) -> u32 {
        self.clusters.saturating_add(self.indirect)
    }
}

impl Delayed {
    /// The dirty blocks.
    pub(super) fn dirty(&self) -> &RangeSet<u32> {
        &self.dirty
    }

    /// Whether nothing is dirty and nothing reserved.
    pub(super) fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.clusters.is_empty() && self.leaves.is_empty()
    }

    /// Adds dirty blocks. Returns those that were not.
    pub(super) fn add(&mut self, blocks: Range<FileBlock>) -> Vec<Range<u32>> {
        let blocks = blocks.start.0..blocks.end.0;
        let new = self.dirty.gaps(blocks.clone()).collect();
        self.dirty.insert(blocks);
        new
    }

    /// Returns the clusters of a range that have no reservation.
    pub(super) fn unreserved(&self, clusters: Range<u32>) -> Vec<Range<u32>> {
        self.clusters.gaps(clusters).collect()
    }

    /// Records the reservation of these clusters, which had none.
    pub(super) fn reserve(&mut self, clusters: Range<u32>) {
        self.clusters.insert(clusters);
    }

    /// Whether any leaf array has a reservation.
    pub(super) fn has_leaves(&self) -> bool {
        !self.leaves.is_empty()
    }

    /// Whether a leaf array has a reservation.
    pub(super) fn has_leaf(&self, leaf: u32) -> bool {
        self.leaves.contains_key(&leaf)
    }

    /// Records the reservation of `count` indirect blocks for a leaf array that had none.
    pub(super) fn reserve_leaf(&mut self, leaf: u32, count: u32) {
        self.leaves.insert(leaf, count);
    }

    /// Returns the number of indirect blocks reserved for the leaf array of a block.
    pub(super) fn leaf_reservation(&self, geometry: &Geometry, block: FileBlock) -> u32 {
        let reserved = self.leaves.get(&leaf_of(geometry, block));
        reserved.copied().unwrap_or(0)
    }

    /// Whether a cluster has a reservation, and the first one after it for which this differs.
    pub(super) fn reservation_of(&self, cluster: u32) -> (bool, u32) {
        match self.clusters.next(cluster) {
            Some(reserved) if reserved.start == cluster => (true, reserved.end),
            Some(reserved) => (false, reserved.start),
            None => (false, u32::MAX),
        }
    }

    /// Returns the space of all reservations in blocks.
    pub(super) fn reserved_blocks(&self, geometry: &Geometry) -> u64 {
        let of_leaves: u64 = self.leaves.values().map(|&count| u64::from(count)).sum();
        self.reserved_clusters() * u64::from(geometry.cluster_blocks) + of_leaves
    }

    /// Returns the number of clusters with a reservation.
    pub(super) fn reserved_clusters(&self) -> u64 {
        self.clusters.count().into()
    }

    /// Returns how many more extents there may be once all dirty blocks are written: one for each that has a cluster to
    /// itself, two for each other one, which may lie between unwritten blocks.
    pub(super) fn new_extents_max(&self, geometry: &Geometry) -> u64 {
        let dirty = u64::from(self.dirty.count());
        let alone = if geometry.cluster_blocks == 1 {
            self.reserved_clusters()
        } else {
            0
        };
        (2 * dirty).saturating_sub(alone)
    }

    /// Removes blocks of one leaf array that are on the device now, and the reservations of the clusters and
    /// the leaf array that they lie in. Returns how much was reserved.
    pub(super) fn place(&mut self, geometry: &Geometry, blocks: Range<FileBlock>) -> Reserved {
        self.dirty.remove(blocks.start.0..blocks.end.0);
        let of_leaf = self.leaves.remove(&leaf_of(geometry, blocks.start));
        let clusters = clusters_of(geometry, &blocks);
        Reserved {
            clusters: self.clusters.remove(clusters),
            indirect: of_leaf.unwrap_or(0),
        }
    }

    /// Removes blocks that are no longer to be written, and the reservations of clusters and leaf arrays in
    /// which nothing is dirty any more. Returns how much was reserved.
    pub(super) fn forget(&mut self, geometry: &Geometry, blocks: Range<FileBlock>) -> Reserved {
        self.dirty.remove(blocks.start.0..blocks.end.0);
        let clusters = clusters_of(geometry, &blocks);
        let reserved: Vec<u32> = self.clusters.within(clusters).flatten().collect();
        let mut count = Reserved::default();
        let ratio = geometry.cluster_blocks;
        for cluster in reserved {
            let first = cluster * ratio;
            let is_dirty = {
                let mut dirty = self.dirty.within(first..first.saturating_add(ratio));
                dirty.next().is_some()
            };
            if !is_dirty {
                count.clusters += self.clusters.remove(cluster..cluster + 1);
            }
        }
        let leaves = leaf_of(geometry, blocks.start)..=leaf_of(geometry, blocks.end);
        let leaves: Vec<u32> = self.leaves.range(leaves).map(|(&leaf, _)| leaf).collect();
        for leaf in leaves {
            let mut dirty = self.dirty.within(blocks_of_leaf(geometry, leaf));
            if dirty.next().is_none() {
                count.indirect += self.leaves.remove(&leaf).unwrap_or(0);
            }
        }
        count
    }
}

/// The clusters of a file that blocks of it lie in.
fn clusters_of(geometry: &Geometry, blocks: &Range<FileBlock>) -> Range<u32> {
    let ratio = geometry.cluster_blocks;
    blocks.start.0 / ratio..blocks.end.0.div_ceil(ratio)
}
