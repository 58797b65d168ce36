//! The index of a hashed directory: a root in the directory's first block and up to two levels of
//! inner blocks, each an array of hash and block. Spec: `ext4/directory` (hash tree directories).

mod edit;

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::dir_entry::{DiskDirEntry, decode_rec_len};
use super::features::Incompat;
use super::geometry::Geometry;
use super::types::{FileBlock, InodeNr};
use platter_ondisk::Rule;

pub use edit::{IndexEntry, RootHead, add_level, set_entries, write_node, write_root};

/// Levels of blocks below the root with `large_dir`: inner blocks, then entries.
pub const HTREE_LEVELS_MAX: u8 = 3;
/// Levels of blocks below the root without `large_dir`.
const HTREE_LEVELS_MAX_SMALL: u8 = 2;
/// `info_length`.
const ROOT_INFO_BYTES: u8 = 8;
/// `unused_flags`, of which a set lowest bit stands for a hash nobody implements.
const ROOT_FLAG_UNKNOWN_HASH: u8 = 1;
/// The block number's upper four bits are reserved.
const BLOCK_MASK: u32 = 0x0fff_ffff;
/// Bytes of an index entry.
const ENTRY_BYTES: usize = size_of::<DiskHtreeEntry>();

/// The root block before its index entries, as stored: `.` and `..`, whose length hides the
/// rest of the block, and how the index is made. Spec: `ext4/directory`, `struct dx_root`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHtreeRoot {
    /// `dot`.
    pub dot: DiskDirEntry,
    /// `dot_name`.
    pub dot_name: [u8; 4],
    /// `dotdot`.
    pub dotdot: DiskDirEntry,
    /// `dotdot_name`.
    pub dotdot_name: [u8; 4],
    /// `reserved_zero`.
    pub reserved_zero: Le32,
    /// `hash_version`.
    pub hash_version: u8,
    /// `info_length`: 8.
    pub info_length: u8,
    /// `indirect_levels`: levels of inner blocks.
    pub indirect_levels: u8,
    /// `unused_flags`.
    pub unused_flags: u8,
}

const _: () = assert!(size_of::<DiskHtreeRoot>() == 0x20);
const _: () = assert!(offset_of!(DiskHtreeRoot, hash_version) == 0x1c);

/// One index entry as stored. The first one of a block has the entries' limit and count in the
/// place of a hash. Spec: `ext4/directory`, `struct dx_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHtreeEntry {
    /// `hash`: the least of the block.
    pub hash: Le32,
    /// `block`: of the directory.
    pub block: Le32,
}

/// How many index entries a block can and does hold, as stored in the first one's hash.
/// Spec: `ext4/directory`, `struct dx_countlimit`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHtreeCount {
    /// `limit`.
    pub limit: Le16,
    /// `count`.
    pub count: Le16,
}

/// The tail of an index block as stored, behind the last entry it could hold.
/// Spec: `ext4/directory`, `struct dx_tail`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHtreeTail {
    /// `dt_reserved`.
    pub reserved: Le32,
    /// `dt_checksum`: of the entries in use and what is before them, `dt_reserved`, and four
    /// zeros, from the inode's seed.
    pub checksum: Le32,
}

/// What the index must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HtreeRule {
    /// The root begins with `.` and `..` whose lengths fill the block.
    Dots,
    /// `reserved_zero` and `info_length`.
    Info,
    /// `hash_version` is one that exists.
    HashVersion,
    /// `indirect_levels` is within the format.
    Levels,
    /// An inner block begins with one unused entry as long as the block.
    Node,
    /// `limit` is what the block has room for.
    Limit,
    /// `count` is between 1 and the limit.
    Count,
    /// Hashes do not descend.
    Order,
    /// `dt_checksum`.
    Checksum,
    /// A block number lies within the directory, and is not the root.
    Block,
    /// Names lie in the block whose hashes they have.
    Placement,
    /// As many names have one hash as can be told apart.
    Collisions,
}

impl Rule for HtreeRule {
    const STRUCTURE: &'static str = "directory index";

    fn text(self) -> &'static str {
        match self {
            Self::Dots => "root does not begin with . and .. that fill the block",
            Self::Info => "root has no valid description of the index",
            Self::HashVersion => "hash version is unknown",
            Self::Levels => "more levels than the format has",
            Self::Node => "inner block does not begin with an unused entry",
            Self::Limit => "limit is not what the block has room for",
            Self::Count => "count is zero or above the limit",
            Self::Order => "hashes descend",
            Self::Checksum => "checksum does not match",
            Self::Block => "points outside the directory",
            Self::Placement => "name lies in a block of other hashes",
            Self::Collisions => "more names of one hash than can be told apart",
        }
    }
}

/// The index entries of one block.
///
/// # Invariants
/// There is at least one; hashes do not descend.
#[derive(Debug, Clone, Copy)]
pub struct IndexEntries<'a>(&'a [DiskHtreeEntry]);

/// The root of an index.
#[derive(Debug, Clone, Copy)]
pub struct HtreeRoot<'a> {
    /// The directory itself, by the entry `.`.
    pub dot: Option<InodeNr>,
    /// Its parent, by the entry `..`.
    pub parent: Option<InodeNr>,
    /// The hash function's number.
    pub hash_version: u8,
    /// Levels of inner blocks between root and entries.
    pub levels: u8,
    /// The entries.
    pub entries: IndexEntries<'a>,
}

impl<'a> HtreeRoot<'a> {
    /// Proves the root of an index.
    pub fn decode(bytes: &'a [u8], geometry: &Geometry) -> Result<Self, HtreeRule> {
        let (disk, _) = DiskHtreeRoot::ref_from_prefix(bytes).map_err(|_| HtreeRule::Dots)?;
        if !begins_with_dots(disk, bytes.len()) {
            return Err(HtreeRule::Dots);
        }
        if disk.reserved_zero.get() != 0
            || disk.info_length != ROOT_INFO_BYTES
            || disk.unused_flags & ROOT_FLAG_UNKNOWN_HASH != 0
        {
            return Err(HtreeRule::Info);
        }
        if usize::from(disk.indirect_levels) >= levels_max(geometry) {
            return Err(HtreeRule::Levels);
        }
        let has_checksum = geometry.features.has_metadata_csum();
        Ok(Self {
            dot: InodeNr::new(disk.dot.inode.get()),
            parent: InodeNr::new(disk.dotdot.inode.get()),
            hash_version: disk.hash_version,
            levels: disk.indirect_levels,
            entries: IndexEntries::decode(bytes, size_of::<DiskHtreeRoot>(), has_checksum)?
                .prove_order()?,
        })
    }
}

/// Levels of index blocks that an index of this filesystem has at most, the root being one.
#[must_use]
pub fn levels_max(geometry: &Geometry) -> usize {
    usize::from(
        if geometry.features.incompat.contains(Incompat::LARGE_DIR) {
            HTREE_LEVELS_MAX
        } else {
            HTREE_LEVELS_MAX_SMALL
        },
    )
}

/// Proves an inner block of an index.
pub fn decode_node<'a>(
    bytes: &'a [u8],
    geometry: &Geometry,
) -> Result<IndexEntries<'a>, HtreeRule> {
    if !is_node(bytes) {
        return Err(HtreeRule::Node);
    }
    let has_checksum = geometry.features.has_metadata_csum();
    IndexEntries::decode(bytes, size_of::<DiskDirEntry>(), has_checksum)?.prove_order()
}

/// Whether a block begins as an inner block of an index does.
#[must_use]
pub fn is_node(bytes: &[u8]) -> bool {
    DiskDirEntry::ref_from_prefix(bytes).is_ok_and(|(head, _)| {
        head.inode.get() == 0 && head.name_len == 0 && entry_len(*head, bytes.len()) == bytes.len()
    })
}

impl<'a> IndexEntries<'a> {
    fn decode(bytes: &'a [u8], at: usize, has_checksum: bool) -> Result<Self, HtreeRule> {
        let rest = bytes.get(at..).unwrap_or_default();
        let (header, _) = DiskHtreeCount::ref_from_prefix(rest).map_err(|_| HtreeRule::Limit)?;
        let tail = if has_checksum {
            size_of::<DiskHtreeTail>()
        } else {
            0
        };
        let room = rest.len().saturating_sub(tail) / ENTRY_BYTES;
        if usize::from(header.limit.get()) != room {
            return Err(HtreeRule::Limit);
        }
        let count = usize::from(header.count.get());
        if count == 0 || count > room {
            return Err(HtreeRule::Count);
        }
        let (entries, _) = <[DiskHtreeEntry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| HtreeRule::Count)?;
        Ok(Self(entries))
    }

    fn prove_order(self) -> Result<Self, HtreeRule> {
        let behind = self.0.get(1..).unwrap_or_default();
        let pairs = behind.iter().zip(behind.get(1..).unwrap_or_default());
        // Each lookup of a name does this: the signs of all steps are gathered, without a branch.
        let signs = pairs.fold(0, |signs, (left, right)| {
            let (left, right) = (u64::from(left.hash.get()), u64::from(right.hash.get()));
            signs | right.wrapping_sub(left)
        });
        if signs >> 63 == 0 {
            Ok(self)
        } else {
            Err(HtreeRule::Order)
        }
    }

    /// The entries of a block, root or inner, that was proven before.
    pub fn decode_proven(bytes: &'a [u8], geometry: &Geometry) -> Result<Self, HtreeRule> {
        let has_checksum = geometry.features.has_metadata_csum();
        Self::decode(bytes, entries_offset(bytes)?, has_checksum)
    }

    /// The number of entries, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// The least hash of an entry's block; the lowest bit says that the block before it holds
    /// names of that hash, too. The first block begins with 0.
    #[must_use]
    pub fn hash(self, index: usize) -> u32 {
        match index {
            0 => 0,
            _ => self.0.get(index).map_or(u32::MAX, |entry| entry.hash.get()),
        }
    }

    /// The most entries that the block holds.
    #[must_use]
    pub fn limit(self) -> usize {
        let header = self.0.first().map(|first| first.hash.get() & 0xffff);
        header.map_or(0, |limit| limit as usize)
    }

    /// The block of the directory that an entry points to.
    #[must_use]
    pub fn block(self, index: usize) -> Option<FileBlock> {
        let entry = self.0.get(index)?;
        Some(FileBlock(entry.block.get() & BLOCK_MASK))
    }

    /// The entry whose block holds names of hash `major`, or the first such.
    #[must_use]
    pub fn position(self, major: u32) -> usize {
        let behind = self.0.get(1..).unwrap_or_default();
        behind.partition_point(|entry| entry.hash.get() <= major)
    }
}

fn entry_len(head: DiskDirEntry, block_len: usize) -> usize {
    let block_bytes = u32::try_from(block_len).unwrap_or(u32::MAX);
    decode_rec_len(head.rec_len.get(), block_bytes)
}

fn begins_with_dots(disk: &DiskHtreeRoot, block_len: usize) -> bool {
    let dot_len = entry_len(disk.dot, block_len);
    let dotdot_len = entry_len(disk.dotdot, block_len);
    let named = disk.dot.name_len == 1 && disk.dotdot.name_len == 2;
    let spelled = disk.dot_name.starts_with(b".") && disk.dotdot_name.starts_with(b"..");
    let fills = dot_len == size_of::<DiskDirEntry>().saturating_add(disk.dot_name.len())
        && dot_len.saturating_add(dotdot_len) == block_len;
    named && spelled && fills
}

/// Where an index block's entries begin, by how the block begins.
fn entries_offset(bytes: &[u8]) -> Result<usize, HtreeRule> {
    if is_node(bytes) {
        return Ok(size_of::<DiskDirEntry>());
    }
    let (disk, _) = DiskHtreeRoot::ref_from_prefix(bytes).map_err(|_| HtreeRule::Dots)?;
    if !begins_with_dots(disk, bytes.len()) {
        return Err(HtreeRule::Dots);
    }
    Ok(size_of::<DiskHtreeRoot>())
}

/// What is checksummed before the tail, and where the tail lies.
fn checksum_ranges(bytes: &[u8]) -> Result<(usize, usize), HtreeRule> {
    let at = entries_offset(bytes)?;
    let rest = bytes.get(at..).unwrap_or_default();
    let (header, _) = DiskHtreeCount::ref_from_prefix(rest).map_err(|_| HtreeRule::Limit)?;
    let (limit, count) = (header.limit.get(), header.count.get());
    if count > limit {
        return Err(HtreeRule::Count);
    }
    let end = |entries: u16| {
        let length = usize::from(entries).checked_mul(ENTRY_BYTES)?;
        at.checked_add(length)
    };
    end(count).zip(end(limit)).ok_or(HtreeRule::Limit)
}

fn checksum(seed: u32, bytes: &[u8]) -> Result<(u32, usize), HtreeRule> {
    let (content_end, tail_at) = checksum_ranges(bytes)?;
    let content = bytes.get(..content_end).ok_or(HtreeRule::Count)?;
    let tail = bytes.get(tail_at..).ok_or(HtreeRule::Limit)?;
    let (tail, _) = DiskHtreeTail::ref_from_prefix(tail).map_err(|_| HtreeRule::Limit)?;
    let sum = crc32c(crc32c(seed, content), tail.reserved.as_bytes());
    Ok((crc32c(sum, &[0; 4]), tail_at))
}

/// Proves the checksum of an index block, root or inner.
pub fn verify_checksum(seed: u32, bytes: &[u8]) -> Result<(), HtreeRule> {
    let (expected, tail_at) = checksum(seed, bytes)?;
    let tail = bytes.get(tail_at..).unwrap_or_default();
    let stored = DiskHtreeTail::ref_from_prefix(tail).map(|(tail, _)| tail.checksum.get());
    if stored != Ok(expected) {
        return Err(HtreeRule::Checksum);
    }
    Ok(())
}

/// Puts the checksum into an index block.
pub fn seal(seed: u32, bytes: &mut [u8]) {
    let Ok((sum, tail_at)) = checksum(seed, bytes) else {
        return;
    };
    let tail = bytes.get_mut(tail_at..).unwrap_or_default();
    if let Ok((tail, _)) = DiskHtreeTail::mut_from_prefix(tail) {
        tail.checksum.set(sum);
    }
}

#[cfg(test)]
mod tests;
