//! Replay of names: entries of directories and references of inodes.

use std::collections::BTreeSet;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{FileKind, Result};

use super::replay::Replay;
use crate::inode::InodeRule;
use crate::ondisk::Key;
use crate::ondisk::checksum::{extref_hash, name_hash};
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::leaf_edit;
use crate::ondisk::root_ref::RootRef;
use crate::ondisk::types::FIRST_FREE_OBJECT;

rules! {
    /// The rules of names in a log that is replayed.
    pub(super) enum LogNameRule of "log tree" {
        /// The names of an inode fit into its items.
        TooMany => "names of an inode in the log do not fit into an item",
    }
}

/// The types of items that have names of an inode.
const REFS: std::ops::RangeInclusive<ItemKind> = ItemKind::INODE_REF..=ItemKind::INODE_EXTREF;

/// A name of an inode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OwnedRef {
    parent: u64,
    index: u64,
    name: Vec<u8>,
}

/// Takes over an entry of a directory, if what it names exists.
pub(super) fn replay_entry(replay: &mut Replay<'_>, key: Key, data: &[u8]) -> Result<()> {
    let dir = key.object;
    if replay.item(dir)?.is_none() {
        return Ok(());
    }
    for entry in DirItem::decode_all(key, data, replay.log.locus(key))? {
        let exists = match entry.location {
            Location::Inode(number) => replay.item(number)?.is_some(),
            Location::Subvolume(_) => true,
        };
        if exists {
            link(replay, dir, key.offset, &entry)?;
        }
    }
    Ok(())
}

/// Takes over all names of an inode: those that the log does not have in an item that it has are
/// removed.
pub(super) fn replay_refs(replay: &mut Replay<'_>, inode: u64) -> Result<()> {
    let logged = replay.items_of(true, inode, &REFS)?;
    let mut names = Vec::new();
    for (key, data) in &logged {
        names.extend(decode_refs(replay, *key, data)?);
    }
    let kept: BTreeSet<(u64, Vec<u8>)> = names
        .iter()
        .map(|name| (name.parent, name.name.clone()))
        .collect();
    for (key, _) in &logged {
        let Some(data) = replay.data(*key)? else {
            continue;
        };
        for old in decode_refs(replay, *key, &data)? {
            let name = (old.parent, old.name);
            if !kept.contains(&name) {
                unlink(replay, name.0, &name.1, Some(old.index))?;
            }
        }
    }
    let Some(item) = replay.item(inode)? else {
        return Ok(());
    };
    for name in names {
        // The root directory names itself.
        if name.parent == inode || replay.item(name.parent)?.is_none() {
            continue;
        }
        let entry = DirItem {
            location: Location::Inode(inode),
            transaction: item.transaction,
            kind: Some(item.kind),
            name: &name.name,
        };
        link(replay, name.parent, name.index, &entry)?;
    }
    Ok(())
}

fn decode_refs(replay: &Replay<'_>, key: Key, data: &[u8]) -> Result<Vec<OwnedRef>> {
    let locus = replay.log.locus(key);
    let refs = if key.kind == ItemKind::INODE_REF {
        InodeRef::decode_all(data, key.offset, locus)?
    } else {
        InodeRef::decode_all_extended(data, locus)?
    };
    let owned = refs.iter().map(|reference| OwnedRef {
        parent: reference.parent,
        index: reference.index,
        name: reference.name.to_vec(),
    });
    Ok(owned.collect())
}

/// The entries of a directory with the hash of a name.
fn hashed(replay: &Replay<'_>, dir: u64, name: &[u8]) -> Result<(Key, Vec<u8>)> {
    let key = Key::new(dir, ItemKind::DIR_ITEM, name_hash(name));
    Ok((key, replay.data(key)?.unwrap_or_default()))
}

/// What a name in a directory names.
fn named(replay: &Replay<'_>, dir: u64, name: &[u8]) -> Result<Option<Location>> {
    let (key, data) = hashed(replay, dir, name)?;
    if data.is_empty() {
        return Ok(None);
    }
    let entries = DirItem::decode_all(key, &data, replay.tree.locus(key))?;
    let entry = entries.iter().find(|entry| entry.name == name);
    Ok(entry.map(|entry| entry.location))
}

/// Makes a directory have an entry under an index: what else has its name or index is removed.
fn link(replay: &mut Replay<'_>, dir: u64, index: u64, entry: &DirItem<'_>) -> Result<()> {
    let name = entry.name;
    let index_key = Key::new(dir, ItemKind::DIR_INDEX, index);
    let at_index = match replay.data(index_key)? {
        Some(data) => {
            let entries = DirItem::decode_all(index_key, &data, replay.tree.locus(index_key))?;
            let entry = entries.first();
            entry.map(|entry| (entry.name.to_vec(), entry.location))
        }
        None => None,
    };
    let is_there = at_index
        .as_ref()
        .is_some_and(|(known, at)| known == name && *at == entry.location);
    if is_there && named(replay, dir, name)? == Some(entry.location) {
        return refer(replay, dir, index, entry);
    }
    if let Some((known, _)) = at_index {
        unlink(replay, dir, &known, Some(index))?;
    }
    if named(replay, dir, name)?.is_some() {
        unlink(replay, dir, name, None)?;
    }
    let (key, mut data) = hashed(replay, dir, name)?;
    entry.encode(&mut data);
    replay.overlay.set(key, &data);
    let mut data = Vec::new();
    entry.encode(&mut data);
    replay.overlay.set(index_key, &data);
    resize_dir(replay, dir, u64::saturating_add, name)?;
    refer(replay, dir, index, entry)
}

/// Makes the inode that an entry names have the reference for it.
fn refer(replay: &mut Replay<'_>, dir: u64, index: u64, entry: &DirItem<'_>) -> Result<()> {
    let Location::Inode(inode) = entry.location else {
        return Ok(());
    };
    replay.relinked.insert(inode);
    if index_of_ref(replay, inode, dir, entry.name)? == Some(index) {
        return Ok(());
    }
    let reference = InodeRef {
        parent: dir,
        index,
        name: entry.name,
    };
    let capacity = leaf_edit::capacity(replay.context.superblock.node_bytes);
    // Those that do not fit into the first item go to an extended one.
    for key in ref_keys(inode, dir, entry.name) {
        let mut data = replay.data(key)?.unwrap_or_default();
        if key.kind == ItemKind::INODE_REF {
            reference.encode(&mut data);
        } else {
            reference.encode_extended(&mut data);
        }
        if data.len() + ITEM_BYTES <= capacity {
            replay.overlay.set(key, &data);
            return Ok(());
        }
    }
    let locus = Locus::tree(replay.tree.id.0).of_inode(inode);
    Err(Corrupt::new(locus, LogNameRule::TooMany).into())
}

/// Removes the entry of a directory with this index item.
pub(super) fn remove_entry(replay: &mut Replay<'_>, key: Key, data: &[u8]) -> Result<()> {
    for entry in DirItem::decode_all(key, data, replay.tree.locus(key))? {
        unlink(replay, key.object, entry.name, Some(key.offset))?;
        replay.overlay.remove(key);
    }
    Ok(())
}

/// Removes a name from a directory, and from what it names. Its index is found if it is not given.
fn unlink(replay: &mut Replay<'_>, dir: u64, name: &[u8], index: Option<u64>) -> Result<()> {
    let Some(location) = named(replay, dir, name)? else {
        return Ok(());
    };
    let (key, data) = hashed(replay, dir, name)?;
    let mut rest = Vec::new();
    for entry in DirItem::decode_all(key, &data, replay.tree.locus(key))? {
        if entry.name != name {
            entry.encode(&mut rest);
        }
    }
    set_or_remove(replay, key, &rest);
    let index = match index {
        Some(index) => index,
        None => index_of(replay, dir, name, location)?,
    };
    replay
        .overlay
        .remove(Key::new(dir, ItemKind::DIR_INDEX, index));
    resize_dir(replay, dir, u64::saturating_sub, name)?;
    if let Location::Inode(inode) = location {
        replay.relinked.insert(inode);
        drop_refs(replay, inode, dir, name)?;
    }
    Ok(())
}

/// The index of an entry, by the reference of what it names.
fn index_of(replay: &Replay<'_>, dir: u64, name: &[u8], location: Location) -> Result<u64> {
    let index = match location {
        Location::Inode(inode) => index_of_ref(replay, inode, dir, name)?,
        Location::Subvolume(child) => {
            let roots = replay.context.root_tree();
            let key = Key::new(replay.tree.id.0, ItemKind::ROOT_REF, child);
            let found = replay.context.find(roots, key, |data| {
                let reference = RootRef::decode(data, roots.locus(key))?;
                let is_it = reference.dir == dir && reference.name == name;
                Ok(is_it.then_some(reference.index))
            })?;
            found.flatten()
        }
    };
    let locus = Locus::tree(replay.tree.id.0).of_inode(dir);
    Ok(index.ok_or_else(|| Corrupt::new(locus, InodeRule::NoName))?)
}

/// The index in the reference of an inode for one of its names.
fn index_of_ref(replay: &Replay<'_>, inode: u64, dir: u64, name: &[u8]) -> Result<Option<u64>> {
    for key in ref_keys(inode, dir, name) {
        let Some(data) = replay.data(key)? else {
            continue;
        };
        let refs = decode_refs(replay, key, &data)?;
        let found = refs.iter().find(|it| it.parent == dir && it.name == name);
        if let Some(found) = found {
            return Ok(Some(found.index));
        }
    }
    Ok(None)
}

fn drop_refs(replay: &mut Replay<'_>, inode: u64, dir: u64, name: &[u8]) -> Result<()> {
    for key in ref_keys(inode, dir, name) {
        let Some(data) = replay.data(key)? else {
            continue;
        };
        let refs = decode_refs(replay, key, &data)?;
        let mut rest = Vec::new();
        for it in refs.iter().filter(|it| it.parent != dir || it.name != name) {
            let reference = InodeRef {
                parent: it.parent,
                index: it.index,
                name: &it.name,
            };
            if key.kind == ItemKind::INODE_REF {
                reference.encode(&mut rest);
            } else {
                reference.encode_extended(&mut rest);
            }
        }
        if rest.len() != data.len() {
            set_or_remove(replay, key, &rest);
        }
    }
    Ok(())
}

fn set_or_remove(replay: &mut Replay<'_>, key: Key, data: &[u8]) {
    if data.is_empty() {
        replay.overlay.remove(key);
    } else {
        replay.overlay.set(key, data);
    }
}

/// A directory's size is twice the length of its names.
fn resize_dir(
    replay: &mut Replay<'_>,
    dir: u64,
    change: impl Fn(u64, u64) -> u64,
    name: &[u8],
) -> Result<()> {
    if let Some(item) = replay.item(dir)? {
        let size_bytes = change(item.size_bytes, 2 * name.len() as u64);
        replay.set_item(dir, &InodeItem { size_bytes, ..item });
    }
    Ok(())
}

/// Sets an inode's number of names to what its references say. A directory without a name loses its entries.
pub(super) fn count_links(replay: &mut Replay<'_>, inode: u64) -> Result<()> {
    let Some(item) = replay.item(inode)? else {
        return Ok(());
    };
    if inode == FIRST_FREE_OBJECT {
        return Ok(());
    }
    let mut count = 0u32;
    for (key, data) in replay.items_of(false, inode, &REFS)? {
        let refs = decode_refs(replay, key, &data)?;
        count = count.saturating_add(u32::try_from(refs.len()).unwrap_or(u32::MAX));
    }
    let links = if item.kind == FileKind::Directory {
        count.min(1)
    } else {
        count
    };
    replay.set_item(inode, &InodeItem { links, ..item });
    if links == 0 && item.kind == FileKind::Directory {
        let kinds = ItemKind::DIR_INDEX..=ItemKind::DIR_INDEX;
        for (key, data) in replay.items_of(false, inode, &kinds)? {
            remove_entry(replay, key, &data)?;
        }
    }
    Ok(())
}

/// The items that a reference of an inode for a name can be in.
fn ref_keys(inode: u64, dir: u64, name: &[u8]) -> [Key; 2] {
    [
        Key::new(inode, ItemKind::INODE_REF, dir),
        Key::new(inode, ItemKind::INODE_EXTREF, extref_hash(dir, name)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::{rule, sample};
    use crate::ondisk::{Generation, TreeId};
    use platter_ondisk::Rule as _;

    #[test]
    fn names_that_fit_into_no_item_are_corrupt() {
        let any = Key::new(256, ItemKind::ORPHAN_ITEM, 0);
        let context = sample(&[(any, b"")], &[]);
        let tree = context.required_tree(TreeId::FS).unwrap();
        let mut replay = Replay::new(&context, tree, tree);
        let (mut refs, mut extended) = (Vec::new(), Vec::new());
        for index in 0..14 {
            let reference = InodeRef {
                parent: 256,
                index: index.into(),
                name: &[b'a' + index; 255],
            };
            reference.encode(&mut refs);
            reference.encode_extended(&mut extended);
        }
        let entry = DirItem {
            location: Location::Inode(257),
            transaction: Generation(1),
            kind: Some(FileKind::Regular),
            name: &[b'z'; 255],
        };
        let [ref_key, extref_key] = ref_keys(257, 256, entry.name);
        replay.overlay.set(ref_key, &refs);
        refer(&mut replay, 256, 99, &entry).unwrap();
        assert_eq!(replay.data(ref_key).unwrap(), Some(refs));
        let index = index_of_ref(&replay, 257, 256, entry.name);
        assert_eq!(index.unwrap(), Some(99));
        replay.overlay.set(extref_key, &extended);
        let refused = refer(&mut replay, 256, 99, &entry);
        assert_eq!(rule(refused), LogNameRule::TooMany.text());
    }
}
