//! Superblocks made in memory, one broken rule at a time.

use zerocopy::IntoBytes;

use super::*;

/// A sector with a superblock, to be changed field by field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample(pub(crate) DiskSuperblock);

impl Sample {
    /// The sector with its checksum.
    pub(crate) fn sector(&self) -> Vec<u8> {
        let mut sector = vec![0; 512];
        sector[..size_of::<DiskSuperblock>()].copy_from_slice(self.0.as_bytes());
        DiskSuperblock::seal(&mut sector);
        sector
    }

    pub(crate) fn decode(&self) -> Result<Superblock, SuperblockRule> {
        Superblock::decode(&self.sector(), Locus::UNKNOWN).map_err(|corrupt| corrupt.rule)
    }
}

/// Four groups of 4096 blocks of 4 KiB, as `mkfs.xfs` makes them by default.
pub(crate) fn sample() -> Sample {
    let mut disk = DiskSuperblock::read_from_bytes(&[0; size_of::<DiskSuperblock>()]).unwrap();
    disk.magic.set(SUPERBLOCK_MAGIC);
    disk.block_bytes.set(4096);
    disk.block_bits = 12;
    disk.sector_bytes.set(512);
    disk.sector_bits = 9;
    disk.inode_bytes.set(512);
    disk.inode_bits = 9;
    disk.inodes_per_block.set(8);
    disk.inodes_per_block_bits = 3;
    disk.ag_blocks.set(4096);
    disk.ag_block_bits = 12;
    disk.ag_count.set(4);
    disk.data_blocks.set(4 * 4096);
    disk.log_start.set(2 * 4096 + 8);
    disk.log_blocks.set(1368);
    disk.log_stripe_unit.set(1);
    disk.root_inode.set(128);
    disk.rt_bitmap_inode.set(129);
    disk.rt_summary_inode.set(130);
    disk.rt_extent_blocks.set(1);
    disk.inode_percent_max = 25;
    disk.inode_alignment.set(8);
    disk.sparse_inode_alignment.set(4);
    disk.uuid = [0x5a; 16];
    disk.version.set(0xb4a5);
    disk.features2.set(0x18a);
    disk.bad_features2.set(0x18a);
    disk.ro_compat.set(0xf);
    disk.incompat.set(0xb);
    disk.inode_count.set(64);
    disk.free_inodes.set(61);
    Sample(disk)
}

/// The same in version 4, with inodes of 256 bytes.
pub(crate) fn sample_v4() -> Sample {
    let mut sample = sample();
    let disk = &mut sample.0;
    disk.version.set(0xb4a4);
    disk.features2.set(0x8a);
    disk.bad_features2.set(0x8a);
    disk.ro_compat.set(0);
    disk.incompat.set(0);
    disk.inode_bytes.set(256);
    disk.inode_bits = 8;
    disk.inodes_per_block.set(16);
    disk.inodes_per_block_bits = 4;
    disk.inode_alignment.set(2);
    sample
}

fn broken(change: impl FnOnce(&mut DiskSuperblock)) -> SuperblockRule {
    let mut sample = sample();
    change(&mut sample.0);
    sample.decode().unwrap_err()
}

#[test]
fn superblocks_of_both_versions_are_valid() {
    let superblock = sample().decode().unwrap();
    assert_eq!(superblock.root_inode.get(), 128);
    assert_eq!(superblock.log_start, Some(FsBlock(8200)));
    assert_eq!(superblock.meta_uuid, Uuid::from_bytes([0x5a; 16]));
    let v4 = sample_v4().decode().unwrap();
    assert!(!v4.features.is_v5());
    assert!(v4.features.has_lazy_count() && v4.features.has_attr2());
}

#[test]
fn metadata_keeps_its_uuid_when_that_of_the_volume_changes() {
    let mut sector = sample().sector();
    let before = sector.clone();
    let mut change = |byte: u8| {
        set_uuid(&mut sector, Uuid::from_bytes([byte; 16]));
        DiskSuperblock::seal(&mut sector);
        sector.clone()
    };
    let borne = Uuid::from_bytes([0x5a; 16]);
    for byte in [1, 2] {
        let changed = Superblock::decode(&change(byte), Locus::UNKNOWN).unwrap();
        assert_eq!(changed.uuid, Uuid::from_bytes([byte; 16]));
        assert_eq!(changed.meta_uuid, borne);
        assert!(changed.features.has_meta_uuid());
    }
    assert!(change(0x5a) == before);
}

#[test]
fn version_4_has_one_uuid() {
    let mut sector = sample_v4().sector();
    set_uuid(&mut sector, Uuid::from_bytes([1; 16]));
    let changed = Superblock::decode(&sector, Locus::UNKNOWN).unwrap();
    assert_eq!(changed.uuid, Uuid::from_bytes([1; 16]));
    assert!(!changed.features.has_meta_uuid());
    assert!(sector[248..264] == [0; 16]);
}

#[test]
fn superblock_without_its_magic_or_checksum_is_corrupt() {
    assert_eq!(broken(|disk| disk.magic.set(1)), SuperblockRule::Magic);
    let mut sector = sample().sector();
    sector[300] ^= 1;
    let rule = Superblock::decode(&sector, Locus::UNKNOWN)
        .unwrap_err()
        .rule;
    assert_eq!(rule, SuperblockRule::Checksum);
    let rule = Superblock::decode(&sector[..256], Locus::UNKNOWN)
        .unwrap_err()
        .rule;
    assert_eq!(rule, SuperblockRule::Magic);
}

#[test]
fn version_and_its_features_agree() {
    assert_eq!(
        broken(|disk| disk.version.set(0xb4a3)),
        SuperblockRule::Version
    );
    let rule = broken(|disk| {
        disk.features2.set(0x8a);
        disk.bad_features2.set(0x8a);
    });
    assert_eq!(rule, SuperblockRule::ChecksumFeature);
    let mut v4 = sample_v4();
    v4.0.version.set(0x84a4);
    assert_eq!(v4.decode(), Err(SuperblockRule::Version));
}

#[test]
fn sizes_are_powers_of_two_within_the_format() {
    let rule = broken(|disk| disk.sector_bytes.set(256));
    assert_eq!(rule, SuperblockRule::SectorSize);
    let rule = broken(|disk| disk.block_bytes.set(8192));
    assert_eq!(rule, SuperblockRule::BlockSize);
    let rule = broken(|disk| {
        disk.block_bytes.set(1 << 31);
        disk.block_bits = 31;
    });
    assert_eq!(rule, SuperblockRule::BlockSize);
    let rule = broken(|disk| disk.inodes_per_block.set(16));
    assert_eq!(rule, SuperblockRule::InodeSize);
    let rule = broken(|disk| {
        disk.inode_bytes.set(256);
        disk.inode_bits = 8;
    });
    assert_eq!(rule, SuperblockRule::InodeSize);
    for shift in [5, 63, 255] {
        let rule = broken(|disk| disk.dir_block_shift = shift);
        assert_eq!(rule, SuperblockRule::DirBlockSize);
    }
    let rule = broken(|disk| disk.inode_percent_max = 101);
    assert_eq!(rule, SuperblockRule::InodePercent);
}

#[test]
fn groups_cover_the_data_device() {
    assert_eq!(
        broken(|disk| disk.ag_blocks.set(63)),
        SuperblockRule::AgBlocks
    );
    assert_eq!(
        broken(|disk| disk.ag_block_bits = 13),
        SuperblockRule::AgBlocks
    );
    for count in [0, 3, 5, u32::MAX] {
        let rule = broken(|disk| disk.ag_count.set(count));
        assert_eq!(rule, SuperblockRule::AgCount);
    }
    let rule = broken(|disk| disk.data_blocks.set(u64::MAX));
    assert_eq!(rule, SuperblockRule::DataBlocks);
    let superblock = sample().decode().unwrap();
    assert!(superblock.check_device(4 * 4096 * 4096).is_ok());
    let rule = superblock
        .check_device(4 * 4096 * 4096 - 1)
        .unwrap_err()
        .rule;
    assert_eq!(rule, SuperblockRule::DeviceTooShort);
}

#[test]
fn log_lies_within_one_group() {
    let rule = broken(|disk| disk.log_blocks.set(4096));
    assert_eq!(rule, SuperblockRule::Log);
    let rule = broken(|disk| disk.log_start.set(4 * 4096));
    assert_eq!(rule, SuperblockRule::Log);
    let rule = broken(|disk| disk.log_stripe_unit.set(513));
    assert_eq!(rule, SuperblockRule::LogGeometry);
    let rule = broken(|disk| disk.log_sector_bytes.set(100));
    assert_eq!(rule, SuperblockRule::LogGeometry);
}

#[test]
fn realtime_counts_agree() {
    let rt = |disk: &mut DiskSuperblock| {
        disk.rt_blocks.set(1600);
        disk.rt_extents.set(100);
        disk.rt_extent_blocks.set(16);
        disk.rt_extents_bits = 6;
        disk.rt_bitmap_blocks.set(1);
    };
    let mut good = sample();
    rt(&mut good.0);
    assert_eq!(good.decode().unwrap().rt_extents, 100);
    for change in [
        (|disk: &mut DiskSuperblock| disk.rt_extents.set(99)) as fn(&mut DiskSuperblock),
        |disk| disk.rt_extent_blocks.set(0),
        |disk| disk.rt_extents_bits = 7,
        |disk| disk.rt_bitmap_blocks.set(0),
        |disk| disk.rt_blocks.set(0),
    ] {
        let rule = broken(|disk| {
            rt(disk);
            change(disk);
        });
        assert_eq!(rule, SuperblockRule::Realtime);
    }
}

#[test]
fn realtime_groups_cover_the_realtime_device() {
    let mut good = sample();
    good.0.incompat.set(0x10b);
    good.0.rt_blocks.set(1000);
    good.0.rt_extents.set(1000);
    good.0.rt_extents_bits = 9;
    good.0.rt_group_extents.set(300);
    good.0.rt_group_block_bits = 9;
    good.0.rt_group_count.set(4);
    assert_eq!(good.decode().unwrap().rt_group_count, 4);
    for change in [
        (|disk: &mut DiskSuperblock| disk.rt_group_count.set(3)) as fn(&mut DiskSuperblock),
        |disk| disk.rt_group_extents.set(0),
        |disk| disk.rt_group_block_bits = 8,
    ] {
        let mut bad = good;
        change(&mut bad.0);
        assert_eq!(bad.decode(), Err(SuperblockRule::RealtimeGroups));
    }
}

#[test]
fn remaining_rules_of_the_superblock_are_checked() {
    assert_eq!(
        broken(|disk| disk.in_progress = 1),
        SuperblockRule::InProgress
    );
    assert_eq!(
        broken(|disk| disk.root_inode.set(0)),
        SuperblockRule::RootInode
    );
    let rule = broken(|disk| disk.shared_version = 1);
    assert_eq!(rule, SuperblockRule::SharedVersion);
    let rule = broken(|disk| disk.inode_alignment.set(3));
    assert_eq!(rule, SuperblockRule::InodeAlignment);
    let rule = broken(|disk| {
        disk.version.set(0xb5a5);
        disk.stripe_unit.set(3);
        disk.stripe_width.set(4);
    });
    assert_eq!(rule, SuperblockRule::Stripe);
}
