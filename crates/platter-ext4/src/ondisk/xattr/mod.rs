//! Extended attributes as stored: entries from the front and values from the end of the space,
//! which is the end of an inode or a block. Spec: `ext4/attributes`.

mod edit;
mod layout;

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32};
use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::structure::Structure;
use super::types::InodeNr;

pub use edit::{begin_in_inode, remove_from_inode, value_in_inode_mut, value_len_max_in_inode};
pub use layout::{
    Attribute, AttributeValue, Attributes, attribute_bytes, entry_hash_of_inode, references,
    set_references, shared_hash,
};

/// `h_magic` of both the block's and the inode's header.
pub const XATTR_MAGIC: u32 = 0xea02_0000;
/// Maximum `h_refcount`.
pub const XATTR_REFERENCES_MAX: u32 = 1024;
/// Maximum `e_value_size` in bytes.
const VALUE_BYTES_MAX: u32 = 1 << 24;
/// Entries and values begin at multiples of this many bytes.
const XATTR_ALIGN: usize = 4;
/// Length of the zeros that end the list of entries.
const TERMINATOR_BYTES: usize = 4;

/// The header of an attribute block as stored. Spec: `ext4/attributes`,
/// `struct ext4_xattr_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskXattrHeader {
    /// `h_magic`.
    pub magic: Le32,
    /// `h_refcount`: inodes that share the block.
    pub references: Le32,
    /// `h_blocks`: 1.
    pub blocks: Le32,
    /// `h_hash`: of all entries' hashes; zero if the block must not be shared.
    pub hash: Le32,
    /// `h_checksum`: of the block number and the block, from the filesystem's seed.
    pub checksum: Le32,
    /// `h_reserved`.
    pub reserved: [Le32; 3],
}

const _: () = assert!(size_of::<DiskXattrHeader>() == 32);
const _: () = assert!(offset_of!(DiskXattrHeader, checksum) == 0x10);

/// An entry before its name, as stored. Spec: `ext4/attributes`, `struct ext4_xattr_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskXattrEntry {
    /// `e_name_len`.
    pub name_len: u8,
    /// `e_name_index`: the prefix of the name.
    pub name_index: u8,
    /// `e_value_offs`: from the block's start, or from the first entry in an inode.
    pub value_offset: Le16,
    /// `e_value_inum`: the EA inode of the value, or zero.
    pub value_inode: Le32,
    /// `e_value_size`.
    pub value_size: Le32,
    /// `e_hash`: of name and value; zero in an inode.
    pub hash: Le32,
}

const _: () = assert!(size_of::<DiskXattrEntry>() == 16);

rules! {
    /// The rules of extended attributes.
    pub enum XattrRule of "extended attributes" {
        /// `h_magic`.
        Magic => "magic is not 0xea020000",
        /// `h_blocks` is 1.
        Blocks => "h_blocks is not 1",
        /// `h_refcount` is between 1 and 1024.
        References => "h_refcount is not between 1 and 1024",
        /// `h_checksum`.
        Checksum => "checksum does not match",
        /// Entries end within their space.
        Truncated => "entries exceed the space",
        /// A name contains no NUL.
        NameBytes => "name is invalid: contains NUL",
        /// `e_value_size` is within the format.
        ValueSize => "value size is invalid",
        /// A value is after the entries and within the space.
        ValuePlace => "value offset is invalid",
        /// A value is in an EA inode only with the `ea_inode` feature.
        ValueInode => "EA inode without the ea_inode feature",
        /// `e_hash`.
        Hash => "hash is invalid",
    }
}

/// Location of an attribute's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValuePlace<'a> {
    /// With the entry.
    Here(&'a [u8]),
    /// In an EA inode.
    Inode {
        /// The EA inode.
        number: InodeNr,
        /// Length of the value in bytes.
        size_bytes: u32,
    },
}

/// One attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct XattrEntry<'a> {
    /// Byte offset of the entry in its space.
    pub offset: usize,
    /// Number of the name's prefix.
    pub name_index: u8,
    /// The name without its prefix.
    pub name: &'a [u8],
    /// The value.
    pub value: ValuePlace<'a>,
    /// `e_hash`.
    pub hash: u32,
}

/// The attributes of one space: of an inode, or of a block.
///
/// # Invariants
/// Names and values are within the space, values after the entries.
#[derive(Debug, Clone, Default)]
pub struct XattrSpace<'a> {
    entries: Vec<XattrEntry<'a>>,
}

impl<'a> XattrSpace<'a> {
    /// Validates the attributes after an inode; `bytes` is the space after its fields. Returns
    /// `None` without a header: there are no attributes.
    #[must_use]
    pub fn decode_inode(
        bytes: &'a [u8],
        has_ea_inode: bool,
    ) -> Option<Result<Self, (usize, XattrRule)>> {
        let (magic, space) = Le32::ref_from_prefix(bytes).ok()?;
        (magic.get() == XATTR_MAGIC).then(|| Self::decode(space, 0, has_ea_inode))
    }

    /// Validates the attributes of a block, except for its checksum.
    pub fn decode_block(bytes: &'a [u8], has_ea_inode: bool) -> Result<Self, (usize, XattrRule)> {
        let (header, _) =
            DiskXattrHeader::ref_from_prefix(bytes).map_err(|_| (0, XattrRule::Truncated))?;
        if header.magic.get() != XATTR_MAGIC {
            return Err((0, XattrRule::Magic));
        }
        if header.blocks.get() != 1 {
            return Err((0, XattrRule::Blocks));
        }
        if !(1..=XATTR_REFERENCES_MAX).contains(&header.references.get()) {
            return Err((0, XattrRule::References));
        }
        Self::decode(bytes, size_of::<DiskXattrHeader>(), has_ea_inode)
    }

    fn decode(
        space: &'a [u8],
        first: usize,
        has_ea_inode: bool,
    ) -> Result<Self, (usize, XattrRule)> {
        let heads = decode_heads(space, first)?;
        let mut entries = Vec::with_capacity(heads.entries.len());
        for (offset, disk, name) in heads.entries {
            let value = decode_value(space, heads.end, disk, has_ea_inode)
                .map_err(|rule| (offset, rule))?;
            entries.push(XattrEntry {
                offset,
                name_index: disk.name_index,
                name,
                value,
                hash: disk.hash.get(),
            });
        }
        Ok(Self { entries })
    }

    /// Returns the attributes in the order they are stored.
    #[must_use]
    pub fn entries(&self) -> &[XattrEntry<'a>] {
        &self.entries
    }

    /// Returns the attribute with this prefix number and name.
    #[must_use]
    pub fn find(&self, name_index: u8, name: &[u8]) -> Option<&XattrEntry<'a>> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.name_index == name_index && entry.name == name)
    }
}

/// The entries before their values are validated.
struct Heads<'a> {
    entries: Vec<(usize, &'a DiskXattrEntry, &'a [u8])>,
    /// Start of the space for values.
    end: usize,
}

fn decode_heads(space: &[u8], first: usize) -> Result<Heads<'_>, (usize, XattrRule)> {
    let mut entries = Vec::new();
    let mut offset = first;
    loop {
        let truncated = (offset, XattrRule::Truncated);
        let rest = space.get(offset..).ok_or(truncated)?;
        let terminator = rest.get(..TERMINATOR_BYTES).ok_or(truncated)?;
        if terminator == [0; TERMINATOR_BYTES] {
            let end = offset.saturating_add(TERMINATOR_BYTES);
            return Ok(Heads { entries, end });
        }
        let (disk, tail) = DiskXattrEntry::ref_from_prefix(rest).map_err(|_| truncated)?;
        let name = tail.get(..usize::from(disk.name_len)).ok_or(truncated)?;
        if name.contains(&0) {
            return Err((offset, XattrRule::NameBytes));
        }
        entries.push((offset, disk, name));
        offset = size_of::<DiskXattrEntry>()
            .saturating_add(name.len())
            .next_multiple_of(XATTR_ALIGN)
            .saturating_add(offset);
    }
}

fn decode_value<'a>(
    space: &'a [u8],
    values_start: usize,
    disk: &DiskXattrEntry,
    has_ea_inode: bool,
) -> Result<ValuePlace<'a>, XattrRule> {
    let size_bytes = disk.value_size.get();
    if size_bytes > VALUE_BYTES_MAX {
        return Err(XattrRule::ValueSize);
    }
    if let Some(number) = InodeNr::new(disk.value_inode.get()) {
        if !has_ea_inode {
            return Err(XattrRule::ValueInode);
        }
        return Ok(ValuePlace::Inode { number, size_bytes });
    }
    if size_bytes == 0 {
        return Ok(ValuePlace::Here(&[]));
    }
    let start = usize::from(disk.value_offset.get());
    let size = usize::try_from(size_bytes).map_err(|_| XattrRule::ValueSize)?;
    let value = start
        .checked_add(size)
        .and_then(|end| space.get(start..end));
    let padded_end = size.next_multiple_of(XATTR_ALIGN).saturating_add(start);
    match value {
        Some(value) if start >= values_start && padded_end <= space.len() => {
            Ok(ValuePlace::Here(value))
        }
        _ => Err(XattrRule::ValuePlace),
    }
}

impl XattrEntry<'_> {
    /// Validates the hash against a value stored with the entry.
    pub fn verify_hash(&self, value: &[u8]) -> Result<(), XattrRule> {
        self.verify_hash_of_words(value_words(value))
    }

    /// Validates the hash against the hash of a value in an EA inode.
    pub fn verify_hash_of_inode(&self, value_hash: u32) -> Result<(), XattrRule> {
        self.verify_hash_of_words(std::iter::once(value_hash))
    }

    /// Validates the hash. Names with bytes above ASCII were hashed as signed or unsigned bytes,
    /// depending on the machine.
    fn verify_hash_of_words(
        &self,
        words: impl Iterator<Item = u32> + Clone,
    ) -> Result<(), XattrRule> {
        let unsigned = |byte: u8| u32::from(byte);
        let signed = |byte: u8| i32::from(byte.cast_signed()).cast_unsigned();
        let matches = entry_hash(self.name.iter().copied().map(unsigned), words.clone())
            == self.hash
            || entry_hash(self.name.iter().copied().map(signed), words) == self.hash;
        if matches {
            Ok(())
        } else {
            Err(XattrRule::Hash)
        }
    }
}

fn entry_hash(name: impl Iterator<Item = u32>, value: impl Iterator<Item = u32>) -> u32 {
    let hash = name.fold(0u32, |hash, byte| hash.rotate_left(5) ^ byte);
    value.fold(hash, |hash, word| hash.rotate_left(16) ^ word)
}

/// Returns a value as words, padded with zeros.
fn value_words(value: &[u8]) -> impl Iterator<Item = u32> + Clone {
    value.chunks(XATTR_ALIGN).map(|chunk| {
        let mut word = [0; XATTR_ALIGN];
        for (to, from) in word.iter_mut().zip(chunk) {
            *to = *from;
        }
        u32::from_le_bytes(word)
    })
}

/// Returns the hash of a value in an EA inode. `seed` is the filesystem's.
#[must_use]
pub fn value_hash(seed: u32, value: &[u8]) -> u32 {
    crc32c(seed, value)
}

/// Validates an attribute block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XattrBlockVerifier {
    /// Seed of metadata checksums; `None` without `metadata_csum`.
    pub checksum_seed: Option<u32>,
    /// Values may be in EA inodes.
    pub has_ea_inode: bool,
}

impl XattrBlockVerifier {
    fn checksum(seed: u32, block: u64, bytes: &[u8]) -> Option<u32> {
        let at = offset_of!(DiskXattrHeader, checksum);
        let before = bytes.get(..at)?;
        let after = bytes.get(at.checked_add(size_of::<Le32>())?..)?;
        let sum = crc32c(seed, &block.to_le_bytes());
        let sum = crc32c(crc32c(sum, before), &[0; 4]);
        Some(crc32c(sum, after))
    }
}

impl Verify for XattrBlockVerifier {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: Structure::XattrBlock as u32,
            seed: self.checksum_seed.map_or(0, u64::from),
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let broken = |(offset, rule): (usize, XattrRule)| -> Corruption {
            let locus = Locus::block(block).at_offset(offset as u64);
            Corrupt::new(locus, rule).into()
        };
        if let Some(seed) = self.checksum_seed {
            let stored = DiskXattrHeader::ref_from_prefix(bytes)
                .ok()
                .filter(|(header, _)| header.magic.get() == XATTR_MAGIC)
                .map(|(header, _)| header.checksum.get())
                .ok_or_else(|| broken((0, XattrRule::Magic)))?;
            if Self::checksum(seed, block, bytes) != Some(stored) {
                return Err(broken((0, XattrRule::Checksum)));
            }
        }
        XattrSpace::decode_block(bytes, self.has_ea_inode).map_err(broken)?;
        Ok(())
    }

    fn seal(&self, block: u64, bytes: &mut [u8]) {
        let sum = self
            .checksum_seed
            .and_then(|seed| Self::checksum(seed, block, bytes));
        if let (Some(sum), Ok((header, _))) = (sum, DiskXattrHeader::mut_from_prefix(bytes)) {
            header.checksum.set(sum);
        }
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests;
