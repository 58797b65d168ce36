//! A node of an extent tree: the root in the inode, or a block of its own with a checksum.
//! Spec: `ext4/ifork`, "Extent Tree".

#[cfg(test)]
pub(crate) mod tests;

use std::mem::offset_of;
use std::ops::Range;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32, join_u32};
use platter_ondisk::{Corrupt, Corruption, Locus, Rule, VerifierKey, Verify};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::geometry::Geometry;
use super::structure::Structure;
use super::types::{BlockNr, FileBlock};

/// `eh_magic`.
pub const EXTENT_MAGIC: u16 = 0xf30a;
/// The most levels of nodes below the root.
pub const EXTENT_DEPTH_MAX: u16 = 5;
/// The most blocks of an extent; what exceeds it in the length marks the extent as unwritten.
pub const EXTENT_LEN_MAX: u16 = 0x8000;

/// The first 12 bytes of a node. Spec: `struct ext4_extent_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExtentHeader {
    /// `eh_magic`.
    pub magic: Le16,
    /// `eh_entries`.
    pub entries: Le16,
    /// `eh_max`: the most entries that fit.
    pub max: Le16,
    /// `eh_depth`: levels below this node.
    pub depth: Le16,
    /// `eh_generation`.
    pub generation: Le32,
}

/// An entry of an inner node. Spec: `struct ext4_extent_idx`.
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

/// What a node of an extent tree must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtentRule {
    /// `eh_magic`.
    Magic,
    /// `eh_max` is not zero and fits the node.
    Capacity,
    /// `eh_entries` is at most `eh_max`, and not zero in an inner node.
    Entries,
    /// `eh_depth` is at most five, and one less than the parent's.
    Depth,
    /// `et_checksum`.
    Checksum,
    /// The node's first entry is at the file block its parent names.
    FirstBlock,
    /// Entries ascend and do not overlap.
    Order,
    /// An extent has at least one block and ends below the last file block.
    Length,
    /// An extent lies within the filesystem.
    Target,
    /// A child lies within the filesystem.
    Child,
}

impl Rule for ExtentRule {
    const STRUCTURE: &'static str = "extent node";

    fn text(self) -> &'static str {
        match self {
            Self::Magic => "magic is not 0xf30a",
            Self::Capacity => "room for entries is zero or beyond the node",
            Self::Entries => "number of entries is beyond their room, or zero above leaves",
            Self::Depth => "depth is not what the level above says, or beyond 5",
            Self::Checksum => "checksum does not match",
            Self::FirstBlock => "first file block is not what the parent says",
            Self::Order => "entries overlap or do not ascend",
            Self::Length => "extent is empty or ends beyond the last file block",
            Self::Target => "extent lies outside the filesystem",
            Self::Child => "child lies outside the filesystem",
        }
    }
}

/// A node whose header holds. Its entries hold once [`verify`](Self::verify) said so.
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

/// File blocks and the device blocks that back them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first file block.
    pub first: FileBlock,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// The first block on the device.
    pub start: BlockNr,
    /// Space is taken, but reads as zeros.
    pub unwritten: bool,
}

/// A node below another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// The first file block below it.
    pub first: FileBlock,
    /// Where it lies.
    pub block: BlockNr,
}

/// What a node has for a file block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The extent that holds the block.
    Extent(Extent),
    /// The node that may know more, and the first block of its right neighbour.
    Child(Child, Option<FileBlock>),
    /// Nothing, up to the next entry of this node.
    Hole(Option<FileBlock>),
}

impl<'a> ExtentNode<'a> {
    /// Proves the header of the node that fills `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ExtentRule> {
        let (header, rest) =
            DiskExtentHeader::ref_from_prefix(bytes).map_err(|_| ExtentRule::Magic)?;
        if header.magic.get() != EXTENT_MAGIC {
            return Err(ExtentRule::Magic);
        }
        let max = usize::from(header.max.get());
        let room = rest.len().checked_div(size_of::<DiskExtent>()).unwrap_or(0);
        if max == 0 || max > room {
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

    /// Proves every entry.
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

    /// The file block of the first entry.
    #[must_use]
    pub fn first(&self) -> Option<FileBlock> {
        match self.entries {
            Entries::Inner(entries) => entries.first().map(|entry| FileBlock(entry.first.get())),
            Entries::Leaf(entries) => entries.first().map(|entry| FileBlock(entry.first.get())),
        }
    }

    /// What this node has for a file block.
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

    /// The children of an inner node; none of a leaf.
    pub fn children(&self) -> impl Iterator<Item = Child> + 'a {
        let entries = match self.entries {
            Entries::Inner(entries) => entries,
            Entries::Leaf(_) => &[],
        };
        entries.iter().map(DiskExtentIndex::child)
    }

    /// The extents of a leaf; none of an inner node.
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
    /// The first file block behind it, or the last one there is.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.first.0.saturating_add(self.count))
    }

    /// The most blocks that an extent of this kind can have.
    #[must_use]
    pub fn count_max(unwritten: bool) -> u32 {
        u32::from(EXTENT_LEN_MAX).saturating_sub(u32::from(unwritten))
    }

    /// The part of it within `range`, if there is one.
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

    /// Both as one, if `next` goes on where this one ends, in the file and on the device, and one
    /// extent has room for them.
    #[must_use]
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let follows = self.first.checked_add(self.count) == Some(next.first)
            && self.start.checked_add(u64::from(self.count)) == Some(next.start)
            && self.unwritten == next.unwritten;
        let count = self.count.checked_add(next.count)?;
        let fits = count <= Self::count_max(self.unwritten);
        (follows && fits).then_some(Self { count, ..*self })
    }

    /// The stored form. An extent is at most [`EXTENT_LEN_MAX`] blocks long, one less if
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
    /// The stored form.
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

/// Entries that a node of `size_bytes` has room for.
#[must_use]
pub fn node_room(size_bytes: usize) -> usize {
    let rest = size_bytes.saturating_sub(size_of::<DiskExtentHeader>());
    rest.checked_div(size_of::<DiskExtent>()).unwrap_or(0)
}

/// The 48 bits that an entry has for a block.
fn split_block(block: BlockNr) -> (Le16, Le32) {
    let [b0, b1, b2, b3, b4, b5, ..] = block.0.to_le_bytes();
    (
        Le16::from_bytes([b4, b5]),
        Le32::from_bytes([b0, b1, b2, b3]),
    )
}

/// Writes a node with these encoded entries into zeroed `bytes`, which have room for `room`.
pub fn encode_node(bytes: &mut [u8], depth: u16, room: usize, entries: &[u8]) {
    let count = entries.chunks(size_of::<DiskExtent>()).len();
    let header = DiskExtentHeader {
        magic: EXTENT_MAGIC.into(),
        entries: u16::try_from(count).unwrap_or(u16::MAX).into(),
        max: u16::try_from(room).unwrap_or(u16::MAX).into(),
        depth: depth.into(),
        generation: 0.into(),
    };
    let whole = header.as_bytes().iter().chain(entries);
    bytes
        .iter_mut()
        .zip(whole)
        .for_each(|(to, from)| *to = *from);
}

/// The rules of a node in a block of its own, but for those that need its parent.
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

/// The checksum lies behind the room for entries.
fn checksum_offset(bytes: &[u8]) -> Option<usize> {
    let (header, _) = DiskExtentHeader::ref_from_prefix(bytes).ok()?;
    let room = usize::from(header.max.get()).checked_mul(size_of::<DiskExtent>())?;
    room.checked_add(size_of::<DiskExtentHeader>())
}

fn split_checksum(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (covered, rest) = bytes.split_at_checked(checksum_offset(bytes)?)?;
    let (stored, _) = Le32::read_from_prefix(rest).ok()?;
    Some((covered, stored.get()))
}
