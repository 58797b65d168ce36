//! Inode items that are stored, new numbers, and orphans: inodes without a name, which the next mount deletes.

use platter_ondisk::Corrupt;
use platter_vfs::{Condition, Result};
use zerocopy::IntoBytes;

use super::InodeRule;
use crate::ondisk::Key;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT, ORPHAN_OBJECT};
use crate::txn::Editor;
use crate::txn::orphans::orphan_key;

fn item_key(number: u64) -> Key {
    Key::new(number, ItemKind::INODE_ITEM, 0)
}

/// Inserts the item of a new inode.
pub fn insert(editor: &mut Editor<'_, '_>, number: u64, item: &InodeItem) -> Result<()> {
    editor.insert(item_key(number), item.encode().as_bytes())
}

/// Changes the item of an inode.
///
/// # Errors
/// `Corrupt` if there is none, or it breaks a rule.
pub fn update(
    editor: &mut Editor<'_, '_>,
    number: u64,
    change: impl FnOnce(&mut InodeItem),
) -> Result<()> {
    let key = item_key(number);
    let locus = editor.tree().locus(key);
    let data = editor.get(key)?;
    let data = data.ok_or_else(|| Corrupt::new(locus, InodeRule::Missing))?;
    let mut item = InodeItem::decode(&data, locus)?;
    change(&mut item);
    editor.set(key, item.encode().as_bytes())
}

/// The number of the next inode: one more than any.
///
/// # Errors
/// `NoSpace` after the last.
pub fn next_number(editor: &Editor<'_, '_>) -> Result<u64> {
    let last = Key::new(LAST_FREE_OBJECT, ItemKind(u8::MAX), u64::MAX);
    let last = editor.at_or_before(last)?;
    let last = last.map_or(0, |(key, _)| key.object);
    let next = last.max(FIRST_FREE_OBJECT) + 1;
    if next > LAST_FREE_OBJECT {
        return Err(Condition::NoSpace.into());
    }
    Ok(next)
}

/// Makes the next mount delete the inode, unless it was deleted before or got a name.
pub fn add_orphan(editor: &mut Editor<'_, '_>, number: u64) -> Result<()> {
    editor.set(orphan_key(number), &[])
}

/// The inode was deleted, or got a name.
pub fn remove_orphan(editor: &mut Editor<'_, '_>, number: u64) -> Result<()> {
    editor.remove(orphan_key(number)).map(drop)
}

/// The first orphan from a number on.
pub fn next_orphan(editor: &Editor<'_, '_>, from: u64) -> Result<Option<u64>> {
    let found = editor.at_or_after(orphan_key(from))?;
    let is_orphan = |key: &Key| key.object == ORPHAN_OBJECT && key.kind == ItemKind::ORPHAN_ITEM;
    Ok(found
        .map(|(key, _)| key)
        .filter(is_orphan)
        .map(|key| key.offset))
}

/// Whether an inode has items of extents.
pub fn has_extents(editor: &Editor<'_, '_>, number: u64) -> Result<bool> {
    let first = Key::new(number, ItemKind::EXTENT_DATA, 0);
    let found = editor.key_from(first)?;
    Ok(found.is_some_and(|key| key.object == number && key.kind == ItemKind::EXTENT_DATA))
}

/// Removes all items of an inode whose extents were dropped.
pub fn remove_items(editor: &mut Editor<'_, '_>, number: u64) -> Result<()> {
    let first = Key::new(number, ItemKind(0), 0);
    let last = Key::new(number, ItemKind(u8::MAX), u64::MAX);
    editor.remove_range(first, last).map(drop)
}
