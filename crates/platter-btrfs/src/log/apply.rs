//! Replay of log trees on the devices: what it comes to in memory becomes part of the trees, in one commit. Until
//! that is durable, nothing is written to where the log is.

use std::collections::{BTreeMap, BTreeSet};

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use super::log_trees;
use crate::context::FsContext;
use crate::delayed_refs::Action;
use crate::items::Overlay;
use crate::ondisk::file_extent::{ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::types::ORPHAN_OBJECT;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::txn::{FileRange, Handle, WriteContext, data_extents};

rules! {
    /// The rules of a log that is replayed.
    pub(super) enum ApplyRule of "log tree" {
        /// Extents that are not in the extent tree are in free space, and do not overlap.
        Space => "extent in the log is not in free space",
    }
}

/// Makes the changes of log trees durable. Nothing was changed since the filesystem was opened.
///
/// # Errors
/// Those of the trees and the devices. On the devices, the log is as it was.
pub fn apply(
    fs: &WriteContext,
    log_root: RootPointer,
    overlays: &BTreeMap<TreeId, Overlay>,
) -> Result<()> {
    for block in log_blocks(fs.context(), log_root)? {
        data_extents::keep_log_block(fs, block)?;
    }
    let mut new = new_extents(fs, overlays)?;
    let handle = fs.begin_replay()?;
    handle.whole(|handle| {
        for (&tree, overlay) in overlays {
            if tree == TreeId::CSUM {
                for (key, data) in overlay.iter() {
                    let checksums = data.unwrap_or_default().to_vec();
                    data_extents::insert_checksums(handle, LogicalAddr(key.offset), checksums)?;
                }
            } else {
                apply_to(handle, tree, overlay, &mut new)?;
            }
        }
        Ok(())
    })?;
    drop(handle);
    fs.sync_all()
}

/// The blocks of all log trees.
fn log_blocks(context: &FsContext, log_root: RootPointer) -> Result<BTreeSet<LogicalAddr>> {
    let mut found = BTreeSet::new();
    let logs = log_trees(context, log_root)?.into_iter();
    let roots = logs.map(|tree| tree.log.root).chain([log_root]);
    for root in roots {
        let mut level = vec![(root.logical, root.generation)];
        for height in (0..=root.level).rev() {
            let mut below = Vec::new();
            for (logical, generation) in level {
                if !found.insert(logical) {
                    continue;
                }
                let expected = Expected {
                    level: Some(height),
                    generation: Some(generation),
                    tree: Some(TreeId::TREE_LOG),
                    ..Expected::default()
                };
                let block = context.blocks.read(logical, &expected)?;
                if height > 0 {
                    let pointers = block.node().iter();
                    below.extend(pointers.map(|it| (it.logical, it.generation)));
                }
            }
            level = below;
        }
    }
    Ok(found)
}

/// The data that an item refers to.
fn place(key: Key, data: &[u8], sector_bytes: u32) -> Result<Option<ExtentPlace>> {
    let locus = Locus::tree(TreeId::TREE_LOG.0).at_key(key.into());
    let extent = FileExtent::decode(data, key.offset, sector_bytes, locus)?;
    Ok(match extent.kind {
        FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) => Some(place),
        FileExtentKind::Inline(_) | FileExtentKind::Hole => None,
    })
}

/// The extents that have no items yet, with their lengths: their space is reserved.
fn new_extents(
    fs: &WriteContext,
    overlays: &BTreeMap<TreeId, Overlay>,
) -> Result<BTreeMap<LogicalAddr, u64>> {
    let context = fs.context();
    let extents = context.required_tree(TreeId::EXTENT)?;
    let mut new = BTreeMap::new();
    for (key, data) in overlays.values().flat_map(Overlay::iter) {
        let Some(data) = data.filter(|_| key.kind == ItemKind::EXTENT_DATA) else {
            continue;
        };
        let Some(place) = place(key, data, context.sector_bytes())? else {
            continue;
        };
        let (at, len_bytes) = (place.logical, place.disk_bytes);
        let item = Key::new(at.0, ItemKind::EXTENT_ITEM, len_bytes);
        if new.get(&at) == Some(&len_bytes) || context.find(extents, item, |_| Ok(()))?.is_some() {
            continue;
        }
        if !data_extents::reserve_logged(fs, at, len_bytes)? {
            return Err(Corrupt::new(Locus::block(at.0), ApplyRule::Space).into());
        }
        new.insert(at, len_bytes);
    }
    Ok(new)
}

/// Changes the items of a subvolume, and the references of its file extents.
fn apply_to(
    handle: &Handle<'_>,
    tree: TreeId,
    overlay: &Overlay,
    new: &mut BTreeMap<LogicalAddr, u64>,
) -> Result<()> {
    let sector_bytes = handle.sector_bytes();
    let mut refs = [Vec::new(), Vec::new()];
    handle.edit(tree, |editor| {
        for (key, data) in overlay.iter() {
            let old = editor.get(key)?;
            if old.as_deref() == data {
                continue;
            }
            if key.kind == ItemKind::EXTENT_DATA {
                for (refs, data) in refs.iter_mut().zip([data, old.as_deref()]) {
                    let place = match data {
                        Some(data) => place(key, data, sector_bytes)?,
                        None => None,
                    };
                    refs.extend(place.map(|place| (key, place)));
                }
            }
            if let Some(data) = data.filter(|_| key.kind == ItemKind::INODE_ITEM)
                && InodeItem::decode(data, Locus::tree(tree.0).at_key(key.into()))?.links == 0
            {
                let orphan = Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, key.object);
                editor.set(orphan, &[])?;
            }
            match data {
                Some(data) => editor.set(key, data)?,
                None => drop(editor.remove(key)?),
            }
        }
        Ok(())
    })?;
    let range = |key: Key| FileRange {
        tree,
        inode: key.object,
        offset: key.offset,
    };
    let [added, dropped] = refs;
    for (key, place) in added {
        if new.remove(&place.logical).is_some() {
            data_extents::add(handle, range(key), &place)?;
        } else {
            data_extents::change(handle, range(key), &place, Action::Add)?;
        }
    }
    for (key, place) in dropped {
        data_extents::change(handle, range(key), &place, Action::Drop)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::rule;
    use crate::ondisk::Generation;
    use crate::ondisk::file_extent::Compression;
    use crate::txn::WriteOptions;
    use crate::txn::tests::image::Pool;
    use platter_ondisk::Rule as _;

    #[test]
    fn logged_extent_in_used_space_is_corrupt() {
        let pool = Pool::make(1, 128, &["-m", "single"]);
        let fs = pool.open(WriteOptions::default());
        let handle = fs.begin(4).unwrap();
        let logical = data_extents::allocate(&handle, 8192).unwrap();
        drop(handle);
        let extent = FileExtent {
            generation: Generation(1),
            ram_bytes: 4096,
            compression: Compression::None,
            file_bytes: 4096,
            kind: FileExtentKind::Regular(ExtentPlace {
                logical,
                disk_bytes: 4096,
                offset: 0,
            }),
        };
        let mut overlay = Overlay::default();
        let key = Key::new(257, ItemKind::EXTENT_DATA, 0);
        overlay.set(key, &extent.encode());
        let overlays = BTreeMap::from([(TreeId::FS, overlay)]);
        let found = new_extents(&fs, &overlays);
        assert_eq!(rule(found), ApplyRule::Space.text());
        data_extents::release(&fs, logical, 8192).unwrap();
        let found = new_extents(&fs, &overlays).unwrap();
        assert_eq!(found, BTreeMap::from([(logical, 4096)]));
    }
}
