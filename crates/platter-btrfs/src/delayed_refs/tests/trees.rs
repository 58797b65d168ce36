//! The indexes against an ordered map.

use std::collections::BTreeMap;

use super::*;
use crate::delayed_refs::index::Inserted;
use crate::delayed_refs::layout::HeadState;
use crate::delayed_refs::slab::{Page, Slab};

fn state(len_bytes: u64) -> HeadState {
    HeadState {
        len_bytes,
        ..HeadState::default()
    }
}

fn agree_with_a_map<I: HeadIndex>() {
    for (seed, spread) in [(1, 200), (2, 5000), (3, 1 << 40)] {
        let mut random = Random(seed);
        let mut index = I::default();
        let mut map = BTreeMap::new();
        for round in 0..4000u64 {
            let address = random.below(spread) * 4096;
            // It grows first, and shrinks then.
            if random.below(10) < if round < 2000 { 7 } else { 2 } {
                let inserted = index.insert(address, state(round));
                if let Some(&(slot, _)) = map.get(&address) {
                    assert_eq!(inserted, Inserted::Exists(slot));
                } else {
                    let Inserted::New(slot) = inserted else {
                        panic!("{inserted:?}");
                    };
                    map.insert(address, (slot, round));
                }
            } else {
                let found = map.range(address..).next();
                let found = found.or_else(|| map.iter().next());
                if let Some((&address, &(slot, _))) = found {
                    index.remove(slot);
                    map.remove(&address);
                    assert_eq!(index.find(address), None);
                }
            }
            let found = index.at_or_after(address);
            let expected = map.range(address..).next();
            assert_eq!(found, expected.map(|(_, (slot, _))| *slot));
            if let Some((address, (slot, len))) = expected {
                assert_eq!(index.address(*slot), *address);
                assert_eq!(index.state(*slot).len_bytes, *len);
            }
            assert_eq!(index.find(address), map.get(&address).map(|it| it.0));
            if round % 64 == 0 {
                index.assert_invariants();
            }
            assert_eq!(index.len(), map.len());
        }
        index.assert_invariants();
    }
}

#[test]
fn indexes_agree_with_an_ordered_map() {
    on_all_indexes!(agree_with_a_map);
}

#[test]
fn slab_refuses_what_it_has_no_numbers_for() {
    let mut slab = Slab::<u64, Page<u64, 512>>::with_slots_max(1024);
    let slots: Vec<_> = (0..1024).map(|at| slab.insert(at).unwrap()).collect();
    assert_eq!(slab.insert(0), None);
    assert_eq!(slab.remove(slots[7]), 7);
    assert_eq!(slab.insert(9), Some(slots[7]));
    assert_eq!(slab.len(), 1024);
}

#[test]
fn pages_hold_as_many_heads_as_the_kernels() {
    use crate::delayed_refs::layout::{Head, HotHead, SplitHead};
    use crate::delayed_refs::slab::Slots;
    assert_eq!(<SplitHead as Head>::Page::COUNT, 28);
    assert_eq!(<HotHead as Head>::Page::COUNT, 30);
    assert_eq!(<AlignedHead as Head>::Page::COUNT, 32);
    assert_eq!(<LineHead as Head>::Page::COUNT, 64);
}

#[test]
fn searches_read_the_lines_that_the_layouts_say() {
    use crate::delayed_refs::layout::SHAPES;
    let lines = SHAPES.map(|shape| (shape.name, shape.milli_lines_per_level));
    assert_eq!(
        lines,
        [
            ("rb-split-144", Some(2000)),
            // 1.4375 without an end of the page.
            ("rb-hot-136", Some(1400)),
            ("rb-aligned-128", Some(1000)),
            ("rb-line-64", Some(1000)),
            ("side-32", Some(1000)),
            ("xarray-128", None),
        ]
    );
    assert_eq!(
        SHAPES.map(|shape| shape.per_page),
        [28, 30, 32, 64, 128, 32]
    );
}
