//! Superblocks made in memory, and the rules they break.

use super::*;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};

/// A superblock of one device with one system chunk.
pub(crate) fn sample() -> Superblock {
    let root = |logical: u64| RootPointer {
        logical: LogicalAddr(logical),
        generation: Generation(9),
        level: 1,
    };
    let mut chunk = crate::ondisk::chunk_item::tests::sample(1 << 20, Profile::Single, 1);
    chunk.flags = BlockGroupFlags::SYSTEM;
    Superblock {
        fsid: Uuid::from_u128(77),
        metadata_uuid: Uuid::from_u128(77),
        flags: SuperblockFlags::WRITTEN,
        generation: Generation(9),
        root: root(1 << 22),
        chunk_root: root(1 << 20),
        log_root: None,
        total_bytes: 1 << 30,
        bytes_used: 1 << 20,
        root_dir: 6,
        device_count: 1,
        sector_bytes: 4096,
        node_bytes: 16384,
        stripe_bytes: 4096,
        features: Features {
            compat: 0,
            compat_ro: CompatRo::FREE_SPACE_TREE,
            incompat: Incompat::MIXED_BACKREF | Incompat::EXTENDED_IREF,
        },
        checksum_kind: ChecksumKind::Crc32c,
        dev_item: crate::ondisk::dev_item::tests::sample(1),
        label: b"label".to_vec(),
        cache_generation: 0,
        uuid_tree_generation: 9,
        sys_chunks: vec![chunk],
        backups: [RootBackup {
            tree_root: root(1 << 21),
            ..RootBackup::default()
        }; 4],
    }
}

fn disk(superblock: &Superblock) -> DiskSuperblock {
    superblock.encode(&DiskSuperblock::new_zeroed(), SUPERBLOCK_OFFSETS[0])
}

#[test]
fn superblock_survives_encoding() {
    for kind in ChecksumKind::ALL {
        let mut superblock = sample();
        superblock.checksum_kind = kind;
        superblock.log_root = Some(RootPointer {
            logical: LogicalAddr(1 << 23),
            generation: Generation(10),
            level: 0,
        });
        let decoded = Superblock::decode(&disk(&superblock), SUPERBLOCK_OFFSETS[0]);
        assert_eq!(decoded, Ok(superblock));
    }
}

#[test]
fn metadata_uuid_replaces_fsid_in_tree_blocks() {
    let mut superblock = sample();
    superblock.features.incompat |= Incompat::METADATA_UUID;
    superblock.fsid = Uuid::from_u128(1);
    let decoded = Superblock::decode(&disk(&superblock), SUPERBLOCK_OFFSETS[0]).unwrap();
    assert_eq!(decoded.metadata_uuid, Uuid::from_u128(77));
    assert_eq!(decoded.fsid, Uuid::from_u128(1));
}

/// The rule that a superblock breaks once it was changed and has its checksum again.
fn broken(change: impl FnOnce(&mut DiskSuperblock)) -> SuperblockRule {
    let mut disk = disk(&sample());
    change(&mut disk);
    disk.checksum = ChecksumKind::Crc32c.of(summed(&disk));
    let decoded = Superblock::decode(&disk, SUPERBLOCK_OFFSETS[0]);
    decoded.unwrap_err().rule
}

#[test]
fn broken_superblocks_are_refused() {
    assert_eq!(broken(|disk| disk.magic[0] = 0), SuperblockRule::Magic);
    let rule = broken(|disk| disk.checksum_kind.set(4));
    assert_eq!(rule, SuperblockRule::ChecksumKind);
    assert_eq!(broken(|disk| disk.offset.set(0)), SuperblockRule::Offset);
    assert_eq!(broken(|disk| disk.root_level = 8), SuperblockRule::Level);
    for sectors in [0, 512, 4097, 128 << 10] {
        let rule = broken(|disk| disk.sector_bytes.set(sectors));
        assert_eq!(rule, SuperblockRule::SectorSize);
    }
    let rule = broken(|disk| disk.node_bytes.set(2048));
    assert_eq!(rule, SuperblockRule::NodeSize);
    let rule = broken(|disk| disk.leaf_bytes.set(4096));
    assert_eq!(rule, SuperblockRule::NodeSize);
    let rule = broken(|disk| disk.chunk_root.set(4097));
    assert_eq!(rule, SuperblockRule::RootAlignment);
    let rule = broken(|disk| disk.device_count.set(0));
    assert_eq!(rule, SuperblockRule::DeviceCount);
    let rule = broken(|disk| disk.bytes_used.set(4096));
    assert_eq!(rule, SuperblockRule::BytesUsed);
    let rule = broken(|disk| disk.fsid[0] ^= 1);
    assert_eq!(rule, SuperblockRule::DevItemFsid);
    for len in [0, 3, 96, 98, 2049, u32::MAX] {
        let rule = broken(|disk| disk.sys_chunk_array_bytes.set(len));
        assert!(
            matches!(rule, SuperblockRule::SysArray | SuperblockRule::SysChunk),
            "{len}"
        );
    }
    let rule = broken(|disk| disk.sys_chunk_array[8] = 0);
    assert_eq!(rule, SuperblockRule::SysArray);
    let rule = broken(|disk| disk.sys_chunk_array[17..25].fill(0));
    assert_eq!(rule, SuperblockRule::SysChunk);
}

#[test]
fn wrong_checksum_is_refused() {
    let mut disk = disk(&sample());
    disk.label[0] ^= 1;
    let decoded = Superblock::decode(&disk, SUPERBLOCK_OFFSETS[0]);
    assert_eq!(decoded.unwrap_err().rule, SuperblockRule::Checksum);
}
