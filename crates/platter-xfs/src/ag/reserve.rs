//! Blocks of a group that stay free for the B-trees that grow with what is allocated, as Linux keeps them:
//! without them, a full group could not record what changes in it.

use super::space::{free_list_max, list_levels_max};
use crate::ondisk::Geometry;
use crate::ondisk::agf::Agf;
use crate::ondisk::agi::Agi;
use crate::ondisk::btree::BtreeKind;
use crate::ondisk::geometry::CHUNK_INODES;
use crate::space::TreeLimits;

/// Blocks that every change may take in addition to what it allocates.
pub(super) const SLACK_BLOCKS: u32 = 4;

/// Blocks of a tree with so many records, whose blocks are half full.
fn tree_blocks(kind: BtreeKind, geometry: &Geometry, records: u64) -> u64 {
    let half = |level| (kind.records_max(level, geometry) / 2).max(2) as u64;
    let mut blocks = records.div_ceil(half(0)).max(1);
    let mut total = blocks;
    while blocks > 1 {
        blocks = blocks.div_ceil(half(1));
        total += blocks;
    }
    total
}

/// What the trees of a group of so many blocks may come to need.
#[must_use]
pub fn tree_limits(geometry: &Geometry, length: u32) -> TreeLimits {
    let length = u64::from(length);
    let inodes = length.saturating_mul(geometry.inodes_per_block().into());
    let chunks = inodes / u64::from(CHUNK_INODES);
    TreeLimits {
        levels: list_levels_max(geometry),
        blocks: [
            tree_blocks(BtreeKind::Rmap, geometry, length).max(length / 100),
            tree_blocks(BtreeKind::Refcount, geometry, length),
            tree_blocks(BtreeKind::Finobt, geometry, chunks),
        ],
    }
}

/// The blocks that the trees of a group may need beyond those that they have.
#[must_use]
pub(super) fn kept_blocks(agf: &Agf, agi: &Agi, limits: &TreeLimits) -> u32 {
    let used = [
        agf.rmap.map(|_| agf.rmap_blocks),
        agf.refcount.map(|_| agf.refcount_blocks),
        agi.finobt.map(|_| agi.free_btree_blocks),
    ];
    let asked = used.into_iter().zip(limits.blocks);
    let kept = asked.map(|(used, asked)| used.map_or(0, |used| asked.saturating_sub(used.into())));
    u32::try_from(kept.sum::<u64>()).unwrap_or(u32::MAX)
}

/// Free blocks of a group that no change allocates for anything but its free list, whatever that holds.
pub(super) fn withheld_blocks(agf: &Agf, limits: &TreeLimits) -> u64 {
    free_list_max(agf, limits) as u64 + u64::from(SLACK_BLOCKS)
}

/// Those of the free blocks of a group that reservations of space leave to its B-trees: what they may come to need,
/// what those of free space and of owners have, and what no change allocates.
#[must_use]
pub fn reserved_blocks(agf: &Agf, agi: &Agi, limits: &TreeLimits) -> u64 {
    let kept = u64::from(kept_blocks(agf, agi, limits));
    kept + u64::from(agf.btree_blocks) + withheld_blocks(agf, limits)
}
