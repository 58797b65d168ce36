//! What is read, with how many requests, and what happens when one fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use super::*;
use crate::page::folio::Folio;
use crate::xarray::{Counts, New, Order};

#[test]
fn a_hit_asks_nothing_of_the_source() {
    let file = File::of_pages(4);
    let (mapping, _) = mapping(1 << 20);
    assert_eq!(read(&mapping, &file, 5000, 100).unwrap(), vec![1; 100]);
    assert_eq!(file.reads().len(), 1);
    assert_eq!(read(&mapping, &file, 5000, 100).unwrap(), vec![1; 100]);
    assert!(file.reads().is_empty());
}

#[test]
fn reads_end_at_the_end_of_the_file() {
    let file = File::new(vec![7; 5000]);
    let (mapping, _) = mapping(1 << 20);
    assert_eq!(read(&mapping, &file, 4000, 9000).unwrap(), vec![7; 1000]);
    assert_eq!(read(&mapping, &file, 5000, 10).unwrap(), []);
    assert_eq!(read(&mapping, &file, u64::MAX, 10).unwrap(), []);
    assert_eq!(mapping.page_count(), 2, "no page beyond the end is cached");
}

#[test]
fn a_sequential_reader_needs_few_requests() {
    let file = File::of_pages(4096);
    let (mapping, _) = mapping(64 << 20);
    for page in 0..4096 {
        assert_eq!(u64::from(byte(&mapping, &file, page).unwrap()), page % 251);
    }
    let reads = file.reads();
    assert!(reads.len() <= 13, "{reads:?}");
    assert!(
        mapping.core().pages.node_count() < 64,
        "most folios are large"
    );
}

#[test]
fn a_small_file_is_read_by_one_request() {
    let file = File::of_pages(10);
    let (mapping, _) = mapping(1 << 20);
    for page in 0..10 {
        byte(&mapping, &file, page).unwrap();
    }
    assert_eq!(file.reads(), one(0..10));
}

#[test]
fn a_random_reader_reads_what_it_asks_for() {
    let file = File::of_pages(4096);
    let (mapping, _) = mapping(64 << 20);
    read(&mapping, &file, 1000 * PAGE + 50, 2 * PAGE_BYTES).unwrap();
    byte(&mapping, &file, 77).unwrap();
    assert_eq!(file.reads(), [1000..1003, 77..78]);
}

#[test]
fn a_large_read_is_one_request() {
    let file = File::of_pages(1024);
    let (mapping, _) = mapping(64 << 20);
    let bytes = read(&mapping, &file, 100 * PAGE, 256 * PAGE_BYTES).unwrap();
    assert!(
        (100..356)
            .zip(bytes.chunks(PAGE_BYTES))
            .all(|(page, chunk)| u64::from(chunk[0]) == page % 251)
    );
    assert_eq!(file.reads(), one(100..356));
}

#[test]
fn file_that_is_read_once_is_not_cached() {
    for size in [1, 4095, 4096, 4097, 20_000, 300_000] {
        let content: Vec<u8> = (0u8..=250).cycle().take(size).collect();
        let file = File::new(content.clone());
        let (mapping, budget) = mapping(1 << 20);
        let mut buf = vec![0; size];
        assert_eq!(mapping.read_once(&file, 0, &mut buf).unwrap(), size);
        assert_eq!(buf, content);
        assert_eq!(file.reads(), one(0..(size as u64).div_ceil(PAGE)));
        assert_eq!((mapping.page_count(), budget.used_bytes()), (0, 0));
        // The end of it, with more space than there is.
        let start = content.len() / PAGE_BYTES * PAGE_BYTES;
        let mut rest = vec![0; 3 * PAGE_BYTES];
        let count = mapping.read_once(&file, start as u64, &mut rest).unwrap();
        assert_eq!(rest[..count], content[start..]);
        assert_eq!(mapping.read_once(&file, size as u64, &mut rest), Ok(0));
        assert_eq!(mapping.page_count(), 0);
        // What is cached is used.
        file.reads();
        read(&mapping, &file, 0, 1).unwrap();
        file.reads();
        assert_eq!(mapping.read_once(&file, 0, &mut buf).unwrap(), size);
        assert_eq!(buf, content);
        if size <= PAGE_BYTES {
            assert!(file.reads().is_empty());
        }
    }
}

#[test]
fn part_of_a_file_that_is_read_once_is_cached() {
    let file = File::of_pages(16);
    let (mapping, _) = mapping(1 << 20);
    let mut buf = vec![0; 2 * PAGE_BYTES];
    for offset in [0, PAGE, PAGE + 1] {
        mapping.read_once(&file, offset, &mut buf).unwrap();
        assert!(mapping.page_count() > 0, "{offset}");
    }
}

#[test]
fn readahead_ends_at_the_first_cached_page() {
    let file = File::of_pages(64);
    let (mapping, _) = mapping(4 << 20);
    byte(&mapping, &file, 5).unwrap();
    byte(&mapping, &file, 0).unwrap();
    assert_eq!(file.reads(), [5..6, 0..5]);
}

#[test]
fn concurrent_readers_of_a_page_share_one_fill() {
    let mut file = File::of_pages(4);
    file.gate = Some(Barrier::new(2));
    let (mapping, _) = mapping(1 << 20);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| byte(&mapping, &file, 2).unwrap()))
            .collect();
        file.gate.as_ref().unwrap().wait();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 2);
        }
    });
    assert_eq!(file.reads().len(), 1);
}

#[test]
fn a_failed_page_fails_for_each_reader_and_is_not_poisoned() {
    let file = File::of_pages(4);
    let (mapping, budget) = mapping(1 << 20);
    file.unreadable.lock().unwrap().insert(2);
    for _ in 0..2 {
        assert_eq!(byte(&mapping, &file, 2), Err(Bad(2)));
    }
    assert_eq!(mapping.page_count(), 0);
    assert_eq!(budget.used_bytes(), 0);
    file.unreadable.lock().unwrap().clear();
    assert_eq!(byte(&mapping, &file, 2), Ok(2));
}

#[test]
fn an_error_reaches_all_waiters_of_the_page() {
    let mut file = File::of_pages(4);
    file.gate = Some(Barrier::new(2));
    file.unreadable.lock().unwrap().insert(2);
    let (mapping, _) = mapping(1 << 20);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| byte(&mapping, &file, 2)))
            .collect();
        // As many requests as readers that came too late to wait for an earlier one.
        while !readers.iter().all(thread::ScopedJoinHandle::is_finished) {
            if !file.reads().is_empty() {
                file.gate.as_ref().unwrap().wait();
            }
            thread::yield_now();
        }
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Err(Bad(2)));
        }
    });
}

#[test]
fn a_bad_page_costs_its_neighbours_nothing() {
    let file = File::of_pages(64);
    file.unreadable.lock().unwrap().extend([9, 30]);
    let (mapping, _) = mapping(4 << 20);
    for page in 0..64 {
        let expected = if page == 9 || page == 30 {
            Err(Bad(page))
        } else {
            Ok(u8::try_from(page).unwrap())
        };
        assert_eq!(byte(&mapping, &file, page), expected);
    }
}

#[test]
fn a_panic_of_the_source_leaves_no_page() {
    let file = File::of_pages(4);
    let (mapping, budget) = mapping(1 << 20);
    file.panics.store(true, Ordering::Relaxed);
    let panicked = catch_unwind(AssertUnwindSafe(|| byte(&mapping, &file, 0)));
    assert!(panicked.is_err());
    assert_eq!((mapping.page_count(), budget.used_bytes()), (0, 0));
    file.panics.store(false, Ordering::Relaxed);
    assert_eq!(byte(&mapping, &file, 0), Ok(0));
}

#[test]
fn pages_are_shown_in_place() {
    let file = File::of_pages(100);
    let (mapping, _) = mapping(4 << 20);
    let shown = mapping
        .read_with(&file, 10 * PAGE + 1000, 5 * PAGE_BYTES, |slices| {
            let firsts = slices.iter().map(|slice| slice[0]).collect::<Vec<_>>();
            (firsts, slices.concat())
        })
        .unwrap();
    assert_eq!(
        shown.1,
        read(&mapping, &file, 10 * PAGE + 1000, 5 * PAGE_BYTES).unwrap()
    );
    assert_eq!(shown.0[0], 10);
    let end = mapping
        .read_with(&file, 99 * PAGE + 4000, 1 << 30, |slices| slices.concat())
        .unwrap();
    assert_eq!(end, vec![99; 96]);
    let beyond = mapping
        .read_with(&file, 100 * PAGE, 10, |slices| slices.len())
        .unwrap();
    assert_eq!(beyond, 0);
}

#[test]
fn without_space_pages_are_read_past_the_cache() {
    let file = File::of_pages(100);
    let (mapping, budget) = mapping(1000);
    let bytes = read(&mapping, &file, 3000, 200_000).unwrap();
    assert_eq!(bytes, file.bytes.lock().unwrap()[3000..203_000]);
    let shown = mapping
        .read_with(&file, 5000, 100, |slices| slices.concat())
        .unwrap();
    assert_eq!(shown, vec![1; 100]);
    assert_eq!((mapping.page_count(), budget.used_bytes()), (0, 0));
}

#[test]
fn an_announced_range_is_read_once() {
    let file = File::of_pages(2000);
    let (mapping, _) = mapping(64 << 20);
    byte(&mapping, &file, 300).unwrap();
    mapping.will_need(&file, 100 * PAGE..1000 * PAGE);
    assert_eq!(file.reads(), [300..301, 100..300, 301..813, 813..1000]);
    read(&mapping, &file, 100 * PAGE, 900 * PAGE_BYTES).unwrap();
    assert!(file.reads().is_empty());
    mapping.will_need(&file, 0..u64::MAX);
    assert!(
        mapping.page_count() <= (64 << 20) / 8 / PAGE + 1000,
        "bounded by the budget"
    );
}

#[test]
fn adding_a_folio_is_one_walk() {
    let (mapping, budget) = mapping(64 << 20);
    let core = mapping.core();
    let add = |index, order| {
        let folio = Folio::new(&budget, index, order).unwrap();
        let before = Counts::now();
        core.add_folio(&folio).unwrap();
        Counts::now().since(before)
    };
    let order = |order| Order::new(order).unwrap();
    assert_eq!(add(0, Order::ZERO).walks, 1);
    assert_eq!(add(512, order(9)).walks, 1);
    core.pages
        .lock()
        .cursor(1024, order(9))
        .store(New::Value(3))
        .unwrap();
    core.pages
        .lock()
        .cursor(1536, Order::ZERO)
        .store(New::Value(3))
        .unwrap();
    assert_eq!(
        add(1536, Order::ZERO).walks,
        1,
        "over a shadow of its order"
    );
    let split = add(1027, Order::ZERO);
    assert_eq!((split.walks, split.nodes), (1, 1), "over a larger one");
    assert_eq!(budget.stats().refaults, 2);
}

#[test]
fn a_refused_folio_leaves_everything_as_before() {
    let file = File::of_pages(4);
    let (mapping, budget) = mapping(1 << 20);
    byte(&mapping, &file, 2).unwrap();
    let before = budget.stats();
    let folio = Folio::new(&budget, 0, Order::new(2).unwrap()).unwrap();
    let refused = mapping.core().add_folio(&folio).unwrap_err();
    assert_eq!(refused.0.count(), 2);
    drop(refused);
    assert_eq!(folio.count(), 1);
    drop(folio);
    assert_eq!(budget.stats(), before);
    assert_eq!(mapping.page_count(), 1);
}

#[test]
fn a_listed_file_costs_no_more_than_its_mapping() {
    let (mapping, budget) = mapping(1 << 20);
    assert!(mapping.core.get().is_none());
    assert_eq!((mapping.page_count(), budget.used_bytes()), (0, 0));
    mapping.truncate(0);
    assert!(mapping.core.get().is_none());
}

#[test]
fn a_long_range_goes_past_the_cache_but_for_what_is_cached() {
    let file = File::of_pages(400);
    let (mapping, _) = mapping(16 << 20);
    mapping
        .write_at(&file, 200 * PAGE, &[7; PAGE_BYTES])
        .unwrap();
    let before = file.reads().len();
    let bytes = read(&mapping, &file, 0, 400 * PAGE_BYTES).unwrap();
    assert_eq!(file.reads().len() - before, 2);
    assert_eq!(mapping.page_count(), 1);
    for (page, bytes) in bytes.chunks(PAGE_BYTES).enumerate() {
        let expected = if page == 200 { 7 } else { page % 251 };
        assert!(bytes.iter().all(|&byte| usize::from(byte) == expected));
    }
}
