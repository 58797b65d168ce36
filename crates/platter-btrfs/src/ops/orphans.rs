//! Orphans that a crash or a snapshot left.

use std::sync::Arc;

use platter_vfs::{InodeId, Result};

use super::state::{NAME_CREDITS, Purpose};
use super::{SuperBlock, evict};
use crate::context::Subvolume;
use crate::inode;
use crate::ondisk::Key;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::ORPHAN_OBJECT;
use crate::txn::trees;

/// Orphans that are looked up at once.
const ORPHANS_MAX: usize = 1024;

/// Deletes the orphans of all subvolumes that are not read-only. Once, before anything else is changed.
pub(crate) fn clean_up(superblock: &Arc<SuperBlock>) -> Result<()> {
    for subvolume in superblock.context().subvolumes()? {
        if !subvolume.is_read_only() {
            clean_up_subvolume(superblock, &subvolume)?;
        }
    }
    Ok(())
}

/// Deletes the orphans of a subvolume.
pub(super) fn clean_up_subvolume(
    superblock: &Arc<SuperBlock>,
    subvolume: &Subvolume,
) -> Result<()> {
    let mut from = 0;
    loop {
        let orphans = find(superblock, subvolume, from)?;
        let Some(last) = orphans.last() else {
            return Ok(());
        };
        from = last.saturating_add(1);
        trees::follow(superblock.transactions()?, subvolume.id)?;
        for number in orphans {
            delete(superblock, subvolume, number)?;
        }
    }
}

/// The first orphans from a number on.
fn find(superblock: &SuperBlock, subvolume: &Subvolume, from: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    let mut cursor = superblock.context().cursor(subvolume.tree());
    cursor.seek(Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, from))?;
    while let Some(key) = cursor.key()
        && key.object == ORPHAN_OBJECT
        && key.kind == ItemKind::ORPHAN_ITEM
        && found.len() < ORPHANS_MAX
    {
        found.push(key.offset);
        cursor.step()?;
    }
    Ok(found)
}

fn delete(superblock: &Arc<SuperBlock>, subvolume: &Subvolume, number: u64) -> Result<()> {
    let id = InodeId {
        tree: subvolume.id.0,
        number,
    };
    let item = inode::find(superblock.context(), subvolume.tree(), number)?;
    let Some(item) = item.filter(|item| item.links == 0) else {
        // It was deleted, or has a name: an old kernel truncated it.
        let handle = superblock.begin(NAME_CREDITS, Purpose::Free)?;
        return handle.edit(subvolume.id, |editor| {
            inode::change::remove_orphan(editor, number)
        });
    };
    let shared = superblock.in_use.get_or_add(subvolume);
    let object = superblock.inodes.get_or_load(id, |seat| {
        Ok::<_, platter_vfs::Error>(superblock.object(id, shared, item, seat))
    })?;
    superblock.inodes.release(id);
    evict::evict(&object)
}
