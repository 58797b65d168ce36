//! Files whose block mapping is a table, over a device in memory.

mod disk_file;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use platter_block::BlockDevice;

use super::*;
use crate::{Condition, Error, FallocateMode, SeekTarget};
use disk_file::{BLOCK, Disk, DiskFile, During};

const BLOCKS: u64 = 300;

struct Random(u32);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u64::from(self.0 >> 8) % bound
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

fn fill(model: &mut Vec<u8>, range: std::ops::Range<u64>, byte: u8) {
    if model.len() < at(range.end) {
        model.resize(at(range.end), 0);
    }
    model[at(range.start)..at(range.end)].fill(byte);
}

/// A random change of the file and of its model.
fn change(file: &DiskFile, model: &mut Vec<u8>, random: &mut Random) {
    let start = random.below(40_000);
    let len = 1 + random.below(9_000);
    let (size, end) = (model.len() as u64, start + len);
    let whole = start - start % BLOCK..(start - start % BLOCK) + len.next_multiple_of(BLOCK);
    match random.below(10) {
        0..4 => {
            let byte = 1 + u8::try_from(random.below(255)).unwrap();
            let to = [WriteTo::Cache, WriteTo::Device][at(random.below(2))];
            write(file, start, &vec![byte; at(len)], to).unwrap();
            fill(model, start..end, byte);
        }
        4 => {
            let _lock = file.inode_lock().write();
            resize(file, start).unwrap();
            model.resize(at(start), 0);
        }
        5 => write_back(file).unwrap(),
        6 => {
            fallocate(file, start..end, FallocateMode::PunchHole).unwrap();
            if start < size {
                fill(model, start..end.min(size), 0);
            }
        }
        7 => {
            let keep_size = random.below(2) == 0;
            let mode = [
                FallocateMode::Allocate { keep_size },
                FallocateMode::ZeroRange { keep_size },
            ][at(random.below(2))];
            fallocate(file, start..end, mode).unwrap();
            if matches!(mode, FallocateMode::ZeroRange { .. }) && start < size {
                fill(model, start..end.min(size), 0);
            }
            if !keep_size && end > size {
                model.resize(at(end), 0);
            }
        }
        8 if whole.end < size => {
            fallocate(file, whole.clone(), FallocateMode::CollapseRange).unwrap();
            model.drain(at(whole.start)..at(whole.end));
        }
        9 if whole.start < size && size < 60_000 => {
            fallocate(file, whole.clone(), FallocateMode::InsertRange).unwrap();
            let zeros = vec![0; at(whole.end - whole.start)];
            model.splice(at(whole.start)..at(whole.start), zeros);
        }
        _ => {}
    }
}

#[test]
fn random_changes_equal_those_of_a_byte_vector() {
    for copies in [false, true] {
        for seed in 0..12 {
            let disk = Disk::new(BLOCKS);
            let file = DiskFile::new(&disk, copies);
            let (mut model, mut random) = (Vec::new(), Random(seed));
            for _ in 0..60 {
                change(&file, &mut model, &mut random);
                assert!(file.read_all() == model, "copies: {copies}, seed {seed}");
            }
            sync_data(&*file, false).unwrap();
            assert_eq!(file.size_on_disk(), model.len() as u64);
            file.pages().invalidate(0..u64::MAX);
            assert!(file.read_all() == model, "copies: {copies}, seed {seed}");
            let _lock = file.inode_lock().write();
            resize(&*file, 0).unwrap();
            assert_eq!(disk.free(), (BLOCKS, 0));
        }
    }
}

#[test]
fn copy_on_write_leaves_old_blocks_until_writeback() {
    let disk = Disk::new(BLOCKS);
    let file = DiskFile::new(&disk, true);
    write(&*file, 0, &[1; 4096], WriteTo::Cache).unwrap();
    write_back(&*file).unwrap();
    let before = file.written();
    write(&*file, 1024, &[2; 1024], WriteTo::Cache).unwrap();
    assert_eq!(
        (file.written(), disk.free()),
        (before.clone(), (BLOCKS - 4, 1))
    );
    write_back(&*file).unwrap();
    let after = file.written();
    assert_eq!((before.len(), after.len()), (4, 4));
    assert_ne!(before[1], after[1]);
    assert_eq!(disk.free(), (BLOCKS - 4, 0));
}

#[test]
fn accepted_writes_never_run_out_of_space() {
    for copies in [false, true] {
        let disk = Disk::new(8);
        let file = DiskFile::new(&disk, copies);
        write(&*file, 0, &[1; 6 * 1024], WriteTo::Cache).unwrap();
        let refused = write(&*file, 100_000, &[1; 4 * 1024], WriteTo::Cache);
        assert!(matches!(refused, Err(Error::Condition(Condition::NoSpace))));
        assert_eq!(file.data().size_bytes(), 6 * 1024);
        write_back(&*file).unwrap();
        assert_eq!(disk.free(), (2, 0));
    }
}

#[test]
fn what_is_written_during_a_writeback_has_space() {
    let disk = Disk::new(32);
    let file = DiskFile::new(&disk, true);
    for to in [WriteTo::Cache, WriteTo::Device] {
        for evicts in [false, true] {
            write(&*file, 0, &[1; 8192], WriteTo::Cache).unwrap();
            let during = if evicts {
                During::Evicts
            } else {
                During::WritesBack
            };
            *file.after_reserving.lock() = Some(during);
            write(&*file, 0, &[2; 8192], to).unwrap();
            assert!(file.after_reserving.lock().is_none());
            write_back(&*file).unwrap();
            assert_eq!(file.read_all(), [2; 8192]);
            assert_eq!(disk.free().1, 0);
        }
    }
}

#[test]
fn write_beyond_the_end_that_fails_leaves_the_size() {
    for copies in [false, true] {
        let disk = Disk::new(8);
        let file = DiskFile::new(&disk, copies);
        write(&*file, 0, &[1; 100], WriteTo::Cache).unwrap();
        write_back(&*file).unwrap();
        let refused = write(&*file, 100_000, &[1; 16 * 1024], WriteTo::Cache);
        assert!(matches!(refused, Err(Error::Condition(Condition::NoSpace))));
        assert_eq!((file.data().size_bytes(), file.size_on_disk()), (100, 100));
        assert_eq!(file.read_all(), [1; 100]);
    }
}

#[test]
fn failed_write_keeps_no_reservation() {
    let disk = Disk::new(BLOCKS);
    let file = DiskFile::new(&disk, false);
    write(&*file, 0, &[1; 1024], WriteTo::Cache).unwrap();
    file.data().extend(4096);
    write_back(&*file).unwrap();
    file.pages().invalidate(0..u64::MAX);
    file.fails_reads.store(true, Ordering::Relaxed);
    // A part of a block without space, in a page whose other blocks have to be read first.
    write(&*file, BLOCK + 100, &[2; 100], WriteTo::Cache).unwrap_err();
    assert_eq!(disk.free(), (BLOCKS - 1, 0));
    assert_eq!(BlockRuns::next_delayed(&*file, 0), None);
    file.fails_reads.store(false, Ordering::Relaxed);
    assert_eq!(file.read_all()[1024..], [0; 3072]);
}

#[test]
fn delayed_blocks_are_data_and_reported() {
    let disk = Disk::new(BLOCKS);
    let file = DiskFile::new(&disk, false);
    write(&*file, 2 * BLOCK, &[1; 1024], WriteTo::Cache).unwrap();
    write_back(&*file).unwrap();
    write(&*file, 5 * BLOCK, &[1; 2048], WriteTo::Cache).unwrap();
    let find = |offset, target| seek(&*file, offset, target, 7 * BLOCK).unwrap();
    assert_eq!(find(0, SeekTarget::Data), 2 * BLOCK);
    assert_eq!(find(2 * BLOCK, SeekTarget::Hole), 3 * BLOCK);
    assert_eq!(find(3 * BLOCK, SeekTarget::Data), 5 * BLOCK);
    assert_eq!(find(5 * BLOCK, SeekTarget::Hole), 7 * BLOCK);
    let mut found = Vec::new();
    extents(&*file, 0..u64::MAX, &mut |extent| {
        found.push((extent.file, extent.delayed));
        ControlFlow::Continue(())
    })
    .unwrap();
    let expected = [(2 * BLOCK..3 * BLOCK, false), (5 * BLOCK..7 * BLOCK, true)];
    assert_eq!(found, expected);
}

#[test]
fn short_new_files_are_written_by_one_request() {
    let disk = Disk::new(BLOCKS);
    let files: Vec<_> = (0..10).map(|_| DiskFile::new(&disk, false)).collect();
    for (byte, file) in (1..).zip(&files) {
        write(&**file, 0, &[byte; 1500], WriteTo::Cache).unwrap();
    }
    let before = disk.device.counts().writes;
    write_back_files(&files);
    assert_eq!(disk.device.counts().writes - before, 1);
    for (byte, file) in (1..).zip(&files) {
        file.pages().invalidate(0..u64::MAX);
        assert_eq!(file.read_all(), [byte; 1500]);
    }
    let mut tail = [1; 548];
    let last = *files[9].written().last().unwrap();
    disk.device.read_at(last * BLOCK + 476, &mut tail).unwrap();
    assert_eq!(tail, [0; 548], "zeros beyond the end");
}

/// A sync that finds nothing to write, since what was written is being truncated, must not return before that is so on
/// disk as well: there is what was before the write.
#[test]
fn syncs_wait_until_what_left_the_cache_has_left_the_mapping() {
    let end = 4 * BLOCK;
    let truncate = |file: &DiskFile| resize(file, 0).unwrap();
    let punch = |file: &DiskFile| fallocate(file, 0..end, FallocateMode::PunchHole).unwrap();
    let zero = |file: &DiskFile| {
        let mode = FallocateMode::ZeroRange { keep_size: true };
        fallocate(file, 0..end, mode).unwrap();
    };
    let changes: [&(dyn Fn(&DiskFile) + Sync); 3] = [&truncate, &punch, &zero];
    for change in changes {
        let file = DiskFile::new(&Disk::new(BLOCKS), true);
        write(&*file, 0, &vec![1; at(end)], WriteTo::Cache).unwrap();
        thread::scope(|scope| {
            let mapped = file.data().mapping.read();
            scope.spawn(|| change(&file));
            while file.pages().is_dirty() {
                thread::yield_now();
            }
            let one = scope.spawn(|| sync_data(&*file, false));
            let all = scope.spawn(|| file.invalidations().wait());
            thread::sleep(Duration::from_millis(20));
            assert!(!one.is_finished() && !all.is_finished());
            drop(mapped);
            one.join().unwrap().unwrap();
        });
    }
}

#[test]
fn hole_that_ends_early_leaves_what_is_dirty() {
    let (block, count) = (at(BLOCK), 8);
    for copies in [false, true] {
        for mode in [
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange { keep_size: true },
        ] {
            let disk = Disk::new(BLOCKS);
            let file = DiskFile::new(&disk, copies);
            write(&*file, 0, &vec![1; count * block], WriteTo::Cache).unwrap();
            write_back(&*file).unwrap();
            write(&*file, 0, &vec![2; count * block], WriteTo::Cache).unwrap();
            *file.steps.lock() = Some((3, 6));
            let all = 0..count as u64 * BLOCK;
            let refused = fallocate(&*file, all.clone(), mode).unwrap_err();
            assert!(matches!(refused, Error::Condition(Condition::NoSpace)));
            let left = [vec![0; 6 * block], vec![2; 2 * block]].concat();
            assert!(file.read_all() == left, "{mode:?}, {copies}");
            write_back(&*file).unwrap();
            file.pages().invalidate(0..u64::MAX);
            assert!(file.read_all() == left, "{mode:?}, {copies}");
            *file.steps.lock() = Some((3, u64::MAX));
            fallocate(&*file, all, mode).unwrap();
            assert!(file.read_all() == vec![0; count * block]);
        }
    }
}
