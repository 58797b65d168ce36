//! What a change reserves in the log, and of the free blocks.

use crate::ondisk::Geometry;

/// What a logged block takes in addition to its bytes.
const BLOCK_OVERHEAD: u64 = 256;
/// Headers of a group.
const GROUP_HEADERS: u64 = 3;

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
    /// Bytes of other blocks.
    pub bytes: u64,
    /// Free blocks that are reserved above the floor until it is committed (`resblks`): an estimate, of changes that
    /// leave the reserve pool alone, where there is one.
    pub blocks: u32,
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
            blocks: self.blocks + other.blocks,
        }
    }

    /// What the items of the log usually take at most. A change that takes more reserves that when it is tried
    /// again.
    #[must_use]
    pub fn log_bytes(&self, geometry: &Geometry) -> u64 {
        let block = u64::from(geometry.block_bytes()) + BLOCK_OVERHEAD;
        let dir_block = u64::from(geometry.dir_block_bytes()) + BLOCK_OVERHEAD;
        let sector = u64::from(geometry.sector_bytes()) + BLOCK_OVERHEAD;
        let inode = u64::from(geometry.inode_bytes()) * 2 + 2 * BLOCK_OVERHEAD;
        u64::from(self.extents + self.forks) * 2 * block
            + GROUP_HEADERS * sector
            + u64::from(self.directory_blocks).div_ceil(2) * dir_block
            + u64::from(self.inodes) * inode
            + self.bytes
    }
}
