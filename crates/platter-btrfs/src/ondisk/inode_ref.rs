//! Names of an inode: reference items and extended reference items. Spec: `btrfs/inode_ref`.

use platter_ondisk::endian::{Le16, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A reference; the name follows. The key's offset is the parent directory.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskInodeRef {
    /// `index`.
    pub index: Le64,
    /// `name_len`.
    pub name_len: Le16,
}

/// An extended reference; the name follows. The key's offset is a hash of parent and name.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskInodeExtref {
    /// `parent_objectid`.
    pub parent: Le64,
    /// `index`.
    pub index: Le64,
    /// `name_len`.
    pub name_len: Le16,
}

const _: () = assert!(size_of::<DiskInodeRef>() == 10);
const _: () = assert!(size_of::<DiskInodeExtref>() == 18);

/// The longest name.
pub const NAME_LEN_MAX: u16 = 255;

rules! {
    /// The rules of a reference item.
    pub enum InodeRefRule of "inode ref" {
        /// There is a reference.
        Empty => "has no references",
        /// Each reference ends within the item.
        Truncated => "reference exceeds the item",
        /// A name has 1 to 255 bytes.
        NameLength => "invalid name length",
    }
}

/// One name of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeRef<'a> {
    /// The directory.
    pub parent: u64,
    /// The index of the entry in it.
    pub index: u64,
    /// The name.
    pub name: &'a [u8],
}

impl<'a> InodeRef<'a> {
    /// Decodes the references of an item under the key `(inode, INODE_REF, parent)`.
    pub fn decode_all(
        bytes: &'a [u8],
        parent: u64,
        locus: Locus,
    ) -> Result<Vec<Self>, Corrupt<InodeRefRule>> {
        decode_all(bytes, locus, |bytes| {
            let (disk, rest) = DiskInodeRef::ref_from_prefix(bytes).ok()?;
            let found = (parent, disk.index.get(), disk.name_len.get());
            Some((found, rest))
        })
    }

    /// Decodes the references of an item under the key `(inode, INODE_EXTREF, hash)`.
    pub fn decode_all_extended(
        bytes: &'a [u8],
        locus: Locus,
    ) -> Result<Vec<Self>, Corrupt<InodeRefRule>> {
        decode_all(bytes, locus, |bytes| {
            let (disk, rest) = DiskInodeExtref::ref_from_prefix(bytes).ok()?;
            let found = (disk.parent.get(), disk.index.get(), disk.name_len.get());
            Some((found, rest))
        })
    }

    /// How long it is in an item, an extended one or not.
    #[must_use]
    pub fn len_bytes(&self, is_extended: bool) -> usize {
        let fixed = if is_extended {
            size_of::<DiskInodeExtref>()
        } else {
            size_of::<DiskInodeRef>()
        };
        fixed.saturating_add(self.name.len())
    }

    /// Appends the reference to a reference item.
    pub fn encode(&self, item: &mut Vec<u8>) {
        let disk = DiskInodeRef {
            index: self.index.into(),
            name_len: name_len(self.name),
        };
        item.extend_from_slice(disk.as_bytes());
        item.extend_from_slice(self.name);
    }

    /// Appends the reference to an extended reference item.
    pub fn encode_extended(&self, item: &mut Vec<u8>) {
        let disk = DiskInodeExtref {
            parent: self.parent.into(),
            index: self.index.into(),
            name_len: name_len(self.name),
        };
        item.extend_from_slice(disk.as_bytes());
        item.extend_from_slice(self.name);
    }
}

fn name_len(name: &[u8]) -> Le16 {
    u16::try_from(name.len()).unwrap_or(u16::MAX).into()
}

/// Parent, index and the length of the name, and what follows.
type Decoded<'a> = ((u64, u64, u16), &'a [u8]);

fn decode_all<'a>(
    bytes: &'a [u8],
    locus: Locus,
    decode: impl Fn(&'a [u8]) -> Option<Decoded<'a>>,
) -> Result<Vec<InodeRef<'a>>, Corrupt<InodeRefRule>> {
    let broken = |rule| Corrupt::new(locus, rule);
    if bytes.is_empty() {
        return Err(broken(InodeRefRule::Empty));
    }
    let mut refs = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let decoded = decode(rest).ok_or(broken(InodeRefRule::Truncated))?;
        let ((parent, index, len), after) = decoded;
        if len == 0 || len > NAME_LEN_MAX {
            return Err(broken(InodeRefRule::NameLength));
        }
        let split = after.split_at_checked(usize::from(len));
        let (name, after) = split.ok_or(broken(InodeRefRule::Truncated))?;
        refs.push(InodeRef {
            parent,
            index,
            name,
        });
        rest = after;
    }
    Ok(refs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(parent: u64, index: u64, name: &[u8]) -> InodeRef<'_> {
        InodeRef {
            parent,
            index,
            name,
        }
    }

    #[test]
    fn references_survive_encoding() {
        let refs = [reference(256, 2, b"a"), reference(256, 3, b"bc")];
        let mut item = Vec::new();
        for each in refs {
            each.encode(&mut item);
        }
        let decoded = InodeRef::decode_all(&item, 256, Locus::UNKNOWN);
        assert_eq!(decoded.unwrap(), refs);
        let refs = [reference(256, 2, b"a"), reference(257, 3, b"bc")];
        let mut item = Vec::new();
        for each in refs {
            each.encode_extended(&mut item);
        }
        let decoded = InodeRef::decode_all_extended(&item, Locus::UNKNOWN);
        assert_eq!(decoded.unwrap(), refs);
    }

    #[test]
    fn broken_items_are_refused() {
        let rule = |bytes: &[u8]| {
            let decoded = InodeRef::decode_all(bytes, 256, Locus::UNKNOWN);
            decoded.unwrap_err().rule
        };
        assert_eq!(rule(&[]), InodeRefRule::Empty);
        assert_eq!(rule(&[0; 9]), InodeRefRule::Truncated);
        assert_eq!(rule(&[0; 10]), InodeRefRule::NameLength);
        let mut item = Vec::new();
        reference(256, 2, b"abc").encode(&mut item);
        assert_eq!(rule(&item[..12]), InodeRefRule::Truncated);
        reference(256, 2, &[b'a'; 256]).encode(&mut item);
        assert_eq!(rule(&item), InodeRefRule::NameLength);
    }
}
