//! Blocks of entries, leaves below a hash tree, and free indexes.

use platter_ondisk::endian::Be16;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::leaf::{LEAF, block_for, trim};
use super::{DirectoryChange, Located, NewEntry};
use crate::directory::DirectoryRule;
use crate::ondisk::dir::data::entry_bytes;
use crate::ondisk::dir::free::{DirFree, DirFreeRule, NO_FREE};
use crate::ondisk::dir::{build, index};
use crate::ondisk::{BlockKind, FileBlock, Site, da, dir};

impl DirectoryChange<'_, '_> {
    fn free_block(&self, index: u32) -> FileBlock {
        let geometry = self.geometry();
        let blocks = u64::from(index) * u64::from(geometry.dir_block_blocks());
        FileBlock(dir::free_start(geometry).0 + blocks)
    }

    /// The first block of entries that a free index says something of.
    fn first_described(&self, index: u32) -> u32 {
        let each = u32::try_from(build::free_entries_max(self.geometry())).unwrap_or(u32::MAX);
        index.saturating_mul(each)
    }

    /// Calls `look` with what a free index says: nothing if it does not exist.
    fn look_at_free<R>(&mut self, index: u32, look: impl FnOnce(&[Be16]) -> R) -> Result<R> {
        let first = self.free_block(index);
        if self.locate(first)?.is_none() {
            return Ok(look(&[]));
        }
        let owner = self.owner().get();
        let site = Site::verified(self.geometry(), owner);
        let described = self.first_described(index);
        let decode = |bytes: &[u8]| {
            let free = DirFree::decode(bytes, &site)?;
            if free.first != described {
                return Err(DirFreeRule::First);
            }
            Ok(look(free.bests))
        };
        let looked = self.look_at(first, BlockKind::DirFree, decode)?;
        looked.map_err(|rule: DirFreeRule| Corrupt::new(Locus::inode(owner), rule).into())
    }

    fn read_free(&mut self, index: u32) -> Result<Vec<u16>> {
        self.look_at_free(index, |bests| bests.iter().map(|best| best.get()).collect())
    }

    pub(super) fn write_free(&mut self, index: u32, bests: &[u16]) -> Result<()> {
        let first = self.free_block(index);
        let site = self.site(first)?;
        let start = self.first_described(index);
        let bytes = build::free_index(start, bests, &site).ok_or_else(|| self.broken())?;
        self.write(first, BlockKind::DirFree, bytes)
    }

    /// The first free index from `index` on that exists.
    fn next_free(&mut self, index: u32) -> Result<Option<u32>> {
        let geometry = self.geometry();
        let first = self.free_block(index);
        let mut found = index;
        if self.locate(first)?.is_none() {
            let Some(mapping) = self.mapping_from(first)? else {
                return Ok(None);
            };
            let blocks = mapping.offset.0 - dir::free_start(geometry).0;
            let each = u64::from(geometry.dir_block_blocks());
            if !blocks.is_multiple_of(each) {
                return Err(self.broken());
            }
            found = u32::try_from(blocks / each).unwrap_or(u32::MAX);
        }
        let described = dir::data_block(geometry, self.first_described(found));
        if described >= dir::leaf_start(geometry) {
            let locus = Locus::inode(self.owner().get());
            return Err(Corrupt::new(locus, DirectoryRule::FreeIndex).into());
        }
        Ok(Some(found))
    }

    /// The block of entries that a name goes to: its free index, its place there, and whether it is new.
    fn vacancy(&mut self, size: usize) -> Result<(u32, usize, bool)> {
        let each = build::free_entries_max(self.geometry());
        let mut missing = None;
        let mut next = 0;
        while let Some(index) = self.next_free(next)? {
            if index > next {
                missing.get_or_insert((next, 0, true));
            }
            let (place, is_new) = self.look_at_free(index, |bests| {
                block_for(&bests.iter().map(|best| best.get()), size)
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
    fn note_free(&mut self, index: u32, place: usize, best: u16) -> Result<()> {
        if best != NO_FREE && self.locate(self.free_block(index))?.is_some() {
            let first = self.free_block(index);
            let set = |bytes: &mut [u8]| index::set_free(bytes, place, best);
            if self.edit_block(first, BlockKind::DirFree, set)?.is_some() {
                return Ok(());
            }
        }
        let mut bests = self.read_free(index)?;
        if self.locate(self.free_block(index))?.is_none() {
            self.add_block(self.free_block(index))?;
        }
        if bests.len() <= place {
            bests.resize(place + 1, NO_FREE);
        }
        if let Some(slot) = bests.get_mut(place) {
            *slot = best;
        }
        trim(&mut bests);
        if bests.is_empty() && index > 0 {
            return self.drop_block(self.free_block(index));
        }
        self.write_free(index, &bests)
    }

    pub(super) fn insert_in_node(&mut self, new: &NewEntry<'_>) -> Result<()> {
        let geometry = self.geometry();
        let each = build::free_entries_max(geometry);
        let size = entry_bytes(new.name.len(), geometry.features.has_ftype());
        let (index, place, is_new) = self.vacancy(size)?;
        let block = index as usize * each + place;
        let block = u32::try_from(block).map_err(|_| Condition::NoSpace)?;
        if dir::data_block(geometry, block) >= dir::leaf_start(geometry) {
            return Err(Condition::NoSpace.into());
        }
        let (at, best) = self.add_to_data(block, is_new, new)?;
        self.note_free(index, place, best)?;
        let pointer = self.pointer(at)?;
        self.insert_in_tree((da::hash(new.name), pointer))
    }

    pub(super) fn remove_from_node(&mut self, name: &[u8]) -> Result<()> {
        let each = build::free_entries_max(self.geometry()).max(1);
        let found = self.find(name)?.ok_or(Condition::NotFound)?;
        let pointer = self.pointer(found)?;
        self.remove_from_tree((da::hash(name), pointer))?;
        let best = self.remove_from_data(found)?;
        let block = found.block as usize;
        let index = u32::try_from(block / each).unwrap_or(u32::MAX);
        self.note_free(index, block % each, best)?;
        self.try_become_leaf()
    }

    /// Drops the tree if one leaf and one free index are left that fit one leaf.
    fn try_become_leaf(&mut self) -> Result<()> {
        let geometry = self.geometry();
        let end = self.free_block(1).0;
        if self.end()? != end {
            return Ok(());
        }
        let Some(entries) = self.only_leaf()? else {
            return Ok(());
        };
        let bests = self.read_free(0)?;
        if entries.len() > build::single_leaf_entries_max(geometry, bests.len()) {
            return Ok(());
        }
        self.drop_block(self.free_block(0))?;
        if self.try_become_block(&entries, &bests)? {
            return Ok(());
        }
        let first = dir::leaf_start(geometry);
        let site = self.site(first)?;
        let bytes = build::single_leaf(&entries, &bests, &site).ok_or_else(|| self.broken())?;
        self.write(first, LEAF, bytes)
    }

    pub(super) fn find_in_node(&mut self, hash: u32, name: &[u8]) -> Result<Option<Located>> {
        let (steps, at) = self.descend_to(hash)?;
        let (entries, may_go_on) = self.entries_of_hash(at, hash)?;
        let found = self.find_among(&entries, hash, name)?;
        if found.is_some() || !may_go_on {
            return Ok(found);
        }
        let mut path = self.path_to(steps, at)?;
        if !self.advance(&mut path)? {
            return Ok(None);
        }
        loop {
            if let Some(found) = self.find_among(&path.leaf.entries, hash, name)? {
                return Ok(Some(found));
            }
            let may_go_on = path
                .leaf
                .entries
                .last()
                .is_some_and(|entry| entry.0 == hash);
            if !may_go_on || !self.advance(&mut path)? {
                return Ok(None);
            }
        }
    }
}
