//! Inode items that wait for the commit: how often trees are changed for them, and that readers find them.

use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_vfs::{Context, Filesystem, Inode, SetAttr, SystemClock};

use super::full_tests::{fill, is_full, unlink};
use super::write_tests::{create, mount, name, read};
use super::{Btrfs, MountOptions};
use crate::inode;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, TreeId};
use crate::tree::Cursor;
use crate::txn::tests::image::Pool;
use crate::txn::{WriteOptions, trees};

fn chmod(inode: &dyn Inode, permissions: u32) {
    let changes = SetAttr {
        permissions: Some(permissions),
        ..SetAttr::default()
    };
    inode.set_attr(&Context::root(), &changes).unwrap();
}

fn permissions(inode: &dyn Inode) -> u32 {
    inode.attr().unwrap().permissions
}

/// What the next commit counts: items that operations changed, and changes of them in trees.
fn counts(mounted: &Btrfs) -> (u64, u64) {
    mounted.sync().unwrap();
    let report = mounted.last_commit().unwrap();
    println!(
        "recorded {}, written {}; searches {}, changes of leaves {}, blocks copied {}",
        report.inodes_recorded,
        report.inode_items_written,
        report.leaf_searches,
        report.leaf_changes,
        report.blocks_copied
    );
    (report.inodes_recorded, report.inode_items_written)
}

/// The item of an inode in the tree, without what is delayed.
fn in_tree(mounted: &Btrfs, inode: &dyn Inode) -> InodeItem {
    let writing = mounted.super_block().writing().unwrap();
    let id = inode.id();
    let key = Key::new(id.number, ItemKind::INODE_ITEM, 0);
    let found = trees::look_at(writing, TreeId(id.tree), |(now, _), _| {
        let mut cursor = Cursor::new(writing.blocks(), now);
        cursor.seek(key)?;
        let (found, data) = cursor.item().unwrap();
        assert_eq!(found, key);
        Ok(InodeItem::decode(data, now.locus(key))?)
    });
    found.unwrap()
}

/// The item of an inode as readers of the tree find it.
fn as_read(mounted: &Btrfs, inode: &dyn Inode) -> InodeItem {
    let context = mounted.super_block().context();
    let (id, number) = (TreeId(inode.id().tree), inode.id().number);
    let tree = context.required_tree(id).unwrap();
    let found = inode::find(context, tree, number).unwrap().unwrap();
    let before = inode::find_before_attributes(context, tree, number);
    assert_eq!(before.unwrap().unwrap().0, found);
    found
}

#[test]
fn tree_is_changed_once_for_each_inode_and_commit() {
    const COUNT: u64 = 100;
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let paths: Vec<_> = (0..COUNT).map(|it| format!("file{it}")).collect();
    mounted.sync().unwrap();

    let files: Vec<_> = paths.iter().map(|path| create(&*root, path)).collect();
    // The directory: the items of new files are inserted.
    assert_eq!(counts(&mounted), (COUNT, 1), "creates");

    for file in &files {
        chmod(&**file, 0o600);
        chmod(&**file, 0o640);
    }
    assert_eq!(
        counts(&mounted),
        (2 * COUNT, COUNT),
        "changes of attributes"
    );

    let file = create(&*root, "log");
    mounted.sync().unwrap();
    for part in 0..COUNT {
        file.append(&[7; 100]).unwrap();
        if part % 10 == 0 {
            platter_vfs::file::write_back(&*mounted.super_block().loaded(file.id())).unwrap();
        }
    }
    let (recorded, written) = counts(&mounted);
    assert!(recorded >= 10, "{recorded}");
    assert_eq!(written, 1, "appends");

    drop(files);
    for path in &paths {
        unlink(&*root, path);
    }
    let (recorded, written) = counts(&mounted);
    assert!(recorded >= COUNT, "{recorded}");
    assert_eq!(written, 1, "unlinks");

    drop((root, file));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn change_of_an_item_alone_is_committed() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let file = create(&*root, "file");
    chmod(&*file, 0o601);
    mounted.sync().unwrap();
    let generation = mounted.last_commit().unwrap().generation;
    // Nothing else changes, and the leaf is not copied before the commit.
    chmod(&*file, 0o602);
    assert_eq!(in_tree(&mounted, &*file).permissions, 0o601);
    let read = as_read(&mounted, &*file);
    assert_eq!(read.permissions, 0o602);
    assert_eq!(read.transaction, Generation(generation.0 + 1));
    mounted.sync().unwrap();
    assert_eq!(in_tree(&mounted, &*file).permissions, 0o602);
    // What comes after the commit is not in it.
    chmod(&*file, 0o603);
    assert_eq!(in_tree(&mounted, &*file).permissions, 0o602);
    assert_eq!(as_read(&mounted, &*file).permissions, 0o603);
    drop((file, root));
    // As after a crash.
    drop(mounted);
    pool.assert_clean();
    let mounted = mount(&pool);
    let file = mounted.root().unwrap().lookup(name("file")).unwrap();
    assert_eq!(permissions(&*file), 0o602);
    drop(file);
    mounted.unmount().unwrap();
}

#[test]
fn item_is_found_after_the_inode_left_the_cache() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let file = create(&*root, "file");
    mounted.sync().unwrap();
    chmod(&*file, 0o611);
    let id = file.id();
    drop(file);
    mounted.super_block().forget_cached();
    let file = mounted.inode(id).unwrap();
    assert_eq!(permissions(&*file), 0o611);
    drop((file, root));
    mounted.unmount().unwrap();
}

#[test]
fn fsync_logs_what_is_delayed() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let file = create(&*root, "file");
    let other = create(&*root, "other");
    mounted.sync().unwrap();
    let generation = mounted.last_commit().unwrap().generation;
    chmod(&*file, 0o611);
    file.sync(false).unwrap();
    chmod(&*file, 0o622);
    chmod(&*other, 0o622);
    file.write_at(0, b"contents").unwrap();
    file.sync(false).unwrap();
    assert_eq!(mounted.last_commit().unwrap().generation, generation);
    drop((file, other, root));
    drop(mounted);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let file = root.lookup(name("file")).unwrap();
    assert_eq!(permissions(&*file), 0o622);
    assert_eq!(read(&*file), b"contents");
    assert_eq!(permissions(&*root.lookup(name("other")).unwrap()), 0o644);
    drop((file, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn snapshot_has_what_was_delayed() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let context = Context::root();
    let ops = mounted.subvolumes().unwrap();
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    let file = create(&*sub, "file");
    mounted.sync().unwrap();
    chmod(&*file, 0o611);
    let snapshot = ops.snapshot(&context, sub.id().tree, root.id(), name("snapshot"), true);
    let snapshot = snapshot.unwrap();
    chmod(&*file, 0o622);
    mounted.sync().unwrap();
    let old = snapshot.lookup(name("file")).unwrap();
    assert_eq!((permissions(&*old), permissions(&*file)), (0o611, 0o622));
    // A tree that is dropped takes with it what is delayed of it.
    chmod(&*file, 0o633);
    drop((file, old, snapshot));
    ops.delete(&context, root.id(), name("sub"), Some(sub.id()))
        .unwrap();
    drop((sub, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let snapshot = root.lookup(name("snapshot")).unwrap();
    let old = snapshot.lookup(name("file")).unwrap();
    assert_eq!(permissions(&*old), 0o611);
    drop((old, snapshot, root));
    mounted.unmount().unwrap();
}

#[test]
fn many_are_written_before_the_commit() {
    const COUNT: u64 = 1200;
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let files: Vec<_> = (0..COUNT)
        .map(|it| create(&*root, &format!("file{it}")))
        .collect();
    mounted.sync().unwrap();
    for file in &files {
        chmod(&**file, 0o600);
    }
    // The first ones wait no more, the last ones do.
    assert_eq!(in_tree(&mounted, &*files[0]).permissions, 0o600);
    let last = &files[files.len() - 1];
    assert_eq!(in_tree(&mounted, &**last).permissions, 0o644);
    assert_eq!(counts(&mounted), (COUNT, COUNT));
    drop((files, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

/// What is counted for items that wait is more than an edit may change, and what they take is less.
#[test]
fn edit_of_many_subvolumes_is_not_refused_early() {
    const SUBVOLUMES: u32 = 8;
    const COUNT: u32 = 150;
    let pool = Pool::make(1, 256, &["-m", "single"]);
    pool.run(&format!(
        "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\n\
         for sub in $(seq {SUBVOLUMES}); do\n\
             btrfs subvolume create \"$root/sub$sub\"\n\
             for file in $(seq {COUNT}); do : > \"$root/sub$sub/file$file\"; done\n\
         done\n"
    ));
    let options = MountOptions {
        transactions: WriteOptions {
            blocks_max: 256,
            ..WriteOptions::TOGETHER
        },
        commit_interval: None,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    let mounted = Btrfs::mount_writable(&pool.devices(), &options, budget, clock).unwrap();
    let root = mounted.root().unwrap();
    let each = |root: &dyn Inode, work: &dyn Fn(&dyn Inode)| {
        for sub in 1..=SUBVOLUMES {
            let sub = root.lookup(name(&format!("sub{sub}"))).unwrap();
            for file in 1..=COUNT {
                work(&*sub.lookup(name(&format!("file{file}"))).unwrap());
            }
        }
    };
    each(&*root, &|file| chmod(file, 0o600));
    drop(root);
    mounted.unmount().unwrap();
    let report = mounted.last_commit().unwrap();
    assert_eq!(
        report.inode_items_written,
        u64::from(SUBVOLUMES * COUNT),
        "{report:?}"
    );
    drop(mounted);
    pool.assert_clean();
    let mounted = mount(&pool);
    each(&*mounted.root().unwrap(), &|file| {
        assert_eq!(permissions(file), 0o600);
    });
    mounted.unmount().unwrap();
}

#[test]
fn deleted_inodes_are_not_written() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let files: Vec<_> = (0..60)
        .map(|it| create(&*root, &format!("file{it}")))
        .collect();
    mounted.sync().unwrap();
    for file in &files {
        chmod(&**file, 0o600);
    }
    // They become orphans first, and go with their users.
    for number in 0..60 {
        unlink(&*root, &format!("file{number}"));
    }
    drop(files);
    let (_, written) = counts(&mounted);
    assert_eq!(written, 1, "the directory");
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn full_filesystem_commits_what_was_delayed() {
    let pool = Pool::make(1, 128, &["--mixed", "-n", "4096"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let count = fill(&*root, "short", 1500).min(4000);
    mounted.sync().unwrap();
    let mut changed = 0;
    for number in 0..count {
        let file = root.lookup(name(&format!("short{number}"))).unwrap();
        let changes = SetAttr {
            permissions: Some(0o640),
            ..SetAttr::default()
        };
        match file.set_attr(&Context::root(), &changes) {
            Ok(_) => changed += 1,
            refused => assert!(is_full(&refused)),
        }
    }
    mounted.sync().unwrap();
    for number in 0..count {
        unlink(&*root, &format!("short{number}"));
    }
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
    println!("{changed} of {count} changed");
}

/// What names in one directory cost: only the entry by hash is searched for, unless names are removed in an order of
/// their own.
#[test]
fn names_of_a_directory_take_few_searches() {
    const COUNT: u64 = 3000;
    let pool = Pool::make(1, 512, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let path = |number: u64| format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let searches = |work: &dyn Fn(u64)| {
        mounted.sync().unwrap();
        (0..COUNT).for_each(work);
        counts(&mounted);
        mounted.last_commit().unwrap().leaf_searches
    };
    let created = searches(&|number| drop(create(&*root, &path(number))));
    assert!(created < COUNT * 5 / 4, "{created}");
    let removed = searches(&|number| unlink(&*root, &path(number)));
    assert!(removed < COUNT * 5 / 4, "{removed}");
    searches(&|number| drop(create(&*root, &path(number))));
    // The order of a walk through numbers that are prime to it.
    let removed = searches(&|number| unlink(&*root, &path(number * 1009 % COUNT)));
    assert!(removed < COUNT * 7 / 2, "{removed}");
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}
