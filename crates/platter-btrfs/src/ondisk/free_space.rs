//! Free space: the tree's info and bitmap items, and the cache of version 1.
//! Spec: `btrfs/free_space`.

use bitflags::bitflags;
use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::{DiskKey, Key};
use super::types::{Generation, LogicalAddr};

/// How the free space of a block group is stored.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskFreeSpaceInfo {
    /// `extent_count`.
    pub extent_count: Le32,
    /// `flags`.
    pub flags: Le32,
}

/// The header of a block group's cache file, in the root tree.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskFreeSpaceHeader {
    /// `location`: the inode of the cache file.
    pub location: DiskKey,
    /// `generation`.
    pub generation: Le64,
    /// `num_entries`.
    pub entry_count: Le64,
    /// `num_bitmaps`.
    pub bitmap_count: Le64,
}

/// An entry in a cache file.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskFreeSpaceEntry {
    /// `offset`.
    pub start: Le64,
    /// `bytes`.
    pub len_bytes: Le64,
    /// `type`.
    pub kind: u8,
}

const _: () = assert!(size_of::<DiskFreeSpaceInfo>() == 8);
const _: () = assert!(size_of::<DiskFreeSpaceHeader>() == 41);
const _: () = assert!(size_of::<DiskFreeSpaceEntry>() == 17);

/// The bits of one bitmap item, but for the last of a block group.
pub const BITMAP_BITS: u64 = 256 * 8;

bitflags! {
    /// `flags` of the info item.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct FreeSpaceFlags: u32 {
        /// The block group has bitmaps instead of extents.
        const USING_BITMAPS = 1 << 0;
    }
}

rules! {
    /// The rules of free space items.
    pub enum FreeSpaceRule of "free space item" {
        /// It has the size of the structure; an extent item is empty; a bitmap has a bit for each
        /// sector.
        Size => "invalid item size",
        /// The range is not empty, aligned, and ends within the address space.
        Range => "invalid start or length",
        /// Flags are known.
        Flags => "unknown flags",
        /// An entry of a cache is an extent or a bitmap.
        EntryKind => "invalid entry type",
    }
}

/// How the free space of a block group is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpaceInfo {
    /// How many free extents there are.
    pub extent_count: u32,
    /// The form.
    pub flags: FreeSpaceFlags,
}

impl FreeSpaceInfo {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<FreeSpaceRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let disk = DiskFreeSpaceInfo::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| broken(FreeSpaceRule::Size))?;
        let flags = FreeSpaceFlags::from_bits(disk.flags.get());
        Ok(Self {
            extent_count: disk.extent_count.get(),
            flags: flags.ok_or(broken(FreeSpaceRule::Flags))?,
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskFreeSpaceInfo {
        DiskFreeSpaceInfo {
            extent_count: self.extent_count.into(),
            flags: self.flags.bits().into(),
        }
    }
}

/// A range of the free space tree: its key's object and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpaceRange {
    /// The first byte.
    pub start: LogicalAddr,
    /// The length.
    pub len_bytes: u64,
}

impl FreeSpaceRange {
    /// Decodes the key of an extent or bitmap item.
    pub fn decode(
        key: Key,
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<FreeSpaceRule>> {
        let (start, len_bytes) = (LogicalAddr(key.object), key.offset);
        let is_aligned = |number: u64| number.is_multiple_of(u64::from(sector_bytes));
        let is_valid = len_bytes != 0 && is_aligned(start.0) && is_aligned(len_bytes);
        if !is_valid || start.checked_add(len_bytes).is_none() {
            return Err(Corrupt::new(locus, FreeSpaceRule::Range));
        }
        Ok(Self { start, len_bytes })
    }

    /// Checks that an extent item is empty.
    pub fn check_extent(bytes: &[u8], locus: Locus) -> Result<(), Corrupt<FreeSpaceRule>> {
        if bytes.is_empty() {
            return Ok(());
        }
        Err(Corrupt::new(locus, FreeSpaceRule::Size))
    }

    /// Checks that a bitmap item has as many bits as the range has sectors.
    pub fn check_bitmap(
        &self,
        bytes: &[u8],
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<(), Corrupt<FreeSpaceRule>> {
        let sectors = self.len_bytes.checked_div(u64::from(sector_bytes));
        let expected = sectors.unwrap_or_default().div_ceil(8);
        if bytes.len() as u64 == expected {
            return Ok(());
        }
        Err(Corrupt::new(locus, FreeSpaceRule::Size))
    }
}

/// The header of a cache file of version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpaceHeader {
    /// The key of the cache file's inode, in the root tree.
    pub location: Key,
    /// The transaction that wrote the cache: stale unless it is that of the inode.
    pub generation: Generation,
    /// How many entries there are, bitmaps included.
    pub entry_count: u64,
    /// How many of them are bitmaps.
    pub bitmap_count: u64,
}

impl FreeSpaceHeader {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<FreeSpaceRule>> {
        let disk = DiskFreeSpaceHeader::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, FreeSpaceRule::Size))?;
        Ok(Self {
            location: Key::decode(&disk.location),
            generation: Generation(disk.generation.get()),
            entry_count: disk.entry_count.get(),
            bitmap_count: disk.bitmap_count.get(),
        })
    }
}

/// An entry of a cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpaceEntry {
    /// The first byte.
    pub start: LogicalAddr,
    /// Free bytes from there on; of a bitmap, all of its free bytes.
    pub len_bytes: u64,
    /// Whether a bitmap follows after the entries.
    pub is_bitmap: bool,
}

impl FreeSpaceEntry {
    /// Decodes an entry.
    pub fn decode(disk: &DiskFreeSpaceEntry, locus: Locus) -> Result<Self, Corrupt<FreeSpaceRule>> {
        let (start, len_bytes) = (LogicalAddr(disk.start.get()), disk.len_bytes.get());
        if len_bytes == 0 || start.checked_add(len_bytes).is_none() {
            return Err(Corrupt::new(locus, FreeSpaceRule::Range));
        }
        let is_bitmap = match disk.kind {
            1 => false,
            2 => true,
            _ => return Err(Corrupt::new(locus, FreeSpaceRule::EntryKind)),
        };
        Ok(Self {
            start,
            len_bytes,
            is_bitmap,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::ItemKind;

    #[test]
    fn info_survives_encoding() {
        let info = FreeSpaceInfo {
            extent_count: 4,
            flags: FreeSpaceFlags::USING_BITMAPS,
        };
        let mut disk = info.encode();
        let decode = |bytes: &[u8]| FreeSpaceInfo::decode(bytes, Locus::UNKNOWN);
        assert_eq!(decode(disk.as_bytes()), Ok(info));
        let rule = decode(&[0; 7]).unwrap_err().rule;
        assert_eq!(rule, FreeSpaceRule::Size);
        disk.flags.set(2);
        let rule = decode(disk.as_bytes()).unwrap_err().rule;
        assert_eq!(rule, FreeSpaceRule::Flags);
    }

    #[test]
    fn ranges_and_their_items_are_checked() {
        let range = |start, len| {
            let key = Key::new(start, ItemKind::FREE_SPACE_BITMAP, len);
            FreeSpaceRange::decode(key, 4096, Locus::UNKNOWN)
        };
        for (start, len) in [(0, 0), (1, 4096), (4096, 1), (!4095, 4096)] {
            let corrupt = range(start, len).unwrap_err();
            assert_eq!(corrupt.rule, FreeSpaceRule::Range);
        }
        let range = range(1 << 20, 9 * 4096).unwrap();
        assert!(range.check_bitmap(&[0; 2], 4096, Locus::UNKNOWN).is_ok());
        let corrupt = range.check_bitmap(&[0; 1], 4096, Locus::UNKNOWN);
        assert_eq!(corrupt.unwrap_err().rule, FreeSpaceRule::Size);
        assert!(FreeSpaceRange::check_extent(&[], Locus::UNKNOWN).is_ok());
        assert!(FreeSpaceRange::check_extent(&[0], Locus::UNKNOWN).is_err());
    }

    #[test]
    fn cache_of_version_1_is_decoded() {
        let mut bytes = [0; 41];
        bytes[17] = 9;
        bytes[25] = 3;
        bytes[33] = 1;
        let header = FreeSpaceHeader::decode(&bytes, Locus::UNKNOWN).unwrap();
        assert_eq!(header.generation, Generation(9));
        assert_eq!((header.entry_count, header.bitmap_count), (3, 1));
        assert!(FreeSpaceHeader::decode(&bytes[1..], Locus::UNKNOWN).is_err());
        let entry = |start: u64, len: u64, kind| {
            let disk = DiskFreeSpaceEntry {
                start: start.into(),
                len_bytes: len.into(),
                kind,
            };
            FreeSpaceEntry::decode(&disk, Locus::UNKNOWN).map_err(|corrupt| corrupt.rule)
        };
        assert!(entry(4096, 4096, 2).unwrap().is_bitmap);
        assert!(!entry(4096, 4096, 1).unwrap().is_bitmap);
        assert_eq!(entry(4096, 4096, 3), Err(FreeSpaceRule::EntryKind));
        assert_eq!(entry(u64::MAX, 2, 1), Err(FreeSpaceRule::Range));
    }
}
