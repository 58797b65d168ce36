//! Free space and quota groups.

use platter_ondisk::checksum::crc32c;
use platter_vfs::FileKind;
use zerocopy::IntoBytes;

use super::*;
use crate::ondisk::features::CompatRo;
use crate::ondisk::free_space::{DiskFreeSpaceEntry, DiskFreeSpaceHeader};
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::{QgroupFlags, QgroupStatus};
use crate::ondisk::types::FREE_SPACE_OBJECT;
use crate::ondisk::{Generation, Key, TreeId};

#[test]
fn free_space_tree_is_what_no_extent_uses() {
    let used = DATA + DATA_BYTES;
    breaks(FreeSpaceUseRule::Allocated, |maker| {
        maker.remove(FREE, free_extent(used, DATA + MIB).0);
        maker.put(FREE, free_extent(DATA, DATA + MIB));
    });
    let finding = breaks(FreeSpaceUseRule::Missing, |maker| {
        maker.remove(FREE, free_extent(used, DATA + MIB).0);
        maker.put(FREE, free_extent(used + NODE, DATA + MIB));
    });
    let parts = finding.corruption.locus.parts();
    assert_eq!((parts.group, parts.block), (Some(DATA), Some(used)));
    breaks(FreeSpaceUseRule::NoInfo, |maker| {
        maker.remove(FREE, free_info(DATA, 1).0);
    });
    breaks(FreeSpaceUseRule::NoInfo, |maker| {
        let (key, item) = free_info(DATA, 1);
        maker.remove(FREE, key);
        maker.put(FREE, (Key::new(DATA, key.kind, 2 * MIB), item));
    });
    notices(FreeSpaceUseRule::NoGroup, |maker| {
        maker.put(FREE, free_info(12 * MIB, 3));
    });
    breaks(FreeSpaceUseRule::Count, |maker| {
        maker.put(FREE, free_info(DATA, 2));
    });
    breaks(FreeSpaceUseRule::Outside, |maker| {
        maker.put(FREE, free_extent(12 * MIB, 12 * MIB + NODE));
    });
    notices(FreeSpaceUseRule::Stale, |maker| {
        maker.superblock.features.compat_ro = CompatRo::FREE_SPACE_TREE;
    });
}

#[test]
fn bitmaps_are_where_the_flags_say() {
    let used = DATA + DATA_BYTES;
    let sectors = usize::try_from((MIB - DATA_BYTES) / NODE).unwrap();
    let bitmap = |maker: &mut Maker| {
        maker.remove(FREE, free_extent(used, DATA + MIB).0);
        let key = Key::new(used, ItemKind::FREE_SPACE_BITMAP, MIB - DATA_BYTES);
        let mut bits = vec![0xff; sectors.div_ceil(8)];
        *bits.last_mut().unwrap() = 0x3f;
        maker.put(FREE, (key, bits));
    };
    breaks(FreeSpaceUseRule::Form, bitmap);
    let mut maker = Maker::new();
    bitmap(&mut maker);
    let (key, mut info) = free_info(DATA, 1);
    info[4] = 1;
    maker.put(FREE, (key, info));
    let (_, findings) = check(&maker);
    assert!(findings.is_empty(), "{findings:#?}");
}

/// A cache of the data's block group, in a file at the end of it, in one page.
fn with_cache(maker: &mut Maker, free_from: u64, is_valid: bool) {
    maker.superblock.features.compat_ro = CompatRo::empty();
    maker.superblock.cache_generation = GENERATION.0;
    let inode_key = Key::new(256, ItemKind::INODE_ITEM, 0);
    let mut item = inode(FileKind::Regular, 4096, 4096);
    item.generation = GENERATION;
    maker.put(ROOTS, (inode_key, item.encode().as_bytes().to_vec()));
    let at = DATA + 64 * NODE;
    let place = crate::ondisk::file_extent::ExtentPlace {
        logical: crate::ondisk::LogicalAddr(at),
        disk_bytes: NODE,
        offset: 0,
    };
    let extent = crate::ondisk::file_extent::FileExtent {
        generation: GENERATION,
        ram_bytes: NODE,
        compression: crate::ondisk::file_extent::Compression::None,
        file_bytes: NODE,
        kind: crate::ondisk::file_extent::FileExtentKind::Prealloc(place),
    };
    let key = Key::new(256, ItemKind::EXTENT_DATA, 0);
    maker.put(ROOTS, (key, extent.encode()));
    let item = data_item(vec![crate::ondisk::extent_item::ExtentRef::Data {
        tree: TreeId::ROOT,
        inode: 256,
        offset: 0,
        count: 1,
    }]);
    let key = Key::new(at, ItemKind::EXTENT_ITEM, NODE);
    maker.put(EXTENTS, (key, item.encode()));
    let flags = crate::ondisk::chunk_item::BlockGroupFlags::DATA;
    maker.put(EXTENTS, group(DATA, DATA_BYTES + NODE, flags));
    maker.superblock.bytes_used += NODE;
    let header = DiskFreeSpaceHeader {
        location: inode_key.encode(),
        generation: GENERATION.0.into(),
        entry_count: 2.into(),
        bitmap_count: 0.into(),
    };
    let key = Key::new(FREE_SPACE_OBJECT, ItemKind(0), DATA);
    maker.put(ROOTS, (key, header.as_bytes().to_vec()));
    let mut page = vec![0; 4096];
    page[4..12].copy_from_slice(&GENERATION.0.to_le_bytes());
    for (index, (start, end)) in [(free_from, at), (at + NODE, DATA + MIB)]
        .into_iter()
        .enumerate()
    {
        let entry = DiskFreeSpaceEntry {
            start: start.into(),
            len_bytes: (end - start).into(),
            kind: 1,
        };
        page[12 + index * 17..][..17].copy_from_slice(entry.as_bytes());
    }
    let sum = !crc32c(!0, &page[4..]);
    page[..4].copy_from_slice(&sum.to_le_bytes());
    if !is_valid {
        page[100] = 1;
    }
    maker.contents.push((at, page));
}

#[test]
fn caches_are_what_no_extent_uses() {
    let used = DATA + DATA_BYTES;
    let mut maker = Maker::new();
    with_cache(&mut maker, used, true);
    let (_, findings) = check(&maker);
    assert!(findings.is_empty(), "{findings:#?}");
    breaks(FreeSpaceUseRule::Allocated, |maker| {
        with_cache(maker, DATA, true);
    });
    breaks(FreeSpaceUseRule::Missing, |maker| {
        with_cache(maker, used + NODE, true);
    });
    notices(FreeSpaceUseRule::Cache, |maker| {
        with_cache(maker, used, false);
    });
    notices(FreeSpaceUseRule::Stale, |maker| {
        with_cache(maker, used, true);
        maker.superblock.cache_generation = 8;
    });
}

#[test]
fn usage_of_quota_groups_is_counted() {
    let key = |kind, id| qgroup_key(kind, id);
    breaks(QgroupUseRule::Counts, |maker| {
        let info = key(ItemKind::QGROUP_INFO, 256);
        maker.put(QUOTA, (info, usage(0, 0)));
    });
    notices(QgroupUseRule::Inconsistent, |maker| {
        let flags = QgroupFlags::ON | QgroupFlags::INCONSISTENT;
        let status = key(ItemKind::QGROUP_STATUS, 0);
        maker.put(QUOTA, (status, quota_status(flags)));
    });
    notices(QgroupUseRule::Generation, |maker| {
        let status = QgroupStatus {
            generation: Generation(GENERATION.0 - 1),
            flags: QgroupFlags::ON,
            rescan: 0,
            enable_generation: None,
        };
        let key = key(ItemKind::QGROUP_STATUS, 0);
        maker.put(QUOTA, (key, status.encode()));
    });
    breaks(QgroupUseRule::Relation, |maker| {
        let relation = Key::new(256, ItemKind::QGROUP_RELATION, (1 << 48) + 7);
        maker.put(QUOTA, (relation, Vec::new()));
    });
    notices(QgroupUseRule::Missing, |maker| {
        maker.remove(QUOTA, key(ItemKind::QGROUP_INFO, 256));
    });
    // A group of both subvolumes: what they share is exclusive to it.
    let group = (1 << 48) + 7;
    let mut maker = Maker::new();
    maker.put(
        QUOTA,
        (
            key(ItemKind::QGROUP_INFO, group),
            usage(5 * NODE + DATA_BYTES, 5 * NODE + DATA_BYTES),
        ),
    );
    for (one, other) in [(group, 5), (group, 256), (5, group), (256, group)] {
        let relation = Key::new(one, ItemKind::QGROUP_RELATION, other);
        maker.put(QUOTA, (relation, Vec::new()));
    }
    let (_, findings) = check(&maker);
    assert!(findings.is_empty(), "{findings:#?}");
}
