//! Files that become shorter while they are made durable, or a snapshot is made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Context, Filesystem, Inode, SetAttr, SystemClock, Timestamp};

use super::write_tests::{create, mount, name, read};
use super::{Btrfs, MountOptions};
use crate::txn::tests::image::Pool;

const THREAD: &str = "truncates";
const LEN: usize = 12 << 10;

/// Holds a thread whenever it asks for the time.
#[derive(Debug)]
struct HoldingClock {
    clock: SystemClock,
    holds: AtomicBool,
    meeting: Barrier,
}

impl Clock for HoldingClock {
    fn now(&self) -> Timestamp {
        let is_held = thread::current().name() == Some(THREAD);
        if is_held && self.holds.load(Ordering::SeqCst) {
            self.meeting.wait();
            self.meeting.wait();
        }
        self.clock.now()
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn random_u64(&self) -> u64 {
        self.clock.random_u64()
    }
}

/// Does `work` when the cache has lost what was written to a file last, and the tree has what was written before that.
/// It must not end before the tree has the truncation.
fn while_truncating<T: Send>(pool: &Pool, work: impl FnOnce(&Btrfs, &dyn Inode) -> T + Send) -> T {
    let clock = Arc::new(HoldingClock {
        clock: SystemClock::new(),
        holds: AtomicBool::new(true),
        meeting: Barrier::new(2),
    });
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let own = Arc::clone(&clock);
    let fs = Btrfs::mount_writable(&pool.devices(), &MountOptions::default(), budget, own).unwrap();
    let file = create(&*fs.root().unwrap(), "file");
    file.write_at(0, &[1; LEN]).unwrap();
    fs.sync().unwrap();
    file.write_at(0, &[2; LEN]).unwrap();
    let done = thread::scope(|scope| {
        let truncate = || {
            let changes = SetAttr {
                size_bytes: Some(0),
                ..SetAttr::default()
            };
            file.set_attr(&Context::root(), &changes).map(drop)
        };
        let truncating = thread::Builder::new().name(THREAD.to_owned());
        let truncating = truncating.spawn_scoped(scope, truncate).unwrap();
        clock.meeting.wait();
        while file.attr().unwrap().size_bytes > 0 {
            clock.meeting.wait();
            clock.meeting.wait();
        }
        clock.holds.store(false, Ordering::SeqCst);
        let working = scope.spawn(|| work(&fs, &*file));
        thread::sleep(Duration::from_millis(50));
        let has_waited = !working.is_finished();
        clock.meeting.wait();
        truncating.join().unwrap().unwrap();
        assert!(has_waited);
        working.join().unwrap()
    });
    // As after a crash.
    drop(file);
    drop(fs);
    pool.assert_clean();
    done
}

/// What a file of the root, or of a subvolume there, has.
fn contents(pool: &Pool, dir: Option<&str>) -> Vec<u8> {
    let fs = mount(pool);
    let root = fs.root().unwrap();
    let dir = dir.map_or(root.clone(), |dir| root.lookup(name(dir)).unwrap());
    read(&*dir.lookup(name("file")).unwrap())
}

#[test]
fn synced_truncation_is_not_older_than_the_last_write() {
    for syncs_all in [false, true] {
        let pool = Pool::make(1, 128, &["-m", "single"]);
        while_truncating(&pool, |fs, file| {
            if syncs_all {
                fs.sync().unwrap();
            } else {
                file.sync(false).unwrap();
            }
        });
        assert_eq!(contents(&pool, None), [0; 0], "{syncs_all}");
    }
}

#[test]
fn snapshot_of_truncation_is_not_older_than_the_last_write() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    while_truncating(&pool, |fs, _| {
        let (root, context) = (fs.root().unwrap(), Context::root());
        let ops = fs.subvolumes().unwrap();
        let made = ops.snapshot(&context, root.id().tree, root.id(), name("snapshot"), true);
        drop(made.unwrap());
    });
    assert_eq!(contents(&pool, Some("snapshot")), [0; 0]);
}
