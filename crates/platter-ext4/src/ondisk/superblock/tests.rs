//! Superblocks built in memory, one broken rule at a time.

use zerocopy::FromBytes;

use super::*;

/// Returns a small, valid superblock: 8192 blocks of 1 KiB in one group, metadata checksums on.
pub(crate) fn sample() -> DiskSuperblock {
    let mut disk = DiskSuperblock::read_from_bytes(&[0; SUPERBLOCK_LEN_BYTES]).unwrap();
    disk.magic.set(SUPERBLOCK_MAGIC);
    disk.revision.set(1);
    disk.blocks_count_lo.set(8192);
    disk.first_data_block.set(1);
    disk.blocks_per_group.set(8192);
    disk.clusters_per_group.set(8192);
    disk.inodes_per_group.set(2048);
    disk.inodes_count.set(2048);
    disk.first_inode.set(11);
    disk.inode_size.set(256);
    disk.uuid = [0x5a; 16];
    disk.feature_incompat
        .set(Incompat::EXTENTS.union(Incompat::FILETYPE).bits());
    disk.feature_ro_compat.set(RoCompat::METADATA_CSUM.bits());
    disk.checksum_type = CHECKSUM_TYPE_CRC32C;
    seal(&mut disk);
    disk
}

pub(crate) fn seal(disk: &mut DiskSuperblock) {
    disk.checksum.set(disk.expected_checksum());
}

fn broken(change: impl FnOnce(&mut DiskSuperblock)) -> SuperblockRule {
    let mut disk = sample();
    change(&mut disk);
    Superblock::decode(&disk).unwrap_err().rule
}

#[test]
fn superblock_without_its_magic_is_corrupt() {
    assert_eq!(broken(|disk| disk.magic.set(1)), SuperblockRule::Magic);
}

#[test]
fn superblock_with_a_wrong_checksum_is_corrupt() {
    let rule = broken(|disk| disk.volume_name[3] ^= 1);
    assert_eq!(rule, SuperblockRule::Checksum);
    let rule = broken(|disk| disk.checksum_type = 2);
    assert_eq!(rule, SuperblockRule::ChecksumType);
}

#[test]
fn checksum_is_ignored_without_the_feature() {
    let mut disk = sample();
    disk.feature_ro_compat.set(0);
    disk.checksum.set(0);
    assert!(Superblock::decode(&disk).is_ok());
}

#[test]
fn revision_0_has_no_features() {
    let mut disk = sample();
    disk.revision.set(0);
    disk.first_inode.set(0);
    let superblock = Superblock::decode(&disk).unwrap();
    assert_eq!(superblock.features, Features::default());
    assert_eq!(superblock.kind(), "ext2");
    assert_eq!(superblock.first_inode(&disk), Ok(11));
}

#[test]
fn checksum_seed_is_the_uuid_unless_stored() {
    let mut disk = sample();
    let seed = Superblock::decode(&disk).unwrap().checksum_seed;
    assert_eq!(seed, crc32c(!0, &[0x5a; 16]));
    disk.feature_incompat.set(Incompat::CSUM_SEED.bits());
    disk.checksum_seed.set(77);
    seal(&mut disk);
    assert_eq!(Superblock::decode(&disk).unwrap().checksum_seed, 77);
}
