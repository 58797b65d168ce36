//! A logged quota record, and the items that end quota accounting.
//! Spec: `xfs/journaling_log`, "Update Quota File" and "Disable Quota Log Item".

use bitflags::bitflags;
use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ItemKind, LogRule};
use crate::ondisk::types::BasicBlock;

/// Bytes of a quota record that are logged (`struct xfs_disk_dquot`), in the byte order of the disk.
pub const DQUOT_BYTES: usize = 104;
/// `d_magic`: `DQ`.
const DQUOT_MAGIC: [u8; 2] = *b"DQ";

/// The first region of a quota item. Spec: `xfs/journaling_log`, `struct xfs_dq_logformat`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDquotFormat {
    /// `qlf_type`.
    pub kind: Le16,
    /// `qlf_size`.
    pub regions: Le16,
    /// `qlf_id`.
    pub id: Le32,
    /// `qlf_blkno`.
    pub block: Le64,
    /// `qlf_len`, in filesystem blocks, unlike `qlf_blkno`.
    pub blocks: Le32,
    /// `qlf_boffset`, in bytes.
    pub offset: Le32,
}

/// An item that turns quota off. Spec: `xfs/journaling_log`, `struct xfs_qoff_logformat`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskQuotaOff {
    /// `qf_type`.
    pub kind: Le16,
    /// `qf_size`.
    pub regions: Le16,
    /// `qf_flags`.
    pub flags: Le32,
    /// `qf_pad`.
    pub pad: [u8; 12],
}

const _: () = assert!(size_of::<DiskDquotFormat>() == 24);
const _: () = assert!(size_of::<DiskQuotaOff>() == 20);

bitflags! {
    /// The quotas that are turned off.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct QuotaOff: u32 {
        /// `XFS_UQUOTA_ACCT`.
        const USER = 0x01;
        /// `XFS_PQUOTA_ACCT`.
        const PROJECT = 0x08;
        /// `XFS_GQUOTA_ACCT`.
        const GROUP = 0x40;
    }
}

/// A logged quota record whose rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DquotFormat {
    /// The user, group or project.
    pub id: u32,
    /// Where the buffer of the record lies.
    pub block: BasicBlock,
    /// Length of the buffer in filesystem blocks.
    pub blocks: u32,
    /// The record's first byte in the buffer.
    pub offset: u32,
}

impl DquotFormat {
    /// Validates the first region of a quota item.
    pub fn decode(region: &[u8], locus: Locus) -> Result<Self, Corrupt<LogRule>> {
        let Ok((disk, _)) = DiskDquotFormat::ref_from_prefix(region) else {
            return Err(Corrupt::new(locus, LogRule::ItemLength));
        };
        if disk.regions.get() != 2 {
            return Err(Corrupt::new(locus, LogRule::ItemRegions));
        }
        Ok(Self {
            id: disk.id.get(),
            block: BasicBlock(disk.block.get()),
            blocks: disk.blocks.get(),
            offset: disk.offset.get(),
        })
    }

    /// The first region of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskDquotFormat {
            kind: ItemKind::Dquot.number().into(),
            regions: 2.into(),
            id: self.id.into(),
            block: self.block.0.into(),
            blocks: self.blocks.into(),
            offset: self.offset.into(),
        };
        disk.as_bytes().to_vec()
    }
}

impl QuotaOff {
    /// Validates the region of a quota-off item.
    pub fn decode(region: &[u8], locus: Locus) -> Result<Self, Corrupt<LogRule>> {
        let Ok((disk, _)) = DiskQuotaOff::ref_from_prefix(region) else {
            return Err(Corrupt::new(locus, LogRule::ItemLength));
        };
        Ok(Self::from_bits_truncate(disk.flags.get()))
    }

    /// The quota that a record is of, by its `d_type`.
    #[must_use]
    pub fn of_record(record: &[u8]) -> Option<Self> {
        let [b'D', b'Q', _, kind, ..] = record else {
            return None;
        };
        match kind & 0x07 {
            1 => Some(Self::USER),
            2 => Some(Self::PROJECT),
            4 => Some(Self::GROUP),
            _ => None,
        }
    }

    /// The region of the item.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let disk = DiskQuotaOff {
            kind: ItemKind::QuotaOff.number().into(),
            regions: 1.into(),
            flags: self.bits().into(),
            pad: [0; 12],
        };
        disk.as_bytes().to_vec()
    }
}

/// The quota records of the buffer begin with the magic number.
#[must_use]
pub fn has_dquot_magic(record: &[u8]) -> bool {
    record.starts_with(&DQUOT_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_items_decode_as_they_were_encoded() {
        let format = DquotFormat {
            id: 1000,
            block: BasicBlock(4096),
            blocks: 1,
            offset: 136,
        };
        let mut region = format.encode();
        assert_eq!(DquotFormat::decode(&region, Locus::UNKNOWN), Ok(format));
        region[2] = 1;
        let refused = DquotFormat::decode(&region, Locus::UNKNOWN).unwrap_err();
        assert_eq!(refused.rule, LogRule::ItemRegions);
        let refused = DquotFormat::decode(&region[..20], Locus::UNKNOWN).unwrap_err();
        assert_eq!(refused.rule, LogRule::ItemLength);
        let off = QuotaOff::USER | QuotaOff::GROUP;
        assert_eq!(QuotaOff::decode(&off.encode(), Locus::UNKNOWN), Ok(off));
        let refused = QuotaOff::decode(&[0; 8], Locus::UNKNOWN).unwrap_err();
        assert_eq!(refused.rule, LogRule::ItemLength);
    }

    #[test]
    fn quota_of_a_record_is_its_type() {
        assert_eq!(QuotaOff::of_record(b"DQ\x01\x01"), Some(QuotaOff::USER));
        assert_eq!(QuotaOff::of_record(b"DQ\x01\x82"), Some(QuotaOff::PROJECT));
        assert_eq!(QuotaOff::of_record(b"DQ\x01\x00"), None);
        assert_eq!(QuotaOff::of_record(b"XX\x01\x01"), None);
        assert!(has_dquot_magic(b"DQ\x01") && !has_dquot_magic(b"D"));
    }
}
