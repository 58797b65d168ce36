//! One block with entries and leaf entries.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::blocks::insert_sorted;
use super::{DirectoryChange, Located, NewEntry, leaf, short};
use crate::ondisk::chunks::Chunks;
use crate::ondisk::da::DaKind;
use crate::ondisk::dir::build::{self, HashEntry};
use crate::ondisk::dir::data::{DataKind, DirData};
use crate::ondisk::{BlockKind, Site, da, dir};

const KIND: DataKind = DataKind::Single;

/// The leaf entries of the only block.
pub(super) fn leaves(dir: &mut DirectoryChange<'_, '_>) -> Result<Vec<HashEntry>> {
    let bytes = dir.read_data(0, KIND)?;
    leaves_of(dir, &bytes)
}

fn leaves_of(dir: &DirectoryChange<'_, '_>, bytes: &[u8]) -> Result<Vec<HashEntry>> {
    let owner = dir.owner().get();
    let site = Site::verified(dir.geometry(), owner);
    let view = DirData::decode(bytes, KIND, &site);
    let view = view.map_err(|rule| Corrupt::new(Locus::inode(owner), rule))?;
    let live = view.leaves.iter().filter(|leaf| leaf.pointer().is_some());
    Ok(live
        .map(|leaf| (leaf.hash.get(), leaf.address.get()))
        .collect())
}

/// Adds a name that is not there.
pub(super) fn insert(dir: &mut DirectoryChange<'_, '_>, new: &NewEntry<'_>) -> Result<()> {
    let geometry = dir.geometry();
    let mut bytes = dir.read_data(0, KIND)?;
    let mut leaves = leaves_of(dir, &bytes)?;
    let hash = da::hash(new.name);
    insert_sorted(&mut leaves, (hash, 0));
    let entry = (new.name, new.inode, Some(new.kind));
    // Space for the leaf entry first: it is taken from the end.
    let added = build::set_leaves(&mut bytes, &leaves, geometry)
        .and_then(|()| build::add_entry(&mut bytes, &mut Chunks::default(), KIND, entry, geometry));
    let Some((offset, _)) = added else {
        leave(dir)?;
        return leaf::insert(dir, new);
    };
    let pointer = dir.pointer(Located { block: 0, offset })?;
    for leaf in &mut leaves {
        if *leaf == (hash, 0) {
            leaf.1 = pointer;
        }
    }
    build::set_leaves(&mut bytes, &leaves, geometry).ok_or_else(|| dir.broken())?;
    dir.write_data(0, KIND, bytes)
}

/// Removes a name that is there.
pub(super) fn remove(dir: &mut DirectoryChange<'_, '_>, name: &[u8]) -> Result<()> {
    let geometry = dir.geometry();
    let found = dir.find(name)?.ok_or(Condition::NotFound)?;
    let pointer = dir.pointer(found)?;
    let mut bytes = dir.read_data(0, KIND)?;
    let mut leaves = leaves_of(dir, &bytes)?;
    leaves.retain(|leaf| leaf.1 != pointer);
    build::remove_entry(
        &mut bytes,
        &mut Chunks::default(),
        KIND,
        found.offset,
        geometry,
    )
    .and_then(|()| build::set_leaves(&mut bytes, &leaves, geometry))
    .ok_or_else(|| dir.broken())?;
    if short::try_become(dir, &bytes)? {
        return Ok(());
    }
    dir.write_data(0, KIND, bytes)
}

/// Moves the leaf entries to a leaf.
fn leave(dir: &mut DirectoryChange<'_, '_>) -> Result<()> {
    let geometry = dir.geometry();
    let mut bytes = dir.read_data(0, KIND)?;
    let leaves = leaves_of(dir, &bytes)?;
    build::leave_single(&mut bytes, geometry).ok_or_else(|| dir.broken())?;
    let best = build::best(&bytes);
    let best = best.ok_or_else(|| dir.broken())?;
    dir.write_data(0, DataKind::Data, bytes)?;
    let first = dir::leaf_start(geometry);
    dir.add_block(first)?;
    let site = dir.site(first)?;
    let leaf = build::single_leaf(&leaves, &[best], &site).ok_or_else(|| dir.broken())?;
    dir.write(first, BlockKind::DirLeaf(DaKind::DirLeaf1), leaf)
}
