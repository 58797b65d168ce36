//! Subvolumes that are made, copied and deleted, judged by `btrfs check` and the kernel.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use platter_block::sim::{CrashOptions, Recorder, RecordingDevice};
use platter_block::{BlockDevice, MemoryDevice};
use platter_ondisk::Uuid;
use platter_vfs::subvolumes::{Cancellation, SendOptions, Subvolume};
use platter_vfs::{
    Condition, Context, CreateKind, Error, Filesystem, Inode, Name, RenameMode, Result, Subvolumes,
};

use super::Btrfs;
use super::write_tests::{colliding, mount, name, read};
use crate::ondisk::key::ItemKind;
use crate::ondisk::send_stream::{Command, Source, StreamWriter};
use crate::ondisk::types::ORPHAN_OBJECT;
use crate::ondisk::uuid_item::UuidItem;
use crate::ondisk::{Generation, Key, TreeId};
use crate::ops::dead_subvolumes;
use crate::txn::tests::Random;
use crate::txn::tests::crash::store;
use crate::txn::tests::image::{Pool, mount_without_thread};

fn subvolumes(mounted: &Btrfs) -> &dyn Subvolumes {
    mounted.subvolumes().unwrap()
}

fn all(mounted: &Btrfs) -> BTreeMap<Vec<u8>, Subvolume> {
    let mut all = BTreeMap::new();
    let listed = subvolumes(mounted).list(&mut |subvolume| {
        all.insert(subvolume.path.clone(), subvolume);
        ControlFlow::Continue(())
    });
    listed.unwrap();
    all
}

fn write(dir: &dyn Inode, path: &str, bytes: &[u8]) {
    let context = Context::root();
    let file = dir.lookup(name(path)).unwrap_or_else(|_| {
        dir.create(&context, name(path), CreateKind::Regular, 0o644)
            .unwrap()
    });
    file.write_at(0, bytes).unwrap();
}

fn is<T>(result: &Result<T>, condition: Condition) -> bool {
    matches!(result, Err(Error::Condition(found)) if *found == condition)
}

#[test]
fn snapshots_keep_what_the_source_had() {
    for options in [&["-m", "single"][..], &["--mixed", "-n", "4096"]] {
        let pool = Pool::make(1, 192, options);
        let context = Context::root();
        let mounted = mount(&pool);
        let root = mounted.root().unwrap();
        let ops = subvolumes(&mounted);
        let sub = ops.create(&context, root.id(), name("sub")).unwrap();
        assert!(is(
            &ops.create(&context, root.id(), name("sub")),
            Condition::Exists
        ));
        for number in 0..400 {
            let bytes = vec![u8::try_from(number % 251).unwrap(); 100 + 7 * number];
            write(&*sub, &format!("file{number}"), &bytes);
        }
        let id = sub.id().tree;
        let ro = ops
            .snapshot(&context, id, root.id(), name("ro"), true)
            .unwrap();
        write(&*sub, "file7", b"changed");
        let rw = ops
            .snapshot(&context, id, sub.id(), name("rw"), false)
            .unwrap();
        write(&*rw, "file8", b"also changed");
        rw.unlink(&context, name("file9")).unwrap();
        assert!(is(&ro.unlink(&context, name("file9")), Condition::ReadOnly));
        assert_eq!(read(&*ro.lookup(name("file7")).unwrap())[..7], [7; 7]);
        assert_eq!(read(&*rw.lookup(name("file7")).unwrap())[..7], *b"changed");
        assert_eq!(read(&*sub.lookup(name("file8")).unwrap())[..7], [8; 7]);
        sub.lookup(name("file9")).unwrap();
        ops.set_read_only(rw.id().tree, true).unwrap();
        assert!(is(
            &rw.unlink(&context, name("file10")),
            Condition::ReadOnly
        ));
        ops.set_default(id).unwrap();
        assert_eq!(ops.default_id().unwrap(), id);
        let listed = all(&mounted);
        assert_eq!(
            listed[&b"ro"[..]].parent_uuid,
            Some(listed[&b"sub"[..]].uuid)
        );
        assert!(listed[&b"sub/rw"[..]].read_only);
        drop((ro, rw, sub, root));
        mounted.unmount().unwrap();
        drop(mounted);
        pool.assert_clean();
        let shown = pool.run(
            "mount -t btrfs -o subvolid=5 \"$device\" \"$root\"\nbtrfs subvolume list -pcguqo \"$root\"\nbtrfs subvolume list -pcguq \"$root\"\ncmp \"$root\"/ro/file8 \"$root\"/sub/file8\nhead -c 7 \"$root\"/sub/rw/file7\ntest ! -e \"$root\"/sub/rw/file9\nbtrfs subvolume show \"$root\"/ro\nbtrfs property get \"$root\"/ro ro\ndmesg | tail -5\nrm -f \"$root\"/sub/file1\nbtrfs -q subvolume snapshot \"$root\"/sub \"$root\"/again\n",
        );
        assert!(
            shown.contains("changed") && shown.contains("ro=true"),
            "{shown}"
        );
        pool.assert_clean();
        let mounted = mount(&pool);
        assert_eq!(all(&mounted).len(), 5);
        mounted.unmount().unwrap();
    }
}

/// How many extents of a file are said to be shared, and how many it has.
fn shared_extents(file: &dyn Inode) -> (usize, usize) {
    let mut found = (0, 0);
    let mut sink = |extent: platter_vfs::Extent| {
        found.0 += usize::from(extent.shared);
        found.1 += 1;
        ControlFlow::Continue(())
    };
    file.extents(0..u64::MAX, &mut sink).unwrap();
    found
}

#[test]
fn source_of_a_snapshot_shares_its_extents_at_once() {
    let pool = Pool::make(1, 192, &["-m", "single", "-n", "4096"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&Context::root(), root.id(), name("sub"));
    let sub = sub.unwrap();
    for number in 0..100 {
        write(&*sub, &format!("file{number}"), &[7; 5000]);
    }
    mounted.sync().unwrap();
    let file = sub.lookup(name("file50")).unwrap();
    assert_eq!(shared_extents(&*file), (0, 1));
    ops.snapshot(
        &Context::root(),
        sub.id().tree,
        root.id(),
        name("snap"),
        true,
    )
    .unwrap();
    assert_eq!(shared_extents(&*file), (1, 1));
    file.write_at(0, &[8; 5000]).unwrap();
    mounted.sync().unwrap();
    assert_eq!(shared_extents(&*file), (0, 1));
    drop((file, sub, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn subvolume_gets_no_index_of_a_removed_name() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let last_index = || {
        let fs = mounted.super_block().context();
        let tree = fs.required_tree(TreeId(root.id().tree)).unwrap();
        let mut cursor = fs.cursor(tree);
        let last = Key::new(root.id().number, ItemKind::DIR_INDEX, u64::MAX);
        assert!(cursor.seek_at_or_before(last).unwrap());
        let key = cursor.key().unwrap();
        assert_eq!(key.kind, ItemKind::DIR_INDEX);
        key.offset
    };
    write(&*root, "first", b"first");
    write(&*root, "second", b"second");
    mounted.sync().unwrap();
    let removed = last_index();
    root.unlink(&context, name("second")).unwrap();
    assert!(last_index() < removed);
    let ops = subvolumes(&mounted);
    ops.create(&context, root.id(), name("sub")).unwrap();
    assert_eq!(last_index(), removed + 1);
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn subvolumes_are_found_one_after_the_other() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let ids = ["a", "b", "c"].map(|path| {
        let made = ops.create(&context, root.id(), name(path)).unwrap();
        assert_eq!(ops.root(made.id().tree).unwrap(), made.id());
        made.id().tree
    });
    let delete = |id| {
        let expected = Some(ops.root(id).unwrap());
        ops.delete(&context, root.id(), name("b"), expected)
    };
    assert!(is(&delete(ids[0]), Condition::Stale));
    delete(ids[1]).unwrap();
    assert!(is(&ops.root(ids[1]), Condition::NotFound));
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(next) = ops.next(from).unwrap() {
        from = next.id + 1;
        found.push((next.id, next.path, next.parent_dir));
    }
    let root_dir = Some(root.id().number);
    let expected = [
        (root.id().tree, Vec::new(), None),
        (ids[0], b"a".to_vec(), root_dir),
        (ids[2], b"c".to_vec(), root_dir),
    ];
    assert_eq!(found, expected);
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn deleted_subvolume_is_read_until_its_last_user_is_gone() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    write(&*sub, "file", &vec![7; 300_000]);
    let id = sub.lookup(name("file")).unwrap().id();
    ops.delete(&context, root.id(), name("sub"), None).unwrap();
    let file = mounted.inode(id).unwrap();
    assert!(read(&*file) == vec![7; 300_000]);
    assert!(is(&file.write_at(0, b"no"), Condition::ReadOnly));
    assert!(is(&mounted.inode_of_handle(id), Condition::Stale));
    drop((file, sub));
    mounted.sync().unwrap();
    dead_subvolumes::drop_all(mounted.super_block()).unwrap();
    assert!(mounted.super_block().dead_subvolumes.is_empty());
    assert!(is(&mounted.inode(id), Condition::Stale));
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

/// Makes a subvolume with a file, deletes it in a later mount, which ends without an unmount if the next one is to drop its
/// tree, and makes another.
fn make_after_deletion(drops_in_next_mount: bool) {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = pool.mount_without_thread();
    let top = mounted.root().unwrap().id();
    let old = subvolumes(&mounted).create(&context, top, name("old"));
    let old = old.unwrap();
    write(&*old, "file", b"old");
    let number = old.id().tree;
    drop(old);
    mounted.unmount().unwrap();
    drop(mounted);
    let mut mounted = pool.mount_without_thread();
    let old = mounted.root().unwrap().lookup(name("old")).unwrap();
    old.lookup(name("file")).unwrap();
    let deleted = subvolumes(&mounted).delete(&context, top, name("old"), None);
    deleted.unwrap();
    if drops_in_next_mount {
        // It is in use, and so stays.
        mounted.sync().unwrap();
        drop((old, mounted));
        mounted = pool.mount_without_thread();
    } else {
        drop(old);
    }
    assert!(!mounted.super_block().dead_subvolumes.is_empty());
    dead_subvolumes::drop_all(mounted.super_block()).unwrap();
    let new = subvolumes(&mounted).create(&context, top, name("new"));
    let new = new.unwrap();
    assert_ne!(new.id().tree, number);
    assert!(is(&new.lookup(name("file")), Condition::NotFound));
    drop(new);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn new_subvolume_has_nothing_of_the_last_that_was_deleted() {
    make_after_deletion(false);
    make_after_deletion(true);
}

#[test]
fn new_file_has_not_the_number_of_the_last_that_was_deleted() {
    for bytes in [&b""[..], &[1; 9000]] {
        let pool = Pool::make(1, 192, &["-m", "single"]);
        let context = Context::root();
        let mounted = mount(&pool);
        let root = mounted.root().unwrap();
        write(&*root, "old", bytes);
        let old = root.lookup(name("old")).unwrap().id();
        drop(root);
        mounted.unmount().unwrap();
        drop(mounted);
        let mounted = mount(&pool);
        let root = mounted.root().unwrap();
        root.unlink(&context, name("old")).unwrap();
        mounted.sync().unwrap();
        write(&*root, "new", b"new");
        assert!(root.lookup(name("new")).unwrap().id().number > old.number);
        drop(root);
        mounted.unmount().unwrap();
        drop(mounted);
        pool.assert_clean();
    }
}

#[test]
fn deleted_subvolumes_leave_nothing() {
    let pool = Pool::make(1, 192, &["-m", "single", "-n", "4096"]);
    let context = Context::root();
    let mut random = Random(7);
    for round in 0..2 {
        let mounted = mount(&pool);
        let root = mounted.root().unwrap();
        let ops = subvolumes(&mounted);
        let base = ops.create(&context, root.id(), name("s0")).unwrap();
        for number in 0..1000 {
            write(&*base, &format!("file{number}"), &[1; 3000]);
        }
        drop(base);
        let mut names = vec!["s0".to_owned()];
        for number in 1..12 {
            let from = &names[usize::try_from(random.below(names.len() as u64)).unwrap()];
            let from = root.lookup(name(from)).unwrap();
            let to = format!("s{number}");
            let made = ops.snapshot(&context, from.id().tree, root.id(), name(&to), false);
            let made = made.unwrap();
            for dir in [from, made] {
                for _ in 0..40 {
                    let file = format!("file{}", random.below(1000));
                    if random.below(3) == 0 {
                        let _ = dir.unlink(&context, name(&file));
                    } else {
                        write(&*dir, &file, &random.bytes(5000));
                    }
                }
            }
            names.push(to);
            if random.below(2) == 0 {
                let at = usize::try_from(random.below(names.len() as u64)).unwrap();
                let gone = names.remove(at);
                ops.delete(&context, root.id(), name(&gone), None).unwrap();
                if round > 0 {
                    mounted.sync().unwrap();
                }
            }
        }
        mounted.sync().unwrap();
        drop(root);
        mounted.unmount().unwrap();
        drop(mounted);
        pool.assert_clean();
        pool.run("mount -t btrfs \"$device\" \"$root\"\nfor i in \"$root\"/*; do cat $i/* >/dev/null; done\n");
        pool.assert_clean();
        let mounted = mount(&pool);
        let root = mounted.root().unwrap();
        for gone in names {
            subvolumes(&mounted)
                .delete(&context, root.id(), name(&gone), None)
                .unwrap();
        }
        drop(root);
        mounted.sync().unwrap();
        dead_subvolumes::drop_all(mounted.super_block()).unwrap();
        assert!(mounted.super_block().dead_subvolumes.is_empty());
        mounted.unmount().unwrap();
        drop(mounted);
        pool.assert_clean();
        let left = pool.run("mount -t btrfs \"$device\" \"$root\"\nbtrfs subvolume sync \"$root\"\nbtrfs subvolume list -d \"$root\"\nbtrfs filesystem df -b \"$root\" | grep Metadata\n");
        let used = left.split("used=").nth(1).unwrap().trim();
        assert!(used.parse::<u64>().unwrap() < 200_000, "{left}");
    }
}

#[test]
fn full_item_of_a_received_uuid_takes_no_more() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    let id = sub.id().tree;
    let uuid = Uuid::from_u128(77);
    ops.set_received(id, uuid, 1).unwrap();
    ops.set_read_only(id, true).unwrap();
    let handle = mounted.super_block().writing().unwrap().begin(4).unwrap();
    let filled = handle.edit(TreeId::UUID, |editor| {
        let key = UuidItem::key(uuid, ItemKind::UUID_RECEIVED_SUBVOL);
        let mut trees = editor.get(key)?.unwrap();
        assert_eq!(trees, id.to_le_bytes());
        for other in 1..editor.item_bytes_max() as u64 / 8 {
            trees.extend((1000 + other).to_le_bytes());
        }
        editor.set(key, &trees)
    });
    filled.unwrap();
    drop(handle);
    let copy = ops
        .snapshot(&context, id, root.id(), name("copy"), true)
        .unwrap();
    let other = ops.create(&context, root.id(), name("other")).unwrap();
    let received = ops.set_received(other.id().tree, uuid, 1);
    assert!(is(&received, Condition::Overflow), "{received:?}");
    // It has no entry that could be removed.
    ops.set_read_only(copy.id().tree, false).unwrap();
    write(&*other, "file", b"bytes");
    write(&*copy, "file", b"bytes");
    mounted.sync().unwrap();
    assert_eq!(all(&mounted)[&b"other"[..]].received_uuid, None);
    drop((sub, copy, other, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn received_data_is_durable_before_its_mark() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let source = Source {
        uuid: Uuid::from_u128(77),
        generation: Generation(5),
    };
    let path = &b"file"[..];
    let mut stream = Vec::new();
    let mut writer = StreamWriter::begin(&mut stream, 1).unwrap();
    for command in [
        Command::Subvolume {
            path: b"sub",
            source,
        },
        Command::MakeFile { path, inode: 257 },
        Command::Write {
            path,
            offset: 0,
            data: &vec![7; 40_000],
        },
        Command::End,
    ] {
        writer.put(&command).unwrap();
    }
    let (context, mut input) = (Context::root(), &stream[..]);
    let ops = subvolumes(&mounted);
    let received = ops.receive(&context, root.id(), &mut input, &mut |_| ());
    received.unwrap();
    let all = all(&mounted);
    let sub = &all[&b"sub"[..]];
    assert!(sub.read_only, "{sub:?}");
    // A commit lies between.
    let marked = sub.received.unwrap().generation;
    assert!(marked > sub.created_generation, "{sub:?}");
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

/// Calls a function with what is written to it.
struct Calling<F>(F);

impl<F: FnMut(&[u8])> Write for Calling<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn subvolumes_of_a_running_send_stay_as_they_are() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    let source = sub.id().tree;
    let names = ["old", "other", "new"];
    let ids = names.map(|path| {
        write(&*sub, path, &vec![7; 100_000]);
        let made = ops.snapshot(&context, source, root.id(), name(path), true);
        made.unwrap().id().tree
    });
    let attempt = || {
        for (path, id) in names.into_iter().zip(ids) {
            let deleted = ops.delete(&context, root.id(), name(path), None);
            assert!(is(&deleted, Condition::NotPermitted), "{path}: {deleted:?}");
            let changed = ops.set_read_only(id, false);
            assert!(is(&changed, Condition::NotPermitted), "{path}: {changed:?}");
        }
    };
    let mut calls = 0;
    let mut out = Calling(|_: &[u8]| {
        calls += 1;
        thread::scope(|scope| scope.spawn(attempt).join()).unwrap();
    });
    let options = SendOptions {
        parent: Some(ids[0]),
        clone_sources: vec![ids[1]],
        ..SendOptions::default()
    };
    ops.send(ids[2], &options, &mut out).unwrap();
    assert!(calls > 0);
    for (path, id) in names.into_iter().zip(ids) {
        ops.set_read_only(id, false).unwrap();
        ops.delete(&context, root.id(), name(path), None).unwrap();
    }
    drop((sub, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn others_go_on_while_the_output_of_a_send_waits() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    write(&*sub, "small", b"in its item");
    write(&*sub, "large", &vec![7; 300_000]);
    let made = |path: &str| {
        let made = ops.snapshot(&context, sub.id().tree, root.id(), name(path), true);
        made.unwrap().id().tree
    };
    let old = made("old");
    write(&*sub, "large", &vec![8; 100_000]);
    write(&*sub, "new", &vec![9; 300_000]);
    let new = made("new");
    let options = SendOptions {
        parent: Some(old),
        ..SendOptions::default()
    };
    let mut expected = Vec::new();
    ops.send(new, &options, &mut expected).unwrap();
    let mut calls = 0_u8;
    let mut sent = Vec::new();
    let mut out = Calling(|bytes: &[u8]| {
        sent.extend_from_slice(bytes);
        calls += 1;
        // In this thread: a lock that it held would be one out of order.
        for id in [old, new] {
            let copy = ops.snapshot(&context, id, root.id(), name("copy"), false);
            write(&*copy.unwrap(), "large", &vec![calls; 300_000]);
            ops.delete(&context, root.id(), name("copy"), None).unwrap();
        }
        write(&*sub, "large", &vec![calls; 300_000]);
        mounted.sync().unwrap();
        dead_subvolumes::drop_all(mounted.super_block()).unwrap();
    });
    ops.send(new, &options, &mut out).unwrap();
    assert!(calls > 10);
    assert!(sent == expected);
    drop((sub, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

#[test]
fn stream_of_a_tree_that_changes_has_no_end() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    write(&*sub, "file", &vec![7; 100_000]);
    let snap = ops.snapshot(&context, sub.id().tree, root.id(), name("snap"), true);
    let id = snap.unwrap().id().tree;
    let send = |options: &SendOptions, changed_at: Option<usize>| {
        let mut sent = Vec::new();
        let mut changed_at = changed_at;
        let mut out = Calling(|bytes: &[u8]| {
            sent.extend_from_slice(bytes);
            if changed_at.take_if(|at| *at <= sent.len()).is_some() {
                let writing = mounted.super_block().writing().unwrap();
                let handle = writing.begin(8).unwrap();
                let orphan = Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, sent.len() as u64);
                let changed = handle.edit(TreeId(id), |tree| tree.insert(orphan, b""));
                changed.unwrap();
            }
        });
        let done = ops.send(id, options, &mut out);
        (sent, done)
    };
    let (whole, done) = send(&SendOptions::default(), None);
    done.unwrap();
    // A header of 10 bytes is all that the last command has.
    let end = whole.len() - 10;
    let (sent, done) = send(&SendOptions::default(), Some(end));
    assert!(is(&done, Condition::WouldBlock), "{done:?}");
    assert!(sent == whole[..end]);
    // A change before the contents is found before they are sent.
    let (sent, done) = send(&SendOptions::default(), Some(1));
    assert!(is(&done, Condition::WouldBlock), "{done:?}");
    assert!(sent.len() < whole.len() / 2);
    drop((sub, root));
    mounted.unmount().unwrap();
}

/// Cancels when it was asked so often.
#[derive(Debug)]
struct CancelledAt {
    asked: AtomicU32,
    limit: u32,
}

impl Cancellation for CancelledAt {
    fn is_cancelled(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) + 1 >= self.limit
    }
}

#[test]
fn cancelled_stream_ends_where_nothing_is_written() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    write(&*sub, "file", b"");
    let file = sub.lookup(name("file")).unwrap();
    for part in 0..50 {
        file.write_at(part * 8192, &[7; 4096]).unwrap();
    }
    let made = |path: &str| {
        let made = ops.snapshot(&context, sub.id().tree, root.id(), name(path), true);
        made.unwrap().id().tree
    };
    let old = made("old");
    file.append(&[8; 4096]).unwrap();
    let new = made("new");
    let send = |limit| {
        let cancellation = Arc::new(CancelledAt {
            asked: AtomicU32::new(0),
            limit,
        });
        let options = SendOptions {
            parent: Some(old),
            cancellation: Some(Arc::<CancelledAt>::clone(&cancellation)),
            ..SendOptions::default()
        };
        let mut sent = Vec::new();
        let done = ops.send(new, &options, &mut sent);
        (cancellation.asked.load(Ordering::Relaxed), sent, done)
    };
    let (asked, whole, done) = send(u32::MAX);
    done.unwrap();
    // Extents and holes of the file, which are the same up to the last.
    assert!(asked >= 100, "{asked}");
    for limit in [1, 20, 80] {
        let (asked, sent, done) = send(limit);
        assert_eq!(asked, limit);
        assert!(matches!(done, Err(Error::Io(_))), "{done:?}");
        assert!(sent.len() < whole.len() - 4096);
    }
    drop((file, sub, root));
    mounted.unmount().unwrap();
}

#[test]
fn clone_sources_count_once_whatever_names_them() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    write(&*sub, "first", &vec![7; 100_000]);
    write(&*sub, "second", b"");
    let [first, second] = ["first", "second"].map(|path| sub.lookup(name(path)).unwrap());
    mounted.sync().unwrap();
    second.clone_range(&*first, 0..100_000, 0).unwrap();
    let made = |path: &str| {
        let made = ops.snapshot(&context, sub.id().tree, root.id(), name(path), true);
        made.unwrap().id().tree
    };
    let (old, other, new) = (made("old"), made("other"), made("new"));
    let send = |clone_sources: &[u64], parent| {
        let options = SendOptions {
            parent,
            clone_sources: clone_sources.to_vec(),
            ..SendOptions::default()
        };
        let mut sent = Vec::new();
        ops.send(new, &options, &mut sent).unwrap();
        sent
    };
    // No file of the subvolume itself that comes later is cloned from.
    assert!(send(&[new], None) == send(&[], None));
    assert!(send(&[other, new, other], None) == send(&[other], None));
    assert!(send(&[old, other], Some(old)) == send(&[other], Some(old)));
    drop((first, second, sub, root));
    mounted.unmount().unwrap();
}

#[test]
fn names_of_subvolumes_move_and_go_as_in_the_kernel() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let one = ops.create(&context, root.id(), name("one")).unwrap();
    let two = ops.create(&context, one.id(), name("two")).unwrap();
    let directory = root
        .create(&context, name("subdir"), CreateKind::Directory, 0o755)
        .unwrap();
    write(&*two, "file", b"contents");
    let rename = |from: &dyn Inode, old: &str, to: &dyn Inode, new: &str| {
        from.rename(&context, name(old), to.id(), name(new), RenameMode::Replace)
    };
    // With the subvolume in it a snapshot has an empty directory, which can be removed.
    ops.snapshot(&context, one.id().tree, root.id(), name("snap"), false)
        .unwrap();
    let snap = root.lookup(name("snap")).unwrap();
    assert!(is(
        &snap
            .lookup(name("two"))
            .unwrap()
            .lookup(name("file"))
            .map(drop),
        Condition::NotFound
    ));
    assert!(is(
        &ops.delete(&context, root.id(), name("one"), None),
        Condition::NotEmpty
    ));
    rename(&*one, "two", &*directory, "moved").unwrap();
    assert!(is(
        &rename(&*directory, "moved", &*two, "loop"),
        Condition::InvalidArgument
    ));
    assert!(is(
        &root.remove_dir(&context, name("snap")),
        Condition::NotEmpty
    ));
    snap.remove_dir(&context, name("two")).unwrap();
    root.remove_dir(&context, name("snap")).unwrap();
    assert_eq!(all(&mounted)[&b"subdir/moved"[..]].id, two.id().tree);
    root.remove_dir(&context, name("one")).unwrap();
    assert!(is(
        &one.create(&context, name("new"), CreateKind::Regular, 0o644)
            .map(drop),
        Condition::ReadOnly
    ));
    assert!(is(
        &directory.remove_dir(&context, name("moved")),
        Condition::NotEmpty
    ));
    assert!(is(
        &ops.delete(&context, root.id(), name("subdir"), None),
        Condition::InvalidArgument
    ));
    ops.set_default(two.id().tree).unwrap();
    assert!(is(
        &ops.delete(&context, directory.id(), name("moved"), None),
        Condition::NotPermitted
    ));
    drop((one, two, snap, directory, root));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
    let listed = pool.run("mount -t btrfs -o subvolid=5 \"$device\" \"$root\"\nbtrfs subvolume list \"$root\"\ncat \"$root\"/subdir/moved/file\nbtrfs subvolume get-default \"$root\"\n");
    assert!(
        listed.contains("path subdir/moved") && listed.contains("contents"),
        "{listed}"
    );
    assert!(
        !listed.contains("path one") && !listed.contains("snap"),
        "{listed}"
    );
}

#[test]
fn files_removed_while_in_use_are_orphans_of_snapshots_too() {
    let pool = Pool::make(1, 192, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    let dirs = ["source", "other", "gone"];
    let dirs = dirs.map(|path| ops.create(&context, root.id(), name(path)).unwrap());
    let mut in_use = Vec::new();
    for dir in &dirs {
        for number in 0..70 {
            let path = format!("file{number}");
            write(&**dir, &path, &[1; 9000]);
            in_use.push(dir.lookup(name(&path)).unwrap());
        }
    }
    mounted.sync().unwrap();
    for dir in &dirs {
        for number in 0..70 {
            let path = format!("file{number}");
            dir.unlink(&context, name(&path)).unwrap();
        }
    }
    // Some are deleted in the same transaction.
    in_use.drain(..10);
    let source = dirs[0].id().tree;
    let snapshot = ops.snapshot(&context, source, root.id(), name("snapshot"), true);
    let snapshot = snapshot.unwrap();
    dirs[1].unlink(&context, name("file0")).unwrap_err();
    write(&*dirs[2], "last", b"last");
    let last = dirs[2].lookup(name("last")).unwrap();
    dirs[2].unlink(&context, name("last")).unwrap();
    ops.delete(&context, root.id(), name("gone"), None).unwrap();
    mounted.sync().unwrap();
    // As after a crash.
    drop(mounted);
    drop((in_use, last, dirs, snapshot, root));
    pool.assert_clean();
    let mounted = mount(&pool);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
    let used = "mount -t btrfs \"$device\" \"$root\"\nfind \"$root\" -type f | wc -l\nbtrfs filesystem df -b \"$root\"\n";
    let used = pool.run(used);
    assert!(used.starts_with("0\n") && used.contains("used=0"), "{used}");
}

/// What the file `mark` of each subvolume below the root has.
type Marks = BTreeMap<String, Vec<u8>>;

fn marks(mounted: &Btrfs) -> Marks {
    let root = mounted.root().unwrap();
    let mut found = Marks::new();
    for path in all(mounted).into_keys().filter(|path| !path.is_empty()) {
        let path = String::from_utf8(path).unwrap();
        let dir = root.lookup(name(&path)).unwrap();
        found.insert(path, read(&*dir.lookup(name("mark")).unwrap()));
    }
    found
}

/// Makes and deletes subvolumes; each step is one more sync.
fn run_steps(mounted: &Btrfs, steps: u64, mut done: impl FnMut(Marks)) {
    let context = Context::root();
    let root = mounted.root().unwrap();
    let ops = subvolumes(mounted);
    let mut random = Random(steps);
    let mut names = vec!["s0".to_owned()];
    let first = ops.create(&context, root.id(), name("s0")).unwrap();
    for number in 0..300 {
        write(&*first, &format!("file{number}"), &[7; 700]);
    }
    write(&*first, "mark", b"0");
    drop(first);
    mounted.sync().unwrap();
    done(marks(mounted));
    for step in 1..=steps {
        let at = usize::try_from(random.below(names.len() as u64)).unwrap();
        let source = root.lookup(name(&names[at])).unwrap();
        write(&*source, "mark", step.to_string().as_bytes());
        write(&*source, &format!("file{}", random.below(300)), &[8; 900]);
        let id = source.id().tree;
        drop(source);
        if names.len() > 2 && step % 3 == 0 {
            let gone = names.remove(at);
            ops.delete(&context, root.id(), name(&gone), None).unwrap();
        } else {
            let new = format!("s{step}");
            ops.snapshot(&context, id, root.id(), name(&new), false)
                .unwrap();
            names.push(new);
        }
        mounted.sync().unwrap();
        done(marks(mounted));
    }
}

#[test]
fn crash_leaves_whole_snapshots_and_deletions_go_on() {
    let pool = Pool::make(1, 128, &["-m", "single", "-n", "4096"]);
    let bytes = std::fs::read(&pool.images()[0]).unwrap();
    // A superblock is written in one piece.
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("base", bytes).with_blocks(4096));
    let recorder = Recorder::new(vec![base]);
    let recorded: Vec<Arc<dyn BlockDevice>> = recorder
        .devices()
        .iter()
        .map(|device| -> Arc<dyn BlockDevice> { Arc::<RecordingDevice>::clone(device) })
        .collect();
    let mounted = mount_without_thread(&recorded);
    let mut history = vec![Marks::new()];
    let mut returned = BTreeMap::from([(0, 0)]);
    run_steps(&mounted, 7, |marks| {
        returned.insert(recorder.mark(), history.len());
        history.push(marks);
    });
    mounted.unmount().unwrap();
    drop(mounted);
    let recording = recorder.recording();
    let judged = Pool::empty(1);
    let mut states = 0;
    for state in recording.crash_states(CrashOptions::default()) {
        let state = state.unwrap();
        states += 1;
        if states % 3 != 0 {
            continue;
        }
        let devices: Vec<Arc<dyn BlockDevice>> = state
            .devices()
            .unwrap()
            .into_iter()
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) })
            .collect();
        let is_judged = states % 60 == 0;
        if is_judged {
            store(&*devices[0], &judged.images()[0]);
            judged.assert_clean();
        }
        let (_, &durable) = returned.range(..=state.position).next_back().unwrap();
        let mounted = mount_without_thread(&devices);
        let later = history.get(durable + 1).unwrap_or(&history[durable]);
        if durable > 0 {
            let found = marks(&mounted);
            let before = &history[durable];
            let is_known = found.keys().eq(before.keys()) || found.keys().eq(later.keys());
            assert!(is_known, "{found:?} {before:?}");
            for (path, mark) in &found {
                let is_known = before.get(path) == Some(mark) || later.get(path) == Some(mark);
                assert!(is_known, "{path}");
            }
        }
        mounted.sync().unwrap();
        assert!(mounted.super_block().dead_subvolumes.is_empty());
        mounted.unmount().unwrap();
        drop(mounted);
        if is_judged {
            store(&*devices[0], &judged.images()[0]);
            judged.assert_clean();
        }
    }
    assert!(states > 60, "{states} states");
}

#[test]
fn subvolume_keeps_its_name_where_another_one_does_not_fit() {
    const COUNT: u8 = 58;
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let context = Context::root();
    let mounted = mount(&pool);
    let root = mounted.root().unwrap();
    let ops = subvolumes(&mounted);
    ops.create(&context, root.id(), name("sub")).unwrap();
    for number in 0..COUNT {
        let (bytes, kind) = (colliding(number), CreateKind::Regular);
        let made = root.create(&context, Name::new(&bytes).unwrap(), kind, 0o644);
        made.unwrap();
    }
    let last = colliding(COUNT);
    let (from, to) = (name("sub"), Name::new(&last).unwrap());
    let renamed = root.rename(&context, from, root.id(), to, RenameMode::Replace);
    assert!(is(&renamed, Condition::Overflow));
    // The filesystem goes on.
    write(&*root, "after", b"contents");
    root.lookup(from).unwrap();
    drop(root);
    mounted.unmount().unwrap();
    pool.assert_clean();
}
