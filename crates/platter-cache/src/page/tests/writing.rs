//! Dirty pages: how they get to the file, and what becomes of errors.

use std::thread;
use std::time::Duration;

use super::*;
use crate::xarray::Entry;

#[test]
fn a_part_of_a_page_is_read_before_it_is_written() {
    let file = File::of_pages(4);
    let (mapping, _) = mapping(1 << 20);
    mapping.write_at(&file, PAGE + 10, &[99; 5]).unwrap();
    let page = read(&mapping, &file, PAGE, PAGE_BYTES).unwrap();
    assert_eq!((page[9], page[10], page[14], page[15]), (1, 99, 99, 1));
    assert_eq!(file.reads(), one(1..2));
    assert_eq!(
        file.bytes.lock().unwrap()[4106],
        1,
        "nothing is written yet"
    );
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(
        file.bytes.lock().unwrap()[4105..4112],
        [1, 99, 99, 99, 99, 99, 1]
    );
    assert!(!mapping.is_dirty());
}

#[test]
fn whole_pages_and_pages_beyond_the_end_are_not_read() {
    let file = File::of_pages(4);
    let (mapping, _) = mapping(1 << 20);
    mapping
        .write_at(&file, PAGE, &[50; 2 * PAGE_BYTES])
        .unwrap();
    mapping.write_at(&file, 10 * PAGE + 5, &[60; 3]).unwrap();
    assert!(file.reads().is_empty());
    assert_eq!(file.size_bytes(), 10 * PAGE + 8);
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    let bytes = file.bytes.lock().unwrap();
    assert_eq!(
        bytes.len(),
        10 * PAGE_BYTES + 8,
        "nothing is written beyond the end"
    );
    assert_eq!(bytes[10 * PAGE_BYTES..], [0, 0, 0, 0, 0, 60, 60, 60]);
    assert_eq!((bytes[PAGE_BYTES], bytes[3 * PAGE_BYTES]), (50, 3));
}

#[test]
fn neighbours_are_written_by_one_request() {
    let file = File::of_pages(300);
    let (mapping, budget) = mapping(16 << 20);
    for page in (10..50).chain([60]).chain(70..80) {
        mapping
            .write_at(&file, page * PAGE, &[9; PAGE_BYTES])
            .unwrap();
    }
    assert_eq!(budget.dirty_bytes(), 51 * PAGE);
    mapping.write_back(&file, 0..75 * PAGE).unwrap();
    assert_eq!(file.writes(), [10..50, 60..61, 70..75]);
    assert_eq!(budget.dirty_bytes(), 5 * PAGE);
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(file.writes(), one(75..80));
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert!(file.writes().is_empty());
    assert_eq!(budget.dirty_bytes(), 0);
}

#[test]
fn only_the_pages_written_to_are_written_of_a_large_folio() {
    let file = File::of_pages(512);
    let (mapping, _) = mapping(64 << 20);
    mapping.will_need(&file, 0..512 * PAGE);
    mapping.write_at(&file, 200 * PAGE + 7, &[9; 10]).unwrap();
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(file.writes(), one(200..201));
}

#[test]
fn each_cursor_learns_of_an_error_once_and_nothing_is_lost() {
    let file = File::of_pages(10);
    let (mapping, budget) = mapping(1 << 20);
    let (mut first, mut second) = (mapping.error_cursor(), mapping.error_cursor());
    mapping.write_at(&file, 3 * PAGE, &[9; PAGE_BYTES]).unwrap();
    mapping.write_at(&file, 7 * PAGE, &[9; PAGE_BYTES]).unwrap();
    file.unwritable.lock().unwrap().insert(3);
    assert_eq!(mapping.sync(&file, 0..u64::MAX, &mut first), Err(Bad(3)));
    assert_eq!(mapping.check_errors(&mut first), Ok(()));
    assert_eq!(mapping.check_errors(&mut second), Err(Bad(3)));
    assert!(mapping.is_dirty());
    assert_eq!(budget.dirty_bytes(), 2 * PAGE);
    file.unwritable.lock().unwrap().clear();
    assert_eq!(mapping.sync(&file, 0..u64::MAX, &mut first), Ok(()));
    assert_eq!(byte(&mapping, &file, 3), Ok(9));
    let bytes = file.bytes.lock().unwrap();
    assert_eq!((bytes[3 * PAGE_BYTES], bytes[7 * PAGE_BYTES]), (9, 9));
    assert_eq!(budget.dirty_bytes(), 0);
}

/// Records at each move of its end whether anything was dirty.
struct Watched<'m> {
    file: File,
    mapping: &'m Mapping<Bad>,
    seen: Mutex<Vec<bool>>,
}

impl AddressSpace for Watched<'_> {
    type Error = Bad;

    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Bad> {
        self.file.read_folios(offset, bufs)
    }
}

impl WritableSpace for Watched<'_> {
    fn extend(&self, end: u64) {
        self.seen.lock().unwrap().push(self.mapping.is_dirty());
        self.file.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Bad> {
        self.file.write_folios(offset, bufs)
    }
}

#[test]
fn the_end_moves_on_when_what_lies_before_it_is_dirty() {
    let (mapping, _) = mapping(1 << 20);
    let watched = Watched {
        file: File::sparse(0),
        mapping: &mapping,
        seen: Mutex::default(),
    };
    for offset in [0, 100, PAGE, 5 * PAGE - 7] {
        mapping.write_at(&watched, offset, &[7; 300]).unwrap();
        mapping.write_back(&watched, 0..u64::MAX).unwrap();
        assert!(!mapping.is_unwritten());
    }
    let seen = watched.seen.lock().unwrap();
    assert_eq!(*seen, [true; 5]);
}

#[test]
fn a_writer_is_held_back_by_too_many_dirty_pages() {
    let file = File::default();
    let (mapping, budget) = mapping(4 << 20);
    for page in 0..2000 {
        mapping
            .write_at(&file, page * PAGE, &[9; PAGE_BYTES])
            .unwrap();
        assert!(budget.dirty_bytes() <= (2 << 20) + (64 << 10));
        assert!(budget.used_bytes() <= (4 << 20) + budget.stats().node_bytes);
    }
    assert!(!file.writes().is_empty());
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(*file.bytes.lock().unwrap(), vec![9; 2000 * PAGE_BYTES]);
}

#[test]
fn a_writer_fails_if_the_writeback_it_needs_fails() {
    let file = File::default();
    file.unwritable.lock().unwrap().extend(0..3000);
    let (mapping, budget) = mapping(4 << 20);
    let write = |page| mapping.write_at(&file, page * PAGE, &[9; PAGE_BYTES]);
    assert!((0..2000).any(|page| write(page).is_err()));
    assert!(budget.dirty_bytes() <= 3 << 20);
}

#[test]
fn a_budget_for_nothing_still_takes_writes() {
    let file = File::of_pages(20);
    let (mapping, budget) = mapping(1000);
    for page in 0..20 {
        mapping
            .write_at(&file, page * PAGE + 5, &[100; 10])
            .unwrap();
        let used = budget.used_bytes();
        assert!(used <= 4 * PAGE, "{used} {:?}", budget.stats());
    }
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    for page in 0..20 {
        let bytes = read(&mapping, &file, page * PAGE, 20).unwrap();
        assert_eq!(u64::from(bytes[4]), page);
        assert_eq!(bytes[5..15], [100; 10]);
    }
}

#[test]
fn a_truncated_file_reads_as_zeros_when_it_grows_again() {
    let file = File::of_pages(600);
    let (mapping, _) = mapping(64 << 20);
    mapping.will_need(&file, 0..600 * PAGE);
    let size = 300 * PAGE + 100;
    file.size.store(size, Ordering::Relaxed);
    mapping.truncate(size);
    assert_eq!(mapping.page_count(), 301);
    file.size.store(301 * PAGE, Ordering::Relaxed);
    let page = read(&mapping, &file, 300 * PAGE, PAGE_BYTES).unwrap();
    assert_eq!(page[..100], [49; 100]);
    assert!(page[100..].iter().all(|&byte| byte == 0));
    mapping.core().pages.lock().assert_invariants();
}

#[test]
fn truncation_in_a_large_folio_gives_the_memory_back() {
    let file = File::of_pages(512);
    let (mapping, budget) = mapping(64 << 20);
    mapping.will_need(&file, 0..512 * PAGE);
    mapping.write_at(&file, 130 * PAGE, &[77; 20]).unwrap();
    let before = budget.used_bytes();
    file.size.store(131 * PAGE, Ordering::Relaxed);
    mapping.truncate(131 * PAGE);
    assert_eq!(mapping.page_count(), 131);
    assert!(before - budget.used_bytes() > 370 * PAGE);
    for page in 0..131 {
        let expected = if page == 130 {
            77
        } else {
            u8::try_from(page).unwrap()
        };
        assert_eq!(byte(&mapping, &file, page), Ok(expected));
    }
    mapping.core().pages.lock().assert_invariants();
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert_eq!(file.bytes.lock().unwrap()[130 * PAGE_BYTES], 77);
    assert_eq!(budget.dirty_bytes(), 0);
    drop(mapping);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_folio_in_use_is_cleared_instead_of_split() {
    let file = File::of_pages(512);
    let (mapping, _) = mapping(64 << 20);
    mapping.will_need(&file, 0..512 * PAGE);
    let Some(Entry::Item(held)) = mapping.core().pages.get(200) else {
        panic!("the page is cached");
    };
    assert!(held.order().span() >= 64);
    file.size.store(201 * PAGE, Ordering::Relaxed);
    mapping.truncate(201 * PAGE);
    let after = usize::try_from(201 - held.index()).unwrap() * PAGE_BYTES;
    assert!(held.read().bytes()[after..].iter().all(|&byte| byte == 0));
    assert_eq!(byte(&mapping, &file, 200), Ok(200));
}

#[test]
fn what_moved_is_read_anew_though_its_folio_is_in_use() {
    let file = File::of_pages(512);
    let (mapping, budget) = mapping(64 << 20);
    mapping.will_need(&file, PAGE..512 * PAGE);
    let Some(Entry::Item(held)) = mapping.core().pages.get(200) else {
        panic!("the page is cached");
    };
    assert!(held.covers(201) && held.index() > 1);
    file.bytes.lock().unwrap().rotate_left(PAGE_BYTES);
    mapping.invalidate(201 * PAGE - 1024..u64::MAX);
    assert!(held.is_detached());
    for page in [200, 201, 300, 510] {
        assert_eq!(
            byte(&mapping, &file, page),
            Ok(u8::try_from((page + 1) % 251).unwrap())
        );
    }
    assert_eq!(byte(&mapping, &file, 1), Ok(1), "what lies before stays");
    drop(held);
    drop(mapping);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_hole_reads_as_zeros_at_its_ragged_ends() {
    let file = File::of_pages(64);
    let (mapping, _) = mapping(16 << 20);
    mapping.will_need(&file, 0..64 * PAGE);
    let hole = 10 * PAGE + 100..20 * PAGE + 200;
    mapping.remove_range(hole.clone());
    let range = usize::try_from(hole.start).unwrap()..usize::try_from(hole.end).unwrap();
    file.bytes.lock().unwrap()[range.clone()].fill(0);
    let bytes = read(&mapping, &file, 0, 64 * PAGE_BYTES).unwrap();
    assert_eq!(bytes, *file.bytes.lock().unwrap());
    mapping.remove_range(30 * PAGE + 10..30 * PAGE + 20);
    assert_eq!(read(&mapping, &file, 30 * PAGE + 9, 12).unwrap(), {
        let mut expected = [30; 12];
        expected[1..11].fill(0);
        expected
    });
}

#[test]
fn truncation_waits_for_a_writeback() {
    let file = Arc::new(File::of_pages(10));
    let (mapping, _) = mapping(1 << 20);
    mapping
        .write_at(&*file, 5 * PAGE, &[9; PAGE_BYTES])
        .unwrap();
    thread::scope(|scope| {
        // The file's lock keeps the writeback busy.
        let busy = file.bytes.lock().unwrap();
        let writer = scope.spawn(|| mapping.write_back(&*file, 0..u64::MAX));
        while file.writes.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        let truncation = scope.spawn(|| mapping.truncate(0));
        for _ in 0..100 {
            thread::yield_now();
        }
        assert!(!truncation.is_finished(), "the page is being written");
        drop(busy);
        writer.join().unwrap().unwrap();
        truncation.join().unwrap();
    });
    assert_eq!(mapping.page_count(), 0);
}

#[test]
fn a_sync_writes_what_another_one_took_and_did_not_write() {
    let (mapping, _) = mapping(1 << 20);
    let file = File::sparse(0);
    mapping.write_at(&file, 0, &[7; 100]).unwrap();
    let taken = mapping.take_dirty(16).unwrap();
    thread::scope(|scope| {
        let syncer = scope.spawn(|| mapping.write_back(&file, 0..u64::MAX));
        thread::sleep(Duration::from_millis(50));
        assert!(!syncer.is_finished());
        drop(taken);
        syncer.join().unwrap().unwrap();
    });
    assert_eq!(file.writes(), one(0..1));
    assert!(!mapping.is_dirty());
    assert_eq!(file.bytes.lock().unwrap()[..], [7; 100]);
}

#[test]
fn a_sync_ends_although_a_writer_goes_on() {
    let file = File::of_pages(64);
    let (mapping, _) = mapping(16 << 20);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut page = 0;
            while !stop.load(Ordering::Relaxed) {
                mapping
                    .write_at(&file, page % 64 * PAGE, &[9; PAGE_BYTES])
                    .unwrap();
                page += 1;
            }
        });
        for _ in 0..20 {
            mapping.write_back(&file, 0..u64::MAX).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    mapping.write_back(&file, 0..u64::MAX).unwrap();
    assert!(!mapping.is_dirty());
    mapping.core().pages.lock().assert_invariants();
}

#[test]
fn dropping_a_mapping_gives_dirty_pages_up_too() {
    let file = File::of_pages(64);
    let (mapping, budget) = mapping(16 << 20);
    for page in 0..64 {
        mapping.write_at(&file, page * PAGE, &[1]).unwrap();
    }
    drop(mapping);
    assert_eq!((budget.used_bytes(), budget.dirty_bytes()), (0, 0));
    assert_eq!(budget.stats().node_bytes, 0);
}

#[test]
fn whole_pages_bypass_the_cache_only_if_none_is_cached() {
    let file = File::of_pages(100);
    let (mapping, _) = mapping(16 << 20);
    byte(&mapping, &file, 40).unwrap();
    assert_eq!(mapping.write_past(0..40 * PAGE, || 1), Some(1));
    assert_eq!(mapping.write_past(0..41 * PAGE, || 1), None);
    assert_eq!(mapping.write_past(10 * PAGE..90 * PAGE, || 1), None);
}
