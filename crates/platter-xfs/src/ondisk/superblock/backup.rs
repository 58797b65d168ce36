//! Copies of the superblock, in the other groups: what they have in common with the primary one.

use std::mem::{offset_of, size_of};

use zerocopy::FromBytes;

use super::DiskSuperblock;
use crate::ondisk::features::{Incompat, Version};

/// What a copy has in common with the primary superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedFields {
    numbers: [u64; 23],
}

impl DiskSuperblock {
    /// The superblock at the start of a sector.
    #[must_use]
    pub fn of_sector(sector: &[u8]) -> Option<&Self> {
        Self::ref_from_prefix(sector).ok().map(|(disk, _)| disk)
    }

    /// What all copies have in common: the geometry and the features that change no more.
    #[must_use]
    pub fn shared_fields(&self) -> SharedFields {
        let when = |flag: Version, number: u32| {
            let has = Version::from_bits_retain(self.version.get()).contains(flag);
            if has { u64::from(number) } else { 0 }
        };
        let features = self.features();
        SharedFields {
            numbers: [
                self.block_bytes.get().into(),
                self.data_blocks.get(),
                self.rt_blocks.get(),
                self.rt_extents.get(),
                self.log_start.get(),
                self.rt_extent_blocks.get().into(),
                self.ag_blocks.get().into(),
                self.ag_count.get().into(),
                self.rt_bitmap_blocks.get().into(),
                self.log_blocks.get().into(),
                self.sector_bytes.get().into(),
                self.inode_bytes.get().into(),
                self.block_bits.into(),
                self.sector_bits.into(),
                self.inode_bits.into(),
                self.inodes_per_block_bits.into(),
                self.ag_block_bits.into(),
                self.rt_extents_bits.into(),
                self.dir_block_shift.into(),
                features.number.into(),
                when(Version::ALIGN, self.inode_alignment.get()),
                when(Version::DALIGN, self.stripe_unit.get()),
                when(Version::DALIGN, self.stripe_width.get()),
            ],
        }
    }

    /// The features of version 5, which copies have in common but for the wish to be repaired.
    #[must_use]
    pub fn feature_masks(&self) -> [u32; 3] {
        let features = self.features();
        if !features.is_v5() {
            return [0; 3];
        }
        let repair = Incompat::NEEDSREPAIR.bits();
        [
            self.compat.get(),
            self.ro_compat.get(),
            self.incompat.get() & !repair,
        ]
    }

    /// Bytes of a sector that fields of this filesystem use; the rest is zero.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let features = self.features();
        if features.has_metadir() {
            size_of::<Self>()
        } else if features.has_meta_uuid() {
            offset_of!(Self, metadir_inode)
        } else if features.is_v5() {
            offset_of!(Self, meta_uuid)
        } else if features.version.contains(Version::MOREBITS) {
            offset_of!(Self, compat)
        } else if features.has_logv2() {
            offset_of!(Self, features2)
        } else if features.has_sector() {
            offset_of!(Self, log_stripe_unit)
        } else {
            offset_of!(Self, log_sector_bits)
        }
    }
}
