//! The superblock of a new filesystem of version 5.

use zerocopy::{FromZeros, IntoBytes};

use super::{DiskSuperblock, SUPERBLOCK_MAGIC, Superblock};

impl Superblock {
    /// The sector of a filesystem of version 5 without quota, realtime groups and metadata directories.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut disk = DiskSuperblock::new_zeroed();
        self.store_features(&mut disk);
        self.store_sizes(&mut disk);
        self.store_log(&mut disk);
        let inode = |number: Option<_>| number.map_or(u64::MAX, super::InodeNr::get);
        disk.uuid = self.uuid.into_bytes();
        for (stored, byte) in disk.label.iter_mut().zip(&self.label) {
            *stored = *byte;
        }
        disk.root_inode.set(self.root_inode.get());
        disk.rt_bitmap_inode.set(inode(self.rt_bitmap_inode));
        disk.rt_summary_inode.set(inode(self.rt_summary_inode));
        disk.inode_count.set(self.inode_count);
        disk.free_inodes.set(self.free_inodes);
        disk.free_data_blocks.set(self.free_data_blocks);
        disk.lsn.set(self.lsn.0);
        let bytes = 1_usize.checked_shl(self.sector_bits.into());
        let mut sector = disk.as_bytes().to_vec();
        sector.resize(bytes.unwrap_or_default().max(sector.len()), 0);
        DiskSuperblock::seal(&mut sector);
        sector
    }

    fn store_features(&self, disk: &mut DiskSuperblock) {
        let features = &self.features;
        disk.magic.set(SUPERBLOCK_MAGIC);
        disk.version.set(features.number | features.version.bits());
        disk.features2.set(features.features2.bits());
        disk.bad_features2.set(features.features2.bits());
        disk.compat.set(features.compat.bits());
        disk.ro_compat.set(features.ro_compat.bits());
        disk.incompat.set(features.incompat.bits());
        disk.log_incompat.set(features.log_incompat.bits());
    }

    fn store_sizes(&self, disk: &mut DiskSuperblock) {
        let bytes = |bits: u8| 1_u32.checked_shl(bits.into()).unwrap_or_default();
        let bytes16 = |bits: u8| 1_u16.checked_shl(bits.into()).unwrap_or_default();
        let per_block = self.block_bits.saturating_sub(self.inode_bits);
        disk.block_bytes.set(bytes(self.block_bits));
        disk.block_bits = self.block_bits;
        disk.sector_bytes.set(bytes16(self.sector_bits));
        disk.sector_bits = self.sector_bits;
        disk.inode_bytes.set(bytes16(self.inode_bits));
        disk.inode_bits = self.inode_bits;
        disk.inodes_per_block.set(bytes16(per_block));
        disk.inodes_per_block_bits = per_block;
        disk.dir_block_shift = self.dir_block_bits.saturating_sub(self.block_bits);
        disk.data_blocks.set(self.data_blocks);
        disk.ag_blocks.set(self.ag_blocks);
        disk.ag_block_bits = self.ag_block_bits;
        disk.ag_count.set(self.ag_count);
        disk.rt_extent_blocks.set(self.rt_extent_blocks);
        disk.inode_percent_max = self.inode_percent_max;
        disk.inode_alignment.set(self.inode_alignment);
        disk.sparse_inode_alignment.set(self.sparse_inode_alignment);
        disk.stripe_unit.set(self.stripe_unit);
        disk.stripe_width.set(self.stripe_width);
    }

    fn store_log(&self, disk: &mut DiskSuperblock) {
        disk.log_start
            .set(self.log_start.map_or(0, |start| start.0));
        disk.log_blocks.set(self.log_blocks);
        disk.log_stripe_unit.set(self.log_stripe_unit);
        if self.features.has_sector() {
            let bytes = u16::try_from(self.log_sector_bytes).unwrap_or_default();
            disk.log_sector_bytes.set(bytes);
            disk.log_sector_bits = self.sector_bits;
        }
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Locus;

    use super::super::tests::sample;
    use super::*;

    #[test]
    fn built_superblock_decodes_to_the_same() {
        let mut superblock = sample().decode().unwrap();
        superblock.label = b"twelve bytes".to_vec();
        superblock.stripe_unit = 0;
        superblock.stripe_width = 0;
        let sector = superblock.encode();
        assert_eq!(sector.len(), 1 << superblock.sector_bits);
        let decoded = Superblock::decode(&sector, Locus::group(0)).unwrap();
        assert_eq!(decoded, superblock);
    }
}
