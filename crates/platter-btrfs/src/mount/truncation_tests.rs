//! Files that become shorter while a snapshot is made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Context, Filesystem, SetAttr, SystemClock, Timestamp};

use super::write_tests::{create, name, read};
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

#[test]
fn snapshot_has_what_was_written_before_a_truncation() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let clock = Arc::new(HoldingClock {
        clock: SystemClock::new(),
        holds: AtomicBool::new(true),
        meeting: Barrier::new(2),
    });
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let own = Arc::clone(&clock);
    let fs = Btrfs::mount_writable(&pool.devices(), &MountOptions::default(), budget, own).unwrap();
    let (root, context) = (fs.root().unwrap(), Context::root());
    let ops = fs.subvolumes().unwrap();
    let file = create(&*root, "file");
    file.write_at(0, &[1; LEN]).unwrap();
    fs.sync().unwrap();
    file.write_at(0, &[2; LEN]).unwrap();
    let snapshot = thread::scope(|scope| {
        let truncate = || {
            let changes = SetAttr {
                size_bytes: Some(0),
                ..SetAttr::default()
            };
            file.set_attr(&context, &changes).map(drop)
        };
        let truncating = thread::Builder::new().name(THREAD.to_owned());
        let truncating = truncating.spawn_scoped(scope, truncate).unwrap();
        // Until the cache has nothing of the file any more.
        clock.meeting.wait();
        while file.attr().unwrap().size_bytes > 0 {
            clock.meeting.wait();
            clock.meeting.wait();
        }
        clock.holds.store(false, Ordering::SeqCst);
        let make = || ops.snapshot(&context, root.id().tree, root.id(), name("snapshot"), true);
        let making = scope.spawn(make);
        thread::sleep(Duration::from_millis(50));
        clock.meeting.wait();
        truncating.join().unwrap().unwrap();
        making.join().unwrap().unwrap()
    });
    let kept = read(&*snapshot.lookup(name("file")).unwrap());
    assert!(
        kept.is_empty() || kept == [2; LEN],
        "{} bytes of {:?}",
        kept.len(),
        kept.first()
    );
    drop((snapshot, file, root));
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
}
