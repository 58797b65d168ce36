//! What a change takes in the log at most.

use crate::ag::levels_max;
use crate::ondisk::Geometry;
use crate::ondisk::btree::BtreeKind;

/// What a logged block takes beside its bytes.
const BLOCK_OVERHEAD: u64 = 256;
/// Headers of groups that an extent changes.
const GROUP_HEADERS: u64 = 3;
/// More levels than trees of mappings come to have as a file grows by what one change takes.
const FORK_LEVELS: u64 = 5;

/// What a change does, counted as reservations count it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Extents that are allocated or freed.
    pub extents: u32,
    /// Forks whose mappings change.
    pub forks: u32,
    /// Directory blocks that change.
    pub directory_blocks: u32,
    /// Inodes that change.
    pub inodes: u32,
    /// Bytes of blocks beside these.
    pub bytes: u64,
}

impl Cost {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            extents: self.extents + other.extents,
            forks: self.forks + other.forks,
            directory_blocks: self.directory_blocks + other.directory_blocks,
            inodes: self.inodes + other.inodes,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Bytes of the items of the log.
    #[must_use]
    pub fn log_bytes(&self, geometry: &Geometry) -> u64 {
        let block = u64::from(geometry.block_bytes()) + BLOCK_OVERHEAD;
        let dir_block = u64::from(geometry.dir_block_bytes()) + BLOCK_OVERHEAD;
        let sector = u64::from(geometry.sector_bytes()) + BLOCK_OVERHEAD;
        let inode = u64::from(geometry.inode_bytes()) * 2 + 2 * BLOCK_OVERHEAD;
        let extent = tree_blocks(geometry) * block + GROUP_HEADERS * sector;
        // A tree of mappings that grows takes extents of its own.
        let extents = u64::from(self.extents) + u64::from(self.forks) * FORK_LEVELS;
        extents * extent
            + u64::from(self.forks) * 2 * FORK_LEVELS * block
            + u64::from(self.directory_blocks) * dir_block
            + u64::from(self.inodes) * inode
            + self.bytes
    }
}

/// Blocks of the trees of a group that one extent changes: two for each level but the root.
fn tree_blocks(geometry: &Geometry) -> u64 {
    let extents = u64::from(geometry.ag_blocks).div_ceil(2);
    let blocks = u64::from(geometry.ag_blocks);
    let mut trees = vec![
        levels_max(BtreeKind::Bno, geometry, extents),
        levels_max(BtreeKind::Cnt, geometry, extents),
        levels_max(BtreeKind::Inobt, geometry, extents),
        levels_max(BtreeKind::Inobt, geometry, extents),
    ];
    if geometry.features.has_rmapbt() {
        trees.push(levels_max(
            BtreeKind::Rmap,
            geometry,
            blocks.saturating_mul(2),
        ));
    }
    if geometry.features.has_reflink() {
        trees.push(levels_max(BtreeKind::Refcount, geometry, blocks));
    }
    let changed = trees.into_iter().map(|levels| 2 * u64::from(levels) - 1);
    changed.sum()
}
