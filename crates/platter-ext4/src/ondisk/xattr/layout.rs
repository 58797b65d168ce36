//! Attributes decoded into owned values, to be modified and encoded again: entries from the front,
//! values from the end, in a block sorted by name.

use platter_ondisk::endian::Le32;
use zerocopy::{FromBytes, IntoBytes};

use super::edit::entry_len;
use super::{
    DiskXattrEntry, DiskXattrHeader, TERMINATOR_BYTES, ValuePlace, XATTR_ALIGN, XATTR_MAGIC,
    XattrEntry, XattrSpace, entry_hash, value_words,
};
use crate::ondisk::InodeNr;

/// One attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Number of the name's prefix.
    pub name_index: u8,
    /// The name without its prefix, at most 255 bytes.
    pub name: Vec<u8>,
    /// The value.
    pub value: AttributeValue,
}

/// An attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// Stored with the entry.
    Here(Vec<u8>),
    /// Stored in an EA inode.
    Inode {
        /// The EA inode.
        number: InodeNr,
        /// Length of the value in bytes.
        size_bytes: u32,
        /// The entry's hash.
        hash: u32,
    },
}

/// The attributes of one space, with distinct names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    list: Vec<Attribute>,
}

impl Attribute {
    fn of(entry: &XattrEntry<'_>) -> Self {
        Self {
            name_index: entry.name_index,
            name: entry.name.to_vec(),
            value: match entry.value {
                ValuePlace::Here(value) => AttributeValue::Here(value.to_vec()),
                ValuePlace::Inode { number, size_bytes } => AttributeValue::Inode {
                    number,
                    size_bytes,
                    hash: entry.hash,
                },
            },
        }
    }

    /// Bytes that it needs in its space.
    fn len_bytes(&self) -> usize {
        entry_len(self.name.len()).saturating_add(self.value_len_bytes())
    }

    fn value_len_bytes(&self) -> usize {
        match &self.value {
            AttributeValue::Here(value) => value.len().next_multiple_of(XATTR_ALIGN),
            AttributeValue::Inode { .. } => 0,
        }
    }

    fn is(&self, name_index: u8, name: &[u8]) -> bool {
        self.name_index == name_index && self.name == name
    }
}

/// Returns the hash of an entry whose value is in an EA inode and has the hash `value_hash`.
#[must_use]
pub fn entry_hash_of_inode(name: &[u8], value_hash: u32) -> u32 {
    let name = name.iter().map(|&byte| u32::from(byte));
    entry_hash(name, std::iter::once(value_hash))
}

impl Attributes {
    /// Decodes the attributes of a space.
    #[must_use]
    pub fn of(space: &XattrSpace<'_>) -> Self {
        Self {
            list: space.entries().iter().map(Attribute::of).collect(),
        }
    }

    /// Returns all attributes.
    #[must_use]
    pub fn list(&self) -> &[Attribute] {
        &self.list
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the EA inodes of their values, one for each such attribute.
    pub fn ea_inodes(&self) -> impl Iterator<Item = InodeNr> {
        self.list
            .iter()
            .filter_map(|attribute| match attribute.value {
                AttributeValue::Here(_) => None,
                AttributeValue::Inode { number, .. } => Some(number),
            })
    }

    /// Removes and returns the attribute with this prefix number and name.
    pub fn remove(&mut self, name_index: u8, name: &[u8]) -> Option<Attribute> {
        let mut places = self.list.iter();
        let at = places.position(|attribute| attribute.is(name_index, name))?;
        Some(self.list.remove(at))
    }

    /// Adds an attribute whose name does not exist yet.
    pub fn insert(&mut self, attribute: Attribute) {
        self.list.push(attribute);
    }

    /// Whether `attribute` and these fit the `space_len` bytes after an inode's fields.
    #[must_use]
    pub fn fits_in_inode(&self, attribute: &Attribute, space_len: usize) -> bool {
        let header = size_of::<Le32>();
        self.len_bytes_with(attribute).saturating_add(header) <= space_len
    }

    /// Whether `attribute` and these fit a block, of whose end values may use all but the first
    /// `reserved` bytes.
    #[must_use]
    pub fn fits_in_block(
        &self,
        attribute: &Attribute,
        block_bytes: usize,
        reserved: usize,
    ) -> bool {
        let header = size_of::<DiskXattrHeader>();
        let values = self.list.iter().map(Attribute::value_len_bytes);
        let values = values.fold(attribute.value_len_bytes(), usize::saturating_add);
        let is_within =
            attribute.value_len_bytes() == 0 || values.saturating_add(reserved) <= block_bytes;
        is_within && self.len_bytes_with(attribute).saturating_add(header) <= block_bytes
    }

    fn len_bytes_with(&self, attribute: &Attribute) -> usize {
        self.len_bytes().saturating_add(attribute.len_bytes())
    }

    fn len_bytes(&self) -> usize {
        let lengths = self.list.iter().map(Attribute::len_bytes);
        lengths.fold(TERMINATOR_BYTES, usize::saturating_add)
    }

    /// Encodes the attributes after an inode: `bytes` is the space after its fields. Without
    /// attributes it becomes zeros. Returns whether they fit; if not, `bytes` is undefined.
    #[must_use]
    pub fn encode_inode(&self, bytes: &mut [u8]) -> bool {
        bytes.fill(0);
        if self.is_empty() {
            return true;
        }
        let Some((magic, space)) = bytes.split_at_mut_checked(size_of::<Le32>()) else {
            return false;
        };
        magic.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
        // A value stored with its entry in an inode needs no hash.
        lay_out(self.list.iter(), space, 0, false).is_some()
    }

    /// Encodes the attributes as a block of this size, shared by `references` inodes; `None` if
    /// they do not fit. The verifier stores the checksum.
    #[must_use]
    pub fn encode_block(&self, block_bytes: usize, references: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; block_bytes];
        let mut sorted: Vec<_> = self.list.iter().collect();
        sorted.sort_by_key(|attribute| {
            let name = &attribute.name;
            (attribute.name_index, name.len(), name)
        });
        let first = size_of::<DiskXattrHeader>();
        let hash = lay_out(sorted.into_iter(), &mut bytes, first, true)?;
        let (header, _) = DiskXattrHeader::mut_from_prefix(&mut bytes).ok()?;
        header.magic = XATTR_MAGIC.into();
        header.references = references.into();
        header.blocks = 1.into();
        header.hash = hash.into();
        Some(bytes)
    }
}

/// Encodes attributes in `space`, entries from `first` on. Returns the hash of all of them; zero if
/// one has none.
fn lay_out<'a>(
    attributes: impl Iterator<Item = &'a Attribute>,
    space: &mut [u8],
    first: usize,
    hashes_values: bool,
) -> Option<u32> {
    let (mut at, mut values_at) = (first, space.len().saturating_sub(space.len() % XATTR_ALIGN));
    let mut all = Some(0u32);
    for attribute in attributes {
        let mut disk = DiskXattrEntry {
            name_len: u8::try_from(attribute.name.len()).ok()?,
            name_index: attribute.name_index,
            value_offset: 0.into(),
            value_inode: 0.into(),
            value_size: 0.into(),
            hash: 0.into(),
        };
        match &attribute.value {
            AttributeValue::Here(value) => {
                let padded = value.len().next_multiple_of(XATTR_ALIGN);
                values_at = values_at.checked_sub(padded)?;
                let end = values_at.checked_add(value.len())?;
                space.get_mut(values_at..end)?.copy_from_slice(value);
                disk.value_size = u32::try_from(value.len()).ok()?.into();
                if !value.is_empty() {
                    disk.value_offset = u16::try_from(values_at).ok()?.into();
                }
                if hashes_values {
                    let name = attribute.name.iter().map(|&byte| u32::from(byte));
                    disk.hash = entry_hash(name, value_words(value)).into();
                }
            }
            AttributeValue::Inode {
                number,
                size_bytes,
                hash,
            } => {
                disk.value_inode = number.get().into();
                disk.value_size = (*size_bytes).into();
                disk.hash = (*hash).into();
            }
        }
        let hash = disk.hash.get();
        all = all
            .filter(|_| hash != 0)
            .map(|all| all.rotate_left(16) ^ hash);
        let end = at.checked_add(entry_len(attribute.name.len()))?;
        if end.checked_add(TERMINATOR_BYTES)? > values_at {
            return None;
        }
        let (head, name) = space
            .get_mut(at..end)?
            .split_at_mut_checked(size_of::<DiskXattrEntry>())?;
        head.copy_from_slice(disk.as_bytes());
        name.get_mut(..attribute.name.len())?
            .copy_from_slice(&attribute.name);
        at = end;
    }
    Some(all.unwrap_or(0))
}

/// Returns the reference count of an attribute block; `None` if it is not one.
#[must_use]
pub fn references(block: &[u8]) -> Option<u32> {
    let (header, _) = DiskXattrHeader::ref_from_prefix(block).ok()?;
    Some(header.references.get())
}

/// Returns the hash of an attribute block in the mbcache; `None` if it must not be shared.
#[must_use]
pub fn shared_hash(block: &[u8]) -> Option<u32> {
    let (header, _) = DiskXattrHeader::ref_from_prefix(block).ok()?;
    Some(header.hash.get()).filter(|&hash| hash != 0)
}

/// Returns the bytes of an attribute block after its header.
#[must_use]
pub fn attribute_bytes(block: &[u8]) -> &[u8] {
    block
        .get(size_of::<DiskXattrHeader>()..)
        .unwrap_or_default()
}

/// Sets the reference count of an attribute block.
pub fn set_references(block: &mut [u8], references: u32) {
    if let Ok((header, _)) = DiskXattrHeader::mut_from_prefix(block) {
        header.references = references.into();
    }
}

#[cfg(test)]
mod tests {
    use super::super::XattrBlockVerifier;
    use super::*;
    use platter_ondisk::Verify;

    fn here(name_index: u8, name: &str, value: &[u8]) -> Attribute {
        Attribute {
            name_index,
            name: name.into(),
            value: AttributeValue::Here(value.to_vec()),
        }
    }

    fn sample() -> Attributes {
        let mut attributes = Attributes::default();
        for (index, name, value) in [
            (6, "selinux", &b"label"[..]),
            (1, "longer", b""),
            (1, "b", b"12345678"),
            (1, "a", b"x"),
        ] {
            attributes.insert(here(index, name, value));
        }
        attributes
    }

    #[test]
    fn encoded_inode_attributes_are_found_in_order() {
        let mut bytes = [0xff; 4 + 24 + 24 + 20 + 20 + 4 + 8 + 8 + 4];
        assert!(sample().encode_inode(&mut bytes));
        let space = XattrSpace::decode_inode(&bytes, true).unwrap().unwrap();
        assert_eq!(Attributes::of(&space), sample());
        assert!(space.entries().iter().all(|entry| entry.hash == 0));
        let short = bytes.len() - 1;
        assert!(!sample().encode_inode(&mut bytes[..short]));
        assert!(Attributes::default().encode_inode(&mut bytes));
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn encoded_block_is_sorted_and_hashed() {
        let mut attributes = sample();
        attributes.insert(Attribute {
            name_index: 1,
            name: b"inode".to_vec(),
            value: AttributeValue::Inode {
                number: InodeNr::new(77).unwrap(),
                size_bytes: 5000,
                hash: entry_hash_of_inode(b"inode", 9),
            },
        });
        let mut block = attributes.encode_block(1024, 3).unwrap();
        let verifier = XattrBlockVerifier {
            checksum_seed: Some(1),
            has_ea_inode: true,
        };
        verifier.seal(5, &mut block);
        verifier.verify(5, &block).unwrap();
        assert_eq!(references(&block), Some(3));
        let space = XattrSpace::decode_block(&block, true).unwrap();
        let names: Vec<_> = space.entries().iter().map(|entry| entry.name).collect();
        assert_eq!(names, [&b"a"[..], b"b", b"inode", b"longer", b"selinux"]);
        let mut hash = 0u32;
        for entry in space.entries() {
            match entry.value {
                ValuePlace::Here(value) => entry.verify_hash(value).unwrap(),
                ValuePlace::Inode { .. } => entry.verify_hash_of_inode(9).unwrap(),
            }
            hash = hash.rotate_left(16) ^ entry.hash;
        }
        let (header, _) = DiskXattrHeader::ref_from_prefix(&block).unwrap();
        assert_eq!(header.hash.get(), hash);
    }

    #[test]
    fn free_space_is_computed_exactly() {
        let attribute = here(1, "name", &[7; 100]);
        let none = Attributes::default();
        let (inode, block) = (4 + 20 + 4 + 100, 32 + 20 + 4 + 100);
        assert!(none.fits_in_inode(&attribute, inode));
        assert!(!none.fits_in_inode(&attribute, inode - 1));
        assert!(none.fits_in_block(&attribute, block, 0));
        assert!(!none.fits_in_block(&attribute, block - 1, 0));
        assert!(none.fits_in_block(&attribute, block, block - 100));
        assert!(!none.fits_in_block(&attribute, block, block - 99));
        assert!(none.fits_in_block(&here(1, "name", &[]), block, block));
        let mut one = none;
        one.insert(attribute);
        assert!(one.encode_inode(&mut vec![0; inode]));
        assert!(one.encode_block(block, 1).is_some());
        assert!(one.encode_block(block - 4, 1).is_none());
    }

    #[test]
    fn removed_attribute_is_not_found() {
        let mut attributes = sample();
        assert_eq!(attributes.remove(1, b"b"), Some(here(1, "b", b"12345678")));
        assert_eq!(attributes.remove(1, b"b"), None);
        assert_eq!(attributes.list().len(), 3);
    }
}
