//! Root items of subvolumes, the entry of the default one, and the orphans of the root tree: subvolumes whose
//! trees are dropped.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, FileKind, Result};
use zerocopy::{FromZeros, IntoBytes};

use crate::context::TreesRule;
use crate::directory::change::{replace, without};
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::inode_item::DiskInodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::{DiskRootItem, RootItem};
use crate::ondisk::types::{FIRST_FREE_OBJECT, ORPHAN_OBJECT, QGROUP_LEVEL_ONE};
use crate::ondisk::{Key, TreeId};
use crate::txn::{Editor, Handle, roots};

/// The name of the entry of the default subvolume.
const DEFAULT_NAME: &[u8] = b"default";
/// The mode of the inode in a new root item, which only old kernels use: a directory.
const ITEM_MODE: u32 = 0o40755;
/// `BTRFS_INODE_ROOT_ITEM_INIT`: flags and limits of a root item are valid.
const ITEM_FLAGS: u64 = 1 << 31;
/// The size of that inode.
const ITEM_SIZE_BYTES: u64 = 3;

/// The number of the next subvolume: one more than any.
///
/// # Errors
/// `NoSpace` after the last.
pub fn next_id(handle: &Handle<'_>) -> Result<TreeId> {
    handle.edit(TreeId::ROOT, |editor| {
        let end = Key::new(QGROUP_LEVEL_ONE, ItemKind(0), 0);
        let last = editor.at_or_before(end)?;
        let last = last.map_or(0, |(key, _)| key.object);
        let next = TreeId(last.max(FIRST_FREE_OBJECT - 1) + 1);
        if !next.is_subvolume() {
            return Err(Condition::NoSpace.into());
        }
        Ok(next)
    })
}

/// Inserts the root item of a new subvolume.
pub fn insert_root(handle: &Handle<'_>, id: TreeId, item: &RootItem) -> Result<()> {
    let mut old = DiskRootItem::new_zeroed();
    old.inode = DiskInodeItem {
        generation: 1.into(),
        size_bytes: ITEM_SIZE_BYTES.into(),
        allocated_bytes: item.bytes_used.into(),
        links: 1.into(),
        mode: ITEM_MODE.into(),
        flags: ITEM_FLAGS.into(),
        ..DiskInodeItem::new_zeroed()
    };
    let key = Key::new(id.0, ItemKind::ROOT_ITEM, 0);
    handle.edit(TreeId::ROOT, |editor| {
        editor.insert(key, item.encode(Some(&old)).as_bytes())
    })
}

/// The root item of a subvolume.
fn find_root(
    handle: &Handle<'_>,
    editor: &Editor<'_, '_>,
    id: TreeId,
) -> Result<(Key, DiskRootItem, RootItem)> {
    let missing = || Corrupt::new(Locus::tree(id.0), TreesRule::MissingTree);
    let last = editor.at_or_before(Key::new(id.0, ItemKind::ROOT_ITEM, u64::MAX))?;
    let is_it = |(key, _): &(Key, _)| key.object == id.0 && key.kind == ItemKind::ROOT_ITEM;
    let (key, data) = last.filter(is_it).ok_or_else(missing)?;
    let item = RootItem::decode(&data, handle.sector_bytes(), editor.tree().locus(key))?;
    let mut disk = DiskRootItem::new_zeroed();
    if let Some(place) = disk.as_mut_bytes().get_mut(..data.len()) {
        place.copy_from_slice(&data);
    }
    Ok((key, disk, item))
}

/// Changes the root item of a subvolume: what does not follow from its tree.
pub fn change_root(
    handle: &Handle<'_>,
    id: TreeId,
    change: impl FnOnce(&mut RootItem),
) -> Result<()> {
    handle.edit(TreeId::ROOT, |editor| {
        let (key, disk, mut item) = find_root(handle, editor, id)?;
        change(&mut item);
        editor.set(key, item.encode(Some(&disk)).as_bytes())
    })
}

fn orphan_key(id: TreeId) -> Key {
    Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, id.0)
}

/// Says that a subvolume is deleted: its tree is to be dropped, by the next mount if not before.
pub fn mark_dead(handle: &Handle<'_>, id: TreeId) -> Result<()> {
    change_root(handle, id, |item| {
        item.refs = 0;
        item.drop_progress = Key::MIN;
        item.drop_level = 0;
    })?;
    handle.edit(TreeId::ROOT, |editor| editor.set(orphan_key(id), &[]))
}

/// Says that nothing of the tree of a deleted subvolume was dropped that it has pointers to.
pub fn clear_progress(handle: &Handle<'_>, id: TreeId) -> Result<()> {
    change_root(handle, id, |item| {
        item.drop_progress = Key::MIN;
        item.drop_level = 0;
    })
}

/// Removes what is left of a subvolume whose tree was dropped.
pub fn clear_dead(handle: &Handle<'_>, id: TreeId) -> Result<()> {
    handle.edit(TreeId::ROOT, |editor| {
        let (key, ..) = find_root(handle, editor, id)?;
        editor.remove(key)?;
        editor.remove(orphan_key(id)).map(drop)
    })?;
    roots::forget(handle, id);
    Ok(())
}

/// Makes a subvolume the default one. `dir` is the directory of the root tree.
pub fn set_default(handle: &Handle<'_>, dir: u64, id: TreeId) -> Result<()> {
    let key = Key::new(dir, ItemKind::DIR_ITEM, name_hash(DEFAULT_NAME));
    handle.edit(TreeId::ROOT, |editor| {
        let old = editor.get(key)?.unwrap_or_default();
        let mut rest = old.clone();
        if !old.is_empty() {
            let entries = DirItem::decode_all(key, &old, editor.tree().locus(key))?;
            let at = entries.iter().position(|entry| entry.name == DEFAULT_NAME);
            if let Some(at) = at {
                rest = without(&old, entries.iter().map(DirItem::len_bytes), at);
            }
        }
        DirItem {
            location: Location::Subvolume(id.0),
            transaction: handle.generation(),
            kind: Some(FileKind::Directory),
            name: DEFAULT_NAME,
        }
        .encode(&mut rest);
        replace(editor, key, &rest)
    })
}
