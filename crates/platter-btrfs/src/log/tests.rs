//! Replay of log trees made in memory: extents against a model, and logs as old kernels wrote them.

use std::collections::BTreeMap;

use platter_ondisk::Locus;
use zerocopy::IntoBytes;

use super::extents::Extents;
use super::*;
use crate::context::tests::sample_of;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::dir_log::DirLog;
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::types::EXTENT_CSUM_OBJECT;
use crate::ondisk::{Generation, LogicalAddr};
use crate::tree::tests::Sample;
use platter_vfs::FileKind;

const SECTOR: u64 = 4096;
/// Sectors of the model's file.
const SECTORS: usize = 64;

/// A small generator of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn extent(logical: u64, sectors: u64) -> Vec<u8> {
    let place = ExtentPlace {
        logical: LogicalAddr(logical * SECTOR),
        disk_bytes: sectors * SECTOR,
        offset: 0,
    };
    let extent = FileExtent {
        generation: Generation(1),
        ram_bytes: sectors * SECTOR,
        compression: Compression::None,
        file_bytes: sectors * SECTOR,
        kind: FileExtentKind::Regular(place),
    };
    extent.encode()
}

/// What each sector of the file is stored in.
fn sectors_of(items: &Overlay) -> Vec<Option<u64>> {
    let mut sectors = vec![None; SECTORS];
    for (key, data) in items.iter() {
        let Some(data) = data else { continue };
        let extent = FileExtent::decode(data, key.offset, 4096, Locus::UNKNOWN).unwrap();
        let FileExtentKind::Regular(place) = extent.kind else {
            panic!("{extent:?}");
        };
        for sector in 0..extent.file_bytes / SECTOR {
            let at = usize::try_from(key.offset / SECTOR + sector).unwrap();
            assert_eq!(sectors[at], None, "extents overlap");
            sectors[at] = Some((place.logical.0 + place.offset) / SECTOR + sector);
        }
    }
    sectors
}

#[test]
fn extents_of_a_file_agree_with_a_model() {
    for seed in 1..60 {
        let mut numbers = Numbers(seed * 0x9e37_79b9);
        let tree = Tree {
            id: TreeId::FS,
            root: RootPointer::default(),
        };
        let mut extents = Extents::new(tree, 257, 4096, BTreeMap::new());
        let mut model = vec![None; SECTORS];
        for step in 1..40 {
            let start = numbers.below(SECTORS as u64);
            let len = 1 + numbers.below(SECTORS as u64 - start);
            let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
            if numbers.below(3) == 0 {
                extents
                    .drop(start * SECTOR..(start + len) * SECTOR)
                    .unwrap();
                model[range].fill(None);
            } else {
                let logical = step * 1000;
                let data = extent(logical, len);
                let replaced = extents.replace(start * SECTOR, &data, Locus::UNKNOWN, false);
                replaced.unwrap();
                for (index, sector) in model[range].iter_mut().enumerate() {
                    *sector = Some(logical + index as u64);
                }
            }
            let allocated = model.iter().flatten().count() as u64 * SECTOR;
            assert_eq!(extents.allocated_bytes().unwrap(), allocated);
        }
        let mut overlay = Overlay::default();
        extents.store(&mut overlay);
        assert_eq!(sectors_of(&overlay), model, "seed {seed}");
    }
}

fn inode(kind: FileKind, links: u32) -> Vec<u8> {
    let mut item = crate::ondisk::inode_item::tests::sample(kind);
    item.links = links;
    item.encode().as_bytes().to_vec()
}

fn entry(name: &[u8], inode: u64) -> Vec<u8> {
    let entry = DirItem {
        location: Location::Inode(inode),
        transaction: Generation(1),
        kind: Some(FileKind::Regular),
        name,
    };
    let mut item = Vec::new();
    entry.encode(&mut item);
    item
}

fn reference(index: u64, name: &[u8]) -> Vec<u8> {
    let reference = InodeRef {
        parent: 256,
        index,
        name,
    };
    let mut item = Vec::new();
    reference.encode(&mut item);
    item
}

type Items = BTreeMap<Key, Vec<u8>>;

/// The subvolume: a directory with the files `one` and `two`.
fn subvolume() -> Items {
    let key = Key::new;
    let (item, index, by_name) = (
        ItemKind::INODE_ITEM,
        ItemKind::DIR_INDEX,
        ItemKind::DIR_ITEM,
    );
    BTreeMap::from([
        (key(256, item, 0), inode(FileKind::Directory, 1)),
        (key(256, by_name, name_hash(b"one")), entry(b"one", 257)),
        (key(256, by_name, name_hash(b"two")), entry(b"two", 258)),
        (key(256, index, 2), entry(b"one", 257)),
        (key(256, index, 3), entry(b"two", 258)),
        (key(257, item, 0), inode(FileKind::Regular, 1)),
        (key(257, ItemKind::INODE_REF, 256), reference(2, b"one")),
        (key(258, item, 0), inode(FileKind::Regular, 1)),
        (key(258, ItemKind::INODE_REF, 256), reference(3, b"two")),
    ])
}

/// A log in which `two` was removed from the directory, and `new` was created there.
fn log() -> Items {
    let key = Key::new;
    let range = DirLog {
        first: 3,
        last: u64::MAX,
    };
    let item = ItemKind::INODE_ITEM;
    BTreeMap::from([
        (key(256, item, 0), inode(FileKind::Directory, 1)),
        (
            key(256, ItemKind::DIR_LOG_INDEX, 3),
            range.encode().as_bytes().to_vec(),
        ),
        (key(256, ItemKind::DIR_INDEX, 4), entry(b"new", 259)),
        (key(259, item, 0), inode(FileKind::Regular, 1)),
        (key(259, ItemKind::INODE_REF, 256), reference(4, b"new")),
    ])
}

fn borrowed(items: &[(Key, Vec<u8>)]) -> Vec<(Key, &[u8])> {
    items.iter().map(|(key, data)| (*key, &data[..])).collect()
}

fn listed(items: &Items) -> Vec<(Key, Vec<u8>)> {
    let items = items.iter().map(|(key, data)| (*key, data.clone()));
    items.collect()
}

fn root_of(leaf: &crate::ondisk::node::KeyPointer) -> RootPointer {
    RootPointer {
        logical: leaf.logical,
        generation: leaf.generation,
        level: 0,
    }
}

/// Writes the log of the top-level subvolume. Returns the root of log trees.
fn write_log(blocks: &mut Sample, log: &Items) -> RootPointer {
    let log = blocks.leaf_of(TreeId::TREE_LOG, &borrowed(&listed(log)));
    let item = crate::context::tests::root_item(root_of(&log)).encode(None);
    let key = Key::new(TreeId::TREE_LOG.0, ItemKind::ROOT_ITEM, TreeId::FS.0);
    root_of(&blocks.leaf_of(TreeId::TREE_LOG, &[(key, item.as_bytes())]))
}

/// The names in the directory after replay, by lookup and by index, and the number of names of each file.
fn replayed(log: &Items) -> (Vec<String>, Vec<u32>) {
    let mut blocks = Sample::new();
    let log_root = write_log(&mut blocks, log);
    let items = listed(&subvolume());
    let mut context = sample_of(blocks, &borrowed(&items), &[]);
    let overlays = replay(&context, log_root).unwrap();
    context.set_overlays(overlays);
    let tree = context.required_tree(TreeId::FS).unwrap();
    let mut names = Vec::new();
    let mut links = Vec::new();
    let mut cursor = context.cursor(tree);
    cursor.seek(Key::MIN).unwrap();
    while let Some((key, data)) = cursor.item() {
        let locus = tree.locus(key);
        if key.kind == ItemKind::DIR_INDEX || key.kind == ItemKind::DIR_ITEM {
            for entry in DirItem::decode_all(key, data, locus).unwrap() {
                let name = String::from_utf8_lossy(entry.name);
                names.push(format!("{name} {}", key.kind.0));
            }
        }
        if key.kind == ItemKind::INODE_ITEM {
            links.push(InodeItem::decode(data, locus).unwrap().links);
        }
        cursor.step().unwrap();
    }
    names.sort();
    (names, links)
}

#[test]
fn directory_follows_the_indices_of_its_log() {
    let (names, links) = replayed(&log());
    assert_eq!(names, ["new 84", "new 96", "one 84", "one 96"]);
    // The inode of the removed file remains, without a name.
    assert_eq!(links, [1, 1, 0, 1]);
}

#[test]
fn hashes_in_a_log_of_an_old_kernel_are_passed_over() {
    let mut old = log();
    let everything = DirLog {
        first: 0,
        last: u64::MAX,
    };
    let hash = name_hash(b"new");
    old.insert(Key::new(256, ItemKind::DIR_ITEM, hash), entry(b"new", 259));
    let range = Key::new(256, ItemKind::DIR_LOG_ITEM, 0);
    old.insert(range, everything.encode().as_bytes().to_vec());
    assert_eq!(replayed(&old), replayed(&log()));
}

#[test]
fn ranges_of_a_log_may_overlap() {
    let mut overlapping = log();
    for first in 3..9 {
        let range = DirLog {
            first,
            last: 3 + first,
        };
        let key = Key::new(256, ItemKind::DIR_LOG_INDEX, first);
        overlapping.insert(key, range.encode().as_bytes().to_vec());
    }
    assert_eq!(replayed(&overlapping), replayed(&log()));
}

#[test]
fn stored_checksum_of_zero_is_not_inserted_again() {
    let sum = |sector: u64| Key::new(EXTENT_CSUM_OBJECT, ItemKind::EXTENT_CSUM, sector * SECTOR);
    let mut blocks = Sample::new();
    let stored = blocks.leaf_of(TreeId::CSUM, &[(sum(1000), &[0; 4])]);
    let item = crate::context::tests::root_item(root_of(&stored)).encode(None);
    let key = Key::new(TreeId::CSUM.0, ItemKind::ROOT_ITEM, 0);
    let log_root = write_log(
        &mut blocks,
        &BTreeMap::from([
            (
                Key::new(257, ItemKind::INODE_ITEM, 0),
                inode(FileKind::Regular, 1),
            ),
            (Key::new(257, ItemKind::EXTENT_DATA, 0), extent(1000, 2)),
            (sum(1000), vec![0; 8]),
        ]),
    );
    let items = listed(&subvolume());
    let context = sample_of(blocks, &borrowed(&items), &[(key, item.as_bytes())]);
    let overlays = replay(&context, log_root).unwrap();
    let found: Vec<_> = overlays[&TreeId::CSUM].iter().collect();
    assert_eq!(found, [(sum(1001), Some(&[0; 4][..]))]);
}

#[test]
fn inode_that_was_logged_without_names_is_passed_over() {
    let key = Key::new;
    let mut unnamed = log();
    unnamed.extend([
        (
            key(257, ItemKind::INODE_ITEM, 0),
            inode(FileKind::Regular, 0),
        ),
        (key(257, ItemKind::INODE_REF, 256), reference(9, b"other")),
        (key(257, ItemKind::DIR_INDEX, 2), entry(b"below", 259)),
        (key(257, ItemKind::EXTENT_DATA, 0), extent(1000, 2)),
    ]);
    assert_eq!(replayed(&unnamed), replayed(&log()));
    let mut blocks = Sample::new();
    let log_root = write_log(&mut blocks, &unnamed);
    let items = listed(&subvolume());
    let context = sample_of(blocks, &borrowed(&items), &[]);
    let overlays = replay(&context, log_root).unwrap();
    let mut changed = overlays[&TreeId::FS].iter();
    assert!(changed.all(|(key, _)| key.object != 257));
}
