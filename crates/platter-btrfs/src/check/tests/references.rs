//! Devices, copies, extents and their references.

use super::*;
use crate::context::TreesRule;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentRef};
use crate::ondisk::header::HeaderFlags;
use crate::ondisk::key::ItemKind;
use crate::ondisk::superblock::{RootPointer, SUPERBLOCK_OFFSETS, SuperblockFlags};
use crate::ondisk::tree_block::TreeBlockRule;
use crate::ondisk::types::DEV_ITEMS_OBJECT;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use zerocopy::IntoBytes;

fn set_dev_item(maker: &mut Maker, item: &DevItem) {
    let key = Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, item.id.0);
    maker.put(CHUNKS, (key, item.encode().as_bytes().to_vec()));
}

fn add_second(maker: &mut Maker, generation: Generation) {
    maker.second = Some(generation);
    maker.superblock.device_count = 2;
    maker.superblock.total_bytes *= 2;
    set_dev_item(maker, &dev_item(2, 0));
}

/// Puts a chunk on two devices with parity, which is then a copy.
fn with_parity(maker: &mut Maker, index: usize) {
    add_second(maker, GENERATION);
    let old = maker.chunks[index].clone();
    let kind = old.flags.intersection(BlockGroupFlags::TYPES);
    let offset = old.stripes[0].offset.0;
    let new = chunk(old.start.0, Profile::Raid5, &[offset, offset], kind);
    let used = if old.start.0 == DATA {
        DATA_BYTES
    } else {
        12 * NODE
    };
    maker.put(EXTENTS, group(old.start.0, used, new.flags));
    maker.put(DEVICES, dev_extent(2, offset, old.start.0));
    if old.stripes.len() > 1 {
        maker.remove(DEVICES, Key::new(1, ItemKind::DEV_EXTENT, 3 * MIB));
        maker.superblock.dev_item.bytes_used -= MIB;
        set_dev_item(maker, &dev_item(1, 3 * MIB));
    }
    set_dev_item(maker, &dev_item(2, MIB));
    maker.chunks[index] = new;
    maker.put_chunks();
}

#[test]
fn superblocks_are_compared() {
    notices(SuperblockUseRule::Stale, |maker| {
        add_second(maker, Generation(8));
    });
    let finding = notices(SuperblockUseRule::Copy, |maker| {
        maker.device_bytes = (64 << 20) + 4096;
        maker.mirrors = vec![(SUPERBLOCK_OFFSETS[1], Generation(8))];
    });
    let parts = finding.corruption.locus.parts();
    assert_eq!((parts.member, parts.copy), (Some(1), Some(1)));
    breaks(SuperblockUseRule::DeviceCount, |maker| {
        maker.superblock.device_count = 2;
    });
    breaks(SuperblockUseRule::TotalBytes, |maker| {
        maker.superblock.total_bytes -= NODE;
    });
    notices(SuperblockUseRule::TotalBytes, |maker| {
        maker.superblock.total_bytes += NODE;
    });
    breaks(SuperblockUseRule::Flags, |maker| {
        maker.superblock.flags |= SuperblockFlags::CHANGING_META_CSUM;
    });
    breaks(SuperblockUseRule::Flags, |maker| {
        maker.superblock.flags |= SuperblockFlags::from_bits_retain(1 << 50);
    });
    breaks(SuperblockUseRule::BytesUsed, |maker| {
        maker.superblock.bytes_used += NODE;
    });
    notices(SuperblockUseRule::SysArray, |maker| {
        maker.superblock.sys_chunks[0].owner += 1;
    });
    notices(SuperblockUseRule::DevItem, |maker| {
        maker.superblock.dev_item.bytes_used -= NODE;
    });
    let with_log = |maker: &mut Maker| {
        maker.superblock.log_root = Some(RootPointer {
            logical: LogicalAddr(METADATA + 20 * NODE),
            generation: Generation(10),
            level: 0,
        });
    };
    notices(SuperblockUseRule::Log, with_log);
    // There is no block.
    let finding = breaks(TreeBlockRule::Checksum, with_log);
    assert_eq!(
        finding.corruption.locus.parts().tree,
        Some(TreeId::TREE_LOG.0)
    );
}

#[test]
fn devices_are_compared_with_their_items() {
    notices(DeviceUseRule::Missing, |maker| {
        add_second(maker, GENERATION);
        maker.second = None;
    });
    breaks(DeviceUseRule::Size, |maker| maker.device_bytes = 12 << 20);
    breaks(DeviceUseRule::BytesUsed, |maker| {
        set_dev_item(maker, &dev_item(1, 5 * MIB));
    });
}

#[test]
fn header_has_the_current_revision_of_references() {
    breaks(ExtentUseRule::Revision, |maker| {
        maker.blocks.get_mut(&CSUMS).unwrap().header.flags = HeaderFlags::WRITTEN;
    });
    breaks(ExtentUseRule::FullBackref, |maker| {
        maker.blocks.get_mut(&CSUMS).unwrap().header.flags |= HeaderFlags::RELOC;
    });
    // Of the root tree.
    breaks(ExtentUseRule::FullBackref, |maker| {
        maker.blocks.get_mut(&ROOTS).unwrap().header.flags |= HeaderFlags::RELOC;
    });
}

#[test]
fn corrupt_device_item_is_a_finding() {
    let mut maker = Maker::new();
    let mut item = dev_item(1, 4 * MIB);
    item.fsid = platter_ondisk::Uuid::from_u128(99);
    set_dev_item(&mut maker, &item);
    let of_another = check(&maker).1;
    let rule = DeviceUseRule::NoItem.text();
    assert!(of_another.iter().any(|it| it.corruption.rule == rule));
    item.uuid = platter_ondisk::Uuid::from_u128(99);
    set_dev_item(&mut maker, &item);
    let budget = Arc::new(MemoryBudget::new(4 << 20));
    let mut sink = Findings::default();
    let options = MountOptions::default();
    let report = Btrfs::check(&maker.make(), &options, &budget, &mut sink).unwrap();
    assert!(!report.is_clean());
    let found = sink.0.iter().find(|it| it.corruption.rule == rule);
    let found = found.unwrap_or_else(|| panic!("{:#?}", sink.0));
    assert_eq!(found.corruption.locus.parts().member, Some(1));
    // All else was read.
    assert!(report.counters.contains(&("inodes", 6)), "{report:?}");
    let clock = Arc::new(platter_vfs::SystemClock::new());
    assert!(Btrfs::mount(&maker.make(), &options, budget, clock).is_err());
}

#[test]
fn device_extents_are_stripes_of_chunks() {
    breaks(DevExtentUseRule::NoChunk, |maker| {
        maker.put(DEVICES, dev_extent(1, 6 * MIB, DATA));
    });
    breaks(DevExtentUseRule::NoDevice, |maker| {
        maker.put(DEVICES, dev_extent(7, 6 * MIB, DATA));
    });
    breaks(DevExtentUseRule::OutsideDevice, |maker| {
        maker.put(DEVICES, dev_extent(1, 16 * MIB, DATA));
    });
    breaks(DevExtentUseRule::Overlap, |maker| {
        maker.put(DEVICES, dev_extent(1, 4 * MIB + NODE, DATA));
    });
}

#[test]
fn chunks_have_block_groups_and_device_extents() {
    breaks(ChunkUseRule::NoBlockGroup, |maker| {
        maker.remove(EXTENTS, group_key(DATA));
    });
    breaks(ChunkUseRule::Mismatch, |maker| {
        let flags = BlockGroupFlags::DATA | BlockGroupFlags::DUP;
        maker.put(EXTENTS, group(DATA, DATA_BYTES, flags));
    });
    breaks(ChunkUseRule::NoDevice, |maker| {
        maker.chunks[2].stripes[0].device_uuid = platter_ondisk::Uuid::from_u128(99);
        maker.put_chunks();
    });
    breaks(ChunkUseRule::NoDevExtent, |maker| {
        maker.remove(DEVICES, Key::new(1, ItemKind::DEV_EXTENT, 4 * MIB));
    });
    breaks(BlockGroupUseRule::NoChunk, |maker| {
        maker.put(EXTENTS, group(12 * MIB, 0, BlockGroupFlags::DATA));
    });
    breaks(BlockGroupUseRule::Used, |maker| {
        maker.put(EXTENTS, group(DATA, 0, BlockGroupFlags::DATA));
    });
}

#[test]
fn bad_copy_is_noticed_with_its_device() {
    let rule = TreeBlockRule::Checksum;
    let finding = notices(rule, |maker| {
        maker.flips.push((0, 3 * MIB + 2 * NODE + 200));
    });
    let parts = finding.corruption.locus.parts();
    assert_eq!(parts.block, Some(DEVICES));
    assert_eq!((parts.member, parts.copy), (Some(1), Some(1)));
    assert_eq!(parts.tree, Some(TreeId::DEV.0));
    breaks(rule, |maker| {
        let at = 2 * NODE + 200;
        maker.flips = vec![(0, 3 * MIB + at), (0, 2 * MIB + at)];
    });
}

#[test]
fn reconstruction_from_parity_is_verified() {
    notices(CopyRule::Parity, |maker| {
        with_parity(maker, 1);
        maker.flips.push((1, 2 * MIB + 2 * NODE + 200));
    });
    let verify = |change: fn(&mut Maker)| {
        broken(Btrfs::verify_data, DataRule::Parity, |maker| {
            with_parity(maker, 2);
            change(maker);
        })
    };
    let finding = verify(|maker| maker.flips.push((1, 4 * MIB)));
    assert_eq!(finding.severity, Severity::Error);
    assert_eq!(finding.path.as_deref(), Some(&b"/file"[..]));
}

#[test]
fn copies_that_differ_are_noticed() {
    let mut maker = Maker::new();
    with_parity(&mut maker, 1);
    let (report, findings) = check(&maker);
    assert!(report.is_clean() && findings.is_empty(), "{findings:#?}");
    // Both copies are valid; they are of two states of the block.
    let mut other = Maker::new();
    other.put(FREE, free_info(DATA, 2));
    let old = other.make();
    let mut bytes = vec![0; 4096];
    old[0].read_at(3 * MIB + 4 * NODE, &mut bytes).unwrap();
    let devices = Maker::new().make();
    devices[0].write_at(3 * MIB + 4 * NODE, &bytes).unwrap();
    let budget = Arc::new(MemoryBudget::new(4 << 20));
    let mut sink = Findings::default();
    Btrfs::check(&devices, &MountOptions::default(), &budget, &mut sink).unwrap();
    let rules: Vec<_> = sink.0.iter().map(|it| it.corruption.rule.clone()).collect();
    assert_eq!(rules, [CopyRule::Differs.text()]);
}

#[test]
fn trees_that_every_filesystem_has_are_missed() {
    breaks(TreesRule::MissingTree, |maker| {
        maker.remove(ROOTS, root_key(TreeId::CSUM));
    });
}

#[test]
fn extents_lie_in_block_groups_of_their_type() {
    let stray = |start: u64, len: u64| {
        let key = Key::new(start, ItemKind::EXTENT_ITEM, len);
        (key, data_item(vec![data_ref(1)]).encode())
    };
    breaks(ExtentUseRule::Overlap, |maker| {
        maker.put(EXTENTS, stray(DATA + 4096, 8192));
    });
    breaks(ExtentUseRule::OutsideGroup, |maker| {
        maker.put(EXTENTS, stray(DATA + MIB - 4096, 8192));
    });
    breaks(ExtentUseRule::GroupType, |maker| {
        maker.put(EXTENTS, stray(METADATA + 64 * NODE, 4096));
    });
    breaks(ExtentUseRule::Length, |maker| {
        maker.put(EXTENTS, stray(DATA + 3 * NODE, 100));
    });
}

#[test]
fn references_after_a_bad_extent_item_have_an_item() {
    let mut maker = Maker::new();
    let start = DATA + 3 * NODE;
    let key = Key::new(start, ItemKind::EXTENT_ITEM, 100);
    maker.put(EXTENTS, (key, data_item(vec![data_ref(1)]).encode()));
    let keyed = Key::new(start, ItemKind::SHARED_DATA_REF, SHARED);
    maker.put(EXTENTS, (keyed, 1u32.to_le_bytes().to_vec()));
    let (_, findings) = check(&maker);
    let has = |rule: ExtentUseRule| findings.iter().any(|it| it.corruption.rule == rule.text());
    assert!(has(ExtentUseRule::Length), "{findings:#?}");
    assert!(!has(ExtentUseRule::NoItem), "{findings:#?}");
}

#[test]
fn stored_references_are_counted() {
    breaks(ExtentUseRule::GlobalCount, |maker| {
        let mut item = data_item(vec![data_ref(1)]);
        item.refs = 2;
        maker.set_data_item(&item);
    });
    breaks(ExtentUseRule::Generation, |maker| {
        let mut item = data_item(vec![data_ref(1)]);
        item.generation = Generation(11);
        maker.set_data_item(&item);
    });
    breaks(ExtentUseRule::NoItem, |maker| {
        let key = Key::new(DATA + 16 * NODE, ItemKind::TREE_BLOCK_REF, 5);
        maker.put(EXTENTS, (key, Vec::new()));
    });
}

#[test]
fn references_are_found_both_ways() {
    let finding = breaks(ExtentUseRule::NotFound, |maker| {
        let trees = tree_refs(&[TreeId::FS, SNAPSHOT, TreeId(257)]);
        maker.set_block_item(SHARED, 0, &metadata_item(0, trees));
    });
    assert_eq!(finding.corruption.locus.parts().block, Some(SHARED));
    assert_eq!(finding.corruption.locus.parts().tree, Some(257));
    breaks(ExtentUseRule::NotStored, |maker| {
        let trees = tree_refs(&[TreeId::FS]);
        maker.set_block_item(SHARED, 0, &metadata_item(0, trees));
    });
    let finding = breaks(ExtentUseRule::LocalCount, |maker| {
        maker.set_data_item(&data_item(vec![data_ref(2)]));
    });
    assert_eq!(finding.path.as_deref(), Some(&b"/file"[..]));
    breaks(ExtentUseRule::Unallocated, |maker| {
        maker.remove(EXTENTS, Key::new(DATA, ItemKind::EXTENT_ITEM, DATA_BYTES));
    });
    let longer = |maker: &mut Maker| {
        let old = Key::new(DATA, ItemKind::EXTENT_ITEM, DATA_BYTES);
        maker.remove(EXTENTS, old);
        let new = Key::new(DATA, ItemKind::EXTENT_ITEM, 4096);
        maker.put(EXTENTS, (new, data_item(vec![data_ref(1)]).encode()));
    };
    breaks(ExtentUseRule::Kind, longer);
    breaks(ExtentUseRule::Mismatch, longer);
}

#[test]
fn references_by_parent_are_found() {
    // The leaf's writer does not refer to it any more, so that what it refers to is by parent.
    let full = |maker: &mut Maker| {
        let parent = LogicalAddr(SHARED);
        let shared = ExtentRef::SharedData { parent, count: 1 };
        maker.set_data_item(&data_item(vec![shared]));
        maker.blocks.get_mut(&SHARED).unwrap().header.owner = TreeId(300);
        let item = ExtentItem {
            flags: ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF,
            ..metadata_item(0, tree_refs(&[TreeId::FS, SNAPSHOT]))
        };
        maker.set_block_item(SHARED, 0, &item);
    };
    let mut maker = Maker::new();
    full(&mut maker);
    let (report, findings) = check(&maker);
    assert!(report.is_clean(), "{findings:#?}");
    breaks(ExtentUseRule::FullBackref, |maker| {
        full(maker);
        maker.blocks.get_mut(&SHARED).unwrap().header.owner = SNAPSHOT;
    });
    breaks(ExtentUseRule::Owner, |maker| {
        maker.blocks.get_mut(&SNAP_LEAF).unwrap().header.owner = TreeId(300);
    });
}

#[test]
fn block_of_a_tree_without_snapshots_has_no_full_backrefs() {
    for (block, tree) in [(CSUMS, TreeId::CSUM), (EXTENTS, TreeId::EXTENT)] {
        let finding = breaks(ExtentUseRule::FullBackref, |maker| {
            let item = ExtentItem {
                flags: ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF,
                ..metadata_item(0, tree_refs(&[tree]))
            };
            maker.set_block_item(block, 0, &item);
        });
        assert_eq!(finding.corruption.locus.parts().block, Some(block));
    }
}

#[test]
fn pointers_to_a_shared_block_agree() {
    breaks(SharedBlockRule::Pointer, |maker| {
        let key = |maker: &mut Maker, leaf| *maker.items(leaf).keys().next().unwrap();
        let leaves = [(SNAP_LEAF, 9), (SHARED, 8)];
        let pointers = leaves.map(|(leaf, generation)| crate::ondisk::node::KeyPointer {
            key: key(maker, leaf),
            logical: LogicalAddr(leaf),
            generation: Generation(generation),
        });
        maker.blocks.get_mut(&SNAP).unwrap().pointers = pointers.to_vec();
    });
}
