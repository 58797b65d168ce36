//! Inodes, names, subvolumes, data.

use platter_ondisk::Uuid;
use platter_vfs::FileKind;
use zerocopy::IntoBytes;

use super::*;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::Location;
use crate::ondisk::extent_item::ExtentRef;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::types::ORPHAN_OBJECT;
use crate::ondisk::uuid_item::UuidItem;
use crate::ondisk::{Generation, Key, TreeId};

fn file() -> InodeItem {
    inode(FileKind::Regular, DATA_BYTES, DATA_BYTES)
}

fn set_file(maker: &mut Maker, change: impl FnOnce(&mut InodeItem)) {
    let mut item = file();
    change(&mut item);
    maker.set_inode(SHARED, 257, &item);
}

#[test]
fn inode_agrees_with_its_items() {
    breaks(InodeUseRule::NoItem, |maker| {
        maker.remove(SHARED, Key::new(257, ItemKind::INODE_ITEM, 0));
    });
    let finding = breaks(InodeUseRule::Links, |maker| {
        set_file(maker, |item| item.links = 2);
    });
    assert_eq!(finding.path.as_deref(), Some(&b"/file"[..]));
    assert_eq!(finding.corruption.locus.parts().tree, Some(5));
    breaks(InodeUseRule::DirectorySize, |maker| {
        maker.set_inode(TOP_LEAF, 256, &inode(FileKind::Directory, 20, 0));
    });
    breaks(InodeUseRule::Bytes, |maker| {
        set_file(maker, |item| item.allocated_bytes += 1);
    });
    breaks(InodeUseRule::Generation, |maker| {
        set_file(maker, |item| item.transaction = Generation(10));
    });
    breaks(InodeUseRule::LinkFlags, |maker| {
        let mut item = inode(FileKind::Symlink, 6, 6);
        item.flags = InodeFlags::IMMUTABLE;
        maker.set_inode(SHARED, 258, &item);
    });
    breaks(InodeUseRule::Key, |maker| {
        let item = file().encode().as_bytes().to_vec();
        maker.put(SHARED, (Key::new(257, ItemKind::INODE_ITEM, 1), item));
    });
    breaks(InodeUseRule::RootDirectory, |maker| {
        maker.set_inode(TOP_LEAF, 256, &file());
    });
    breaks(InodeUseRule::RootDirectory, |maker| {
        let mut item = root_item(TOP, 1);
        item.root_dir = 257;
        maker.set_root(TreeId::FS, &item);
    });
}

#[test]
fn items_fit_the_type_of_the_inode() {
    breaks(InodeUseRule::OddDirItem, |maker| {
        maker.set_inode(TOP_LEAF, 256, &inode(FileKind::Regular, 24, 0));
    });
    breaks(InodeUseRule::OddExtent, |maker| {
        set_file(maker, |item| item.kind = FileKind::Fifo);
    });
}

#[test]
fn extents_of_a_file_are_in_a_row() {
    breaks(InodeUseRule::ExtentOverlap, |maker| {
        maker.set_extent(257, 4096, regular(DATA_BYTES));
    });
    breaks(InodeUseRule::ExtentGap, |maker| {
        set_file(maker, |item| item.size_bytes = 3 * DATA_BYTES);
        maker.set_extent(257, 2 * DATA_BYTES, regular(DATA_BYTES));
    });
    breaks(ExtentUseRule::Generation, |maker| {
        let mut extent = regular(DATA_BYTES);
        extent[0] = 11;
        maker.set_extent(257, 0, extent);
    });
}

#[test]
fn root_items_of_other_trees_have_offset_zero() {
    for tree in [TreeId::EXTENT, TreeId::CSUM] {
        breaks(crate::context::TreesRule::MissingTree, |maker| {
            let item = maker.items(ROOTS).remove(&root_key(tree)).unwrap();
            maker.put(ROOTS, (Key::new(tree.0, ItemKind::ROOT_ITEM, 8), item));
        });
    }
}

#[test]
fn orphans_may_have_gaps_between_extents() {
    let mut maker = Maker::new();
    for leaf in [TOP_LEAF, SNAP_LEAF] {
        let mut orphan = inode(FileKind::Regular, DATA_BYTES, 0);
        orphan.links = 0;
        maker.set_inode(leaf, 259, &orphan);
        let key = Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, 259);
        maker.put(leaf, (key, Vec::new()));
    }
    let (_, findings) = check(&maker);
    let has_gap = |finding: &&Finding| finding.corruption.rule == InodeUseRule::ExtentGap.text();
    assert!(!findings.iter().any(|it| has_gap(&it)), "{findings:#?}");
}

#[test]
fn names_that_are_not_searched_are_reported() {
    let mut maker = Maker::new();
    maker.set_ref(257, &name_ref(256, 2, b"else"));
    let budget = Arc::new(MemoryBudget::new(4 << 20));
    let context = open(&maker.make(), &MountOptions::default(), &budget).unwrap();
    for (searched, rule) in [(0, NameRule::NoInodeRef), (1 << 40, NameRule::Mismatch)] {
        let mut sink = Findings::default();
        let mut checker = Checker::new(&context, &mut sink);
        checker.names.items = searched;
        checker.run().unwrap();
        drop(checker);
        let mut found = sink.0.iter();
        assert!(
            found.any(|it| it.corruption.rule == rule.text()),
            "{:#?}",
            sink.0
        );
    }
}

#[test]
fn checksums_are_where_they_should_be() {
    breaks(InodeUseRule::CsumMissing, |maker| {
        maker.put(CSUMS, (csum_key(DATA), csums(1)));
    });
    breaks(InodeUseRule::CsumOdd, |maker| {
        set_file(maker, |item| item.flags = InodeFlags::NODATASUM);
    });
    breaks(CsumUseRule::Overlap, |maker| {
        maker.put(CSUMS, (csum_key(DATA + 4096), csums(1)));
    });
    breaks(CsumUseRule::NoExtent, |maker| {
        maker.put(CSUMS, (csum_key(DATA + 2 * DATA_BYTES), csums(1)));
    });
}

#[test]
fn inode_without_a_name_is_an_orphan() {
    let orphan = |maker: &mut Maker| {
        let mut item = inode(FileKind::Regular, 0, 0);
        item.links = 0;
        maker.set_inode(SHARED, 259, &item);
    };
    let item = |inode| Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, inode);
    breaks(InodeUseRule::NoOrphan, orphan);
    let mut maker = Maker::new();
    orphan(&mut maker);
    maker.put(SHARED, (item(259), Vec::new()));
    assert!(check(&maker).1.is_empty());
    notices(InodeUseRule::Orphan, |maker| {
        maker.put(SHARED, (item(257), Vec::new()));
    });
}

#[test]
fn names_are_stored_three_times() {
    let finding = breaks(NameRule::NoInodeRef, |maker| {
        maker.remove(SHARED, Key::new(257, ItemKind::INODE_REF, 256));
    });
    let parts = finding.corruption.locus.parts();
    assert_eq!(parts.inode, Some(257));
    assert_eq!(parts.key.map(|key| key.offset), Some(2));
    breaks(NameRule::NoDirIndex, |maker| {
        maker.remove(TOP_LEAF, index_key(2));
    });
    breaks(NameRule::NoDirItem, |maker| {
        let key = Key::new(256, ItemKind::DIR_ITEM, name_hash(b"file"));
        maker.remove(TOP_LEAF, key);
    });
    breaks(NameRule::NoInodeItem, |maker| {
        let place = Location::Inode(999);
        maker.add_entry(TOP_LEAF, 9, place, FileKind::Regular, b"lost");
    });
    breaks(NameRule::FileType, |maker| {
        let place = Location::Inode(257);
        maker.add_entry(TOP_LEAF, 2, place, FileKind::Fifo, b"file");
    });
    breaks(InodeUseRule::NameHash, |maker| {
        let mut item = Vec::new();
        let name = InodeRef {
            parent: 256,
            index: 3,
            name: b"link",
        };
        name.encode_extended(&mut item);
        maker.put(SHARED, (Key::new(258, ItemKind::INODE_EXTREF, 1), item));
    });
}

#[test]
fn subvolumes_are_named_at_both_ends() {
    let (forth, back) = (
        Key::new(5, ItemKind::ROOT_REF, 256),
        Key::new(256, ItemKind::ROOT_BACKREF, 5),
    );
    breaks(RootUseRule::NoBackref, |maker| maker.remove(ROOTS, back));
    breaks(RootUseRule::NoRef, |maker| maker.remove(ROOTS, forth));
    breaks(RootUseRule::Unreferenced, |maker| {
        maker.remove(ROOTS, forth);
        maker.remove(ROOTS, back);
    });
    breaks(RootUseRule::NotFound, |maker| {
        maker.add_subvolume_names(TreeId(300), 5, b"lost");
    });
    breaks(RootUseRule::NoEntry, |maker| {
        maker.add_subvolume_names(SNAPSHOT, 4, b"other");
    });
    breaks(RootUseRule::SeveralRefs, |maker| {
        for (object, kind, offset) in [
            (300, ItemKind::ROOT_REF, 256),
            (256, ItemKind::ROOT_BACKREF, 300),
        ] {
            let name = maker.items(ROOTS)[&forth].clone();
            maker.put(ROOTS, (Key::new(object, kind, offset), name));
        }
    });
}

#[test]
fn roots_have_generations_of_the_past() {
    breaks(RootUseRule::Generation, |maker| {
        let mut item = root_item(QUOTA, 0);
        item.root.generation = Generation(10);
        maker.set_root(TreeId::QUOTA, &item);
    });
    breaks(RootUseRule::NoGeneration, |maker| {
        let mut item = root_item(QUOTA, 0);
        item.root.generation = Generation(0);
        maker.set_root(TreeId::QUOTA, &item);
    });
    // As `btrfs check`, roots of relocation are passed over.
    let mut maker = Maker::new();
    let mut item = root_item(SNAP, 1);
    item.root.generation = Generation(0);
    maker.set_root(TreeId::TREE_RELOC, &item);
    let (_, findings) = check(&maker);
    let is_it = |it: &Finding| it.corruption.rule == RootUseRule::NoGeneration.text();
    assert!(!findings.iter().any(is_it), "{findings:#?}");
}

#[test]
fn deleted_subvolume_is_an_orphan() {
    let finding = notices(RootUseRule::Orphan, |maker| {
        for key in [
            Key::new(5, ItemKind::ROOT_REF, 256),
            Key::new(256, ItemKind::ROOT_BACKREF, 5),
        ] {
            maker.remove(ROOTS, key);
        }
        let item = RootItem {
            refs: 0,
            ..root_item(SNAP, 1)
        };
        maker.set_root(SNAPSHOT, &item);
        let orphan = Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, 256);
        maker.put(ROOTS, (orphan, Vec::new()));
    });
    assert_eq!(finding.corruption.locus.parts().tree, Some(256));
}

#[test]
fn uuid_tree_lists_subvolumes() {
    let key = |uuid| UuidItem::key(uuid, ItemKind::UUID_SUBVOL);
    notices(RootUseRule::NotInUuidTree, |maker| {
        maker.remove(UUIDS, key(root_item(SNAP, 1).history.uuid));
    });
    notices(RootUseRule::StrayUuid, |maker| {
        let stray = UuidItem {
            uuid: Uuid::from_u128(5),
            trees: vec![TreeId(300)],
        };
        maker.put(UUIDS, (key(stray.uuid), stray.encode()));
    });
}

#[test]
fn unknown_item_is_noticed() {
    let finding = notices(RootUseRule::UnknownItem, |maker| {
        maker.put(CHUNKS, (Key::new(256, ItemKind(234), 0), Vec::new()));
    });
    let key = finding.corruption.locus.parts().key;
    assert_eq!(key.map(|key| key.kind), Some(234));
}

#[test]
fn data_that_does_not_match_names_its_file() {
    let verify = |change: fn(&mut Maker)| broken(Btrfs::verify_data, DataRule::Checksum, change);
    let finding = verify(|maker| maker.flips.push((0, 4 * MIB + 4096)));
    let parts = finding.corruption.locus.parts();
    assert_eq!(finding.path.as_deref(), Some(&b"/file"[..]));
    assert_eq!((parts.member, parts.copy), (Some(1), Some(0)));
    assert_eq!(parts.block, Some(DATA + 4096));
    assert_eq!((parts.tree, parts.inode), (Some(5), Some(257)));
    assert_eq!(parts.key.map(|key| key.kind), Some(108));
    let by_parent = verify(|maker| {
        maker.flips.push((0, 4 * MIB));
        let parent = crate::ondisk::LogicalAddr(SHARED);
        let shared = ExtentRef::SharedData { parent, count: 1 };
        maker.set_data_item(&data_item(vec![shared]));
    });
    assert_eq!(by_parent.path.as_deref(), Some(&b"/file"[..]));
    // The file uses the second sector alone: its reference begins before the file.
    let end_of_extent = |maker: &mut Maker| {
        maker.flips.extend([(0, 4 * MIB), (0, 4 * MIB + 4096)]);
        let mut extent = regular(4096);
        extent[38] = 0x10;
        maker.set_extent(257, 0, extent);
        maker.set_data_item(&data_item(vec![ExtentRef::Data {
            tree: TreeId::FS,
            inode: 257,
            offset: 0u64.wrapping_sub(4096),
            count: 1,
        }]));
    };
    let mut maker = Maker::new();
    end_of_extent(&mut maker);
    let (report, findings) = run(Btrfs::verify_data, &maker);
    assert_eq!(report.errors, 2);
    for finding in findings {
        assert_eq!(finding.path.as_deref(), Some(&b"/file"[..]), "{finding:?}");
    }
}
