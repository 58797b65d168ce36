//! Which part of a table belongs to an inode, where a table is cut into parts so that users of
//! different inodes do not meet.

use crate::InodeId;

/// The one of `parts` that belongs to `id`, evenly spread also for neighbouring numbers.
pub(crate) fn shard_of(id: InodeId, parts: usize) -> usize {
    let mixed = (id.number ^ id.tree.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as usize % parts
}
