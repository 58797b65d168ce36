//! A logged buffer: which of its chunks of 128 bytes follow, one region for each run of them.
//! Spec: `xfs/journaling_log`, "Buffer Log Item".

use std::ops::Range;

use bitflags::bitflags;
use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemKind, LogRule};
use crate::ondisk::chunks::CHUNK_BYTES;
use crate::ondisk::types::BasicBlock;

/// The most words of a map: those of 64 KiB, and one.
const MAP_WORDS_MAX: u32 = 17;
/// `XFS_BLFT_SHIFT`.
const TYPE_SHIFT: u32 = 11;

/// The first region of a buffer item without its map.
/// Spec: `xfs/journaling_log`, `struct xfs_buf_log_format`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskBufferFormat {
    /// `blf_type`.
    pub kind: Le16,
    /// `blf_size`.
    pub regions: Le16,
    /// `blf_flags`.
    pub flags: Le16,
    /// `blf_len`, in basic blocks.
    pub len: Le16,
    /// `blf_blkno`.
    pub block: Le64,
    /// `blf_map_size`, in words.
    pub map_size: Le32,
}

const _: () = assert!(size_of::<DiskBufferFormat>() == 20);

bitflags! {
    /// The low bits of `blf_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BufferFlags: u16 {
        /// `XFS_BLF_INODE_BUF`: of the inodes in the buffer, only the links of unlinked lists count.
        const INODES = 1 << 0;
        /// `XFS_BLF_CANCEL`: the blocks were freed; earlier items of this buffer must not be replayed.
        const CANCEL = 1 << 1;
        /// `XFS_BLF_UDQUOT_BUF`.
        const USER_QUOTA = 1 << 2;
        /// `XFS_BLF_PDQUOT_BUF`.
        const PROJECT_QUOTA = 1 << 3;
        /// `XFS_BLF_GDQUOT_BUF`.
        const GROUP_QUOTA = 1 << 4;
    }
}

macro_rules! types {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)+) => {
        /// What a logged buffer holds (`XFS_BLFT_*`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum BufferType {
            $($(#[$doc])* $name,)+
        }

        impl BufferType {
            fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($value => Some(Self::$name),)+
                    _ => None,
                }
            }

            fn number(self) -> u16 {
                match self {
                    $(Self::$name => $value,)+
                }
            }
        }
    };
}

types! {
    /// Not said, as by logs of version 4 and for cancelled buffers.
    Unknown = 0,
    /// User quota records.
    UserQuota = 1,
    /// Project quota records.
    ProjectQuota = 2,
    /// Group quota records.
    GroupQuota = 3,
    /// A B-tree block.
    Btree = 4,
    /// The free space header of an allocation group.
    Agf = 5,
    /// The free list of an allocation group.
    Agfl = 6,
    /// The inode header of an allocation group.
    Agi = 7,
    /// Inodes.
    Inodes = 8,
    /// A remote symbolic link target.
    Symlink = 9,
    /// A directory of one block.
    DirBlock = 10,
    /// A directory data block.
    DirData = 11,
    /// A directory free index block.
    DirFree = 12,
    /// A directory's only leaf block.
    DirLeaf1 = 13,
    /// A directory leaf block under nodes.
    DirLeafN = 14,
    /// A node of a directory or attribute tree.
    DaNode = 15,
    /// An attribute leaf block.
    AttrLeaf = 16,
    /// A remote attribute value.
    AttrRemote = 17,
    /// A superblock.
    Superblock = 18,
    /// A block of the realtime bitmap.
    RtBitmap = 19,
    /// A block of the realtime summary.
    RtSummary = 20,
}

/// A logged buffer whose rules hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferFormat {
    /// Number of regions of the item.
    pub regions: u16,
    /// How it is to be recovered.
    pub flags: BufferFlags,
    /// What it holds.
    pub kind: BufferType,
    /// Where it lies.
    pub block: BasicBlock,
    /// Its length in basic blocks.
    pub len: u16,
    /// One bit for each chunk.
    map: Vec<u32>,
}

impl BufferFormat {
    /// A buffer item that logs `chunks`, ascending, of a buffer.
    #[must_use]
    pub fn new(
        block: BasicBlock,
        len: u16,
        kind: BufferType,
        flags: BufferFlags,
        chunks: impl IntoIterator<Item = usize>,
    ) -> Self {
        let words = usize::from(len).saturating_mul(4).div_ceil(32).max(1);
        let mut map = vec![0_u32; words];
        for chunk in chunks {
            if let Some(word) = map.get_mut(chunk.div_euclid(32)) {
                *word |= 1 << chunk.rem_euclid(32);
            }
        }
        let mut format = Self {
            regions: 1,
            flags,
            kind,
            block,
            len,
            map,
        };
        let runs = u16::try_from(format.runs().count()).unwrap_or(u16::MAX);
        format.regions = runs.saturating_add(1);
        format
    }

    /// Validates the first region of a buffer item.
    pub fn decode(region: &[u8], locus: Locus) -> Result<Self, Corrupt<LogRule>> {
        let broken = |rule| Err(Corrupt::new(locus, rule));
        let Ok((disk, rest)) = DiskBufferFormat::ref_from_prefix(region) else {
            return broken(LogRule::ItemLength);
        };
        let words = disk.map_size.get();
        if words > MAP_WORDS_MAX {
            return broken(LogRule::BufferMap);
        }
        let words = usize::try_from(words).unwrap_or_default();
        let Ok((map, _)) = <[Le32]>::ref_from_prefix_with_elems(rest, words) else {
            return broken(LogRule::ItemLength);
        };
        let flags = disk.flags.get();
        let Some(kind) = BufferType::from_number(flags >> TYPE_SHIFT) else {
            return broken(LogRule::BufferKind);
        };
        let len = disk.len.get();
        let format = Self {
            regions: disk.regions.get(),
            flags: BufferFlags::from_bits_truncate(flags),
            kind,
            block: BasicBlock(disk.block.get()),
            len,
            map: map.iter().map(|word| word.get()).collect(),
        };
        let end = format.runs().map(|run| run.end).max().unwrap_or_default();
        if len == 0 || end > format.len_bytes() {
            return broken(LogRule::BufferMap);
        }
        Ok(format)
    }

    /// The first region of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskBufferFormat {
            kind: ItemKind::Buffer.number().into(),
            regions: self.regions.into(),
            flags: (self.flags.bits() | (self.kind.number() << TYPE_SHIFT)).into(),
            len: self.len.into(),
            block: self.block.0.into(),
            map_size: u32::try_from(self.map.len()).unwrap_or_default().into(),
        };
        let mut region = disk.as_bytes().to_vec();
        for word in &self.map {
            region.extend_from_slice(Le32::new(*word).as_bytes());
        }
        region
    }

    /// Length of the first region of the item of a buffer of so many bytes.
    #[must_use]
    pub fn encoded_bytes(len_bytes: usize) -> u64 {
        let words = len_bytes.div_ceil(CHUNK_BYTES).div_ceil(32).max(1);
        let bytes = size_of::<DiskBufferFormat>().saturating_add(words.saturating_mul(4));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Length of the buffer in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        usize::from(self.len).saturating_mul(512)
    }

    /// The logged ranges of bytes, ascending; a region holds one of them or a part of one.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let bits = self.map.len().saturating_mul(32);
        let is_set = |bit: usize| {
            let word = self.map.get(bit.div_euclid(32)).copied();
            word.unwrap_or_default() & (1 << bit.rem_euclid(32)) != 0
        };
        let mut bit = 0_usize;
        std::iter::from_fn(move || {
            let start = (bit..bits).find(|&bit| is_set(bit))?;
            let end = (start..bits).find(|&bit| !is_set(bit)).unwrap_or(bits);
            bit = end;
            Some(start.saturating_mul(CHUNK_BYTES)..end.saturating_mul(CHUNK_BYTES))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::chunks::Chunks;

    fn sample() -> BufferFormat {
        BufferFormat::new(
            BasicBlock(0x25801),
            8,
            BufferType::Agf,
            BufferFlags::empty(),
            [0, 1, 2, 7, 31],
        )
    }

    #[test]
    fn dirty_chunks_become_runs() {
        let format = sample();
        let runs: Vec<_> = format.runs().collect();
        assert_eq!(runs, [0..384, 896..1024, 3968..4096]);
        assert_eq!(format.regions, 4);
        let region = format.encode();
        assert_eq!(region.len(), 24);
        assert_eq!(BufferFormat::decode(&region, Locus::UNKNOWN), Ok(format));
    }

    #[test]
    fn region_decodes_as_the_kernel_wrote_it() {
        let region = [
            0x3c, 0x12, 2, 0, 0, 0x90, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0,
        ];
        let format = BufferFormat::decode(&region, Locus::UNKNOWN).unwrap();
        assert_eq!(format.kind, BufferType::Superblock);
        assert!(format.runs().eq(std::iter::once(0..384)));
        assert_eq!(format.encode(), region);
    }

    #[test]
    fn buffers_that_break_a_rule_are_refused() {
        let decode = |at: usize, value: u8| {
            let mut region = sample().encode();
            region[at] = value;
            BufferFormat::decode(&region, Locus::UNKNOWN).map_err(|corrupt| corrupt.rule)
        };
        assert_eq!(decode(16, 18), Err(LogRule::BufferMap));
        assert_eq!(decode(16, 2), Err(LogRule::ItemLength));
        assert_eq!(decode(6, 1), Err(LogRule::BufferMap));
        assert_eq!(decode(6, 0), Err(LogRule::BufferMap));
        assert_eq!(decode(5, 0xa8), Err(LogRule::BufferKind));
        let short = BufferFormat::decode(&[0; 19], Locus::UNKNOWN).unwrap_err();
        assert_eq!(short.rule, LogRule::ItemLength);
    }

    #[test]
    fn chunks_and_their_runs_are_counted() {
        for chunks in [
            vec![],
            vec![0],
            vec![3, 4, 5, 9],
            vec![62, 63, 64, 65, 127, 128, 511],
            (0..512).collect(),
            (0..512).step_by(2).collect(),
        ] {
            let mut map = Chunks::default();
            for &chunk in &chunks {
                map.add_bytes(chunk * CHUNK_BYTES..chunk * CHUNK_BYTES + 1);
            }
            assert_eq!(map.indices().collect::<Vec<_>>(), chunks);
            let (kind, flags) = (BufferType::Btree, BufferFlags::empty());
            let format = BufferFormat::new(BasicBlock(8), 128, kind, flags, map.indices());
            let bytes: usize = format.runs().map(|run| run.len()).sum();
            let (count, runs) = map.count();
            assert_eq!(count * CHUNK_BYTES as u64, bytes as u64);
            assert_eq!(runs, format.runs().count() as u64);
            let encoded = format.encode().len() as u64;
            assert_eq!(BufferFormat::encoded_bytes(65536), encoded);
        }
    }
}
