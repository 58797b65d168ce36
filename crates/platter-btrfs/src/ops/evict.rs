//! Inodes that lost their last name and now their last user: all that they have becomes free.

use std::sync::atomic::Ordering;

use platter_vfs::{FileKind, Result};

use super::state::{NAME_CREDITS, Purpose};
use super::{BtrfsInode, blocks, file_extents};
use crate::inode;

/// Deletes the inode, unless that was tried before. It is an orphan until that is done: an error leaves it to
/// the next mount.
pub(super) fn evict(inode: &BtrfsInode) -> Result<()> {
    if inode.is_deleted.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    inode.pages.truncate(0);
    blocks::release_all(inode);
    if matches!(inode.kind, FileKind::Regular | FileKind::Symlink) {
        file_extents::drop_all(inode)?;
    }
    let number = inode.id.number;
    let handle = inode.fs.begin(NAME_CREDITS, Purpose::Free)?;
    handle.edit(inode.tree_id(), |editor| {
        inode::change::remove_items(editor, number)?;
        inode::change::remove_orphan(editor, number)
    })
}
