//! Directory entries, by hash and by index, and extended attributes. Spec: `btrfs/dir_item`.

use platter_ondisk::endian::{Le16, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::FileKind;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::name_hash;
use super::inode_ref::NAME_LEN_MAX;
use super::key::{DiskKey, ItemKind, Key};
use super::types::Generation;

/// An entry; name and data follow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDirItem {
    /// `location`.
    pub location: DiskKey,
    /// `transid`.
    pub transaction: Le64,
    /// `data_len`.
    pub data_len: Le16,
    /// `name_len`.
    pub name_len: Le16,
    /// `type`.
    pub kind: u8,
}

const _: () = assert!(size_of::<DiskDirItem>() == 30);

/// `type` of an attribute.
const KIND_XATTR: u8 = 8;

/// Types by their number.
const KINDS: [(u8, FileKind); 7] = [
    (1, FileKind::Regular),
    (2, FileKind::Directory),
    (3, FileKind::CharDevice),
    (4, FileKind::BlockDevice),
    (5, FileKind::Fifo),
    (6, FileKind::Socket),
    (7, FileKind::Symlink),
];

rules! {
    /// The rules of directory and attribute items.
    pub enum DirItemRule of "dir item" {
        /// There is an entry.
        Empty => "has no entries",
        /// Each entry ends within the item.
        Truncated => "entry exceeds the item",
        /// A name has 1 to 255 bytes.
        NameLength => "invalid name length",
        /// Only attributes have data.
        DataLength => "entry of a directory has data",
        /// The type is known, and that of an attribute only where attributes are.
        Kind => "invalid dir item type",
        /// The entry names an inode or a subvolume.
        Location => "invalid location key",
        /// The key's offset is the hash of the name.
        Hash => "hash mismatch with key",
        /// An index item has one entry.
        Several => "dir index has more than one entry",
    }
}

/// What an entry names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// An inode of the same subvolume.
    Inode(u64),
    /// A subvolume.
    Subvolume(u64),
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirItem<'a> {
    /// What it names.
    pub location: Location,
    /// The transaction that made it.
    pub transaction: Generation,
    /// The type; `None` if it is not known.
    pub kind: Option<FileKind>,
    /// The name.
    pub name: &'a [u8],
}

/// An extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// The transaction that set it.
    pub transaction: Generation,
    /// The full name.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Decodes the entries of a directory or attribute item one by one.
fn decode_next<'a>(
    rest: &mut &'a [u8],
) -> Result<(&'a DiskDirItem, &'a [u8], &'a [u8]), DirItemRule> {
    let prefix = DiskDirItem::ref_from_prefix(rest);
    let (disk, after) = prefix.map_err(|_| DirItemRule::Truncated)?;
    let name_len = disk.name_len.get();
    if name_len == 0 || name_len > NAME_LEN_MAX {
        return Err(DirItemRule::NameLength);
    }
    let split = after.split_at_checked(usize::from(name_len));
    let (name, after) = split.ok_or(DirItemRule::Truncated)?;
    let split = after.split_at_checked(usize::from(disk.data_len.get()));
    let (data, after) = split.ok_or(DirItemRule::Truncated)?;
    *rest = after;
    Ok((disk, name, data))
}

fn decode_all<'a, T>(
    key: Key,
    bytes: &'a [u8],
    decode: impl Fn(&'a DiskDirItem, &'a [u8], &'a [u8]) -> Result<T, DirItemRule>,
) -> Result<Vec<T>, DirItemRule> {
    if bytes.is_empty() {
        return Err(DirItemRule::Empty);
    }
    let is_hashed = key.kind != ItemKind::DIR_INDEX;
    let mut entries = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (disk, name, data) = decode_next(&mut rest)?;
        if is_hashed && name_hash(name) != key.offset {
            return Err(DirItemRule::Hash);
        }
        entries.push(decode(disk, name, data)?);
    }
    if !is_hashed && entries.len() > 1 {
        return Err(DirItemRule::Several);
    }
    Ok(entries)
}

impl<'a> DirItem<'a> {
    /// Decodes the entries of the item with this key: of type `DIR_ITEM` or `DIR_INDEX`.
    pub fn decode_all(
        key: Key,
        bytes: &'a [u8],
        locus: Locus,
    ) -> Result<Vec<Self>, Corrupt<DirItemRule>> {
        let entries = decode_all(key, bytes, |disk, name, data| {
            Self::decode(disk, name, data)
        });
        entries.map_err(|rule| Corrupt::new(locus, rule))
    }

    fn decode(disk: &DiskDirItem, name: &'a [u8], data: &[u8]) -> Result<Self, DirItemRule> {
        if !data.is_empty() {
            return Err(DirItemRule::DataLength);
        }
        let known = KINDS.iter().find(|(number, _)| *number == disk.kind);
        if known.is_none() && disk.kind != 0 {
            return Err(DirItemRule::Kind);
        }
        let location = Key::decode(&disk.location);
        let location = match location.kind {
            ItemKind::INODE_ITEM => Location::Inode(location.object),
            ItemKind::ROOT_ITEM => Location::Subvolume(location.object),
            ItemKind(_) => return Err(DirItemRule::Location),
        };
        Ok(Self {
            location,
            transaction: Generation(disk.transaction.get()),
            kind: known.map(|(_, kind)| *kind),
            name,
        })
    }

    /// How long it is in an item.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        size_of::<DiskDirItem>().saturating_add(self.name.len())
    }

    /// Appends the entry to an item.
    pub fn encode(&self, item: &mut Vec<u8>) {
        let location = match self.location {
            Location::Inode(number) => Key::new(number, ItemKind::INODE_ITEM, 0),
            Location::Subvolume(tree) => Key::new(tree, ItemKind::ROOT_ITEM, u64::MAX),
        };
        let known = KINDS.iter().find(|(_, kind)| Some(*kind) == self.kind);
        let disk = DiskDirItem {
            location: location.encode(),
            transaction: self.transaction.0.into(),
            data_len: 0.into(),
            name_len: len(self.name),
            kind: known.map_or(0, |(number, _)| *number),
        };
        item.extend_from_slice(disk.as_bytes());
        item.extend_from_slice(self.name);
    }
}

impl<'a> Xattr<'a> {
    /// Decodes the attributes of the item with this key, of type `XATTR_ITEM`.
    pub fn decode_all(
        key: Key,
        bytes: &'a [u8],
        locus: Locus,
    ) -> Result<Vec<Self>, Corrupt<DirItemRule>> {
        let attributes = decode_all(key, bytes, |disk, name, value| {
            if disk.kind != KIND_XATTR {
                return Err(DirItemRule::Kind);
            }
            Ok(Self {
                transaction: Generation(disk.transaction.get()),
                name,
                value,
            })
        });
        attributes.map_err(|rule| Corrupt::new(locus, rule))
    }

    /// How long it is in an item.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        size_of::<DiskDirItem>()
            .saturating_add(self.name.len())
            .saturating_add(self.value.len())
    }

    /// Appends the attribute to an item.
    pub fn encode(&self, item: &mut Vec<u8>) {
        let disk = DiskDirItem {
            location: Key::MIN.encode(),
            transaction: self.transaction.0.into(),
            data_len: len(self.value),
            name_len: len(self.name),
            kind: KIND_XATTR,
        };
        item.extend_from_slice(disk.as_bytes());
        item.extend_from_slice(self.name);
        item.extend_from_slice(self.value);
    }
}

fn len(bytes: &[u8]) -> Le16 {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8]) -> DirItem<'_> {
        DirItem {
            location: Location::Inode(300),
            transaction: Generation(5),
            kind: Some(FileKind::Symlink),
            name,
        }
    }

    fn index_key() -> Key {
        Key::new(256, ItemKind::DIR_INDEX, 4)
    }

    fn rule(key: Key, bytes: &[u8]) -> DirItemRule {
        let decoded = DirItem::decode_all(key, bytes, Locus::UNKNOWN);
        decoded.unwrap_err().rule
    }

    #[test]
    fn entries_survive_encoding() {
        let subvolume = DirItem {
            location: Location::Subvolume(257),
            kind: Some(FileKind::Directory),
            ..entry(b"sub")
        };
        for entry in [entry(b"name"), subvolume] {
            let mut item = Vec::new();
            entry.encode(&mut item);
            let key = Key::new(256, ItemKind::DIR_ITEM, name_hash(entry.name));
            for key in [key, index_key()] {
                let decoded = DirItem::decode_all(key, &item, Locus::UNKNOWN);
                assert_eq!(decoded.unwrap(), [entry]);
            }
        }
    }

    #[test]
    fn attributes_survive_encoding() {
        let attribute = Xattr {
            transaction: Generation(3),
            name: b"user.comment",
            value: b"a value",
        };
        let mut item = Vec::new();
        attribute.encode(&mut item);
        let key = Key::new(256, ItemKind::XATTR_ITEM, name_hash(attribute.name));
        let decoded = Xattr::decode_all(key, &item, Locus::UNKNOWN);
        assert_eq!(decoded.unwrap(), [attribute]);
        assert_eq!(rule(key, &item), DirItemRule::DataLength);
        item[29] = 1;
        let corrupt = Xattr::decode_all(key, &item, Locus::UNKNOWN).unwrap_err();
        assert_eq!(corrupt.rule, DirItemRule::Kind);
    }

    #[test]
    fn broken_items_are_refused() {
        let key = index_key();
        assert_eq!(rule(key, &[]), DirItemRule::Empty);
        assert_eq!(rule(key, &[0; 29]), DirItemRule::Truncated);
        assert_eq!(rule(key, &[0; 30]), DirItemRule::NameLength);
        let mut item = Vec::new();
        entry(b"name").encode(&mut item);
        assert_eq!(rule(key, &item[..33]), DirItemRule::Truncated);
        let hashed = Key::new(256, ItemKind::DIR_ITEM, 0);
        assert_eq!(rule(hashed, &item), DirItemRule::Hash);
        let twice = [&item[..], &item].concat();
        assert_eq!(rule(key, &twice), DirItemRule::Several);
        let mut kind = item.clone();
        kind[29] = 9;
        assert_eq!(rule(key, &kind), DirItemRule::Kind);
        item[8] = ItemKind::EXTENT_DATA.0;
        assert_eq!(rule(key, &item), DirItemRule::Location);
    }
}
