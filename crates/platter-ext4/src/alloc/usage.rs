//! Queries for unused blocks, for writers that bypass the mount.

use super::{Allocator, slot};
use crate::FsContext;
use crate::ondisk::BlockNr;

/// Whether a block is free; `false` if its group's bitmap is corrupt.
#[must_use]
pub fn is_free(space: &Allocator, fs: &FsContext, block: BlockNr) -> bool {
    let geometry = &fs.geometry;
    let Some(group) = geometry.group_of_block(block) else {
        return false;
    };
    let Ok(clusters) = slot::clusters(space, fs, group) else {
        return false;
    };
    let first = geometry.group_first_block(group).0;
    let ratio = u64::from(geometry.cluster_blocks);
    let index = u32::try_from((block.0 - first) / ratio);
    index.is_ok_and(|index| clusters.free.is_free(index..index + 1))
}
