//! Subvolumes that are deleted while other threads change them.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{BlockDevice, Operation};
use platter_cache::MemoryBudget;
use platter_vfs::subvolumes::SendOptions;
use platter_vfs::{
    Condition, Context, CreateKind, Error, Filesystem, Inode, InodeId, Name, RenameMode, Result,
    Subvolumes, SystemClock,
};

use super::MountedSubvolumes;
use super::in_use::SnapshotInMaking;
use crate::mount::{Btrfs, MountOptions};
use crate::ondisk::TreeId;
use crate::ops::{SuperBlock, dead_subvolumes};
use crate::txn::tests::image::Pool;

fn mount(devices: &[Arc<dyn BlockDevice>]) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    Btrfs::mount_writable(devices, &MountOptions::default(), budget, clock).unwrap()
}

fn pool() -> Pool {
    Pool::make(1, 192, &["-m", "single"])
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn is<T>(result: &Result<T>, condition: Condition) -> bool {
    matches!(result, Err(Error::Condition(found)) if *found == condition)
}

fn contents(file: &dyn Inode) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.attr().unwrap().size_bytes).unwrap()];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn directory(dir: &dyn Inode, path: &str) -> Arc<dyn Inode> {
    let made = dir.create(&Context::root(), name(path), CreateKind::Directory, 0o755);
    made.unwrap()
}

/// Lets two threads come as far as the lock of changes of subvolumes, the first one first, and calls `meanwhile` before
/// they go on.
fn at_the_lock<A: Send, B: Send>(
    fs: &SuperBlock,
    first: (InodeId, impl FnOnce() -> A + Send),
    second: (InodeId, impl FnOnce() -> B + Send),
    meanwhile: impl FnOnce(),
) -> (A, B) {
    let wait_for = |id, is_finished: &dyn Fn() -> bool| {
        let inode = fs.inodes.get(id).unwrap();
        // The last lock before that one.
        while !is_finished() && inode.order.try_read().is_some() {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let (held, is_held) = channel();
        let (release, released) = channel::<()>();
        scope.spawn(move || {
            let _changing = fs.subvolume_changes.lock();
            held.send(()).unwrap();
            let _ = released.recv();
        });
        is_held.recv().unwrap();
        let (id, call) = first;
        let first = scope.spawn(call);
        wait_for(id, &|| first.is_finished());
        let (id, call) = second;
        let second = scope.spawn(call);
        wait_for(id, &|| second.is_finished());
        meanwhile();
        drop(release);
        (first.join().unwrap(), second.join().unwrap())
    })
}

#[test]
fn subvolume_is_not_put_into_one_that_goes() {
    let pool = pool();
    let mounted = mount(&pool.devices());
    let root = mounted.root().unwrap();
    let ops = MountedSubvolumes(Arc::clone(mounted.super_block()));
    let context = Context::root();
    let from = directory(&*root, "from");
    let source = ops.create(&context, from.id(), name("source")).unwrap();
    let mut refused = 0;
    for round in 0..30 {
        let outer = ops.create(&context, root.id(), name("outer")).unwrap();
        let inner = directory(&*outer, "inner");
        let put = || match round % 3 {
            0 => ops.create(&context, inner.id(), name("new")).map(drop),
            1 => {
                let source = source.id().tree;
                let made = ops.snapshot(&context, source, inner.id(), name("new"), false);
                made.map(drop)
            }
            _ => from.rename(
                &context,
                name("source"),
                inner.id(),
                name("new"),
                RenameMode::Replace,
            ),
        };
        let delete = || ops.delete(&context, root.id(), name("outer"), None);
        let deleting = (outer.id(), delete);
        let (deleted, done) =
            at_the_lock(mounted.super_block(), deleting, (inner.id(), put), || ());
        if deleted.is_ok() {
            assert!(is(&done, Condition::ReadOnly), "{round}: {done:?}");
            refused += 1;
            continue;
        }
        assert!(is(&deleted, Condition::NotEmpty), "{round}: {deleted:?}");
        done.unwrap();
        let back = (inner.id(), from.id());
        let inner = mounted.inode(back.0).unwrap();
        if round % 3 == 2 {
            let replace = RenameMode::Replace;
            let moved = inner.rename(&context, name("new"), back.1, name("source"), replace);
            moved.unwrap();
        } else {
            ops.delete(&context, inner.id(), name("new"), None).unwrap();
        }
        ops.delete(&context, root.id(), name("outer"), None)
            .unwrap();
    }
    assert!(refused > 0);
    drop((root, from, source));
    mounted.unmount().unwrap();
    drop((ops, mounted));
    pool.assert_clean();
}

#[test]
fn snapshot_is_not_sent_before_it_is_made() {
    let pool = pool();
    let mounted = mount(&pool.devices());
    let root = mounted.root().unwrap();
    let fs = mounted.super_block();
    let ops = MountedSubvolumes(Arc::clone(fs));
    let context = Context::root();
    let source = ops.create(&context, root.id(), name("source")).unwrap();
    let made = ops.snapshot(&context, source.id().tree, root.id(), name("snap"), true);
    let id = made.unwrap().id().tree;
    let send = || {
        let mut sent = Vec::new();
        ops.send(id, &SendOptions::default(), &mut sent)
    };
    let found = fs.context().subvolume(TreeId(id)).unwrap().unwrap();
    let in_making = SnapshotInMaking::begin(fs.in_use.get_or_add(&found));
    let refused = send();
    assert!(is(&refused, Condition::WouldBlock), "{refused:?}");
    // Others change meanwhile.
    let other = ops.create(&context, root.id(), name("other")).unwrap();
    drop(in_making);
    send().unwrap();
    drop((other, source, root));
    mounted.unmount().unwrap();
    drop((ops, mounted));
    pool.assert_clean();
}

#[test]
fn file_of_a_deleted_subvolume_has_what_was_written_last() {
    let pool = pool();
    let mounted = mount(&pool.devices());
    let root = mounted.root().unwrap();
    let ops = MountedSubvolumes(Arc::clone(mounted.super_block()));
    let context = Context::root();
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    let file = sub.create(&context, name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    file.write_at(0, &vec![1; 300_000]).unwrap();
    let other = directory(&*root, "other");
    let delete = || ops.delete(&context, root.id(), name("sub"), None);
    let deleting = (sub.id(), delete);
    let creating = (other.id(), || {
        ops.create(&context, other.id(), name("new")).map(drop)
    });
    // What was dirty before is written back by now.
    let (deleted, created) = at_the_lock(mounted.super_block(), deleting, creating, || {
        file.write_at(100_000, &vec![2; 100_000]).unwrap();
    });
    deleted.and(created).unwrap();
    let mut expected = vec![1; 300_000];
    expected[100_000..200_000].fill(2);
    let id = file.id();
    assert!(contents(&*file) == expected);
    drop(file);
    assert!(contents(&*mounted.inode(id).unwrap()) == expected);
    mounted.sync().unwrap();
    assert!(contents(&*mounted.inode(id).unwrap()) == expected);
    drop((root, sub, other));
    mounted.sync().unwrap();
    dead_subvolumes::drop_all(mounted.super_block()).unwrap();
    assert!(mounted.super_block().dead_subvolumes.is_empty());
    assert!(is(&mounted.inode(id), Condition::Stale));
    mounted.unmount().unwrap();
    drop((ops, mounted));
    pool.assert_clean();
}

#[test]
fn failed_write_to_a_deleted_subvolume_is_repeated() {
    let pool = pool();
    let faults = Arc::new(FaultDevice::new(pool.devices().remove(0)));
    let mounted = mount(&[Arc::clone(&faults) as Arc<dyn BlockDevice>]);
    let root = mounted.root().unwrap();
    let ops = MountedSubvolumes(Arc::clone(mounted.super_block()));
    let context = Context::root();
    let sub = ops.create(&context, root.id(), name("sub")).unwrap();
    let file = sub.create(&context, name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    file.write_at(0, &vec![1; 300_000]).unwrap();
    mounted.sync().unwrap();
    file.write_at(0, &vec![2; 300_000]).unwrap();
    faults.arm(Fault {
        operation: Operation::Write,
        when: When::Nth(1),
        effect: Effect::Tear { seed: 0 },
    });
    ops.delete(&context, root.id(), name("sub"), None).unwrap();
    assert!(contents(&*file) == vec![2; 300_000]);
    assert!(file.sync(false).is_err());
    let id = file.id();
    drop(file);
    mounted.sync().unwrap();
    assert!(contents(&*mounted.inode(id).unwrap()) == vec![2; 300_000]);
    drop((root, sub));
    mounted.unmount().unwrap();
    drop((ops, mounted));
    pool.assert_clean();
}
