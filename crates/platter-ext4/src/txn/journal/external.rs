//! A journal on a device of its own. Spec: `ext4/journal`, external journal.
//!
//! The device begins like a filesystem, with a superblock at byte 1024 that says what it is; the
//! journal superblock follows in the next block, and journal blocks are device blocks.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use platter_vfs::Result;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use super::{Journal, JournalMapBuilder};
use crate::ondisk::features::Incompat;
use crate::ondisk::jbd2::LogBlock;
use crate::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET_BYTES, Superblock,
};
use crate::ondisk::{BlockNr, Geometry};

rules! {
    /// What a journal device must hold to.
    pub enum ExternalJournalRule of "external journal" {
        /// It has a superblock with the `journal_dev` feature.
        Kind => "the device does not hold a journal",
        /// Its superblock checksum, where it has one.
        Checksum => "checksum of its superblock does not match",
        /// Its UUID is the one that the filesystem names.
        Uuid => "it is not the journal that the filesystem names",
        /// Its block size is the filesystem's.
        BlockSize => "block size is not the filesystem's",
        /// It has one user, this filesystem.
        User => "it serves another filesystem",
    }
}

impl Journal {
    /// Opens the journal on `device` for the filesystem with this superblock and geometry.
    pub fn open_external(
        device: Arc<dyn BlockDevice>,
        superblock: &Superblock,
        geometry: &Geometry,
    ) -> Result<Self> {
        let disk = read_superblock(&*device)?;
        check_identity(&disk, superblock, geometry)?;
        let wide = disk.feature_incompat.get() & Incompat::BIT64.bits() != 0;
        let len_blocks = match (wide, disk.blocks_count_hi.get()) {
            (false, _) | (true, 0) => disk.blocks_count_lo.get(),
            (true, _) => u32::MAX,
        };
        let mut map = JournalMapBuilder::new(device, geometry.block_bytes);
        map.push(LogBlock(0), BlockNr(0), len_blocks)?;
        let journal = Self::open_at(map.finish(), superblock_place(geometry.block_bytes))?;
        if !serves_only(&journal.superblock.users, superblock.uuid) {
            return Err(broken(ExternalJournalRule::User).into());
        }
        Ok(journal)
    }
}

/// The block after the one with the device's own superblock.
fn superblock_place(block_bytes: u32) -> LogBlock {
    let own = SUPERBLOCK_OFFSET_BYTES / u64::from(block_bytes);
    LogBlock(if own == 0 { 1 } else { 2 })
}

fn read_superblock(device: &dyn BlockDevice) -> Result<DiskSuperblock> {
    let mut disk = DiskSuperblock::new_zeroed();
    let end = SUPERBLOCK_OFFSET_BYTES + SUPERBLOCK_LEN_BYTES as u64;
    if device.geometry().len_bytes < end {
        return Err(broken(ExternalJournalRule::Kind).into());
    }
    device.read_at(SUPERBLOCK_OFFSET_BYTES, disk.as_mut_bytes())?;
    Ok(disk)
}

fn check_identity(
    disk: &DiskSuperblock,
    filesystem: &Superblock,
    geometry: &Geometry,
) -> Result<(), Corrupt<ExternalJournalRule>> {
    let is_journal = disk.feature_incompat.get() & Incompat::JOURNAL_DEV.bits() != 0;
    let block_bytes = 1024u32.checked_shl(disk.log_block_size.get());
    let with_checksum = crate::ondisk::Features::from_bits(
        disk.feature_compat.get(),
        disk.feature_incompat.get(),
        disk.feature_ro_compat.get(),
    )
    .has_metadata_csum();
    let rules = [
        (
            disk.magic.get() == SUPERBLOCK_MAGIC && is_journal,
            ExternalJournalRule::Kind,
        ),
        (
            !with_checksum || disk.checksum.get() == disk.expected_checksum(),
            ExternalJournalRule::Checksum,
        ),
        (
            disk.uuid == *filesystem.journal_uuid.as_bytes(),
            ExternalJournalRule::Uuid,
        ),
        (
            block_bytes == Some(geometry.block_bytes),
            ExternalJournalRule::BlockSize,
        ),
    ];
    let first_broken = rules.into_iter().find(|(holds, _)| !holds);
    first_broken.map_or(Ok(()), |(_, rule)| Err(broken(rule)))
}

/// A journal with several users holds transactions of all of them, which the format does not
/// distinguish. No implementation writes such journals.
fn serves_only(users: &[Uuid], filesystem: Uuid) -> bool {
    users == [filesystem]
}

fn broken(rule: ExternalJournalRule) -> Corrupt<ExternalJournalRule> {
    Corrupt::new(Locus::default(), rule)
}

#[cfg(test)]
mod tests {
    use platter_block::MemoryDevice;
    use platter_ondisk::Rule as _;

    use super::*;
    use crate::ondisk::Features;
    use crate::ondisk::features::RoCompat;

    const JOURNAL_UUID: [u8; 16] = [1; 16];

    fn sample() -> DiskSuperblock {
        let mut disk = DiskSuperblock::new_zeroed();
        disk.magic = SUPERBLOCK_MAGIC.into();
        disk.feature_incompat = Incompat::JOURNAL_DEV.bits().into();
        disk.uuid = JOURNAL_UUID;
        disk.blocks_count_lo = 64.into();
        disk
    }

    /// A filesystem of 1 KiB blocks whose journal is the sample.
    fn filesystem() -> (Superblock, Geometry) {
        let mut disk = DiskSuperblock::new_zeroed();
        disk.magic = SUPERBLOCK_MAGIC.into();
        disk.uuid = [2; 16];
        disk.journal_uuid = JOURNAL_UUID;
        disk.revision = 1.into();
        disk.first_inode = 11.into();
        disk.inode_size = 128.into();
        disk.inodes_count = 8.into();
        disk.inodes_per_group = 8.into();
        disk.blocks_count_lo = 64.into();
        disk.first_data_block = 1.into();
        disk.blocks_per_group = 8192.into();
        disk.clusters_per_group = 8192.into();
        let superblock = Superblock::decode(&disk).unwrap();
        let geometry = Geometry::decode(&disk, &superblock).unwrap();
        (superblock, geometry)
    }

    fn refused(disk: &DiskSuperblock) -> ExternalJournalRule {
        let (superblock, geometry) = filesystem();
        check_identity(disk, &superblock, &geometry)
            .unwrap_err()
            .rule
    }

    #[test]
    fn device_that_is_no_journal_is_refused() {
        let mut disk = sample();
        disk.feature_incompat = 0.into();
        assert_eq!(refused(&disk), ExternalJournalRule::Kind);
        disk = sample();
        disk.magic = 0.into();
        assert_eq!(refused(&disk), ExternalJournalRule::Kind);
        let short = MemoryDevice::new("short", vec![0; 1024]);
        assert!(read_superblock(&short).is_err());
    }

    #[test]
    fn corrupt_superblock_is_refused() {
        let mut disk = sample();
        disk.feature_ro_compat = RoCompat::METADATA_CSUM.bits().into();
        disk.checksum = (!disk.expected_checksum()).into();
        assert!(Features::from_bits(0, 0, disk.feature_ro_compat.get()).has_metadata_csum());
        assert_eq!(refused(&disk), ExternalJournalRule::Checksum);
    }

    #[test]
    fn journal_of_another_name_is_refused() {
        let mut disk = sample();
        disk.uuid = [3; 16];
        assert_eq!(refused(&disk), ExternalJournalRule::Uuid);
    }

    #[test]
    fn journal_of_another_block_size_is_refused() {
        for log in [2, u32::MAX] {
            let mut disk = sample();
            disk.log_block_size = log.into();
            assert_eq!(refused(&disk), ExternalJournalRule::BlockSize);
        }
    }

    #[test]
    fn journal_with_other_users_is_refused() {
        let own = Uuid::from_bytes([2; 16]);
        assert_eq!(
            ExternalJournalRule::User.text(),
            "it serves another filesystem"
        );
        assert!(serves_only(&[own], own));
        assert!(!serves_only(&[], own));
        assert!(!serves_only(&[own, Uuid::nil()], own));
        assert!(!serves_only(&[Uuid::nil()], own));
    }

    #[test]
    fn journal_superblock_follows_the_device_own() {
        assert_eq!(superblock_place(1024), LogBlock(2));
        assert_eq!(superblock_place(2048), LogBlock(1));
        assert_eq!(superblock_place(65536), LogBlock(1));
    }
}
