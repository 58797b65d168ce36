//! Moving names, within a directory and between two.

use platter_vfs::namei::{NamedInode, NewInode, Rename};
use platter_vfs::{CreateKind, RenameMode, Result, file};

use super::create::Blueprint;
use super::names::refused;
use super::remove::drop_link;
use super::state::{INODE_CREDITS, NAME_CREDITS, Purpose, States, touch_contents};
use super::{BtrfsInode, create, entries, subvolumes, sync};
use crate::txn::Handle;

/// Makes a rename that is allowed, in one handle.
pub(super) fn apply(rename: &Rename<'_, BtrfsInode>) -> Result<()> {
    let fs = &rename.from.dir.fs;
    if rename.moved.is_subvolume_root() {
        return move_subvolume(rename);
    }
    if rename
        .there
        .as_ref()
        .is_some_and(|it| it.is_subvolume_root())
    {
        return Err(refused(
            "replacing a subvolume, or exchanging it with another name",
        ));
    }
    let mut inodes: Vec<&BtrfsInode> = vec![rename.from.dir, rename.to.dir, &rename.moved];
    inodes.extend(rename.there.as_deref());
    if rename.replaces_contents() {
        // An error is reported by the next sync of the file.
        let _ = file::write_back(&*rename.moved);
    }
    let whiteout = if rename.mode == RenameMode::Whiteout {
        Some(create::plan(
            rename.from.dir,
            NewInode {
                context: rename.context,
                kind: &CreateKind::WHITEOUT,
                permissions: 0,
            },
        )?)
    } else {
        None
    };
    let purpose = Purpose::Change(rename.to.dir.tree_id());
    let handle = fs.begin(2 * NAME_CREDITS + INODE_CREDITS, purpose)?;
    let mut states = States::lock(&inodes);
    let is_gone = handle.whole(|handle| {
        let is_gone = if rename.mode == RenameMode::Exchange {
            exchange(rename, handle)?;
            for place in [rename.from, rename.to] {
                touch_contents(states.item(place.dir), fs.clock.now());
            }
            false
        } else {
            replace(rename, handle, &mut states, whiteout)?
        };
        for inode in [Some(&rename.moved), rename.there.as_ref()]
            .into_iter()
            .flatten()
        {
            states.item(inode).changed = fs.clock.now();
        }
        states.store(handle)?;
        Ok(is_gone)
    })?;
    states.end();
    drop(handle);
    if let (true, Some(there)) = (is_gone, &rename.there) {
        sync::drop_unnamed(fs, there);
    }
    Ok(())
}

/// Makes each of two names name what the other did.
fn exchange(rename: &Rename<'_, BtrfsInode>, handle: &Handle<'_>) -> Result<()> {
    let (from, to, moved) = (rename.from, rename.to, &rename.moved);
    let Some(there) = &rename.there else {
        return Ok(());
    };
    handle.edit(from.dir.tree_id(), |editor| {
        entries::check_replacement(to, handle, editor, moved.id.number)?;
        entries::check_replacement(from, handle, editor, there.id.number)?;
        entries::remove(from.dir, handle, editor, from.name, moved.id.number)?;
        entries::remove(to.dir, handle, editor, to.name, there.id.number)?;
        let (moved, there) = ((moved.id.number, moved.kind), (there.id.number, there.kind));
        entries::add(to.dir, handle, editor, to.name, moved)?;
        entries::add(from.dir, handle, editor, from.name, there)
    })
}

/// Moves the name. Returns whether what had the new one lost its last.
fn replace(
    rename: &Rename<'_, BtrfsInode>,
    handle: &Handle<'_>,
    states: &mut States<'_>,
    mut whiteout: Option<Blueprint<'_>>,
) -> Result<bool> {
    let (from, to, moved) = (rename.from, rename.to, &rename.moved);
    let tree = from.dir.tree_id();
    handle.edit(tree, |editor| {
        if let Some(whiteout) = &mut whiteout {
            for place in [from, to] {
                entries::check_indices(place.dir, handle, editor)?;
            }
            whiteout.number = Some(from.dir.fs.free_objectids.take(tree, editor)?);
        }
        if let Some(there) = &rename.there {
            entries::check_replacement(to, handle, editor, moved.id.number)?;
            entries::remove(to.dir, handle, editor, to.name, there.id.number)?;
        }
        // Where nothing was there, only this can be refused.
        let named = (moved.id.number, moved.kind);
        entries::add(to.dir, handle, editor, to.name, named)?;
        entries::remove(from.dir, handle, editor, from.name, moved.id.number)
    })?;
    let mut is_gone = false;
    if let Some(there) = &rename.there {
        entries::update_size(to.dir, states, to.name, false);
        is_gone = drop_link(handle, states, there)?;
    }
    entries::update_size(to.dir, states, to.name, true);
    entries::update_size(from.dir, states, from.name, false);
    if let Some(whiteout) = &whiteout {
        let flags = states.item(from.dir).flags;
        create::make(from.dir, handle, Some(from.name), whiteout, flags)?;
        entries::update_size(from.dir, states, from.name, true);
    }
    Ok(is_gone)
}

/// Moves the name of a subvolume, in one handle.
fn move_subvolume(rename: &Rename<'_, BtrfsInode>) -> Result<()> {
    let (from, to) = (rename.from, rename.to);
    if rename.there.is_some() || rename.mode == RenameMode::Whiteout {
        return Err(refused("replacing a name by a subvolume"));
    }
    let fs = &from.dir.fs;
    let _changing = fs.subvolume_changes.lock();
    // Its subvolume may have been deleted meanwhile.
    to.dir.space()?;
    let id = rename.moved.tree_id();
    let purpose = Purpose::Change(to.dir.tree_id());
    let handle = fs.begin(2 * NAME_CREDITS + INODE_CREDITS, purpose)?;
    let mut states = States::lock(&[from.dir, to.dir]);
    handle.whole(|handle| {
        subvolumes::names::check(to.dir, handle, to.name, id)?;
        subvolumes::names::remove(from.dir, handle, &mut states, from.name, id, false)?;
        subvolumes::names::add(to.dir, handle, &mut states, to.name, id)?;
        states.store(handle)
    })?;
    states.end();
    Ok(())
}
