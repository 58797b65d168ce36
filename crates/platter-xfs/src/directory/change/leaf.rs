//! Blocks of entries, and one leaf.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::blocks::insert_sorted;
use super::{DirectoryChange, Located, NewEntry, node, short, tree};
use crate::ondisk::da::DaKind;
use crate::ondisk::dir::build::{self, HashEntry};
use crate::ondisk::dir::data::{DataKind, entry_bytes};
use crate::ondisk::dir::free::NO_FREE;
use crate::ondisk::dir::leaf::DirLeaf;
use crate::ondisk::{BlockKind, Site, da, dir};

const KIND: DataKind = DataKind::Data;
pub(super) const LEAF: BlockKind = BlockKind::DirLeaf(DaKind::DirLeaf1);

/// The first block of entries with so much free space; else the first that does not exist, and true.
fn block_for(bests: &[u16], size: usize) -> (usize, bool) {
    let has_space = |best: &u16| *best != NO_FREE && usize::from(*best) >= size;
    if let Some(found) = bests.iter().position(has_space) {
        return (found, false);
    }
    let missing = bests.iter().position(|best| *best == NO_FREE);
    (missing.unwrap_or(bests.len()), true)
}

/// The leaf entries, and the longest free region of each block of entries.
pub(super) fn read(dir: &mut DirectoryChange<'_, '_>) -> Result<(Vec<HashEntry>, Vec<u16>)> {
    let bytes = dir.read(dir::leaf_start(dir.geometry()), LEAF)?;
    let owner = dir.owner().get();
    let site = Site::verified(dir.geometry(), owner);
    let leaf = DirLeaf::decode(&bytes, DaKind::DirLeaf1, &site);
    let leaf = leaf.map_err(|rule| Corrupt::new(Locus::inode(owner), rule))?;
    let live = leaf
        .entries
        .iter()
        .filter(|entry| entry.pointer().is_some());
    let entries = live.map(|entry| (entry.hash.get(), entry.address.get()));
    let bests = leaf.bests.iter().map(|best| best.get());
    Ok((entries.collect(), bests.collect()))
}

fn write(dir: &mut DirectoryChange<'_, '_>, entries: &[HashEntry], bests: &[u16]) -> Result<()> {
    let first = dir::leaf_start(dir.geometry());
    let site = dir.site(first)?;
    let bytes = build::single_leaf(entries, bests, &site).ok_or_else(|| dir.broken())?;
    dir.write(first, LEAF, bytes)
}

/// Adds an entry to a block of entries, which may be new. Returns where it is, and the longest free region
/// that is left.
pub(super) fn add_to_data(
    dir: &mut DirectoryChange<'_, '_>,
    block: u32,
    is_new: bool,
    new: &NewEntry<'_>,
) -> Result<(Located, u16)> {
    let geometry = dir.geometry();
    if is_new {
        let bytes = dir.add_data(block, KIND)?;
        dir.write_data(block, KIND, bytes)?;
    }
    let entry = (new.name, new.inode, Some(new.kind));
    let is_sound = dir.is_sound(block);
    let added = dir.edit_data(block, KIND, |bytes, within| {
        let appended = if is_sound {
            build::append_entry(bytes, within, entry, geometry)
        } else {
            None
        };
        let (offset, was_sound) = match appended {
            Some(offset) => (offset, true),
            None => build::add_entry(bytes, within, KIND, entry, geometry)?,
        };
        Some((Located { block, offset }, build::best(bytes)?, was_sound))
    })?;
    let (at, best, was_sound) = added.ok_or_else(|| dir.broken())?;
    if was_sound {
        dir.set_sound(block);
    }
    Ok((at, best))
}

/// Removes an entry. Returns the longest free region of its block, which is gone if it has no entries.
pub(super) fn remove_from_data(dir: &mut DirectoryChange<'_, '_>, at: Located) -> Result<u16> {
    let geometry = dir.geometry();
    let removed = dir.edit_data(at.block, KIND, |bytes, within| {
        build::remove_entry(bytes, within, KIND, at.offset, geometry)?;
        Some((
            build::best(bytes)?,
            build::is_all_free(bytes, KIND, geometry),
        ))
    })?;
    let (best, is_all_free) = removed.ok_or_else(|| dir.broken())?;
    if at.block > 0 && is_all_free {
        dir.drop_data(at.block)?;
        return Ok(NO_FREE);
    }
    Ok(best)
}

/// Adds a name that is not there.
pub(super) fn insert(dir: &mut DirectoryChange<'_, '_>, new: &NewEntry<'_>) -> Result<()> {
    let geometry = dir.geometry();
    let (mut entries, mut bests) = read(dir)?;
    let size = entry_bytes(new.name.len(), geometry.features.has_ftype());
    let (block, is_new) = block_for(&bests, size);
    let bests_after = bests.len().max(block + 1);
    if entries.len() + 1 > build::single_leaf_entries_max(geometry, bests_after) {
        leave(dir, &entries, &bests)?;
        return node::insert(dir, new, None);
    }
    let number = u32::try_from(block).unwrap_or(u32::MAX);
    let (at, best) = add_to_data(dir, number, is_new, new)?;
    bests.resize(bests_after, NO_FREE);
    if let Some(slot) = bests.get_mut(block) {
        *slot = best;
    }
    let pointer = dir.pointer(at)?;
    insert_sorted(&mut entries, (da::hash(new.name), pointer));
    write(dir, &entries, &bests)
}

/// Removes a name that is there.
pub(super) fn remove(dir: &mut DirectoryChange<'_, '_>, name: &[u8]) -> Result<()> {
    let found = dir.find(name)?.ok_or(Condition::NotFound)?;
    let pointer = dir.pointer(found)?;
    let (mut entries, mut bests) = read(dir)?;
    entries.retain(|entry| entry.1 != pointer);
    let best = remove_from_data(dir, found)?;
    if let Some(slot) = bests.get_mut(found.block as usize) {
        *slot = best;
    }
    trim(&mut bests);
    if !try_become_block(dir, &entries, &bests)? {
        write(dir, &entries, &bests)?;
    }
    Ok(())
}

/// Moves the leaf entries to the only block of entries that is left, if they fit.
pub(super) fn try_become_block(
    dir: &mut DirectoryChange<'_, '_>,
    entries: &[HashEntry],
    bests: &[u16],
) -> Result<bool> {
    let geometry = dir.geometry();
    if bests.len() != 1 {
        return Ok(false);
    }
    let mut bytes = dir.read_data(0, KIND)?;
    if build::become_single(&mut bytes, entries, geometry).is_none() {
        return Ok(false);
    }
    dir.drop_block(dir::leaf_start(geometry))?;
    if !short::try_become(dir, &bytes)? {
        dir.write_data(0, DataKind::Single, bytes)?;
    }
    Ok(true)
}

/// Makes the leaf the root of a tree, and moves the free regions to an index.
fn leave(dir: &mut DirectoryChange<'_, '_>, entries: &[HashEntry], bests: &[u16]) -> Result<()> {
    let geometry = dir.geometry();
    let first = dir::free_start(geometry);
    dir.add_block(first)?;
    node::write_free(dir, 0, bests)?;
    tree::write_leaf(dir, first_leaf(geometry), entries, super::tree::NO_LINKS)
}

/// The block of the leaves that is their root.
fn first_leaf(geometry: &crate::ondisk::Geometry) -> u32 {
    u32::try_from(dir::leaf_start(geometry).0).unwrap_or(u32::MAX)
}

/// Drops what is said of blocks that do not exist at the end.
pub(super) fn trim(bests: &mut Vec<u16>) {
    while bests.last() == Some(&NO_FREE) {
        bests.pop();
    }
}
