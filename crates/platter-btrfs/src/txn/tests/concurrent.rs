//! Handles of several threads, commits among them, and transactions that fill up.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use platter_vfs::Condition;

use super::Random;
use super::image::Pool;
use super::xattrs::{Xattrs, assert_kernel_agrees, set};
use crate::block_group::BlockGroupCounters;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Key, TreeId};
use crate::tree::Cursor;
use crate::txn::{WriteOptions, commit, data_extents, trees};

/// Panics if it does not become so.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("another thread does not come so far");
}

#[test]
fn commit_waits_for_a_walk_over_references() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions::default());
    let walk = fs.delayed_refs().begin_walk();
    set(&fs, "user.one", Some(b"value"));
    thread::scope(|scope| {
        let commit = scope.spawn(|| fs.sync());
        wait_until(|| fs.delayed_refs().walk_waiters() == 1);
        assert!(!commit.is_finished());
        fs.delayed_refs().end_walk(walk);
        commit.join().unwrap().unwrap();
    });
    assert!(fs.delayed_refs().is_empty());
    drop(fs);
    pool.assert_clean();
}

#[test]
fn threads_share_transactions_and_commits() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions {
        blocks_max: 64,
        heads_max: 20,
        ..WriteOptions::default()
    });
    let first = fs.superblock().generation.0;
    let mut all = Xattrs::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                let fs = &fs;
                scope.spawn(move || {
                    let mut random = Random(thread);
                    let mut xattrs = Xattrs::new();
                    for round in 0..300 {
                        let name = format!("user.{thread}.{}", random.below(200));
                        let len = random.below(900);
                        let value = random.bytes(len);
                        set(fs, &name, Some(&value));
                        xattrs.insert(name, value);
                        if round % 40 == thread * 7 {
                            fs.sync().unwrap();
                        }
                    }
                    xattrs
                })
            })
            .collect();
        for thread in threads {
            all.extend(thread.join().unwrap());
        }
    });
    fs.sync().unwrap();
    assert!(fs.superblock().generation.0 > first + 8, "several commits");
    drop(fs);
    pool.assert_clean();
    assert_kernel_agrees(&pool, &all);
}

#[test]
fn handle_that_fails_while_a_commit_waits_ends_it() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions::default());
    let old = fs.superblock().generation;
    let failing = fs.begin(4).unwrap();
    let orphan = Key::new(5, ItemKind::ORPHAN_ITEM, 1);
    let begun = failing.edit(TreeId::FS, |tree| tree.insert(orphan, &[]));
    begun.unwrap();
    thread::scope(|scope| {
        let commit = scope.spawn(|| fs.sync());
        wait_until(|| fs.transactions.gate().is_shut());
        let failed = failing.edit(TreeId::FS, |tree| {
            tree.insert(Key::new(6, ItemKind::ORPHAN_ITEM, 1), &[])?;
            Err::<(), _>(Condition::NoSpace.into())
        });
        failed.unwrap_err();
        drop(failing);
        commit.join().unwrap().unwrap_err();
    });
    drop(fs);
    pool.assert_clean();
    let fs = pool.open(WriteOptions::default());
    assert_eq!(fs.superblock().generation, old);
}

#[test]
fn later_update_of_a_group_is_written_last() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions::default());
    let handle = fs.begin(8).unwrap();
    let data = data_extents::allocate(&handle, 4096).unwrap();
    let group = fs.groups().find(data, 4096).unwrap();
    let before = group.persisted();
    fs.groups().commit_allocation(data, 4096).unwrap();
    let tree = fs.tree(trees::block_group_tree(&fs)).unwrap();
    let held = tree.lock();
    thread::scope(|scope| {
        let update = scope.spawn(|| {
            let mut counters = BlockGroupCounters::default();
            commit::update_group(&fs, handle.generation(), &group, &mut counters)
        });
        // While another thread has the tree, the item is not what this one would write.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(group.persisted(), before);
        drop(held);
        update.join().unwrap().unwrap();
    });
    assert_ne!(group.persisted(), before);
}

#[test]
fn groups_stay_dirty_after_one_could_not_be_updated() {
    let pool = Pool::make(1, 160, &[]);
    let fs = pool.open(WriteOptions {
        skips_unchanged_groups: false,
        ..WriteOptions::default()
    });
    let handle = fs.begin(8).unwrap();
    let count = fs.groups().iter().count();
    let first = fs.groups().iter().next().unwrap();
    let key = Key::new(
        first.start().0,
        ItemKind::BLOCK_GROUP_ITEM,
        first.len_bytes(),
    );
    let removed = handle.edit(trees::block_group_tree(&fs), |tree| tree.remove(key));
    removed.unwrap();
    fs.groups()
        .iter()
        .for_each(|group| fs.groups().mark_dirty(&group));
    let mut counters = BlockGroupCounters::default();
    let updated = commit::update_groups(&fs, handle.generation(), &mut counters);
    updated.unwrap_err();
    assert_eq!(fs.groups().take_dirty().len(), count);
}

/// Files whose inodes two subvolumes share, in many leaves that refer to many extents.
const SHARE: &str = "
mount -t btrfs -o $options $device $root
mkdir $root/all
i=0
while [ $i -lt 2000 ]; do
    printf '%4000d' 7 > $root/all/$i
    i=$((i + 1))
done
btrfs subvolume snapshot $root $root/snap > /dev/null
umount $root
";

#[test]
fn trees_that_copy_a_shared_block_at_once_count_it_right() {
    let pool = Pool::make(1, 200, &["-n", "4096"]);
    pool.run(SHARE);
    let fs = pool.open(WriteOptions::default());
    let both = Barrier::new(2);
    let touch = |tree: TreeId| {
        for inode in (1..2000).step_by(4) {
            let handle = fs.begin(16).unwrap();
            let key = Key::new(FIRST_FREE_OBJECT + inode, ItemKind::INODE_ITEM, 0);
            both.wait();
            let edited = handle.edit(tree, |tree| tree.edit(key, |_| ()));
            edited.unwrap();
        }
    };
    thread::scope(|scope| {
        // A tree waits for another one that counts the references of the same leaf.
        let tree = fs.tree(TreeId::FS).unwrap().lock().now.tree;
        let mut cursor = Cursor::new(fs.blocks(), tree);
        cursor
            .seek(Key::new(FIRST_FREE_OBJECT, ItemKind::INODE_ITEM, 0))
            .unwrap();
        let counting = fs.shared.lock(cursor.leaf_addr().unwrap());
        let first = scope.spawn(|| set(&fs, "user.first", Some(b"value")));
        thread::sleep(Duration::from_millis(50));
        assert!(!first.is_finished());
        drop(counting);
        first.join().unwrap();
    });
    thread::scope(|scope| {
        scope.spawn(|| touch(TreeId::FS));
        scope.spawn(|| touch(TreeId(256)));
    });
    fs.sync().unwrap();
    drop(fs);
    pool.assert_clean();
}
