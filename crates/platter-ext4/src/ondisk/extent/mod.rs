//! Extent tree nodes: the root in the inode, or a block with a checksum. Spec: `ext4/ifork`,
//! "Extent Tree".

#[cfg(test)]
pub(crate) mod tests;

use std::mem::offset_of;
use std::ops::Range;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32, join_u32};
use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::geometry::Geometry;
use super::structure::Structure;
use super::types::{BlockNr, FileBlock};

/// `eh_magic`.
pub const EXTENT_MAGIC: u16 = 0xf30a;
/// Maximum number of levels below the root.
pub const EXTENT_DEPTH_MAX: u16 = 5;
/// Maximum length of an extent in blocks; a greater `ee_len` marks an unwritten extent.
pub const EXTENT_LEN_MAX: u16 = 0x8000;

/// The first 12 bytes of a node. Spec: `struct ext4_extent_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExtentHeader {
    /// `eh_magic`.
    pub magic: Le16,
    /// `eh_entries`.
    pub entries: Le16,
    /// `eh_max`: capacity of the node in entries.
    pub max: Le16,
    /// `eh_depth`: levels below this node.
    pub depth: Le16,
    /// `eh_generation`.
    pub generation: Le32,
}

/// An entry of an index node. Spec: `struct ext4_extent_idx`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExtentIndex {
    /// `ei_block`: the first file block below the child.
    pub first: Le32,
    /// `ei_leaf_lo`: the child's block.
    pub child_lo: Le32,
    /// `ei_leaf_hi`.
    pub child_hi: Le16,
    /// `ei_unused`.
    pub unused: Le16,
}

/// An entry of a leaf. Spec: `struct ext4_extent`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExtent {
    /// `ee_block`: the first file block.
    pub first: Le32,
    /// `ee_len`: blocks, plus [`EXTENT_LEN_MAX`] for an unwritten extent.
    pub length: Le16,
    /// `ee_start_hi`.
    pub start_hi: Le16,
    /// `ee_start_lo`: the first block on the device.
    pub start_lo: Le32,
}

const _: () = assert!(size_of::<DiskExtentHeader>() == 12);
const _: () = assert!(size_of::<DiskExtentIndex>() == 12);
const _: () = assert!(size_of::<DiskExtent>() == 12);
const _: () = assert!(offset_of!(DiskExtent, start_lo) == 8);

rules! {
    /// The rules of an extent tree node.
    pub enum ExtentRule of "extent node" {
        /// `eh_magic`.
        Magic => "magic is not 0xf30a",
        /// `eh_max` is not zero and does not exceed the node.
        Capacity => "eh_max is zero or exceeds the node",
        /// `eh_entries` is at most `eh_max`, and not zero in an index node.
        Entries => "eh_entries exceeds eh_max, or is zero in an index node",
        /// `eh_depth` is at most 5, and one less than the parent's.
        Depth => "unexpected eh_depth",
        /// `et_checksum`.
        Checksum => "checksum does not match",
        /// The node's first entry has the file block that its parent names.
        FirstBlock => "logical start does not match the parent's",
        /// Entries ascend and do not overlap.
        Order => "extents overlap or are out of order",
        /// An extent has at least one block and ends at or before the last file block.
        Length => "extent has an invalid length",
        /// An extent is within the filesystem.
        Target => "extent has an invalid physical block",
        /// A child is within the filesystem.
        Child => "index has an invalid physical block",
    }
}

/// A node with a validated header. Its entries are validated by [`verify`](Self::verify).
#[derive(Debug, Clone, Copy)]
pub struct ExtentNode<'a> {
    /// Levels below this node: 0 for a leaf.
    pub depth: u16,
    entries: Entries<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Entries<'a> {
    Inner(&'a [DiskExtentIndex]),
    Leaf(&'a [DiskExtent]),
}

/// A run of file blocks and the physical blocks they are mapped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first file block.
    pub first: FileBlock,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// The first physical block.
    pub start: BlockNr,
    /// Unwritten: allocated, but reads as zeros.
    pub unwritten: bool,
}

/// A reference to a child node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// The first file block of the child.
    pub first: FileBlock,
    /// Block number of the child.
    pub block: BlockNr,
}

/// Result of looking up a file block in a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The extent that contains the block.
    Extent(Extent),
    /// The child to search next, and the first file block of its right sibling.
    Child(Child, Option<FileBlock>),
    /// A hole, up to the next entry of this node.
    Hole(Option<FileBlock>),
}

impl<'a> ExtentNode<'a> {
    /// Validates the header of the node in `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ExtentRule> {
        let (header, rest) =
            DiskExtentHeader::ref_from_prefix(bytes).map_err(|_| ExtentRule::Magic)?;
        if header.magic.get() != EXTENT_MAGIC {
            return Err(ExtentRule::Magic);
        }
        let max = usize::from(header.max.get());
        let capacity = rest.len().checked_div(size_of::<DiskExtent>()).unwrap_or(0);
        if max == 0 || max > capacity {
            return Err(ExtentRule::Capacity);
        }
        let count = usize::from(header.entries.get());
        let depth = header.depth.get();
        if count > max || (count == 0 && depth > 0) {
            return Err(ExtentRule::Entries);
        }
        if depth > EXTENT_DEPTH_MAX {
            return Err(ExtentRule::Depth);
        }
        let entries = if depth == 0 {
            <[DiskExtent]>::ref_from_prefix_with_elems(rest, count)
                .map(|(entries, _)| Entries::Leaf(entries))
                .map_err(|_| ExtentRule::Entries)?
        } else {
            <[DiskExtentIndex]>::ref_from_prefix_with_elems(rest, count)
                .map(|(entries, _)| Entries::Inner(entries))
                .map_err(|_| ExtentRule::Entries)?
        };
        Ok(Self { depth, entries })
    }

    /// Validates every entry.
    pub fn verify(&self, geometry: &Geometry) -> Result<(), ExtentRule> {
        match self.entries {
            Entries::Inner(entries) => {
                let mut previous = None;
                for child in entries.iter().map(DiskExtentIndex::child) {
                    if previous.is_some_and(|previous| child.first <= previous) {
                        return Err(ExtentRule::Order);
                    }
                    if !geometry.contains(child.block, 1) {
                        return Err(ExtentRule::Child);
                    }
                    previous = Some(child.first);
                }
            }
            Entries::Leaf(entries) => {
                let mut free_from = FileBlock(0);
                for extent in entries.iter().map(DiskExtent::extent) {
                    if extent.first < free_from {
                        return Err(ExtentRule::Order);
                    }
                    let end = extent.first.checked_add(extent.count);
                    let end = end.filter(|_| extent.count > 0);
                    free_from = end.ok_or(ExtentRule::Length)?;
                    if !geometry.contains(extent.start, u64::from(extent.count)) {
                        return Err(ExtentRule::Target);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the file block of the first entry.
    #[must_use]
    pub fn first(&self) -> Option<FileBlock> {
        match self.entries {
            Entries::Inner(entries) => entries.first().map(|entry| FileBlock(entry.first.get())),
            Entries::Leaf(entries) => entries.first().map(|entry| FileBlock(entry.first.get())),
        }
    }

    /// Looks up a file block in this node.
    #[must_use]
    pub fn lookup(&self, block: FileBlock) -> Found {
        match self.entries {
            Entries::Inner(entries) => {
                let after = entries.partition_point(|entry| entry.first.get() <= block.0);
                let next = entries.get(after).map(|entry| FileBlock(entry.first.get()));
                let entry = after.checked_sub(1).and_then(|at| entries.get(at));
                entry.map_or(Found::Hole(next), |entry| Found::Child(entry.child(), next))
            }
            Entries::Leaf(entries) => {
                let after = entries.partition_point(|entry| entry.first.get() <= block.0);
                let entry = after.checked_sub(1).and_then(|at| entries.get(at));
                let extent = entry.map(DiskExtent::extent);
                let holds = |extent: &Extent| block.0.wrapping_sub(extent.first.0) < extent.count;
                let next = || entries.get(after).map(|entry| FileBlock(entry.first.get()));
                extent
                    .filter(holds)
                    .map_or_else(|| Found::Hole(next()), Found::Extent)
            }
        }
    }

    /// Returns the children of an index node; none for a leaf.
    pub fn children(&self) -> impl Iterator<Item = Child> + 'a {
        let entries = match self.entries {
            Entries::Inner(entries) => entries,
            Entries::Leaf(_) => &[],
        };
        entries.iter().map(DiskExtentIndex::child)
    }

    /// Returns the extents of a leaf; none for an index node.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + 'a {
        let entries = match self.entries {
            Entries::Inner(_) => &[],
            Entries::Leaf(entries) => entries,
        };
        entries.iter().map(DiskExtent::extent)
    }
}

impl DiskExtentIndex {
    fn child(&self) -> Child {
        let high = u32::from(self.child_hi.get());
        Child {
            first: FileBlock(self.first.get()),
            block: BlockNr(join_u32(high, self.child_lo.get())),
        }
    }
}

impl DiskExtent {
    fn extent(&self) -> Extent {
        let length = self.length.get();
        let unwritten = length > EXTENT_LEN_MAX;
        let count = if unwritten {
            length.saturating_sub(EXTENT_LEN_MAX)
        } else {
            length
        };
        let high = u32::from(self.start_hi.get());
        Extent {
            first: FileBlock(self.first.get()),
            count: u32::from(count),
            start: BlockNr(join_u32(high, self.start_lo.get())),
            unwritten,
        }
    }
}

impl Extent {
    /// Returns the first file block after it, saturating at the last possible one.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0.saturating_add(self.count))
    }

    /// Returns the maximum length of an extent in blocks.
    #[must_use]
    pub fn count_max(unwritten: bool) -> u32 {
        u32::from(EXTENT_LEN_MAX).saturating_sub(u32::from(unwritten))
    }

    /// Returns the part within `range`, if any.
    #[must_use]
    pub fn within(&self, range: &Range<FileBlock>) -> Option<Self> {
        let first = self.first.max(range.start);
        let count = self.end().min(range.end).checked_since(first)?;
        let skipped = u64::from(first.checked_since(self.first)?);
        (count > 0).then(|| Self {
            first,
            count,
            start: BlockNr(self.start.0.saturating_add(skipped)),
            unwritten: self.unwritten,
        })
    }

    /// Merges two extents if `next` continues this one in the file and on the device, and the sum
    /// is a valid length.
    #[must_use]
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let follows = self.first.checked_add(self.count) == Some(next.first)
            && self.start.checked_add(u64::from(self.count)) == Some(next.start)
            && self.unwritten == next.unwritten;
        let count = self.count.checked_add(next.count)?;
        let fits = count <= Self::count_max(self.unwritten);
        (follows && fits).then_some(Self { count, ..*self })
    }

    /// Returns the stored form. An extent is at most [`EXTENT_LEN_MAX`] blocks long, one less if
    /// unwritten.
    #[must_use]
    pub fn encode(&self) -> DiskExtent {
        let count = u16::try_from(self.count).unwrap_or(EXTENT_LEN_MAX);
        let length = if self.unwritten {
            count.saturating_add(EXTENT_LEN_MAX)
        } else {
            count
        };
        let (high, low) = split_block(self.start);
        DiskExtent {
            first: self.first.0.into(),
            length: length.into(),
            start_hi: high,
            start_lo: low,
        }
    }
}

impl Child {
    /// Returns the stored form.
    #[must_use]
    pub fn encode(&self) -> DiskExtentIndex {
        let (high, low) = split_block(self.block);
        DiskExtentIndex {
            first: self.first.0.into(),
            child_lo: low,
            child_hi: high,
            unused: 0.into(),
        }
    }
}

/// Returns the capacity of a node of `size_bytes` in entries.
#[must_use]
pub fn node_capacity(size_bytes: usize) -> usize {
    let rest = size_bytes.saturating_sub(size_of::<DiskExtentHeader>());
    rest.checked_div(size_of::<DiskExtent>()).unwrap_or(0)
}

/// Splits a block number into the 48 bits that an entry stores.
fn split_block(block: BlockNr) -> (Le16, Le32) {
    let [b0, b1, b2, b3, b4, b5, ..] = block.0.to_le_bytes();
    (
        Le16::from_bytes([b4, b5]),
        Le32::from_bytes([b0, b1, b2, b3]),
    )
}

/// Encodes a node with these encoded entries into zeroed `bytes`, with capacity `capacity`.
pub fn encode_node(bytes: &mut [u8], depth: u16, capacity: usize, entries: &[u8]) {
    let count = entries.chunks(size_of::<DiskExtent>()).len();
    let header = DiskExtentHeader {
        magic: EXTENT_MAGIC.into(),
        entries: u16::try_from(count).unwrap_or(u16::MAX).into(),
        max: u16::try_from(capacity).unwrap_or(u16::MAX).into(),
        depth: depth.into(),
        generation: 0.into(),
    };
    let whole = header.as_bytes().iter().chain(entries);
    bytes
        .iter_mut()
        .zip(whole)
        .for_each(|(to, from)| *to = *from);
}

/// The verifier of a node in its own block, except for the rules that depend on its parent.
#[derive(Debug, Clone, Copy)]
pub struct ExtentBlockRules<'a> {
    /// The filesystem.
    pub geometry: &'a Geometry,
    /// The checksum seed of the inode.
    pub inode_seed: u32,
}

impl ExtentBlockRules<'_> {
    fn check(&self, bytes: &[u8]) -> Result<(), ExtentRule> {
        let node = ExtentNode::decode(bytes)?;
        if self.geometry.features.has_metadata_csum() {
            let (covered, stored) = split_checksum(bytes).ok_or(ExtentRule::Capacity)?;
            if crc32c(self.inode_seed, covered) != stored {
                return Err(ExtentRule::Checksum);
            }
        }
        node.verify(self.geometry)
    }
}

impl Verify for ExtentBlockRules<'_> {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: Structure::ExtentNode as u32,
            seed: u64::from(self.inode_seed),
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let corrupt = |rule| Corrupt::new(Locus::block(block), rule).into();
        self.check(bytes).map_err(corrupt)
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        if !self.geometry.features.has_metadata_csum() {
            return;
        }
        let checksum = split_checksum(bytes).map(|(covered, _)| crc32c(self.inode_seed, covered));
        let at = checksum_offset(bytes);
        let slot = at.and_then(|at| bytes.get_mut(at..));
        let slot = slot.and_then(|slot| Le32::mut_from_prefix(slot).ok());
        if let (Some(checksum), Some((slot, _))) = (checksum, slot) {
            slot.set(checksum);
        }
    }
}

/// Returns the offset of the checksum, after the space for entries.
fn checksum_offset(bytes: &[u8]) -> Option<usize> {
    let (header, _) = DiskExtentHeader::ref_from_prefix(bytes).ok()?;
    let capacity = usize::from(header.max.get()).checked_mul(size_of::<DiskExtent>())?;
    capacity.checked_add(size_of::<DiskExtentHeader>())
}

fn split_checksum(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (covered, rest) = bytes.split_at_checked(checksum_offset(bytes)?)?;
    let (stored, _) = Le32::read_from_prefix(rest).ok()?;
    Some((covered, stored.get()))
}
