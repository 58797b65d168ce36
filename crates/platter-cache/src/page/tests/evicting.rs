//! What stays and what goes when the budget is full.

use super::*;
use crate::page::PAGE_BYTES;
use crate::page::insert::DIRTY;
use crate::xarray::{Entry, NODE_BYTES, Order};

#[test]
fn a_file_larger_than_the_budget_is_read_within_it() {
    let file = File::of_pages(1000);
    let (mapping, budget) = mapping(1 << 20);
    for _ in 0..2 {
        for page in 0..1000 {
            assert_eq!(u64::from(byte(&mapping, &file, page).unwrap()), page % 251);
            let nodes = budget.stats().node_bytes;
            assert!(budget.used_bytes() <= (1 << 20) + nodes);
            assert!(nodes <= (1 << 20) / 8);
        }
    }
    assert!(budget.frames().reserved_bytes() <= 2 * (2 << 20));
    drop(mapping);
    assert_eq!(budget.used_bytes(), 0);
    assert_eq!(
        budget.stats().active_bytes + budget.stats().inactive_bytes,
        0
    );
}

#[test]
fn an_evicted_page_leaves_a_shadow() {
    let file = File::of_pages(1000);
    let (mapping, _) = mapping(1 << 20);
    for page in (0..1000).rev() {
        byte(&mapping, &file, page).unwrap();
    }
    assert!(matches!(
        mapping.core().pages.get(999),
        Some(Entry::Value(_))
    ));
    mapping.core().pages.lock().assert_invariants();
}

#[test]
fn a_page_that_returns_soon_is_kept() {
    let file = File::of_pages(4000);
    let (mapping, budget) = mapping(1 << 20);
    // A working set of 100 pages becomes active, and then shrinks to nothing.
    for page in (0..100).rev().chain((0..100).rev()) {
        byte(&mapping, &file, page).unwrap();
    }
    // A second one that would fit, were it not for the first: it is recognised when it returns.
    for _ in 0..6 {
        for page in (1000..1200).rev() {
            byte(&mapping, &file, page).unwrap();
        }
    }
    let stats = budget.stats();
    assert!(stats.refaults > 0, "{stats:?}");
    assert!(stats.activations > 0, "{stats:?}");
    file.reads();
    for page in (1000..1200).rev() {
        byte(&mapping, &file, page).unwrap();
    }
    assert!(file.reads().len() < 100, "the working set has moved in");
}

#[test]
fn a_scan_does_not_drive_a_working_set_out() {
    let file = File::of_pages(4000);
    let (mapping, _) = mapping(1 << 20);
    for _ in 0..3 {
        for page in (0..60).rev() {
            byte(&mapping, &file, page).unwrap();
        }
    }
    for page in 1000..4000 {
        byte(&mapping, &file, page).unwrap();
    }
    file.reads();
    for page in 0..60 {
        byte(&mapping, &file, page).unwrap();
    }
    assert!(file.reads().is_empty());
}

#[test]
fn dirty_pages_are_not_evicted() {
    let file = File::of_pages(1000);
    let (mapping, budget) = mapping(1 << 20);
    for page in 0..40 {
        mapping.write_at(&file, page * PAGE, &[200; 10]).unwrap();
    }
    for page in 100..1000 {
        byte(&mapping, &file, page).unwrap();
    }
    assert_eq!(budget.dirty_bytes(), 40 * PAGE);
    assert!(file.writes().is_empty());
    for page in 0..40 {
        assert_eq!(byte(&mapping, &file, page), Ok(200));
    }
}

#[test]
fn pages_in_use_are_not_evicted() {
    let file = File::of_pages(1000);
    let (mapping, budget) = mapping(1 << 20);
    let shown = mapping.read_with(&file, 0, 10 * PAGE_BYTES, |slices| {
        let other = Mapping::new(Arc::clone(mapping.budget()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for page in 0..1000 {
                    byte(&other, &file, page).unwrap();
                }
            });
        });
        // Nothing refers to the pages read ahead.
        let is_there = |page| matches!(mapping.core().pages.get(page), Some(Entry::Item(_)));
        assert!((0..10).all(is_there), "they are where others find them");
        assert!(!(10..20).all(is_there), "and others are evicted");
        let held = (mapping.page_count() + other.page_count()) * PAGE;
        assert!(budget.used_bytes() >= held, "what is in memory is charged");
        slices.concat()
    });
    assert_eq!(
        shown.unwrap(),
        file.bytes.lock().unwrap()[..10 * PAGE_BYTES]
    );
    let other = Mapping::new(Arc::clone(&budget));
    for page in 0..1000 {
        byte(&other, &file, page).unwrap();
    }
    assert!(mapping.page_count() < 10, "no reader uses them any more");
}

#[test]
fn mappings_share_one_budget() {
    let file = File::of_pages(1000);
    let (first, budget) = mapping(1 << 20);
    let second = Mapping::new(Arc::clone(&budget));
    for page in 0..1000 {
        byte(&first, &file, page).unwrap();
    }
    for page in 0..1000 {
        byte(&second, &file, page).unwrap();
    }
    assert!(first.page_count() < second.page_count());
    drop(second);
    drop(first);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn shadows_take_a_bounded_part_of_the_budget() {
    let file = File::sparse(1 << 44);
    let (mapping, budget) = mapping(1 << 20);
    // Every page in a node of its own, the worst a file can do.
    for number in 0..3000 {
        byte(&mapping, &file, number * 64 * 64 + 1).unwrap();
    }
    let core = mapping.core();
    assert!(core.pages.value_node_count() * NODE_BYTES <= (1 << 20) / 32 + 64 * NODE_BYTES);
    assert!(budget.stats().node_bytes <= (1 << 20) / 2);
    core.pages.lock().assert_invariants();
    assert!(mapping.page_count() > 50, "pages are still cached");
}

#[test]
fn forgetting_shadows_keeps_pages() {
    let file = File::of_pages(1000);
    let (mapping, _) = mapping(1 << 20);
    for page in (0..1000).rev() {
        byte(&mapping, &file, page).unwrap();
    }
    let before = mapping.page_count();
    crate::budget::Owner::drop_shadows(mapping.core().as_ref());
    let core = mapping.core();
    assert_eq!(core.pages.value_node_count(), 0);
    assert_eq!(mapping.page_count(), before);
    assert!(core.pages.get(999).is_none());
    core.pages.lock().assert_invariants();
}

#[test]
fn forgetting_shadows_ends_at_entries_larger_than_a_sweep() {
    let (mapping, _) = mapping(1 << 20);
    let core = mapping.core();
    let order = Order::new(17).unwrap();
    core.change(|locked| {
        for index in [0, 1 << 17, 1 << 40, u64::MAX - (1 << 17) + 1] {
            let new = crate::xarray::New::Value(1);
            locked.cursor(index, order).store(new).unwrap();
        }
    });
    crate::budget::Owner::drop_shadows(core.as_ref());
    assert_eq!(core.pages.node_count(), 0);
    assert!(!core.pages.is_any_marked(DIRTY));
}
