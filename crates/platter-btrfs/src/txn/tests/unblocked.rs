//! Commits that are written while handles of the next transaction go on.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::lock::{Condvar, Mutex};
use platter_block::sim::CrashOptions;
use platter_block::{BlockDevice, Geometry, IoError, Operation};
use platter_vfs::{Condition, Error};

use super::concurrent::wait_until;
use super::crash::{assert_clean, devices_of, read, record};
use super::image::{self, Pool};
use super::xattrs::{Xattrs, assert_kernel_agrees, set};
use crate::ondisk::Generation;
use crate::txn::{WriteContext, WriteOptions};

/// A device whose flushes, or writes, wait while it is shut to them.
#[derive(Debug)]
pub(crate) struct GatedDevice {
    base: Arc<dyn BlockDevice>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    /// The requests that wait.
    shut: Option<Operation>,
    /// The requests that fail.
    failing: Option<Operation>,
    waiting: u32,
}

/// A gate that is shut. It opens as well where a test fails: threads are joined that wait for it.
pub(crate) struct Shut<'d>(&'d GatedDevice);

impl GatedDevice {
    pub(crate) fn of(base: Arc<dyn BlockDevice>) -> Arc<Self> {
        Arc::new(Self {
            base,
            gate: Mutex::default(),
            changed: Condvar::default(),
        })
    }

    /// Has flushes or writes wait from now on.
    pub(crate) fn shut(&self, operation: Operation) -> Shut<'_> {
        self.gate.lock().shut = Some(operation);
        Shut(self)
    }

    /// Returns when the gate is open to a request.
    fn pass(&self, operation: Operation) -> Result<(), IoError> {
        let mut gate = self.gate.lock();
        gate.waiting += 1;
        while gate.shut == Some(operation) {
            self.changed.wait(&mut gate);
        }
        gate.waiting -= 1;
        if gate.failing == Some(operation) {
            return Err(IoError::out_of_range(self.name(), operation, 0, 0));
        }
        Ok(())
    }
}

impl Shut<'_> {
    /// Returns when a request waits.
    pub(crate) fn wait_for_request(&self) {
        wait_until(|| self.0.gate.lock().waiting > 0);
    }

    /// Opens the gate. The requests that waited fail from then on, or do not.
    pub(crate) fn open(self, fails: bool) {
        let mut gate = self.0.gate.lock();
        gate.failing = gate.shut.filter(|_| fails);
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.gate.lock().shut = None;
        self.0.changed.notify_all();
    }
}

impl BlockDevice for GatedDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.base.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.pass(Operation::Write)?;
        self.base.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.pass(Operation::Flush)?;
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.base.discard(range)
    }
}

/// A filesystem on one device, with an attribute that no commit has yet.
struct Held {
    pool: Pool,
    device: Arc<GatedDevice>,
    fs: WriteContext,
    committed: Generation,
}

impl Held {
    fn new() -> Self {
        let pool = Pool::make(1, 160, &[]);
        let device = GatedDevice::of(pool.devices().remove(0));
        let below: Arc<dyn BlockDevice> = Arc::<GatedDevice>::clone(&device);
        let fs = image::open(&[below], WriteOptions::default()).unwrap();
        let committed = fs.committed();
        set(&fs, "user.one", Some(b"before"));
        Self {
            pool,
            device,
            fs,
            committed,
        }
    }

    /// Runs `change`, then `wait`, while the commit waits for a flush, which then fails or not. `wait` says when it
    /// begins to, and must not return before the commit. Returns the result of the commit.
    fn while_committing(
        &self,
        fails: bool,
        change: impl FnOnce() + Send,
        wait: impl FnOnce(&AtomicBool) + Send,
    ) -> platter_vfs::Result<()> {
        let waits = AtomicBool::new(false);
        thread::scope(|scope| {
            let shut = self.device.shut(Operation::Flush);
            let commit = scope.spawn(|| self.fs.sync());
            shut.wait_for_request();
            let changing = scope.spawn(change);
            wait_until(|| changing.is_finished());
            let waiting = scope.spawn(|| wait(&waits));
            wait_until(|| waits.load(Ordering::Acquire));
            thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished() && !commit.is_finished());
            assert_eq!(self.fs.committed(), self.committed);
            shut.open(fails);
            changing.join().unwrap();
            waiting.join().unwrap();
            commit.join().unwrap()
        })
    }
}

#[test]
fn handles_go_on_while_a_commit_is_written() {
    let held = Held::new();
    let fs = &held.fs;
    let change = || {
        assert_eq!(fs.running(), Generation(held.committed.0 + 2));
        set(fs, "user.one", Some(b"after"));
        set(fs, "user.two", Some(b"two"));
    };
    let wait = |waits: &AtomicBool| {
        let handle = fs.begin(8).unwrap();
        waits.store(true, Ordering::Release);
        handle.wait_for_earlier().unwrap();
        assert_eq!(fs.committed().0 + 1, handle.generation().0);
    };
    held.while_committing(false, change, wait).unwrap();
    let report = fs.last_commit();
    assert_eq!(report.generation, fs.committed());
    assert!(report.unblocked_nanoseconds > 0 && report.critical_nanoseconds > 0);
    // What is durable is the transaction that was closed.
    let copy = Pool::empty(1);
    std::fs::copy(&held.pool.images()[0], &copy.images()[0]).unwrap();
    let reopened = copy.open(WriteOptions::default());
    let before = ("user.one".to_owned(), b"before".to_vec());
    assert_eq!(read(&reopened), Xattrs::from([before]));
    drop(reopened);
    fs.sync().unwrap();
    let Held {
        pool, device, fs, ..
    } = held;
    drop((fs, device));
    pool.assert_clean();
    let xattrs = [("user.one", &b"after"[..]), ("user.two", b"two")];
    let xattrs = xattrs.map(|(name, value)| (name.to_owned(), value.to_vec()));
    assert_kernel_agrees(&pool, &Xattrs::from(xattrs));
}

#[test]
fn failed_commit_ends_the_transaction_that_began_meanwhile() {
    let held = Held::new();
    let fs = &held.fs;
    let change = || set(fs, "user.two", Some(b"two"));
    let wait = |waits: &AtomicBool| {
        let handle = fs.begin(8).unwrap();
        waits.store(true, Ordering::Release);
        handle.wait_for_earlier().unwrap_err();
    };
    held.while_committing(true, change, wait).unwrap_err();
    let is_read_only = |error| matches!(error, Error::Condition(Condition::ReadOnly));
    assert!(fs.begin(8).is_err_and(is_read_only));
    fs.sync().unwrap_err();
    let Held {
        pool, device, fs, ..
    } = held;
    drop((fs, device));
    assert!(read(&pool.open(WriteOptions::default())).is_empty());
    pool.assert_clean();
}

/// Names that are set in turn.
const NAMES: u64 = 40;
/// At least so many changes and commits.
const CHANGES: u64 = 900;
const COMMITS: u64 = 24;

fn value(number: u64) -> Vec<u8> {
    format!("{number:0>300}").into_bytes()
}

/// The attributes after so many changes.
fn after(changes: u64) -> Xattrs {
    let last = changes.saturating_sub(NAMES)..changes;
    let set = |number| (format!("user.{}", number % NAMES), value(number));
    last.map(set).collect()
}

fn examine(devices: usize, mkfs: &[&str]) {
    let pool = Pool::make(devices, 128, mkfs);
    let (recorder, recorded) = record(&pool);
    let fs = image::open(&recorded, WriteOptions::default()).unwrap();
    let (done, commits) = (AtomicU64::new(0), AtomicU64::new(0));
    // The changes that are durable from a position of the log on.
    let mut durable = vec![(0, 0)];
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // With an end, in case that commits fail.
            for number in 0..CHANGES * 100 {
                if number >= CHANGES && commits.load(Ordering::Acquire) >= COMMITS {
                    break;
                }
                let name = format!("user.{}", number % NAMES);
                set(&fs, &name, Some(&value(number)));
                done.store(number + 1, Ordering::Release);
            }
        });
        while !writer.is_finished() {
            let (before, committed) = (done.load(Ordering::Acquire), fs.committed());
            fs.sync().unwrap();
            durable.push((recorder.mark(), before));
            if fs.committed() > committed {
                commits.fetch_add(1, Ordering::AcqRel);
            }
        }
    });
    drop(fs);
    let judged = Pool::empty(devices);
    let options = CrashOptions {
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let mut states = 0;
    for state in recorder.recording().crash_states(options) {
        let state = state.unwrap();
        let devices = devices_of(&state);
        let fs = image::open(&devices, WriteOptions::default()).unwrap();
        let found = read(&fs);
        drop(fs);
        let number = |value: &Vec<u8>| String::from_utf8_lossy(value).parse::<u64>().unwrap();
        let changes = found.values().map(|value| number(value) + 1).max();
        let changes = changes.unwrap_or(0);
        assert!(
            found == after(changes),
            "{changes} changes at {}",
            state.position
        );
        let at_least = durable.iter().filter(|(at, _)| *at <= state.position);
        let at_least = at_least.map(|(_, changes)| *changes).max().unwrap_or(0);
        assert!(
            changes >= at_least,
            "{changes} of {at_least} changes at {}",
            state.position
        );
        if states % 97 == 0 {
            assert_clean(&devices, &judged);
        }
        states += 1;
    }
    assert!(states > 100, "{states} states");
}

#[test]
fn crash_while_handles_go_on_leaves_a_commit() {
    examine(1, &[]);
    examine(2, &["-d", "raid1", "-m", "raid1"]);
}
