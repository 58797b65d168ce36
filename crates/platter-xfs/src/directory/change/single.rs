//! One block with entries and leaf entries.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::blocks::insert_sorted;
use super::{DirectoryChange, Located, NewEntry};
use crate::ondisk::da::DaKind;
use crate::ondisk::dir::build::{self, HashEntry};
use crate::ondisk::dir::data::{DataKind, DirData};
use crate::ondisk::{BlockKind, Site, da, dir};

const KIND: DataKind = DataKind::Single;

impl DirectoryChange<'_, '_> {
    /// The leaf entries of the only block.
    pub(super) fn block_leaves(&mut self) -> Result<Vec<HashEntry>> {
        let bytes = self.read_data(0, KIND)?;
        self.leaves_of(&bytes)
    }

    fn leaves_of(&self, bytes: &[u8]) -> Result<Vec<HashEntry>> {
        let owner = self.owner().get();
        let site = Site::verified(self.geometry(), owner);
        let view = DirData::decode(bytes, KIND, &site);
        let view = view.map_err(|rule| Corrupt::new(Locus::inode(owner), rule))?;
        let live = view.leaves.iter().filter(|leaf| leaf.pointer().is_some());
        Ok(live
            .map(|leaf| (leaf.hash.get(), leaf.address.get()))
            .collect())
    }

    pub(super) fn insert_in_block(&mut self, new: &NewEntry<'_>) -> Result<()> {
        let geometry = self.geometry();
        let mut bytes = self.read_data(0, KIND)?;
        let mut leaves = self.leaves_of(&bytes)?;
        let hash = da::hash(new.name);
        insert_sorted(&mut leaves, (hash, 0));
        let entry = (new.name, new.inode, Some(new.kind));
        // Space for the leaf entry first: it is taken from the end.
        let added = build::set_leaves(&mut bytes, &leaves, geometry)
            .and_then(|()| build::add_entry(&mut bytes, KIND, entry, geometry));
        let Some(offset) = added else {
            self.leave_block()?;
            return self.insert_in_leaf(new);
        };
        let pointer = self.pointer(Located { block: 0, offset })?;
        for leaf in &mut leaves {
            if *leaf == (hash, 0) {
                leaf.1 = pointer;
            }
        }
        build::set_leaves(&mut bytes, &leaves, geometry).ok_or_else(|| self.broken())?;
        self.write_data(0, KIND, bytes)
    }

    pub(super) fn remove_from_block(&mut self, name: &[u8]) -> Result<()> {
        let geometry = self.geometry();
        let found = self.find(name)?.ok_or(Condition::NotFound)?;
        let pointer = self.pointer(found)?;
        let mut bytes = self.read_data(0, KIND)?;
        let mut leaves = self.leaves_of(&bytes)?;
        leaves.retain(|leaf| leaf.1 != pointer);
        build::remove_entry(&mut bytes, KIND, found.offset, geometry)
            .and_then(|()| build::set_leaves(&mut bytes, &leaves, geometry))
            .ok_or_else(|| self.broken())?;
        if self.try_become_short(&bytes)? {
            return Ok(());
        }
        self.write_data(0, KIND, bytes)
    }

    /// Moves the leaf entries to a leaf.
    fn leave_block(&mut self) -> Result<()> {
        let geometry = self.geometry();
        let mut bytes = self.read_data(0, KIND)?;
        let leaves = self.leaves_of(&bytes)?;
        build::leave_single(&mut bytes, geometry).ok_or_else(|| self.broken())?;
        let best = build::best(&bytes);
        let best = best.ok_or_else(|| self.broken())?;
        self.write_data(0, DataKind::Data, bytes)?;
        let first = dir::leaf_start(geometry);
        self.add_block(first)?;
        let site = self.site(first)?;
        let leaf = build::single_leaf(&leaves, &[best], &site).ok_or_else(|| self.broken())?;
        self.write(first, BlockKind::DirLeaf(DaKind::DirLeaf1), leaf)
    }
}
