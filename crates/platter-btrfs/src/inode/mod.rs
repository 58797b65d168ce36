//! Inodes: their items, names, and attributes as `stat` shows them.

pub mod change;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Attr, Condition, FileKind, Result};

use crate::context::FsContext;
use crate::ondisk::Key;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::tree::Tree;

rules! {
    /// The rules of an inode together with others.
    pub enum InodeRule of "inode" {
        /// What an entry names exists.
        Missing => "no inode item",
        /// A directory has a name.
        NoName => "no inode ref",
    }
}

/// Items of names that are passed over in search of attributes.
const NAME_ITEMS_SEEN: usize = 4;

/// The error of an entry that names an inode which does not exist.
#[must_use]
pub fn missing(tree: Tree, number: u64) -> Corrupt<InodeRule> {
    let locus = Locus::tree(tree.id.0).of_inode(number);
    Corrupt::new(locus, InodeRule::Missing)
}

/// The item of an inode; `None` if there is no such inode.
pub fn find(context: &FsContext, tree: Tree, number: u64) -> Result<Option<InodeItem>> {
    let key = Key::new(number, ItemKind::INODE_ITEM, 0);
    context.find(tree, key, |data| {
        Ok(InodeItem::decode(data, tree.locus(key))?)
    })
}

/// The item of an inode, and whether there may be attributes: the item after those of its names is one of them, is not
/// looked for, or cannot be read.
pub fn find_before_attributes(
    context: &FsContext,
    tree: Tree,
    number: u64,
) -> Result<Option<(InodeItem, bool)>> {
    let mut cursor = context.cursor(tree);
    let key = Key::new(number, ItemKind::INODE_ITEM, 0);
    cursor.seek(key)?;
    let item = match cursor.item() {
        Some((found, data)) if found == key => InodeItem::decode(data, tree.locus(key))?,
        Some(_) | None => return Ok(None),
    };
    for _ in 0..NAME_ITEMS_SEEN {
        if cursor.step().is_err() {
            break;
        }
        match cursor.item() {
            Some((key, _)) if key.object == number && key.kind < ItemKind::XATTR_ITEM => {}
            Some((key, _)) => {
                let is_attribute = key.object == number && key.kind == ItemKind::XATTR_ITEM;
                return Ok(Some((item, is_attribute)));
            }
            None => return Ok(Some((item, false))),
        }
    }
    Ok(Some((item, true)))
}

/// The directory that holds a directory.
pub fn parent(context: &FsContext, tree: Tree, number: u64) -> Result<u64> {
    Ok(first_name(context, tree, number)?.0)
}

/// The first name of an inode, after the directory that has it; the only one of a directory.
pub fn first_name(context: &FsContext, tree: Tree, number: u64) -> Result<(u64, Vec<u8>)> {
    let mut cursor = context.cursor(tree);
    cursor.seek(Key::new(number, ItemKind::INODE_REF, 0))?;
    while let Some((key, data)) = cursor.item() {
        let locus = tree.locus(key);
        let refs = match key.kind {
            ItemKind::INODE_REF if key.object == number => {
                InodeRef::decode_all(data, key.offset, locus)?
            }
            ItemKind::INODE_EXTREF if key.object == number => {
                InodeRef::decode_all_extended(data, locus)?
            }
            ItemKind(_) => break,
        };
        if let Some(first) = refs.first() {
            return Ok((first.parent, first.name.to_vec()));
        }
        cursor.step()?;
    }
    let locus = Locus::tree(tree.id.0).of_inode(number);
    Err(Corrupt::new(locus, InodeRule::NoName).into())
}

/// The names that lead from one directory down to another, in their order.
///
/// # Errors
/// `NameTooLong` where there are more than `count_max`: a directory may say that it is below itself.
pub fn names_between(
    context: &FsContext,
    tree: Tree,
    (top, number): (u64, u64),
    count_max: usize,
) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut at = number;
    while at != top {
        if names.len() >= count_max {
            return Err(Condition::NameTooLong.into());
        }
        let (parent, name) = first_name(context, tree, at)?;
        names.push(name);
        at = parent;
    }
    names.reverse();
    Ok(names)
}

/// The flags of `FS_IOC_GETFLAGS` by ours. Spec: `linux/fs.h`.
const FLAGS: [(InodeFlags, u32); 8] = [
    (InodeFlags::SYNC, 0x8),
    (InodeFlags::IMMUTABLE, 0x10),
    (InodeFlags::APPEND, 0x20),
    (InodeFlags::NODUMP, 0x40),
    (InodeFlags::NOATIME, 0x80),
    (InodeFlags::DIRSYNC, 0x1_0000),
    (InodeFlags::VERITY, 0x10_0000),
    (InodeFlags::NODATACOW, 0x80_0000),
];
/// `FS_NOCOMP_FL`.
const NOCOMP: u32 = 0x400;
/// `FS_COMPR_FL`.
const COMPR: u32 = 0x4;
/// `FS_NOCOW_FL`.
const NOCOW: u32 = 0x80_0000;

/// The flags that an inode has once it has those of `FS_IOC_SETFLAGS`; `None` where they are not kept, or may not be
/// changed.
#[must_use]
pub fn changed_flags(item: &InodeItem, flags: u32) -> Option<InodeFlags> {
    let settable = InodeFlags::SYNC
        | InodeFlags::IMMUTABLE
        | InodeFlags::APPEND
        | InodeFlags::NODUMP
        | InodeFlags::NOATIME
        | InodeFlags::DIRSYNC;
    let named = FLAGS.iter().filter(|(flag, _)| settable.contains(*flag));
    let (mut set, mut known) = (InodeFlags::empty(), COMPR | NOCOMP | NOCOW);
    for (flag, bit) in named {
        known |= bit;
        if flags & bit != 0 {
            set |= *flag;
        }
    }
    let shown = attr(item, 0, 1).flags;
    let has = |bit| flags & bit != 0;
    let contradicts = has(COMPR) && (has(NOCOMP) || has(NOCOW));
    if flags & !known != shown & !known || contradicts {
        return None;
    }
    let in_place = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
    let mut kept = item.flags.difference(settable);
    // Of a file with contents, the flag goes on saying how they are stored.
    let is_empty = item.kind == FileKind::Regular && item.size_bytes == 0;
    if item.kind == FileKind::Directory {
        kept.set(InodeFlags::NODATACOW, has(NOCOW));
    } else if is_empty && has(NOCOW) != (shown & NOCOW != 0) {
        kept.set(in_place, has(NOCOW));
    }
    kept.set(InodeFlags::COMPRESS, has(COMPR));
    kept.set(InodeFlags::NOCOMPRESS, has(NOCOMP));
    Some(kept | set)
}

/// The attributes of an inode that is shown with the number `shown`.
#[must_use]
pub fn attr(item: &InodeItem, shown: u64, sector_bytes: u32) -> Attr {
    let allocated = item
        .allocated_bytes
        .checked_next_multiple_of(sector_bytes.into());
    Attr {
        inode: shown,
        generation: item.generation.0,
        kind: item.kind,
        permissions: item.permissions,
        links: item.links,
        uid: item.uid,
        gid: item.gid,
        project: 0,
        size_bytes: item.size_bytes,
        sectors: allocated.unwrap_or(u64::MAX) >> 9,
        space_is_estimated: false,
        io_block_bytes: sector_bytes,
        device: item.device,
        accessed: item.accessed,
        modified: item.modified,
        changed: item.changed,
        created: Some(item.created),
        flags: shown_flags(item.flags),
    }
}

/// The flags of `FS_IOC_GETFLAGS` that those of an inode item are shown as.
#[must_use]
pub fn shown_flags(flags: InodeFlags) -> u32 {
    let set = FLAGS.iter().filter(|(flag, _)| flags.contains(*flag));
    let mut shown = set.fold(0, |shown, (_, bit)| shown | bit);
    if flags.contains(InodeFlags::NOCOMPRESS) {
        shown |= NOCOMP;
    } else if flags.contains(InodeFlags::COMPRESS) {
        shown |= COMPR;
    }
    shown
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Rule as _;

    use super::*;
    use crate::context::tests::{rule, sample};
    use crate::ondisk::TreeId;

    #[test]
    fn directory_without_a_name_is_corrupt() {
        let reference = InodeRef {
            parent: 256,
            index: 2,
            name: b"dir",
        };
        let mut item = Vec::new();
        reference.encode(&mut item);
        let key = Key::new(257, ItemKind::INODE_REF, 256);
        let context = sample(&[(key, &item)], &[]);
        let tree = context.required_tree(TreeId::FS).unwrap();
        assert_eq!(parent(&context, tree, 257).unwrap(), 256);
        assert_eq!(rule(parent(&context, tree, 258)), InodeRule::NoName.text());
        let names = names_between(&context, tree, (256, 257), 1).unwrap();
        assert_eq!(names, [b"dir"]);
        assert_eq!(find(&context, tree, 257).unwrap(), None);
        assert_eq!(missing(tree, 257).rule, InodeRule::Missing);
    }

    #[test]
    fn directory_that_is_its_own_ancestor_has_no_path() {
        let item = |parent| {
            let mut item = Vec::new();
            let (index, name) = (2, &b"dir"[..]);
            let reference = InodeRef {
                parent,
                index,
                name,
            };
            reference.encode(&mut item);
            item
        };
        let key = |child, parent| Key::new(child, ItemKind::INODE_REF, parent);
        let (first, second) = (item(258), item(257));
        let items = [(key(257, 258), &first[..]), (key(258, 257), &second[..])];
        let context = sample(&items, &[]);
        let tree = context.required_tree(TreeId::FS).unwrap();
        let names = names_between(&context, tree, (256, 257), 1000);
        let expected = Condition::NameTooLong;
        assert!(matches!(names, Err(platter_vfs::Error::Condition(it)) if it == expected));
    }

    #[test]
    fn flags_are_those_of_chattr() {
        let mut item = crate::ondisk::inode_item::tests::sample(platter_vfs::FileKind::Regular);
        item.flags = InodeFlags::COMPRESS | InodeFlags::NODATACOW | InodeFlags::APPEND;
        let shown = attr(&item, 7, 4096);
        assert_eq!(shown.flags, 0x80_0024);
        assert_eq!((shown.inode, shown.sectors), (7, 8));
        item.flags |= InodeFlags::NOCOMPRESS;
        assert_eq!(attr(&item, 7, 4096).flags, 0x80_0420);
    }
}
