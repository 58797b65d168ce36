//! What of a file is only in the page cache: dirty blocks that have no place of their own on the
//! device yet, and the space that was promised to them.

use std::collections::BTreeMap;
use std::ops::Range;

use platter_vfs::writing::RangeSet;

use crate::mapping::{blocks_of_row, row_of};
use crate::ondisk::{FileBlock, Geometry};

/// Dirty blocks where the map has a hole or unwritten blocks.
///
/// # Invariants
/// - A dirty block in a cluster of which the map has nothing has a promise, one for each cluster.
/// - Where mapping a dirty block needs blocks of numbers, they have a promise by the row of them that
///   will name the block.
#[derive(Debug, Default)]
pub(in crate::ops) struct Delayed {
    dirty: RangeSet<u32>,
    /// Clusters of the file with a promise.
    clusters: RangeSet<u32>,
    /// Promised blocks of numbers by row.
    rows: BTreeMap<u32, u32>,
}

impl Delayed {
    /// The dirty blocks.
    pub(in crate::ops) fn dirty(&self) -> &RangeSet<u32> {
        &self.dirty
    }

    /// Whether nothing is dirty and nothing promised.
    pub(super) fn is_empty(&self) -> bool {
        self.dirty.is_empty() && self.clusters.is_empty() && self.rows.is_empty()
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
        self.clusters.gaps(clusters).collect()
    }

    /// Notes the promise of these clusters, which had none.
    pub(super) fn promise(&mut self, clusters: Range<u32>) {
        self.clusters.insert(clusters);
    }

    /// Whether any row has a promise.
    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Whether a row has a promise.
    pub(super) fn has_row(&self, row: u32) -> bool {
        self.rows.contains_key(&row)
    }

    /// Notes the promise of so many blocks of numbers for a row that had none.
    pub(super) fn promise_row(&mut self, row: u32, count: u32) {
        self.rows.insert(row, count);
    }

    /// How many blocks of numbers are promised to the row of a block.
    pub(super) fn row_promise(&self, geometry: &Geometry, block: FileBlock) -> u32 {
        let promised = self.rows.get(&row_of(geometry, block));
        promised.copied().unwrap_or(0)
    }

    /// Whether a cluster has a promise, and the first one behind it of which that is not true.
    pub(super) fn promise_of(&self, cluster: u32) -> (bool, u32) {
        match self.clusters.next(cluster) {
            Some(promised) if promised.start == cluster => (true, promised.end),
            Some(promised) => (false, promised.start),
            None => (false, u32::MAX),
        }
    }

    /// The space of all promises in blocks.
    pub(in crate::ops) fn promised_blocks(&self, geometry: &Geometry) -> u64 {
        let clusters: u64 = self
            .clusters
            .within(0..u32::MAX)
            .map(|range| u64::from(range.end - range.start))
            .sum();
        let of_rows: u64 = self.rows.values().map(|&count| u64::from(count)).sum();
        clusters * u64::from(geometry.cluster_blocks) + of_rows
    }

    /// Takes blocks of one row that are on the device out, and the promises of the clusters and the
    /// row that they lie in. Gives how many there were.
    pub(super) fn place(&mut self, geometry: &Geometry, blocks: Range<FileBlock>) -> u32 {
        self.dirty.remove(blocks.start.0..blocks.end.0);
        let of_row = self.rows.remove(&row_of(geometry, blocks.start));
        let clusters = clusters_of(geometry, &blocks);
        self.clusters.remove(clusters) + of_row.unwrap_or(0)
    }

    /// Takes blocks out that are no longer to be written, and the promises of clusters and rows in
    /// which nothing is dirty any more. Gives how many.
    pub(super) fn forget(&mut self, geometry: &Geometry, blocks: Range<FileBlock>) -> u32 {
        self.dirty.remove(blocks.start.0..blocks.end.0);
        let clusters = clusters_of(geometry, &blocks);
        let promised: Vec<u32> = self.clusters.within(clusters).flatten().collect();
        let mut count = 0;
        let ratio = geometry.cluster_blocks;
        for cluster in promised {
            let first = cluster * ratio;
            let is_dirty = {
                let mut dirty = self.dirty.within(first..first.saturating_add(ratio));
                dirty.next().is_some()
            };
            if !is_dirty {
                count += self.clusters.remove(cluster..cluster + 1);
            }
        }
        let rows = row_of(geometry, blocks.start)..=row_of(geometry, blocks.end);
        let rows: Vec<u32> = self.rows.range(rows).map(|(&row, _)| row).collect();
        for row in rows {
            let mut dirty = self.dirty.within(blocks_of_row(geometry, row));
            if dirty.next().is_none() {
                count += self.rows.remove(&row).unwrap_or(0);
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
