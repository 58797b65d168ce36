//! A file extent: what backs a range of a file. Spec: `btrfs/file_extent`.

use std::mem::offset_of;

use platter_ondisk::endian::{Le16, Le64};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::types::{Generation, LogicalAddr};

/// The part that all file extents have. Data follows in an inline extent, [`DiskExtentPlace`] in
/// others.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskFileExtent {
    /// `generation`.
    pub generation: Le64,
    /// `ram_bytes`.
    pub ram_bytes: Le64,
    /// `compression`.
    pub compression: u8,
    /// `encryption`.
    pub encryption: u8,
    /// `other_encoding`.
    pub other_encoding: Le16,
    /// `type`.
    pub kind: u8,
}

/// The part that regular and preallocated extents have.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskExtentPlace {
    /// `disk_bytenr`.
    pub logical: Le64,
    /// `disk_num_bytes`.
    pub disk_bytes: Le64,
    /// `offset`.
    pub offset: Le64,
    /// `num_bytes`.
    pub file_bytes: Le64,
}

/// Where the data of an inline extent begins.
pub const INLINE_DATA_OFFSET: usize = 21;

const _: () = assert!(size_of::<DiskFileExtent>() == INLINE_DATA_OFFSET);
const _: () = assert!(size_of::<DiskExtentPlace>() == 32);
const _: () = assert!(offset_of!(DiskFileExtent, kind) == 20);

/// The largest range of a file that is compressed as one, and the largest compressed extent.
pub const COMPRESSED_BYTES_MAX: u64 = 128 << 10;

/// Where the last sector ends that a file may have: its largest size is a byte less.
const FILE_SECTORS_END: u64 = 1 << 63;

rules! {
    /// The rules of a file extent.
    pub enum FileExtentRule of "file extent" {
        /// It has the size that its type asks for.
        Size => "invalid item size",
        /// The type is known.
        Kind => "invalid file extent type",
        /// The compression is known.
        Compression => "invalid compression",
        /// Nothing is encrypted or encoded otherwise.
        Encoding => "invalid encryption or encoding",
        /// It begins at a sector of the file; an inline extent at its beginning.
        FileOffset => "unaligned file offset",
        /// The inline data of an extent without compression has `ram_bytes`.
        InlineBytes => "ram_bytes is not that of the inline data",
        /// Lengths and addresses are multiples of the sector size.
        Alignment => "unaligned address or length",
        /// A compressed extent has at most 128 KiB on both sides.
        CompressedBytes => "compressed extent exceeds 128 KiB",
        /// The range used is not empty, within the extent, and ends no later than the sectors of the largest file.
        Range => "range exceeds the extent",
        /// Only written extents are compressed.
        Prealloc => "preallocated extent is compressed or a hole",
    }
}

/// The compression of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// zlib.
    Zlib,
    /// LZO, in segments.
    Lzo,
    /// zstd.
    Zstd,
}

impl Compression {
    const ALL: [Self; 4] = [Self::None, Self::Zlib, Self::Lzo, Self::Zstd];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zlib => 1,
            Self::Lzo => 2,
            Self::Zstd => 3,
        }
    }
}

/// What backs the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileExtentKind<'a> {
    /// Data in the item.
    Inline(&'a [u8]),
    /// Nothing: it reads as zeros.
    Hole,
    /// An extent with data.
    Regular(ExtentPlace),
    /// An extent that was not written: it reads as zeros.
    Prealloc(ExtentPlace),
}

/// The extent that backs a range, and the part of it that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentPlace {
    /// Where the extent lies.
    pub logical: LogicalAddr,
    /// Its length there.
    pub disk_bytes: u64,
    /// Where the used range begins in it, uncompressed.
    pub offset: u64,
}

/// A validated file extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent<'a> {
    /// The transaction that made it.
    pub generation: Generation,
    /// Length of the whole extent, uncompressed.
    pub ram_bytes: u64,
    /// Compression.
    pub compression: Compression,
    /// Length of the range in the file.
    pub file_bytes: u64,
    /// What backs it.
    pub kind: FileExtentKind<'a>,
}

impl<'a> FileExtent<'a> {
    /// Decodes the item of the range that begins at `offset` of its file.
    pub fn decode(
        bytes: &'a [u8],
        offset: u64,
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<FileExtentRule>> {
        let decoded = Self::try_decode(bytes, offset, sector_bytes);
        decoded.map_err(|rule| Corrupt::new(locus, rule))
    }

    fn try_decode(bytes: &'a [u8], offset: u64, sector_bytes: u32) -> Result<Self, FileExtentRule> {
        let prefix = DiskFileExtent::ref_from_prefix(bytes);
        let (disk, rest) = prefix.map_err(|_| FileExtentRule::Size)?;
        let compression = Compression::from_number(disk.compression);
        let compression = compression.ok_or(FileExtentRule::Compression)?;
        if disk.encryption != 0 || disk.other_encoding.get() != 0 {
            return Err(FileExtentRule::Encoding);
        }
        if !offset.is_multiple_of(u64::from(sector_bytes)) {
            return Err(FileExtentRule::FileOffset);
        }
        let extent = Self {
            generation: Generation(disk.generation.get()),
            ram_bytes: disk.ram_bytes.get(),
            compression,
            file_bytes: 0,
            kind: FileExtentKind::Hole,
        };
        match disk.kind {
            0 => extent.with_inline(rest, offset),
            1 | 2 => extent.with_place(rest, offset, sector_bytes, disk.kind == 2),
            _ => Err(FileExtentRule::Kind),
        }
    }

    fn with_inline(self, data: &'a [u8], offset: u64) -> Result<Self, FileExtentRule> {
        if offset != 0 {
            return Err(FileExtentRule::FileOffset);
        }
        if self.compression == Compression::None && self.ram_bytes != data.len() as u64 {
            return Err(FileExtentRule::InlineBytes);
        }
        if self.ram_bytes > COMPRESSED_BYTES_MAX {
            return Err(FileExtentRule::CompressedBytes);
        }
        Ok(Self {
            file_bytes: self.ram_bytes,
            kind: FileExtentKind::Inline(data),
            ..self
        })
    }

    fn with_place(
        self,
        rest: &[u8],
        offset: u64,
        sector_bytes: u32,
        is_prealloc: bool,
    ) -> Result<Self, FileExtentRule> {
        let disk = DiskExtentPlace::ref_from_bytes(rest);
        let disk = disk.map_err(|_| FileExtentRule::Size)?;
        let place = ExtentPlace {
            logical: LogicalAddr(disk.logical.get()),
            disk_bytes: disk.disk_bytes.get(),
            offset: disk.offset.get(),
        };
        let file_bytes = disk.file_bytes.get();
        let numbers = [
            self.ram_bytes,
            place.logical.0,
            place.disk_bytes,
            place.offset,
            file_bytes,
        ];
        let is_aligned = |number: &u64| number.is_multiple_of(u64::from(sector_bytes));
        if !numbers.iter().all(is_aligned) {
            return Err(FileExtentRule::Alignment);
        }
        let end = offset.checked_add(file_bytes);
        if file_bytes == 0 || end.is_none_or(|end| end > FILE_SECTORS_END) {
            return Err(FileExtentRule::Range);
        }
        let extent = Self { file_bytes, ..self };
        if place.logical.0 == 0 {
            let is_plain = !is_prealloc && self.compression == Compression::None;
            return if is_plain {
                Ok(extent)
            } else {
                Err(FileExtentRule::Prealloc)
            };
        }
        let is_compressed = self.compression != Compression::None;
        let len_max = if is_compressed {
            self.ram_bytes
        } else {
            place.disk_bytes
        };
        let used_end = place.offset.checked_add(file_bytes);
        let disk_end = place.logical.checked_add(place.disk_bytes);
        if used_end.is_none_or(|end| end > len_max) || disk_end.is_none() {
            return Err(FileExtentRule::Range);
        }
        let is_large = self.ram_bytes.max(place.disk_bytes) > COMPRESSED_BYTES_MAX;
        if is_compressed && is_large {
            return Err(FileExtentRule::CompressedBytes);
        }
        if is_compressed && is_prealloc {
            return Err(FileExtentRule::Prealloc);
        }
        let kind = if is_prealloc {
            FileExtentKind::Prealloc(place)
        } else {
            FileExtentKind::Regular(place)
        };
        Ok(Self { kind, ..extent })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, place) = match self.kind {
            FileExtentKind::Inline(_) => (0, None),
            FileExtentKind::Hole => (1, Some(ExtentPlace::NONE)),
            FileExtentKind::Regular(place) => (1, Some(place)),
            FileExtentKind::Prealloc(place) => (2, Some(place)),
        };
        let disk = DiskFileExtent {
            generation: self.generation.0.into(),
            ram_bytes: self.ram_bytes.into(),
            compression: self.compression.number(),
            encryption: 0,
            other_encoding: 0.into(),
            kind,
        };
        let mut bytes = disk.as_bytes().to_vec();
        if let FileExtentKind::Inline(data) = self.kind {
            bytes.extend_from_slice(data);
        }
        if let Some(place) = place {
            let disk = DiskExtentPlace {
                logical: place.logical.0.into(),
                disk_bytes: place.disk_bytes.into(),
                offset: place.offset.into(),
                file_bytes: self.file_bytes.into(),
            };
            bytes.extend_from_slice(disk.as_bytes());
        }
        bytes
    }
}

/// Changes where the extent of an item lies. Returns `false`, without a change, for an item that has none.
pub fn set_logical(item: &mut [u8], logical: LogicalAddr) -> bool {
    let place = item.get_mut(INLINE_DATA_OFFSET..);
    let place = place.and_then(|rest| DiskExtentPlace::mut_from_bytes(rest).ok());
    let Some(place) = place else { return false };
    place.logical.set(logical.0);
    true
}

impl ExtentPlace {
    /// The place of a hole.
    const NONE: Self = Self {
        logical: LogicalAddr(0),
        disk_bytes: 0,
        offset: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: ExtentPlace = ExtentPlace {
        logical: LogicalAddr(1 << 24),
        disk_bytes: 8192,
        offset: 4096,
    };

    fn extent(kind: FileExtentKind<'_>) -> FileExtent<'_> {
        FileExtent {
            generation: Generation(5),
            ram_bytes: 8192,
            compression: Compression::None,
            file_bytes: 4096,
            kind,
        }
    }

    fn decode(bytes: &[u8], offset: u64) -> Result<FileExtent<'_>, FileExtentRule> {
        let decoded = FileExtent::decode(bytes, offset, 4096, Locus::UNKNOWN);
        decoded.map_err(|corrupt| corrupt.rule)
    }

    #[test]
    fn extents_of_all_types_survive_encoding() {
        let inline = FileExtent {
            ram_bytes: 6,
            file_bytes: 6,
            ..extent(FileExtentKind::Inline(b"inline"))
        };
        for extent in [
            inline,
            FileExtent {
                compression: Compression::Lzo,
                ram_bytes: 100,
                file_bytes: 100,
                ..inline
            },
            extent(FileExtentKind::Hole),
            extent(FileExtentKind::Regular(PLACE)),
            extent(FileExtentKind::Prealloc(PLACE)),
            FileExtent {
                compression: Compression::Zstd,
                ram_bytes: 128 << 10,
                ..extent(FileExtentKind::Regular(PLACE))
            },
        ] {
            assert_eq!(decode(&extent.encode(), 0), Ok(extent));
        }
    }

    #[test]
    fn broken_headers_are_refused() {
        let good = extent(FileExtentKind::Regular(PLACE)).encode();
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decode(&bytes, 0).unwrap_err()
        };
        assert_eq!(changed(20, 3), FileExtentRule::Kind);
        assert_eq!(changed(16, 4), FileExtentRule::Compression);
        assert_eq!(changed(17, 1), FileExtentRule::Encoding);
        assert_eq!(changed(18, 1), FileExtentRule::Encoding);
        assert_eq!(changed(21, 1), FileExtentRule::Alignment);
        assert_eq!(decode(&good[..20], 0), Err(FileExtentRule::Size));
        assert_eq!(decode(&good[..52], 0), Err(FileExtentRule::Size));
        assert_eq!(decode(&good, 1), Err(FileExtentRule::FileOffset));
    }

    #[test]
    fn broken_ranges_are_refused() {
        let rule = |extent: FileExtent<'_>, offset| decode(&extent.encode(), offset).unwrap_err();
        let regular = extent(FileExtentKind::Regular(PLACE));
        let file_bytes = 8192;
        let long = FileExtent {
            file_bytes,
            ..regular
        };
        assert_eq!(rule(long, 0), FileExtentRule::Range);
        let last = i64::MAX.unsigned_abs() & !4095;
        assert_eq!(decode(&regular.encode(), last), Ok(regular));
        assert_eq!(rule(regular, last + 4096), FileExtentRule::Range);
        assert_eq!(rule(regular, !4095), FileExtentRule::Range);
        let empty = FileExtent {
            file_bytes: 0,
            ..regular
        };
        assert_eq!(rule(empty, 0), FileExtentRule::Range);
        let large = FileExtent {
            compression: Compression::Zlib,
            ram_bytes: 132 << 10,
            ..regular
        };
        assert_eq!(rule(large, 0), FileExtentRule::CompressedBytes);
        let prealloc = FileExtent {
            compression: Compression::Zlib,
            ..extent(FileExtentKind::Prealloc(PLACE))
        };
        assert_eq!(rule(prealloc, 0), FileExtentRule::Prealloc);
        let inline = extent(FileExtentKind::Inline(b"inline"));
        assert_eq!(rule(inline, 0), FileExtentRule::InlineBytes);
        assert_eq!(rule(inline, 4096), FileExtentRule::FileOffset);
        let bomb = FileExtent {
            compression: Compression::Zlib,
            ram_bytes: 1 << 40,
            ..inline
        };
        assert_eq!(rule(bomb, 0), FileExtentRule::CompressedBytes);
    }
}
