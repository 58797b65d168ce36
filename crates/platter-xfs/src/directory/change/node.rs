//! Blocks of entries, leaves below a hash tree, and free indexes.

use platter_ondisk::endian::Be16;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::leaf::{LEAF, trim};
use super::{DirectoryChange, Located, NewEntry, leaf, tree};
use crate::directory::{DirectoryRule, LeafPlace, NamePlace};
use crate::ondisk::dir::data::entry_bytes;
use crate::ondisk::dir::free::{DirFree, DirFreeRule, NO_FREE, first_fit};
use crate::ondisk::dir::{build, index};
use crate::ondisk::{BlockKind, FileBlock, Site, da, dir};

fn free_block(dir: &DirectoryChange<'_, '_>, index: u32) -> FileBlock {
    let geometry = dir.geometry();
    let blocks = u64::from(index) * u64::from(geometry.dir_block_blocks());
    FileBlock(dir::free_start(geometry).0 + blocks)
}

/// The first block of entries that a free index says something of.
fn first_described(dir: &DirectoryChange<'_, '_>, index: u32) -> u32 {
    let each = u32::try_from(build::free_entries_max(dir.geometry())).unwrap_or(u32::MAX);
    index.saturating_mul(each)
}

/// Calls `look` with what a free index says: nothing if it does not exist.
fn look_at_free<R>(
    dir: &mut DirectoryChange<'_, '_>,
    index: u32,
    look: impl FnOnce(&[Be16]) -> R,
) -> Result<R> {
    let first = free_block(dir, index);
    if dir.locate(first)?.is_none() {
        return Ok(look(&[]));
    }
    let owner = dir.owner().get();
    let site = Site::verified(dir.geometry(), owner);
    let described = first_described(dir, index);
    let decode = |bytes: &[u8]| {
        let free = DirFree::decode(bytes, &site)?;
        if free.first != described {
            return Err(DirFreeRule::First);
        }
        Ok(look(free.bests))
    };
    let looked = dir.look_at(first, BlockKind::DirFree, decode)?;
    looked.map_err(|rule: DirFreeRule| Corrupt::new(Locus::inode(owner), rule).into())
}

fn read_free(dir: &mut DirectoryChange<'_, '_>, index: u32) -> Result<Vec<u16>> {
    look_at_free(dir, index, |bests| {
        bests.iter().map(|best| best.get()).collect()
    })
}

/// Writes a block of the free index.
pub(super) fn write_free(
    dir: &mut DirectoryChange<'_, '_>,
    index: u32,
    bests: &[u16],
) -> Result<()> {
    let first = free_block(dir, index);
    let site = dir.site(first)?;
    let start = first_described(dir, index);
    let bytes = build::free_index(start, bests, &site).ok_or_else(|| dir.broken())?;
    dir.write(first, BlockKind::DirFree, bytes)
}

/// The first free index from `index` on that exists.
fn next_free(dir: &mut DirectoryChange<'_, '_>, index: u32) -> Result<Option<u32>> {
    let geometry = dir.geometry();
    let first = free_block(dir, index);
    let mut found = index;
    if dir.locate(first)?.is_none() {
        let Some(mapping) = dir.mapping_from(first)? else {
            return Ok(None);
        };
        let blocks = mapping.offset.0 - dir::free_start(geometry).0;
        let each = u64::from(geometry.dir_block_blocks());
        if !blocks.is_multiple_of(each) {
            return Err(dir.broken());
        }
        found = u32::try_from(blocks / each).unwrap_or(u32::MAX);
    }
    let described = dir::data_block(geometry, first_described(dir, found));
    if described >= dir::leaf_start(geometry) {
        let locus = Locus::inode(dir.owner().get());
        return Err(Corrupt::new(locus, DirectoryRule::FreeIndex).into());
    }
    Ok(Some(found))
}

/// The block of entries that a name goes to: its free index, its place there, and whether it is new.
fn vacancy(dir: &mut DirectoryChange<'_, '_>, size: usize) -> Result<(u32, usize, bool)> {
    let each = build::free_entries_max(dir.geometry());
    let mut missing = None;
    let mut next = 0;
    while let Some(index) = next_free(dir, next)? {
        if index > next {
            missing.get_or_insert((next, 0, true));
        }
        let (place, is_new) = look_at_free(dir, index, |bests| {
            if let Some(found) = first_fit(bests, size) {
                return (found, false);
            }
            let missing = bests.iter().position(|best| best.get() == NO_FREE);
            (missing.unwrap_or(bests.len()), true)
        })?;
        if !is_new {
            return Ok((index, place, false));
        }
        if place < each {
            missing.get_or_insert((index, place, true));
        }
        next = index + 1;
    }
    Ok(missing.unwrap_or((next, 0, true)))
}

/// Stores the longest free region of a block of entries.
fn note_free(dir: &mut DirectoryChange<'_, '_>, index: u32, place: usize, best: u16) -> Result<()> {
    if best != NO_FREE && dir.locate(free_block(dir, index))?.is_some() {
        let first = free_block(dir, index);
        let set = |bytes: &mut [u8], within: &mut _| index::set_free(bytes, within, place, best);
        if dir.edit_block(first, BlockKind::DirFree, set)?.is_some() {
            return Ok(());
        }
    }
    let mut bests = read_free(dir, index)?;
    if dir.locate(free_block(dir, index))?.is_none() {
        dir.add_block(free_block(dir, index))?;
    }
    if bests.len() <= place {
        bests.resize(place + 1, NO_FREE);
    }
    if let Some(slot) = bests.get_mut(place) {
        *slot = best;
    }
    trim(&mut bests);
    if bests.is_empty() && index > 0 {
        return dir.drop_block(free_block(dir, index));
    }
    write_free(dir, index, &bests)
}

/// Adds a name that is not there, whose hash leads to `leaf`, where that is known.
pub(super) fn insert(
    dir: &mut DirectoryChange<'_, '_>,
    new: &NewEntry<'_>,
    leaf: Option<LeafPlace>,
) -> Result<()> {
    let geometry = dir.geometry();
    let each = build::free_entries_max(geometry);
    let size = entry_bytes(new.name.len(), geometry.features.has_ftype());
    let (index, place, is_new) = vacancy(dir, size)?;
    let block = index as usize * each + place;
    let block = u32::try_from(block).map_err(|_| Condition::NoSpace)?;
    if dir::data_block(geometry, block) >= dir::leaf_start(geometry) {
        return Err(Condition::NoSpace.into());
    }
    let (at, best) = leaf::add_to_data(dir, block, is_new, new)?;
    note_free(dir, index, place, best)?;
    let pointer = dir.pointer(at)?;
    tree::insert(dir, (da::hash(new.name), pointer), leaf)
}

/// Removes a name that is there, where a search for it ended at `place`.
pub(super) fn remove(
    dir: &mut DirectoryChange<'_, '_>,
    name: &[u8],
    place: &NamePlace,
) -> Result<()> {
    let each = build::free_entries_max(dir.geometry()).max(1);
    let known = place.entry.map(|(block, offset)| Located { block, offset });
    let found = match known {
        Some(known) if dir.has_name(known, name)? => known,
        Some(_) | None => dir.find(name)?.ok_or(Condition::NotFound)?,
    };
    let pointer = dir.pointer(found)?;
    tree::remove(dir, (da::hash(name), pointer), place.leaf)?;
    let best = leaf::remove_from_data(dir, found)?;
    let block = found.block as usize;
    let index = u32::try_from(block / each).unwrap_or(u32::MAX);
    note_free(dir, index, block % each, best)?;
    try_become_leaf(dir)
}

/// Drops the tree if one leaf and one free index are left that fit one leaf.
fn try_become_leaf(dir: &mut DirectoryChange<'_, '_>) -> Result<()> {
    let geometry = dir.geometry();
    let end = free_block(dir, 1).0;
    if dir.end()? != end {
        return Ok(());
    }
    let Some(entries) = tree::only_leaf(dir)? else {
        return Ok(());
    };
    let bests = read_free(dir, 0)?;
    if entries.len() > build::single_leaf_entries_max(geometry, bests.len()) {
        return Ok(());
    }
    dir.drop_block(free_block(dir, 0))?;
    if leaf::try_become_block(dir, &entries, &bests)? {
        return Ok(());
    }
    let first = dir::leaf_start(geometry);
    let site = dir.site(first)?;
    let bytes = build::single_leaf(&entries, &bests, &site).ok_or_else(|| dir.broken())?;
    dir.write(first, LEAF, bytes)
}

/// Where the entry with this name lies.
pub(super) fn find(
    dir: &mut DirectoryChange<'_, '_>,
    hash: u32,
    name: &[u8],
) -> Result<Option<Located>> {
    let (at, _) = tree::leaf_for(dir, hash)?;
    let (entries, may_go_on) = tree::entries_of_hash(dir, at, hash)?;
    let found = dir.find_among(&entries, hash, name)?;
    if found.is_some() || !may_go_on {
        return Ok(found);
    }
    let (steps, at) = tree::descend_to(dir, hash)?;
    let mut path = tree::path_to(dir, steps, at)?;
    if !tree::advance(dir, &mut path)? {
        return Ok(None);
    }
    loop {
        if let Some(found) = dir.find_among(&path.leaf.entries, hash, name)? {
            return Ok(Some(found));
        }
        let may_go_on = path
            .leaf
            .entries
            .last()
            .is_some_and(|entry| entry.0 == hash);
        if !may_go_on || !tree::advance(dir, &mut path)? {
            return Ok(None);
        }
    }
}
