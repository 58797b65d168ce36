//! Blocks of the bitmaps and summaries of realtime groups, and the superblock of their device.
//! Spec: `xfs-headers/xfs_format.h`.

use platter_ondisk::endian::{Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum;
use super::identity::{Identity, Site};
use super::superblock::Superblock;

/// `XFS_RTBITMAP_MAGIC` and `XFS_RTSUMMARY_MAGIC`.
const BITMAP_MAGIC: u32 = 0x424d_505a;
const SUMMARY_MAGIC: u32 = 0x5355_4d59;
/// `XFS_RTSB_MAGIC`.
const SUPERBLOCK_MAGIC: u32 = 0x4672_6f67;
/// Bytes of a word of a bitmap, and of a count of a summary.
pub const WORD_BYTES: usize = 4;

rules! {
    /// What a block of a bitmap or summary must hold to.
    pub enum RtBlockRule of "realtime block" {
        /// `rt_magic`.
        Magic => "bad magic number",
        /// `rt_crc`.
        Checksum => "bad CRC",
        /// `rt_uuid`.
        Uuid => "bad UUID",
        /// `rt_blkno`.
        BlockNumber => "block number is not where it lies",
        /// `rt_owner`.
        Owner => "bad owner",
    }
}

identity_rules!(RtBlockRule);

rules! {
    /// What the superblock of a realtime device must hold to.
    pub enum RtSuperblockRule of "realtime superblock" {
        /// `rsb_magicnum`.
        Magic => "bad magic number",
        /// `rsb_crc`.
        Checksum => "bad CRC",
        /// `rsb_pad`.
        Padding => "padding is not zero",
        /// `rsb_fname` is that of the filesystem.
        Label => "label does not match the primary superblock",
        /// `rsb_uuid` and `rsb_meta_uuid` are those of the filesystem.
        Uuid => "UUID does not match the primary superblock",
    }
}

/// What a block is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RtBlockKind {
    /// A bitmap.
    Bitmap,
    /// A summary.
    Summary,
}

/// `struct xfs_rtbuf_blkinfo`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskRtHeader {
    /// `rt_magic`.
    pub magic: Be32,
    /// `rt_crc`.
    pub checksum: Le32,
    /// `rt_owner`.
    pub owner: Be64,
    /// `rt_blkno`.
    pub block: Be64,
    /// `rt_lsn`.
    pub lsn: Be64,
    /// `rt_uuid`.
    pub uuid: [u8; 16],
}

const _: () = assert!(size_of::<DiskRtHeader>() == 48);

impl DiskRtHeader {
    /// Where the checksum lies.
    pub const CHECKSUM_OFFSET: usize = 4;
}

/// Words of a bitmap, or counts of a summary, that a block of so many bytes holds.
#[must_use]
pub fn words(block_bytes: u32) -> u64 {
    let bytes = u64::from(block_bytes).saturating_sub(size_of::<DiskRtHeader>() as u64);
    bytes.checked_div(WORD_BYTES as u64).unwrap_or(0)
}

/// The words of a block, as numbers, and the LSN of the block.
pub fn decode(
    bytes: &[u8],
    kind: RtBlockKind,
    site: &Site<'_>,
) -> Result<(Vec<u32>, u64), RtBlockRule> {
    let (header, body) = DiskRtHeader::ref_from_prefix(bytes).map_err(|_| RtBlockRule::Magic)?;
    let magic = match kind {
        RtBlockKind::Bitmap => BITMAP_MAGIC,
        RtBlockKind::Summary => SUMMARY_MAGIC,
    };
    if header.magic.get() != magic {
        return Err(RtBlockRule::Magic);
    }
    let identity = Identity {
        checksum_at: DiskRtHeader::CHECKSUM_OFFSET,
        uuid: header.uuid,
        block: header.block.get(),
        owner: header.owner.get(),
    };
    identity.check(bytes, site)?;
    let (words, _) = <[Be32]>::ref_from_prefix_with_elems(body, body.len() / WORD_BYTES)
        .map_err(|_| RtBlockRule::Magic)?;
    let numbers = words.iter().map(|word| word.get());
    Ok((numbers.collect(), header.lsn.get()))
}

/// Stores the words of a block, and its checksum.
pub fn store(bytes: &mut [u8], words: &[u32]) {
    if let Some(body) = bytes.get_mut(size_of::<DiskRtHeader>()..) {
        let slots = body.chunks_exact_mut(WORD_BYTES);
        for (slot, word) in slots.zip(words) {
            slot.copy_from_slice(&word.to_be_bytes());
        }
    }
    checksum::seal(bytes, DiskRtHeader::CHECKSUM_OFFSET);
}

/// `struct xfs_rtsb`: the first block of a realtime device with groups.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskRtSuperblock {
    /// `rsb_magicnum`.
    pub magic: Be32,
    /// `rsb_crc`.
    pub checksum: Le32,
    /// `rsb_pad`.
    pub padding: Be32,
    /// `rsb_fname`.
    pub label: [u8; 12],
    /// `rsb_uuid`.
    pub uuid: [u8; 16],
    /// `rsb_meta_uuid`.
    pub meta_uuid: [u8; 16],
}

const _: () = assert!(size_of::<DiskRtSuperblock>() == 56);

impl DiskRtSuperblock {
    /// Where the checksum lies.
    pub const CHECKSUM_OFFSET: usize = 4;

    /// The label without padding.
    #[must_use]
    pub fn label(&self) -> &[u8] {
        let end = self.label.iter().position(|&byte| byte == 0);
        self.label
            .get(..end.unwrap_or(self.label.len()))
            .unwrap_or_default()
    }

    /// The superblock that begins a block, checked by itself.
    pub fn decode(bytes: &[u8]) -> Result<&Self, RtSuperblockRule> {
        let (disk, _) = Self::ref_from_prefix(bytes).map_err(|_| RtSuperblockRule::Magic)?;
        if disk.magic.get() != SUPERBLOCK_MAGIC {
            return Err(RtSuperblockRule::Magic);
        }
        if !checksum::matches(bytes, Self::CHECKSUM_OFFSET) {
            return Err(RtSuperblockRule::Checksum);
        }
        if disk.padding.get() != 0 {
            return Err(RtSuperblockRule::Padding);
        }
        Ok(disk)
    }

    /// The rules by which it does not belong to a filesystem.
    #[must_use]
    pub fn differs_from(&self, superblock: &Superblock) -> Vec<RtSuperblockRule> {
        let mut rules = Vec::new();
        if self.label() != superblock.label {
            rules.push(RtSuperblockRule::Label);
        }
        let is_same = self.uuid == *superblock.uuid.as_bytes()
            && self.meta_uuid == *superblock.meta_uuid.as_bytes();
        if !is_same {
            rules.push(RtSuperblockRule::Uuid);
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::BasicBlock;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::superblock::tests::sample;

    #[test]
    fn block_of_a_bitmap_is_that_of_its_file() {
        let geometry = sample_geometry();
        let mut block = vec![0; 4096];
        let (header, _) = DiskRtHeader::mut_from_prefix(&mut block).unwrap();
        header.magic.set(BITMAP_MAGIC);
        header.block.set(80);
        header.owner.set(655_489);
        header.lsn.set(7);
        header.uuid = *geometry.meta_uuid.as_bytes();
        block[48..52].copy_from_slice(&[0xff, 0xff, 0xff, 0xfe]);
        let site = |at, owner| Site::new(&geometry, BasicBlock(at), owner);
        let (bitmap, here) = (RtBlockKind::Bitmap, site(80, 655_489));
        assert_eq!(decode(&block, bitmap, &here), Err(RtBlockRule::Checksum));
        checksum::seal(&mut block, DiskRtHeader::CHECKSUM_OFFSET);
        let (found, lsn) = decode(&block, bitmap, &here).unwrap();
        assert_eq!((found.len() as u64, lsn), (words(4096), 7));
        assert_eq!(found[..2], [0xffff_fffe, 0]);
        let mut stored = block.clone();
        store(&mut stored, &[7, 8]);
        let (found, _) = decode(&stored, bitmap, &here).unwrap();
        assert_eq!(found[..3], [7, 8, 0]);
        for (kind, site, rule) in [
            (RtBlockKind::Summary, here, RtBlockRule::Magic),
            (bitmap, site(88, 655_489), RtBlockRule::BlockNumber),
            (bitmap, site(80, 655_490), RtBlockRule::Owner),
        ] {
            assert_eq!(decode(&block, kind, &site), Err(rule));
        }
    }

    #[test]
    fn superblock_has_a_checksum_over_its_block() {
        let mut block = vec![0; 4096];
        block[..4].copy_from_slice(b"Frog");
        assert!(DiskRtSuperblock::decode(&block).is_err());
        checksum::seal(&mut block, DiskRtSuperblock::CHECKSUM_OFFSET);
        assert!(DiskRtSuperblock::decode(&block).is_ok());
        block[4095] = 1;
        let rule = DiskRtSuperblock::decode(&block).err();
        assert_eq!(rule, Some(RtSuperblockRule::Checksum));
        block[8] = 1;
        checksum::seal(&mut block, DiskRtSuperblock::CHECKSUM_OFFSET);
        let rule = DiskRtSuperblock::decode(&block).err();
        assert_eq!(rule, Some(RtSuperblockRule::Padding));
    }

    #[test]
    fn superblock_names_its_filesystem() {
        let mut superblock = sample().decode().unwrap();
        superblock.label = b"realtime".to_vec();
        let mut block = vec![0; 4096];
        let (disk, _) = DiskRtSuperblock::mut_from_prefix(&mut block).unwrap();
        disk.label[..8].copy_from_slice(b"realtime");
        disk.uuid = *superblock.uuid.as_bytes();
        disk.meta_uuid = *superblock.meta_uuid.as_bytes();
        assert_eq!(disk.differs_from(&superblock), []);
        disk.label[7] = 0;
        assert_eq!(disk.differs_from(&superblock), [RtSuperblockRule::Label]);
        disk.meta_uuid[0] ^= 1;
        let both = [RtSuperblockRule::Label, RtSuperblockRule::Uuid];
        assert_eq!(disk.differs_from(&superblock), both);
    }
}
