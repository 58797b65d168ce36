//! The intent to exchange mappings of two files. Spec: `xfs-headers/xfs_log_format.h`.

use bitflags::bitflags;
use platter_ondisk::endian::{Le16, Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{ItemKind, LogRule};

/// The item. `struct xfs_xmi_log_format`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExchangeIntent {
    /// `xmi_type`.
    pub kind: Le16,
    /// `xmi_size`.
    pub regions: Le16,
    /// `__pad`.
    pub pad: Le32,
    /// `xmi_id`.
    pub id: Le64,
    /// `xmi_inode1` and `xmi_inode2`.
    pub inodes: [Le64; 2],
    /// `xmi_igen1` and `xmi_igen2`.
    pub generations: [Le32; 2],
    /// `xmi_startoff1` and `xmi_startoff2`.
    pub offsets: [Le64; 2],
    /// `xmi_blockcount`.
    pub blocks: Le64,
    /// `xmi_flags`.
    pub flags: Le64,
    /// `xmi_isize1` and `xmi_isize2`.
    pub sizes: [Le64; 2],
}

const _: () = assert!(size_of::<DiskExchangeIntent>() == 88);

bitflags! {
    /// `xmi_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ExchangeFlags: u64 {
        /// `XFS_EXCHMAPS_ATTR_FORK`.
        const ATTR_FORK = 1 << 0;
        /// `XFS_EXCHMAPS_SET_SIZES`.
        const SET_SIZES = 1 << 1;
        /// `XFS_EXCHMAPS_INO1_WRITTEN`.
        const FIRST_WRITTEN = 1 << 2;
        /// `XFS_EXCHMAPS_CLEAR_INO1_REFLINK`.
        const CLEAR_FIRST_REFLINK = 1 << 3;
        /// `XFS_EXCHMAPS_CLEAR_INO2_REFLINK`.
        const CLEAR_SECOND_REFLINK = 1 << 4;
    }
}

/// The intent to exchange mappings of two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeIntent {
    /// What the done item names.
    pub id: u64,
    /// The inodes.
    pub inodes: [u64; 2],
    /// Their generations.
    pub generations: [u32; 2],
    /// The first block of each file.
    pub offsets: [u64; 2],
    /// Number of blocks.
    pub blocks: u64,
    /// How they are exchanged.
    pub flags: ExchangeFlags,
    /// The sizes of the files afterwards.
    pub sizes: [u64; 2],
}

impl ExchangeIntent {
    pub(super) fn decode(region: &[u8]) -> Result<Self, LogRule> {
        let disk = DiskExchangeIntent::ref_from_bytes(region).map_err(|_| LogRule::ItemLength)?;
        let flags = ExchangeFlags::from_bits(disk.flags.get()).ok_or(LogRule::IntentFlags)?;
        Ok(Self {
            id: disk.id.get(),
            inodes: disk.inodes.map(Le64::get),
            generations: disk.generations.map(Le32::get),
            offsets: disk.offsets.map(Le64::get),
            blocks: disk.blocks.get(),
            flags,
            sizes: disk.sizes.map(Le64::get),
        })
    }

    /// The region of the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskExchangeIntent {
            kind: ItemKind::Exchange.number().into(),
            regions: 1.into(),
            pad: 0.into(),
            id: self.id.into(),
            inodes: self.inodes.map(Le64::new),
            generations: self.generations.map(Le32::new),
            offsets: self.offsets.map(Le64::new),
            blocks: self.blocks.into(),
            flags: self.flags.bits().into(),
            sizes: self.sizes.map(Le64::new),
        };
        disk.as_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intent_decodes_as_it_was_encoded() {
        let intent = ExchangeIntent {
            id: 1,
            inodes: [131, 132],
            generations: [5, 6],
            offsets: [0, 16],
            blocks: 4,
            flags: ExchangeFlags::SET_SIZES | ExchangeFlags::CLEAR_SECOND_REFLINK,
            sizes: [1000, 2000],
        };
        let mut region = intent.encode();
        assert_eq!(ExchangeIntent::decode(&region), Ok(intent));
        region[64] = 0x20;
        assert_eq!(ExchangeIntent::decode(&region), Err(LogRule::IntentFlags));
        let short = ExchangeIntent::decode(&region[..80]);
        assert_eq!(short, Err(LogRule::ItemLength));
    }
}
