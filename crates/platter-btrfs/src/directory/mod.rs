//! Directories: entries by name and by index.

pub mod change;

use platter_ondisk::{Corrupt, rules};
use platter_vfs::{FileKind, Name, Result};

use crate::context::FsContext;
use crate::ondisk::Key;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::key::ItemKind;
use crate::tree::Tree;

/// The index of the first entry; those below stand for `.` and `..`.
pub const FIRST_INDEX: u64 = 2;

rules! {
    /// The rules of a directory's entries.
    pub enum DirectoryRule of "directory" {
        /// A name has neither slashes nor zeros, and is not `.` or `..`.
        Name => "invalid name",
        /// A name has an entry by its hash.
        NoEntry => "no dir item",
        /// A name has an entry by its index.
        NoIndex => "no dir index",
        /// The inode has a reference for each name.
        NoRef => "no inode ref",
    }
}

/// What a name names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The inode or subvolume.
    pub location: Location,
    /// Its type as the entry has it.
    pub kind: Option<FileKind>,
}

/// Looks a name up in the directory `number`.
pub fn lookup(
    context: &FsContext,
    tree: Tree,
    number: u64,
    name: Name<'_>,
) -> Result<Option<Found>> {
    let key = Key::new(number, ItemKind::DIR_ITEM, name_hash(name.as_bytes()));
    let found = context.find(tree, key, |data| {
        let entries = DirItem::decode_all(key, data, tree.locus(key))?;
        let entry = entries.iter().find(|entry| entry.name == name.as_bytes());
        Ok(entry.map(|entry| Found {
            location: entry.location,
            kind: entry.kind,
        }))
    })?;
    Ok(found.flatten())
}

/// Passes the entries of the directory `number` from an index on to `sink`, with their index, until it
/// returns `false`. An entry that breaks a rule is left out, and is the error at the end.
pub fn list(
    context: &FsContext,
    tree: Tree,
    number: u64,
    from: u64,
    sink: &mut dyn FnMut(u64, Name<'_>, Found) -> Result<bool>,
) -> Result<()> {
    let mut cursor = context.cursor(tree);
    let mut broken = None;
    cursor.seek(Key::new(number, ItemKind::DIR_INDEX, from))?;
    while let Some((key, data)) = cursor.item() {
        if key.object != number || key.kind != ItemKind::DIR_INDEX {
            break;
        }
        match decode(tree, key, data) {
            Ok((name, found)) => {
                if !sink(key.offset, name, found)? {
                    return Ok(());
                }
            }
            Err(error) => broken = broken.or(Some(error)),
        }
        cursor.step()?;
    }
    broken.map_or(Ok(()), Err)
}

fn decode(tree: Tree, key: Key, data: &[u8]) -> Result<(Name<'_>, Found)> {
    let locus = tree.locus(key);
    let entries = DirItem::decode_all(key, data, locus)?;
    let entry = entries.first();
    let name = entry.and_then(|entry| Name::new(entry.name).ok());
    let name = name.filter(|name| !name.is_dot_or_dotdot());
    let (Some(entry), Some(name)) = (entry, name) else {
        return Err(Corrupt::new(locus, DirectoryRule::Name).into());
    };
    let found = Found {
        location: entry.location,
        kind: entry.kind,
    };
    Ok((name, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::tests::{rule, sample};
    use crate::ondisk::{Generation, TreeId};
    use platter_ondisk::Rule as _;

    fn item(name: &[u8]) -> Vec<u8> {
        let entry = DirItem {
            location: Location::Inode(300),
            transaction: Generation(1),
            kind: Some(FileKind::Regular),
            name,
        };
        let mut item = Vec::new();
        entry.encode(&mut item);
        item
    }

    #[test]
    fn entry_with_an_invalid_name_is_left_out_and_reported() {
        let key = |index| Key::new(256, ItemKind::DIR_INDEX, index);
        let items = [item(b"one"), item(b"a/b"), item(b".."), item(b"two")];
        let items: Vec<_> = (2..)
            .map(key)
            .zip(items.iter().map(|item| &item[..]))
            .collect();
        let context = sample(&items, &[]);
        let tree = context.required_tree(TreeId::FS).unwrap();
        let mut names = Vec::new();
        let listed = list(&context, tree, 256, 0, &mut |index, name, _| {
            names.push((index, name.to_vec()));
            Ok(true)
        });
        assert_eq!(rule(listed), DirectoryRule::Name.text());
        assert_eq!(names, [(2, b"one".to_vec()), (5, b"two".to_vec())]);
    }
}
