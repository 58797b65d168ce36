//! Extended attributes of a root directory: items that are inserted, replaced and removed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Random;
use super::image::Pool;
use super::rules::assert_items_are_as_their_groups;
use crate::block_group::BlockGroupCounters;
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::Xattr;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::txn::{WriteContext, WriteOptions, convert};

pub(super) type Xattrs = BTreeMap<String, Vec<u8>>;

pub(super) fn set(fs: &WriteContext, name: &str, value: Option<&[u8]>) {
    let hash = name_hash(name.as_bytes());
    let key = Key::new(FIRST_FREE_OBJECT, ItemKind::XATTR_ITEM, hash);
    let handle = fs.begin(8).unwrap();
    let changed = handle.edit(TreeId::FS, |tree| {
        let Some(value) = value else {
            return tree.remove(key).map(drop);
        };
        let mut item = Vec::new();
        let xattr = Xattr {
            transaction: handle.generation(),
            name: name.as_bytes(),
            value,
        };
        xattr.encode(&mut item);
        tree.set(key, &item)
    });
    changed.unwrap();
}

/// Sets and removes attributes at random.
pub(super) fn change(fs: &WriteContext, random: &mut Random, xattrs: &mut Xattrs, count: u64) {
    for _ in 0..count {
        let name = format!("user.{}", random.below(3000));
        if random.below(3) == 0 {
            set(fs, &name, None);
            xattrs.remove(&name);
        } else {
            let len = random.below(700);
            let value = random.bytes(len);
            set(fs, &name, Some(&value));
            xattrs.insert(name, value);
        }
    }
}

/// The attributes as the kernel has them agree.
pub(super) fn assert_kernel_agrees(pool: &Pool, xattrs: &Xattrs) {
    let text = pool.run(
        "mount -t btrfs -o $options $device $root
        getfattr --absolute-names -d -m - -e hex $root
        echo more >> $root/file
        umount $root",
    );
    let found: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name, value.trim_start_matches("0x")))
        .collect();
    let expected: Vec<(&String, String)> = xattrs
        .iter()
        .map(|(name, value)| {
            let mut hex = String::new();
            for byte in value {
                write!(hex, "{byte:02x}").unwrap();
            }
            (name, hex)
        })
        .collect();
    assert_eq!(found.len(), expected.len());
    for (name, value) in expected {
        assert_eq!(
            found.get(&**name).copied().unwrap_or("none"),
            value,
            "{name}"
        );
    }
}

fn examine(devices: usize, size_mib: u64, mkfs: &[&str], writing: WriteOptions) {
    let pool = Pool::make(devices, size_mib, mkfs);
    examine_pool(&pool, size_mib, writing);
}

fn examine_pool(pool: &Pool, size_mib: u64, writing: WriteOptions) {
    let mut random = Random(size_mib);
    let mut xattrs = Xattrs::new();
    let fs = pool.open(writing);
    for round in 0..4 {
        change(&fs, &mut random, &mut xattrs, 1 + round * 700);
        fs.sync().unwrap();
        assert_items_are_as_their_groups(&fs);
        pool.assert_clean();
    }
    assert!(fs.groups().iter().all(|group| group.space().pinned == 0));
    drop(fs);
    assert_kernel_agrees(pool, &xattrs);
    pool.assert_clean();
    // What the kernel wrote is changed once more.
    let fs = pool.open(writing);
    change(&fs, &mut random, &mut xattrs, 300);
    fs.sync().unwrap();
    // A commit without changes writes nothing.
    let report = fs.last_commit();
    fs.sync().unwrap();
    assert_eq!(fs.last_commit(), report);
    drop(fs);
    pool.assert_clean();
    assert_kernel_agrees(pool, &xattrs);
}

/// Commits of a workload that mostly replaces blocks: `used` has its old value again.
fn commits(skips_unchanged_groups: bool) -> (Pool, BlockGroupCounters) {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions {
        skips_unchanged_groups,
        ..WriteOptions::default()
    });
    let mut sum = BlockGroupCounters::default();
    for round in 0..12u8 {
        set(&fs, "user.one", Some(&[round; 100]));
        fs.sync().unwrap();
        sum += fs.last_commit().groups_before;
        sum += fs.last_commit().groups;
    }
    drop(fs);
    pool.assert_clean();
    (pool, sum)
}

#[test]
fn unchanged_block_groups_are_skipped() {
    let (_pool, with) = commits(true);
    let (_pool, without) = commits(false);
    assert!(with.skipped > 8, "{with:?}");
    assert_eq!(without.skipped, 0);
    assert!(without.written > with.written, "{with:?} {without:?}");
    assert!(without.blocks_copied >= with.blocks_copied);
}

#[test]
fn commits_with_block_group_tree() {
    let pool = Pool::make(1, 160, &[]);
    let mut fs = pool.open(WriteOptions::default());
    set(&fs, "user.before", Some(b"value"));
    convert::to_block_group_tree(&mut fs).unwrap();
    pool.assert_clean();
    set(&fs, "user.before", None);
    fs.sync().unwrap();
    pool.assert_clean();
    drop(fs);
    examine_pool(&pool, 160, WriteOptions::default());
    let mut fs = pool.open(WriteOptions::default());
    let generation = fs.superblock().generation;
    convert::to_block_group_tree(&mut fs).unwrap();
    assert_eq!(fs.superblock().generation, generation, "it has one");
}

macro_rules! layouts {
    ($($name:ident: $devices:literal x $size_mib:literal, [$($mkfs:literal),*];)+) => {
        $(
            #[test]
            fn $name() {
                examine($devices, $size_mib, &[$($mkfs),*], WriteOptions::default());
            }
        )+
    };
}

layouts! {
    commits_with_defaults: 1 x 160, [];
    commits_without_free_space_tree: 1 x 160, ["-R", "^free-space-tree"];
    commits_with_nodes_of_4k: 1 x 160, ["-n", "4096", "--csum", "xxhash"];
    commits_with_nodes_of_64k: 1 x 500, ["-n", "65536", "--csum", "blake2"];
    commits_in_mixed_groups: 1 x 100, ["-M", "--csum", "sha256"];
    commits_with_large_items: 1 x 160, ["-O", "^skinny-metadata", "-m", "single"];
    commits_on_raid0: 3 x 160, ["-d", "raid0", "-m", "raid0"];
    commits_on_raid1: 2 x 160, ["-d", "raid1", "-m", "raid1"];
    commits_on_raid1c3: 3 x 160, ["-d", "raid1c3", "-m", "raid1c3"];
    commits_on_raid1c4: 4 x 160, ["-d", "single", "-m", "raid1c4"];
    commits_on_raid10: 4 x 160, ["-d", "raid10", "-m", "raid10"];
}
