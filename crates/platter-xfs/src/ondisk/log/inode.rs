//! A logged inode: which of its parts follow, and where it lies.
//! Spec: `xfs/journaling_log`, "Inode Updates".

use bitflags::bitflags;
use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemKind, LogRule};
use crate::ondisk::types::{BasicBlock, InodeNr};

/// The first region of an inode item. Spec: `xfs/journaling_log`, `struct xfs_inode_log_format_64`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInodeFormat {
    /// `ilf_type` to `ilf_dsize`.
    pub head: DiskInodeHead,
    /// `ilf_pad`.
    pub pad: Le32,
    /// `ilf_ino` to `ilf_boffset`.
    pub tail: DiskInodeTail,
}

/// The same from machines that do not pad it.
/// Spec: `xfs/journaling_log`, `struct xfs_inode_log_format_32`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInodeFormat32 {
    /// `ilf_type` to `ilf_dsize`.
    pub head: DiskInodeHead,
    /// `ilf_ino` to `ilf_boffset`.
    pub tail: DiskInodeTail,
}

/// The part before the padding.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInodeHead {
    /// `ilf_type`.
    pub kind: Le16,
    /// `ilf_size`.
    pub regions: Le16,
    /// `ilf_fields`.
    pub fields: Le32,
    /// `ilf_asize`, in bytes.
    pub attr_len: Le16,
    /// `ilf_dsize`, in bytes.
    pub data_len: Le16,
}

/// The part after the padding.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskInodeTail {
    /// `ilf_ino`.
    pub inode: Le64,
    /// `ilfu_rdev`.
    pub device: Le32,
    /// The rest of `ilf_u`.
    pub union_pad: [u8; 12],
    /// `ilf_blkno`.
    pub block: Le64,
    /// `ilf_len`, in basic blocks.
    pub len: Le32,
    /// `ilf_boffset`, in bytes.
    pub offset: Le32,
}

const _: () = assert!(size_of::<DiskInodeFormat>() == 56);
const _: () = assert!(size_of::<DiskInodeFormat32>() == 52);

bitflags! {
    /// `ilf_fields`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InodeFields: u32 {
        /// `XFS_ILOG_CORE`.
        const CORE = 0x001;
        /// `XFS_ILOG_DDATA`.
        const DATA_LOCAL = 0x002;
        /// `XFS_ILOG_DEXT`.
        const DATA_EXTENTS = 0x004;
        /// `XFS_ILOG_DBROOT`.
        const DATA_ROOT = 0x008;
        /// `XFS_ILOG_DEV`.
        const DEVICE = 0x010;
        /// `XFS_ILOG_UUID`; never written.
        const UUID = 0x020;
        /// `XFS_ILOG_ADATA`.
        const ATTR_LOCAL = 0x040;
        /// `XFS_ILOG_AEXT`.
        const ATTR_EXTENTS = 0x080;
        /// `XFS_ILOG_ABROOT`.
        const ATTR_ROOT = 0x100;
        /// `XFS_ILOG_DOWNER`: blocks of the data fork's tree get this inode as owner.
        const DATA_OWNER = 0x200;
        /// `XFS_ILOG_AOWNER`.
        const ATTR_OWNER = 0x400;
        /// Both.
        const OWNER = 0x600;
        /// The fields whose region is the data fork.
        const DATA_FORK = 0x00e;
        /// The fields whose region is the attribute fork.
        const ATTR_FORK = 0x1c0;
    }
}

/// A logged inode whose rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeFormat {
    /// Number of regions of the item.
    pub regions: u16,
    /// The parts that follow.
    pub fields: InodeFields,
    /// Bytes of the attribute fork.
    pub attr_len: u16,
    /// Bytes of the data fork.
    pub data_len: u16,
    /// The inode.
    pub inode: InodeNr,
    /// The device of a special file.
    pub device: u32,
    /// Where the buffer of the inode lies.
    pub block: BasicBlock,
    /// Length of the buffer in basic blocks.
    pub len: u32,
    /// The inode's first byte in the buffer.
    pub offset: u32,
}

impl InodeFormat {
    /// Validates the first region of an inode item.
    pub fn decode(region: &[u8], locus: Locus) -> Result<Self, Corrupt<LogRule>> {
        let broken = |rule| Err(Corrupt::new(locus, rule));
        let (head, tail) = if let Ok(disk) = DiskInodeFormat::ref_from_bytes(region) {
            (&disk.head, &disk.tail)
        } else if let Ok(disk) = DiskInodeFormat32::ref_from_bytes(region) {
            (&disk.head, &disk.tail)
        } else {
            return broken(LogRule::ItemLength);
        };
        let Some(fields) = InodeFields::from_bits(head.fields.get()) else {
            return broken(LogRule::InodeFields);
        };
        let Some(inode) = InodeNr::new(tail.inode.get()) else {
            return broken(LogRule::InodePlace);
        };
        let format = Self {
            regions: head.regions.get(),
            fields,
            attr_len: head.attr_len.get(),
            data_len: head.data_len.get(),
            inode,
            device: tail.device.get(),
            block: BasicBlock(tail.block.get()),
            len: tail.len.get(),
            offset: tail.offset.get(),
        };
        let forks = [InodeFields::DATA_FORK, InodeFields::ATTR_FORK];
        let one_each = forks.map(|fork| fields.intersection(fork).bits().count_ones() <= 1);
        if one_each != [true, true] || usize::from(format.regions) < format.regions_needed() {
            return broken(LogRule::InodeFields);
        }
        Ok(format)
    }

    /// The regions that the fields ask for: the format, the core, and each fork that is logged.
    #[must_use]
    pub fn regions_needed(&self) -> usize {
        let forks = [InodeFields::DATA_FORK, InodeFields::ATTR_FORK];
        let logged = forks.iter().filter(|&&fork| self.fields.intersects(fork));
        logged.count().saturating_add(2)
    }

    /// Length of the first region.
    pub const BYTES: usize = size_of::<DiskInodeFormat>();

    /// The first region of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskInodeFormat {
            head: DiskInodeHead {
                kind: ItemKind::Inode.number().into(),
                regions: self.regions.into(),
                fields: self.fields.bits().into(),
                attr_len: self.attr_len.into(),
                data_len: self.data_len.into(),
            },
            pad: 0.into(),
            tail: DiskInodeTail {
                inode: self.inode.get().into(),
                device: self.device.into(),
                union_pad: [0; 12],
                block: self.block.0.into(),
                len: self.len.into(),
                offset: self.offset.into(),
            },
        };
        disk.as_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> InodeFormat {
        InodeFormat {
            regions: 3,
            fields: InodeFields::CORE | InodeFields::DATA_EXTENTS,
            attr_len: 0,
            data_len: 16,
            inode: InodeNr::new(0x84).unwrap(),
            device: 0,
            block: BasicBlock(0x80),
            len: 32,
            offset: 2048,
        }
    }

    #[test]
    fn both_forms_decode_to_the_same() {
        let region = sample().encode();
        assert_eq!(InodeFormat::decode(&region, Locus::UNKNOWN), Ok(sample()));
        let unpadded = [&region[..12], &region[16..]].concat();
        assert_eq!(InodeFormat::decode(&unpadded, Locus::UNKNOWN), Ok(sample()));
    }

    #[test]
    fn inodes_that_break_a_rule_are_refused() {
        let decode = |change: fn(&mut Vec<u8>)| {
            let mut region = sample().encode();
            change(&mut region);
            InodeFormat::decode(&region, Locus::UNKNOWN).map_err(|corrupt| corrupt.rule)
        };
        assert_eq!(decode(|r| r.truncate(50)), Err(LogRule::ItemLength));
        assert_eq!(decode(|r| r[5] = 0x40), Err(LogRule::InodeFields));
        assert_eq!(decode(|r| r[4] = 0x0f), Err(LogRule::InodeFields));
        assert_eq!(decode(|r| r[2] = 2), Err(LogRule::InodeFields));
        assert_eq!(decode(|r| r[16..24].fill(0)), Err(LogRule::InodePlace));
    }
}
