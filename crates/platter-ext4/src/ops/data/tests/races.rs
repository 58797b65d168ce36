//! What others do while a request to the device is under way.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::lock::{Condvar, Mutex};
use platter_block::{Geometry, IoError};
use platter_cache::AddressSpace;
use platter_cache::page::WritableSpace;

use super::*;
use crate::ops::{self, data};

/// How long nothing happening is watched for.
const MOMENT: Duration = Duration::from_millis(30);

/// Has requests wait while it is shut.
#[derive(Debug)]
struct GateDevice {
    base: Arc<dyn BlockDevice>,
    state: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Gate {
    is_shut: bool,
    waiting: u32,
    /// No more wait than one.
    holds_one: bool,
    /// Those that waited fail.
    fails: bool,
}

impl GateDevice {
    fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            base,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn shut(&self) {
        self.state.lock().is_shut = true;
    }

    fn open(&self, fails: bool) {
        let mut state = self.state.lock();
        state.is_shut = false;
        state.fails = fails;
        self.changed.notify_all();
    }

    /// Returns when a request waits.
    fn await_one(&self) {
        let mut state = self.state.lock();
        while state.waiting == 0 {
            self.changed.wait(&mut state);
        }
    }

    fn pass(&self, operation: Operation, offset: u64) -> Result<(), IoError> {
        let mut state = self.state.lock();
        if !state.is_shut || state.holds_one && state.waiting > 0 {
            return Ok(());
        }
        state.waiting += 1;
        self.changed.notify_all();
        while state.is_shut {
            self.changed.wait(&mut state);
        }
        state.waiting -= 1;
        if state.fails {
            return Err(IoError::out_of_range(self.name(), operation, offset, 0));
        }
        Ok(())
    }
}

impl BlockDevice for GateDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.pass(Operation::Read, offset)?;
        self.base.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.pass(Operation::Write, offset)?;
        self.base.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.base.discard(range)
    }
}

/// Runs `first` until it waits for the device, then `second`, which must wait for it if `waits`.
/// Returns the result of `second`.
fn concurrently<R: Send>(
    gate: &GateDevice,
    fails: bool,
    waits: bool,
    first: impl FnOnce() + Send,
    second: impl FnOnce() -> R + Send,
) -> R {
    let is_done = AtomicBool::new(false);
    gate.shut();
    thread::scope(|scope| {
        scope.spawn(first);
        gate.await_one();
        let second = scope.spawn(|| {
            let result = second();
            is_done.store(true, Ordering::Release);
            result
        });
        if waits {
            thread::sleep(MOMENT);
            assert!(!is_done.load(Ordering::Acquire), "it did not wait");
            gate.open(fails);
            return second.join().unwrap();
        }
        let result = second.join().unwrap();
        gate.open(fails);
        result
    })
}

fn written_file() -> (File, Arc<GateDevice>) {
    let mut file = File::new(5, EXTENTS);
    file.write(0, 3000);
    file.remount();
    let gate = file.through(GateDevice::new);
    (file, gate)
}

#[test]
fn a_sync_waits_for_what_another_one_writes() {
    for fails in [false, true] {
        let (mut file, gate) = written_file();
        file.write(0, 3000);
        let sb = &file.sb;
        let sync = || ops::sync_fs(sb);
        let result = concurrently(&gate, fails, true, || drop(sync()), sync);
        assert_eq!(result.is_err(), fails);
    }
}

#[test]
fn a_sync_of_all_waits_for_pages_that_another_one_writes() {
    let mut file = File::new(5, EXTENTS);
    file.write(0, 3072);
    file.remount();
    let gate = file.through(GateDevice::new);
    gate.state.lock().holds_one = true;
    file.write(0, 3072);
    let (sb, node) = (&file.sb, &file.node);
    concurrently(
        &gate,
        false,
        true,
        || node.sync(false).unwrap(),
        || {
            node.write_at(4096, &[9; 1000]).unwrap();
            ops::sync_fs(sb).unwrap();
        },
    );
}

#[test]
fn concurrent_reads_never_see_shifted_blocks_as_zeros() {
    let mut file = File::new(5, EXTENTS);
    for page in 0..32 {
        file.write(page * 4096, 4096);
    }
    file.remount();
    let node = Arc::clone(&file.node);
    let is_done = AtomicBool::new(false);
    let read = |page: u64| {
        let mut bytes = [0; 4096];
        node.read_at(page * 4096, &mut bytes).unwrap();
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // Not for ever, should anything fail.
                for _ in 0..1_000_000 {
                    (0..5).for_each(read);
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for round in 0..100 {
            let modes = [FallocateMode::InsertRange, FallocateMode::CollapseRange];
            file.fallocate(5 * 4096, 4096, modes[round % 2]);
            let pages = file.model.len() as u64 / 4096;
            (0..pages).for_each(read);
            for page in 0..pages {
                let at = usize::try_from(page * 4096).unwrap();
                let mut bytes = [0; 4096];
                node.read_at(page * 4096, &mut bytes).unwrap();
                assert!(bytes[..] == file.model[at..at + 4096], "page {page}");
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn blocks_that_are_written_or_read_are_not_freed_meanwhile() {
    let (file, gate) = written_file();
    let node = &file.node;
    let punch = || node.fallocate(0..1024, FallocateMode::PunchHole).unwrap();
    let bytes = [1; 1024];
    let write = || node.write_folios(0, &[IoSlice::new(&bytes)]).unwrap();
    concurrently(&gate, false, true, write, punch);
    let mut bytes = [0; 4096];
    let cut = || {
        let _order = node.order.write();
        data::resize(node, 1024).unwrap();
    };
    let mut bufs = [IoSliceMut::new(&mut bytes)];
    let read = || node.read_folios(0, &mut bufs).unwrap();
    concurrently(&gate, false, true, read, cut);
}

#[test]
fn a_change_of_the_inode_does_not_wait_for_a_read() {
    let (file, gate) = written_file();
    let node = &file.node;
    node.attr().unwrap();
    let mut bytes = [0; 4096];
    let mut bufs = [IoSliceMut::new(&mut bytes)];
    let read = || node.read_folios(0, &mut bufs).unwrap();
    concurrently(&gate, false, false, read, || {
        node.state.write().inode.uid = 7;
    });
}

#[test]
fn what_is_being_truncated_is_not_brought_in() {
    let (file, _) = written_file();
    let node = &file.node;
    node.data.file.set_size(100);
    let mut bytes = [9; 4096];
    node.read_folios(0, &mut [IoSliceMut::new(&mut bytes)])
        .unwrap();
    assert!(bytes[..100].iter().all(|&byte| byte == file.model[0]));
    assert!(bytes[100..].iter().all(|&byte| byte == 0));
}

#[test]
fn sync_during_truncation_stores_the_remaining_size() {
    let mut file = File::new(5, EXTENTS);
    file.write(0, 100);
    file.remount();
    let gate = file.through(GateDevice::new);
    file.write(100, 900);
    let node = &file.node;
    let on_disk = || node.state.read().inode.size_bytes;
    gate.shut();
    thread::scope(|scope| {
        let sync = scope.spawn(|| data::write_back(node).unwrap());
        gate.await_one();
        // The cut stores nothing as long as blocks are read.
        let reads = node.data.file.mapping.read();
        let cut = scope.spawn(|| {
            let _order = node.order.write();
            data::resize(node, 950).unwrap();
        });
        while node.size_bytes() != 950 && !cut.is_finished() {
            thread::yield_now();
        }
        assert_eq!(on_disk(), 100);
        gate.open(false);
        sync.join().unwrap();
        assert_eq!(on_disk(), 950);
        drop(reads);
        cut.join().unwrap();
    });
    assert_eq!(on_disk(), 950);
}

#[test]
fn insert_range_is_atomic_despite_writes_of_preceding_blocks() {
    let mut file = File::new(5, EXTENTS);
    let keep_size = FallocateMode::Allocate { keep_size: true };
    file.fallocate(0, 12288, keep_size);
    // As many extents as the inode has space for.
    for start in [8192, 20480, 40960] {
        file.write(start, 4096);
    }
    file.remount();
    let gate = file.through(GateDevice::new);
    gate.state.lock().holds_one = true;
    file.write(4096, 4096);
    let (node, space) = (&file.node, file.sb.space().unwrap());
    let mut reserved = 0;
    while space.reserve_delayed(1, Reserve::Split).is_ok() {
        reserved += 1;
    }
    // What is written becomes one extent with what is to be moved.
    let write = || data::write_back(node).unwrap();
    let insert = || node.fallocate(8192..9216, FallocateMode::InsertRange);
    let inserted = concurrently(&gate, false, true, write, insert);
    assert!(is_no_space(&inserted));
    file.check_bytes();
    space.release_delayed(reserved);
    file.fallocate(8192, 1024, FallocateMode::InsertRange);
    file.remount();
}

#[test]
fn stale_end_of_a_truncated_file_does_not_extend_it() {
    let size = |file: &File| file.node.state.read().inode.size_bytes;
    for collapses in [true, false] {
        let mut file = File::new(5, EXTENTS);
        file.write(0, 8192);
        file.remount();
        let before = file.node.data.file.end();
        if collapses {
            file.fallocate(0, 4096, FallocateMode::CollapseRange);
            file.write(4096, 4096);
        } else {
            file.resize(1024);
            file.write(1024, 7168);
        }
        let on_disk = size(&file);
        assert!(on_disk < 8192);
        file.node.extend_on_disk(before).unwrap();
        assert_eq!(size(&file), on_disk);
        file.node.sync(false).unwrap();
        assert_eq!(size(&file), file.model.len() as u64);
        file.remount();
    }
}
