//! Entries of directories, as changes of names add and remove them.

use platter_vfs::namei::Place;
use platter_vfs::{Condition, FileKind, Name, Result};

use super::BtrfsInode;
use super::state::{States, touch_contents};
use crate::directory::change::{EntryName, next_index};
use crate::inode;
use crate::txn::{Editor, Handle};

/// Adds a name to a directory.
pub(super) fn add(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    editor: &mut Editor<'_, '_>,
    name: Name<'_>,
    (inode, kind): (u64, FileKind),
) -> Result<()> {
    let generation = handle.generation();
    let index = new_index(directory, handle, editor)?;
    let entry = entry(directory, name, inode);
    let has_extended = handle.has_extended_refs();
    entry.add(editor, generation, (kind, index), has_extended)?;
    let notes = &directory.fs.log_notes;
    notes.add_name(generation, directory.tree_id(), inode);
    Ok(())
}

/// Refuses a name that is to replace another one, before that is removed.
pub(super) fn check_replacement(
    replaced: Place<'_, BtrfsInode>,
    handle: &Handle<'_>,
    editor: &mut Editor<'_, '_>,
    inode: u64,
) -> Result<()> {
    check_indices(replaced.dir, handle, editor)?;
    let entry = entry(replaced.dir, replaced.name, inode);
    entry.check_ref(editor, handle.has_extended_refs())
}

/// Refuses a directory without indices for two more names: no rename adds more to one.
///
/// # Errors
/// `NoSpace`.
pub(super) fn check_indices(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    editor: &Editor<'_, '_>,
) -> Result<()> {
    let index = new_index(directory, handle, editor)?;
    index.checked_add(1).ok_or(Condition::NoSpace)?;
    Ok(())
}

/// The index of a name that is added to a directory: none that a name had which was removed in the transaction.
pub(super) fn new_index(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    editor: &Editor<'_, '_>,
) -> Result<u64> {
    let (tree, dir) = (directory.tree_id(), directory.id.number);
    let index = next_index(editor, dir)?;
    let notes = &directory.fs.log_notes;
    let removed = notes.last_removed(handle.generation(), tree, dir);
    let Some(removed) = removed else {
        return Ok(index);
    };
    let Some(next) = removed.checked_add(1) else {
        handle.require_commit();
        return Ok(index);
    };
    Ok(index.max(next))
}

/// Removes a name from a directory.
pub(super) fn remove(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    editor: &mut Editor<'_, '_>,
    name: Name<'_>,
    inode: u64,
) -> Result<()> {
    let index = entry(directory, name, inode).remove(editor)?;
    note_removal(directory, handle, index, inode);
    Ok(())
}

/// Removes the last name of an inode, and the inode as well unless it has extents. Returns whether it did.
pub(super) fn remove_last(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    editor: &mut Editor<'_, '_>,
    name: Name<'_>,
    inode: u64,
) -> Result<bool> {
    if inode::change::has_extents(editor, inode)? {
        remove(directory, handle, editor, name, inode)?;
        return Ok(false);
    }
    let numbers = &directory.fs.free_objectids;
    numbers.note_deleted(directory.tree_id(), inode);
    let index = entry(directory, name, inode).remove_with_inode(editor)?;
    note_removal(directory, handle, index, inode);
    Ok(true)
}

fn entry<'n>(directory: &BtrfsInode, name: Name<'n>, inode: u64) -> EntryName<'n> {
    EntryName {
        dir: directory.id.number,
        name: name.as_bytes(),
        inode,
    }
}

/// Remembers for the log that a name is gone.
fn note_removal(directory: &BtrfsInode, handle: &Handle<'_>, index: u64, inode: u64) {
    let (notes, place) = (&directory.fs.log_notes, (directory.id.number, index));
    if !notes.remove_name(handle.generation(), directory.tree_id(), place, inode) {
        handle.require_commit();
    }
}

/// Sets the size and the times of a directory after a name came to it or left it.
pub(super) fn update_size(
    directory: &BtrfsInode,
    states: &mut States<'_>,
    name: Name<'_>,
    is_added: bool,
) {
    let item = states.item(directory);
    let len_bytes = 2 * name.len() as u64;
    item.size_bytes = if is_added {
        item.size_bytes.saturating_add(len_bytes)
    } else {
        item.size_bytes.saturating_sub(len_bytes)
    };
    touch_contents(item, directory.fs.clock.now());
}
