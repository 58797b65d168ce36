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
    let has_contents = matches!(inode.kind, FileKind::Regular | FileKind::Symlink);
    if !remove(inode, has_contents)? {
        file_extents::drop_all(inode)?;
        remove(inode, false)?;
    }
    Ok(())
}

/// Removes the items of an inode, unless it may have extents, and has some. Returns whether it did.
fn remove(inode: &BtrfsInode, may_have_extents: bool) -> Result<bool> {
    let number = inode.id.number;
    let handle = inode.fs.begin(NAME_CREDITS, Purpose::Free)?;
    handle.edit(inode.tree_id(), |editor| {
        if may_have_extents && inode::change::has_extents(editor, number)? {
            return Ok(false);
        }
        let numbers = &inode.fs.free_objectids;
        numbers.note_deleted(inode.tree_id(), number);
        inode::change::remove_items(editor, number)?;
        if !handle.withdraw_orphan(inode.tree_id(), number) {
            inode::change::remove_orphan(editor, number)?;
        }
        Ok(true)
    })
}
