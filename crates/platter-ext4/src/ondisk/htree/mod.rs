//! The index of a hashed directory: a root in the directory's first block and up to two levels of
//! interior nodes, each an array of hashes and blocks. Spec: `ext4/directory` (hash tree
//! directories).

mod edit;

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::dir_entry::{DiskDirEntry, decode_rec_len};
use super::features::Incompat;
use super::geometry::Geometry;
use super::types::{FileBlock, InodeNr};

pub use edit::{IndexEntry, RootHead, add_level, set_entries, write_node, write_root};

/// Maximum levels below the root with `large_dir`: interior nodes, then entry blocks.
pub const HTREE_LEVELS_MAX: u8 = 3;
/// Maximum levels below the root without `large_dir`.
const HTREE_LEVELS_MAX_SMALL: u8 = 2;
/// `info_length`.
const ROOT_INFO_BYTES: u8 = 8;
/// `unused_flags`: the lowest bit marks a hash that no implementation supports.
const ROOT_FLAG_UNKNOWN_HASH: u8 = 1;
/// The upper four bits of a block number are reserved.
const BLOCK_MASK: u32 = 0x0fff_ffff;
/// Bytes of an index entry.
const ENTRY_BYTES: usize = size_of::<DiskHtreeEntry>();

/// The root block before its index entries, as stored: `.` and `..`, whose `rec_len` covers the
/// rest of the block, and the parameters of the index. Spec: `ext4/directory`, `struct dx_root`.
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
    /// `indirect_levels`: levels of interior nodes.
    pub indirect_levels: u8,
    /// `unused_flags`.
    pub unused_flags: u8,
}

const _: () = assert!(size_of::<DiskHtreeRoot>() == 0x20);
const _: () = assert!(offset_of!(DiskHtreeRoot, hash_version) == 0x1c);

/// One index entry as stored. The first one of a block stores limit and count in place of its hash.
/// Spec: `ext4/directory`, `struct dx_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHtreeEntry {
    /// `hash`: the lowest of the block.
    pub hash: Le32,
    /// `block`: number in the directory.
    pub block: Le32,
}

/// Limit and count of the index entries of a block, stored in place of the first hash. Spec:
/// `ext4/directory`, `struct dx_countlimit`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHtreeCount {
    /// `limit`.
    pub limit: Le16,
    /// `count`.
    pub count: Le16,
}

/// The tail of an index block as stored, after the last possible entry. Spec: `ext4/directory`,
/// `struct dx_tail`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskHtreeTail {
    /// `dt_reserved`.
    pub reserved: Le32,
    /// `dt_checksum`: of the block up to the last entry in use, `dt_reserved`, and four zeros, from
    /// the inode's seed.
    pub checksum: Le32,
}

rules! {
    /// The rules of a directory index.
    pub enum HtreeRule of "directory index" {
        /// The root begins with `.` and `..` whose lengths fill the block.
        Dots => "root node is invalid: no . and .. that fill the block",
        /// `reserved_zero` and `info_length`.
        Info => "root node is invalid: reserved_zero or info_length",
        /// `hash_version` is known.
        HashVersion => "unsupported hash version",
        /// `indirect_levels` is within the format's limit.
        Levels => "tree depth is too big",
        /// An interior node begins with one unused entry as long as the block.
        Node => "node is invalid: no unused entry that fills the block",
        /// `limit` is the capacity of the block.
        Limit => "invalid limit",
        /// `count` is between 1 and the limit.
        Count => "invalid count",
        /// Hashes ascend; equal ones are adjacent.
        Order => "hashes not ascending",
        /// `dt_checksum`.
        Checksum => "checksum does not match",
        /// A block number is within the directory, and is not the root.
        Block => "invalid block number",
        /// Names are in the block of their hash.
        Placement => "bad min/max hash: name in the wrong block",
        /// The names of one hash do not exceed the number of distinct positions.
        Collisions => "too many names with the same hash",
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
    /// The directory's own inode, from the entry `.`.
    pub dot: Option<InodeNr>,
    /// Its parent, from the entry `..`.
    pub parent: Option<InodeNr>,
    /// Number of the hash function.
    pub hash_version: u8,
    /// Levels of interior nodes between the root and the entry blocks.
    pub levels: u8,
    /// The entries.
    pub entries: IndexEntries<'a>,
}

impl<'a> HtreeRoot<'a> {
    /// Validates the root of an index.
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
                .validate_order()?,
        })
    }
}

/// Returns the maximum number of levels of index blocks in this filesystem, including the root.
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

/// Validates an interior node of an index.
pub fn decode_node<'a>(
    bytes: &'a [u8],
    geometry: &Geometry,
) -> Result<IndexEntries<'a>, HtreeRule> {
    if !is_node(bytes) {
        return Err(HtreeRule::Node);
    }
    let has_checksum = geometry.features.has_metadata_csum();
    IndexEntries::decode(bytes, size_of::<DiskDirEntry>(), has_checksum)?.validate_order()
}

/// Whether a block has the form of an interior node.
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
        let capacity = rest.len().saturating_sub(tail) / ENTRY_BYTES;
        if usize::from(header.limit.get()) != capacity {
            return Err(HtreeRule::Limit);
        }
        let count = usize::from(header.count.get());
        if count == 0 || count > capacity {
            return Err(HtreeRule::Count);
        }
        let (entries, _) = <[DiskHtreeEntry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| HtreeRule::Count)?;
        Ok(Self(entries))
    }

    fn validate_order(self) -> Result<Self, HtreeRule> {
        let rest = self.0.get(1..).unwrap_or_default();
        let pairs = rest.iter().zip(rest.get(1..).unwrap_or_default());
        // On the path of each name lookup: the order of all pairs is combined without a branch.
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

    /// Decodes the entries of a block, root or interior, that was validated before.
    pub fn decode_validated(bytes: &'a [u8], geometry: &Geometry) -> Result<Self, HtreeRule> {
        let has_checksum = geometry.features.has_metadata_csum();
        Self::decode(bytes, entries_offset(bytes)?, has_checksum)
    }

    /// Returns the number of entries, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Returns the lowest hash of an entry's block; its lowest bit is set if the preceding block
    /// has names of that hash, too. The first block begins with 0.
    #[must_use]
    pub fn hash(self, index: usize) -> u32 {
        match index {
            0 => 0,
            _ => self.0.get(index).map_or(u32::MAX, |entry| entry.hash.get()),
        }
    }

    /// Returns the capacity of the block in entries.
    #[must_use]
    pub fn limit(self) -> usize {
        let header = self.0.first().map(|first| first.hash.get() & 0xffff);
        header.map_or(0, |limit| limit as usize)
    }

    /// Returns the directory block that an entry points to.
    #[must_use]
    pub fn block(self, index: usize) -> Option<FileBlock> {
        let entry = self.0.get(index)?;
        Some(FileBlock(entry.block.get() & BLOCK_MASK))
    }

    /// Returns the first entry whose block may hold names of hash `major`.
    #[must_use]
    pub fn position(self, major: u32) -> usize {
        let rest = self.0.get(1..).unwrap_or_default();
        rest.partition_point(|entry| entry.hash.get() <= major)
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

/// Returns the offset of an index block's entries, which depends on how the block begins.
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

/// Returns the length of the checksummed part before the tail, and the offset of the tail.
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

/// Validates the checksum of an index block, root or interior.
pub fn verify_checksum(seed: u32, bytes: &[u8]) -> Result<(), HtreeRule> {
    let (expected, tail_at) = checksum(seed, bytes)?;
    let tail = bytes.get(tail_at..).unwrap_or_default();
    let stored = DiskHtreeTail::ref_from_prefix(tail).map(|(tail, _)| tail.checksum.get());
    if stored != Ok(expected) {
        return Err(HtreeRule::Checksum);
    }
    Ok(())
}

/// Stores the checksum in an index block.
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
