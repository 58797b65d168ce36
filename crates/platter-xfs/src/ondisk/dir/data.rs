//! A directory block of entries; where it is the only one, with its leaf entries at the end.
//! Spec: `xfs/directories`, "Block Directories".

use std::mem::offset_of;

use platter_ondisk::endian::{Be16, Be32, Be64, Le32};
use platter_ondisk::rules;
use platter_vfs::FileKind;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::leaf::DiskLeafEntry;
use super::short::is_name;
use super::{ENTRY_ALIGNMENT, file_kind};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::identity::{Identity, Site};
use crate::ondisk::types::InodeNr;

/// Marks free space.
const FREE_TAG: u16 = 0xffff;

/// The best free regions of a block, in its header. Spec: `struct xfs_dir2_data_free`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskBestFree {
    /// `offset`.
    pub offset: Be16,
    /// `length`.
    pub length: Be16,
}

/// The header of a block. Spec: `struct xfs_dir2_data_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDataHeader {
    /// `magic`.
    pub magic: Be32,
    /// `bestfree`: the three longest free regions.
    pub best_free: [DiskBestFree; 3],
}

/// What directory blocks without neighbours begin with in version 5.
/// Spec: `struct xfs_dir3_blk_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDirHeaderV5 {
    /// `magic`.
    pub magic: Be32,
    /// `crc`, of the block.
    pub checksum: Le32,
    /// `blkno`.
    pub block: Be64,
    /// `lsn`.
    pub lsn: Be64,
    /// `uuid`.
    pub uuid: [u8; 16],
    /// `owner`.
    pub owner: Be64,
}

/// The header of a block in version 5. Spec: `struct xfs_dir3_data_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDataHeaderV5 {
    /// What all directory blocks have.
    pub common: DiskDirHeaderV5,
    /// `best_free`.
    pub best_free: [DiskBestFree; 3],
    /// `pad`.
    pub padding: Be32,
}

/// The start of an entry; name, type and tag follow. Spec: `struct xfs_dir2_data_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskEntryStart {
    /// `inumber`.
    pub inode: Be64,
    /// `namelen`.
    pub name_len: u8,
}

/// The start of free space; its tag is at its end. Spec: `struct xfs_dir2_data_unused`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskUnused {
    /// `freetag`.
    pub tag: Be16,
    /// `length`.
    pub length: Be16,
}

/// The end of the only block of a directory; leaf entries are before it.
/// Spec: `struct xfs_dir2_block_tail`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskBlockTail {
    /// `count`: leaf entries.
    pub count: Be32,
    /// `stale`: leaf entries of names that were removed.
    pub stale: Be32,
}

const _: () = assert!(size_of::<DiskDataHeader>() == 16);
const _: () = assert!(size_of::<DiskDirHeaderV5>() == 48);
const _: () = assert!(size_of::<DiskDataHeaderV5>() == 64);
const _: () = assert!(size_of::<DiskEntryStart>() == 9);
const _: () = assert!(size_of::<DiskBlockTail>() == 8);

impl DiskDirHeaderV5 {
    /// Where the checksum lies.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);

    pub(super) fn identity(&self) -> Identity {
        Identity {
            checksum_at: Self::CHECKSUM_OFFSET,
            uuid: self.uuid,
            block: self.block.get(),
            owner: self.owner.get(),
        }
    }
}

rules! {
    /// What a directory block of entries must hold to.
    pub enum DirDataRule of "directory block" {
        /// `magic`.
        Magic => "bad magic number",
        /// `crc`.
        Checksum => "bad CRC",
        /// `uuid`.
        Uuid => "bad UUID",
        /// `blkno`.
        BlockNumber => "block number is not where it lies",
        /// `owner`.
        Owner => "bad owner",
        /// `count` and `stale` of the tail fit the block.
        Tail => "bad leaf entry or stale count",
        /// Entries and free regions fill the block.
        Length => "entry or free region crosses the end of the block",
        /// The tag of an entry or free region is where it begins.
        Tag => "bad tag",
        /// A name has between 1 and 255 bytes, none of them a slash or zero.
        Name => "bad name",
        /// Inode numbers are ones that an inode can have.
        Inode => "bad inode number",
        /// A leaf entry points to an entry.
        Pointer => "leaf entry does not point to an entry",
    }
}

identity_rules!(DirDataRule);

/// Whether a block is the only one of its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataKind {
    /// It has leaf entries at its end.
    Single,
    /// It has entries only.
    Data,
}

impl DataKind {
    /// The magic number of the block.
    #[must_use]
    pub fn magic(self, is_v5: bool) -> u32 {
        match (self, is_v5) {
            (Self::Single, false) => 0x5844_3242,
            (Self::Single, true) => 0x5844_4233,
            (Self::Data, false) => 0x5844_3244,
            (Self::Data, true) => 0x5844_4433,
        }
    }

    /// What a block is, by its magic number.
    #[must_use]
    pub fn of(bytes: &[u8], is_v5: bool) -> Option<Self> {
        let (magic, _) = Be32::ref_from_prefix(bytes).ok()?;
        let kinds = [Self::Single, Self::Data];
        kinds
            .into_iter()
            .find(|kind| kind.magic(is_v5) == magic.get())
    }
}

/// An entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Where it begins in the block.
    pub offset: usize,
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub inode: InodeNr,
    /// The type, where entries hold it.
    pub kind: Option<FileKind>,
}

/// A region of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region<'a> {
    /// An entry.
    Entry(DirEntry<'a>),
    /// Free space.
    Free {
        /// Where it begins in the block.
        offset: usize,
        /// Its length in bytes.
        len: usize,
    },
}

/// A block of entries whose header holds.
#[derive(Debug, Clone, Copy)]
pub struct DirData<'a> {
    bytes: &'a [u8],
    start: usize,
    end: usize,
    has_ftype: bool,
    /// The longest free regions as the header has them.
    pub best_free: &'a [DiskBestFree; 3],
    /// The leaf entries, of the only block of a directory.
    pub leaves: &'a [DiskLeafEntry],
    /// How many leaf entries are of names that were removed.
    pub stale: u32,
}

/// Where the first entry begins.
#[must_use]
pub fn header_bytes(geometry: &Geometry) -> usize {
    if geometry.features.is_v5() {
        size_of::<DiskDataHeaderV5>()
    } else {
        size_of::<DiskDataHeader>()
    }
}

/// Space that an entry takes.
#[must_use]
pub fn entry_bytes(name_len: usize, has_ftype: bool) -> usize {
    const TAG: usize = 2;
    const ROUNDED: usize = ENTRY_ALIGNMENT - 1;
    size_of::<DiskEntryStart>()
        .saturating_add(name_len)
        .saturating_add(usize::from(has_ftype))
        .saturating_add(TAG)
        .saturating_add(ROUNDED)
        & !ROUNDED
}

/// Where `.` would be in the first block of a directory.
#[must_use]
pub fn dot_offset(geometry: &Geometry) -> usize {
    header_bytes(geometry)
}

/// Where `..` would be in the first block of a directory.
#[must_use]
pub fn dotdot_offset(geometry: &Geometry) -> usize {
    let size = entry_bytes(1, geometry.features.has_ftype());
    header_bytes(geometry).saturating_add(size)
}

/// Where the first other entry would be in the first block of a directory.
pub(super) fn first_offset_in_short(geometry: &Geometry) -> u16 {
    let size = entry_bytes(2, geometry.features.has_ftype());
    u16::try_from(dotdot_offset(geometry).saturating_add(size)).unwrap_or(u16::MAX)
}

impl<'a> DirData<'a> {
    /// Validates header and tail of the block that fills `bytes`.
    pub fn decode(bytes: &'a [u8], kind: DataKind, site: &Site<'_>) -> Result<Self, DirDataRule> {
        let is_v5 = site.geometry.features.is_v5();
        let (magic, _) = Be32::ref_from_prefix(bytes).map_err(|_| DirDataRule::Magic)?;
        if magic.get() != kind.magic(is_v5) {
            return Err(DirDataRule::Magic);
        }
        let best_free = if is_v5 {
            let (header, _) =
                DiskDataHeaderV5::ref_from_prefix(bytes).map_err(|_| DirDataRule::Magic)?;
            header.common.identity().check(bytes, site)?;
            &header.best_free
        } else {
            let (header, _) =
                DiskDataHeader::ref_from_prefix(bytes).map_err(|_| DirDataRule::Magic)?;
            &header.best_free
        };
        let start = header_bytes(site.geometry);
        let mut data = Self {
            bytes,
            start,
            end: bytes.len(),
            has_ftype: site.geometry.features.has_ftype(),
            best_free,
            leaves: &[],
            stale: 0,
        };
        if kind == DataKind::Single {
            data.take_tail().ok_or(DirDataRule::Tail)?;
        }
        Ok(data)
    }

    fn take_tail(&mut self) -> Option<()> {
        let (rest, tail) = DiskBlockTail::ref_from_suffix(self.bytes).ok()?;
        let count = usize::try_from(tail.count.get()).ok()?;
        let (rest, leaves) = <[DiskLeafEntry]>::ref_from_suffix_with_elems(rest, count).ok()?;
        if rest.len() < self.start || tail.stale.get() > tail.count.get() {
            return None;
        }
        self.end = rest.len();
        self.leaves = leaves;
        self.stale = tail.stale.get();
        Some(())
    }

    /// Entries and free regions in order. The first that breaks a rule ends them with an error.
    pub fn regions(
        &self,
        geometry: &'a Geometry,
    ) -> impl Iterator<Item = Result<Region<'a>, DirDataRule>> + use<'a> {
        let data = *self;
        let mut at = self.start;
        std::iter::from_fn(move || {
            if at >= data.end {
                return None;
            }
            let region = data.region(at, geometry);
            at = match &region {
                Ok((_, end)) => *end,
                Err(_) => data.end,
            };
            Some(region.map(|(region, _)| region))
        })
    }

    /// The free regions in order, as offset and length. Of entries, no more is looked at than where they end.
    #[must_use]
    pub fn free_regions(&self) -> Option<Vec<(usize, usize)>> {
        self.free_regions_next_to(|_| {})
    }

    /// The same, after where each entry begins was passed to `entry`.
    pub fn free_regions_next_to(
        &self,
        mut entry: impl FnMut(usize),
    ) -> Option<Vec<(usize, usize)>> {
        const NAME_LEN_AT: usize = offset_of!(DiskEntryStart, name_len);
        let mut free = Vec::new();
        let mut at = self.start;
        let mut rest = self.bytes.get(at..self.end)?;
        // Nearly all that a change of a block takes: as few instructions for an entry as can be.
        while let Some(head) = rest.first_chunk::<ENTRY_ALIGNMENT>() {
            let [tag0, tag1, len0, len1, ..] = *head;
            let len = if u16::from_be_bytes([tag0, tag1]) == FREE_TAG {
                let len = usize::from(u16::from_be_bytes([len0, len1]));
                free.push((at, len));
                Some(len).filter(|&len| len > 0 && len.is_multiple_of(ENTRY_ALIGNMENT))?
            } else {
                let name_len = *rest.get(NAME_LEN_AT)?;
                entry(at);
                entry_bytes(name_len.into(), self.has_ftype)
            };
            let (region, after) = rest.split_at_checked(len)?;
            check_tag(region, at).ok()?;
            at = at.wrapping_add(len);
            rest = after;
        }
        rest.is_empty().then_some(free)
    }

    /// The entry that begins at byte `offset`.
    pub fn entry_at(
        &self,
        offset: usize,
        geometry: &Geometry,
    ) -> Result<DirEntry<'a>, DirDataRule> {
        let is_aligned = offset.checked_rem(ENTRY_ALIGNMENT) == Some(0);
        if !is_aligned || offset < self.start || offset >= self.end {
            return Err(DirDataRule::Pointer);
        }
        match self.region(offset, geometry)? {
            (Region::Entry(entry), _) => Ok(entry),
            (Region::Free { .. }, _) => Err(DirDataRule::Pointer),
        }
    }

    /// The region at byte `at`, and where it ends.
    fn region(&self, at: usize, geometry: &Geometry) -> Result<(Region<'a>, usize), DirDataRule> {
        let bytes = self.bytes.get(at..self.end).ok_or(DirDataRule::Length)?;
        let (unused, _) = DiskUnused::ref_from_prefix(bytes).map_err(|_| DirDataRule::Length)?;
        if unused.tag.get() == FREE_TAG {
            let len = usize::from(unused.length.get());
            let region = bytes.get(..len).ok_or(DirDataRule::Length)?;
            if len == 0 || len.checked_rem(ENTRY_ALIGNMENT) != Some(0) {
                return Err(DirDataRule::Length);
            }
            check_tag(region, at)?;
            let free = Region::Free { offset: at, len };
            return Ok((free, at.saturating_add(len)));
        }
        let (start, rest) =
            DiskEntryStart::ref_from_prefix(bytes).map_err(|_| DirDataRule::Length)?;
        let name_len = usize::from(start.name_len);
        let len = entry_bytes(name_len, self.has_ftype);
        let region = bytes.get(..len).ok_or(DirDataRule::Length)?;
        let (name, rest) = rest.split_at_checked(name_len).ok_or(DirDataRule::Length)?;
        if !is_name(name) {
            return Err(DirDataRule::Name);
        }
        check_tag(region, at)?;
        let inode = InodeNr::new(start.inode.get());
        let inode = inode.filter(|&inode| geometry.locate_inode(inode).is_some());
        let kind = rest.first().filter(|_| self.has_ftype);
        let entry = DirEntry {
            offset: at,
            name,
            inode: inode.ok_or(DirDataRule::Inode)?,
            kind: kind.and_then(|&kind| file_kind(kind)),
        };
        Ok((Region::Entry(entry), at.saturating_add(len)))
    }
}

/// The last two bytes of a region are where it begins.
fn check_tag(region: &[u8], at: usize) -> Result<(), DirDataRule> {
    let tag = region.last_chunk::<2>().ok_or(DirDataRule::Length)?;
    if usize::from(u16::from_be_bytes(*tag)) == at {
        Ok(())
    } else {
        Err(DirDataRule::Tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::checksum;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::types::BasicBlock;

    /// `.`, `..`, `file` and free space; in version 5, with three leaf entries.
    fn sample() -> Vec<u8> {
        let geometry = sample_geometry();
        let mut block = vec![0; 4096];
        let (header, _) = DiskDataHeaderV5::mut_from_prefix(&mut block).unwrap();
        header.common.magic.set(DataKind::Single.magic(true));
        header.common.block.set(80);
        header.common.uuid = [0x5a; 16];
        header.common.owner.set(131);
        let mut at = header_bytes(&geometry);
        for (name, inode) in [(&b"."[..], 131), (b"..", 128), (b"file", 132)] {
            let (start, rest) = DiskEntryStart::mut_from_prefix(&mut block[at..]).unwrap();
            start.inode.set(inode);
            start.name_len = u8::try_from(name.len()).unwrap();
            rest[..name.len()].copy_from_slice(name);
            rest[name.len()] = if inode == 132 { 1 } else { 2 };
            let end = at + entry_bytes(name.len(), true);
            block[end - 1] = u8::try_from(at).unwrap();
            at = end;
        }
        let end = 4096 - 8 - 3 * 8;
        let (unused, _) = DiskUnused::mut_from_prefix(&mut block[at..]).unwrap();
        unused.tag.set(FREE_TAG);
        unused.length.set(u16::try_from(end - at).unwrap());
        block[end - 1] = u8::try_from(at).unwrap();
        block[4096 - 5] = 3;
        seal(&mut block);
        block
    }

    fn seal(block: &mut [u8]) {
        checksum::seal(block, DiskDirHeaderV5::CHECKSUM_OFFSET);
    }

    fn decode(block: &[u8]) -> Result<Vec<(usize, Option<String>)>, DirDataRule> {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        let data = DirData::decode(block, DataKind::Single, &site)?;
        let shown = |region| match region {
            Region::Entry(entry) => {
                let name = String::from_utf8_lossy(entry.name).into_owned();
                (entry.offset, Some(name))
            }
            Region::Free { offset, .. } => (offset, None),
        };
        data.regions(&geometry)
            .map(|region| region.map(shown))
            .collect()
    }

    fn broken(change: impl FnOnce(&mut [u8])) -> DirDataRule {
        let mut block = sample();
        change(&mut block);
        seal(&mut block);
        decode(&block).unwrap_err()
    }

    #[test]
    fn block_is_entries_and_free_space() {
        let names: Vec<_> = decode(&sample()).unwrap();
        let name = |name: &str| Some(name.to_owned());
        let expected = [
            (64, name(".")),
            (80, name("..")),
            (96, name("file")),
            (112, None),
        ];
        assert_eq!(names, expected);
        assert_eq!(DataKind::of(&sample(), true), Some(DataKind::Single));
    }

    #[test]
    fn entry_is_found_where_it_begins_and_nowhere_else() {
        let (block, geometry) = (sample(), sample_geometry());
        let site = Site::new(&geometry, BasicBlock(80), 131);
        let data = DirData::decode(&block, DataKind::Single, &site).unwrap();
        assert_eq!(data.leaves.len(), 3);
        let entry = data.entry_at(96, &geometry).unwrap();
        assert_eq!(
            (entry.name, entry.kind),
            (&b"file"[..], Some(FileKind::Regular))
        );
        for offset in [0, 56, 97, 112, 4095, 1 << 40] {
            let rule = data.entry_at(offset, &geometry).unwrap_err();
            assert_eq!(rule, DirDataRule::Pointer, "{offset}");
        }
        assert!(data.entry_at(104, &geometry).is_err());
    }

    #[test]
    fn rules_of_the_block_are_checked() {
        assert_eq!(broken(|block| block[0] = 0), DirDataRule::Magic);
        assert_eq!(broken(|block| block[24] = 0), DirDataRule::Uuid);
        assert_eq!(broken(|block| block[15] = 0), DirDataRule::BlockNumber);
        assert_eq!(broken(|block| block[47] = 0), DirDataRule::Owner);
        assert_eq!(broken(|block| block[4096 - 1] = 4), DirDataRule::Tail);
        assert_eq!(broken(|block| block[4096 - 6] = 0x10), DirDataRule::Tail);
        assert_eq!(broken(|block| block[115] |= 1), DirDataRule::Length);
        assert_eq!(broken(|block| block[114] = 0xf0), DirDataRule::Length);
        assert_eq!(broken(|block| block[79] = 0), DirDataRule::Tag);
        assert_eq!(broken(|block| block[96 + 9] = b'/'), DirDataRule::Name);
        assert_eq!(broken(|block| block[96 + 8] = 0), DirDataRule::Name);
        assert_eq!(broken(|block| block[96 + 7] = 0), DirDataRule::Inode);
        let mut block = sample();
        block[2000] = 1;
        assert_eq!(decode(&block), Err(DirDataRule::Checksum));
    }
}
