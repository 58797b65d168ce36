//! Names of subvolumes in directories.

use platter_vfs::{FileKind, InodeId, Name, RenameMode, Result};

use super::in_use::root_of;
use crate::directory;
use crate::directory::change::SubvolumeName;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;
use crate::ondisk::root_ref::RootRef;
use crate::ops::state::States;
use crate::ops::{BtrfsInode, entries};
use crate::subvolume;
use crate::txn::Handle;

/// The root directory of a subvolume that a directory has under a name; `None` if it is elsewhere.
pub(in crate::ops) fn find_root(
    directory: &BtrfsInode,
    child: TreeId,
    name: Name<'_>,
) -> Result<Option<InodeId>> {
    let context = directory.context();
    let parent = TreeId(directory.id.tree);
    let is_it = context.names_subvolume(parent, child, directory.id.number, name.as_bytes())?;
    let subvolume = context.subvolume(child)?;
    Ok(subvolume.filter(|_| is_it).map(|it| root_of(&it)))
}

/// Whether a rename concerns subvolumes alone, which may go from one to another.
pub(in crate::ops) fn is_moved(
    directory: &BtrfsInode,
    name: Name<'_>,
    mode: RenameMode,
) -> Result<bool> {
    if mode == RenameMode::Exchange || directory.kind != FileKind::Directory {
        return Ok(false);
    }
    let found = directory::lookup(
        directory.context(),
        directory.tree(),
        directory.id.number,
        name,
    )?;
    Ok(matches!(
        found.map(|found| found.location),
        Some(Location::Subvolume(_))
    ))
}

/// Refuses a name of a subvolume, before the one that it has is removed.
pub(in crate::ops) fn check(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    name: Name<'_>,
    child: TreeId,
) -> Result<()> {
    handle.edit(directory.tree_id(), |editor| {
        entries::new_index(directory, handle, editor)?;
        entry(directory, &name, child).check(editor)
    })
}

/// Adds the name of a subvolume to a directory. The state of the directory is locked; it is not stored.
pub(in crate::ops) fn add(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    states: &mut States<'_>,
    name: Name<'_>,
    child: TreeId,
) -> Result<()> {
    let entry = entry(directory, &name, child);
    let index = handle.edit(directory.tree_id(), |editor| {
        let index = entries::new_index(directory, handle, editor)?;
        entry.add(editor, handle.generation(), index)?;
        Ok(index)
    })?;
    let reference = RootRef {
        dir: directory.id.number,
        index,
        name: name.as_bytes(),
    };
    subvolume::add_name(handle, directory.tree_id(), child, reference)?;
    entries::update_size(directory, states, name, true);
    Ok(())
}

/// Removes the name of a subvolume from a directory. The state of the directory is locked; it is not stored.
pub(in crate::ops) fn remove(
    directory: &BtrfsInode,
    handle: &Handle<'_>,
    states: &mut States<'_>,
    name: Name<'_>,
    child: TreeId,
    is_stub: bool,
) -> Result<()> {
    let entry = entry(directory, &name, child);
    handle.require_commit();
    handle.edit(directory.tree_id(), |editor| entry.remove(editor))?;
    if !is_stub {
        subvolume::remove_name(handle, directory.tree_id(), child)?;
    }
    entries::update_size(directory, states, name, false);
    Ok(())
}

/// A name of a subvolume in a directory.
fn entry<'n>(directory: &BtrfsInode, name: &'n Name<'_>, child: TreeId) -> SubvolumeName<'n> {
    SubvolumeName {
        dir: directory.id.number,
        name: name.as_bytes(),
        child,
    }
}
