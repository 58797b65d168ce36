//! Random operations on an array and on a map from first index to entry.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;

use crate::xarray::{
    Content, Entry, Found, Larger, Mark, New, Old, Order, Ref, SplitPlan, SplitReserve, XArray,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Value(u64),
    Item(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Modelled {
    order: Order,
    kind: Kind,
    marks: [bool; 3],
}

#[derive(Default)]
struct Model(BTreeMap<u64, Modelled>);

fn last(index: u64, order: Order) -> u64 {
    index | (order.span() - 1)
}

impl Model {
    fn covering(&self, index: u64) -> Option<(u64, Modelled)> {
        let (&first, &entry) = self.0.range(..=index).next_back()?;
        (index <= last(first, entry.order)).then_some((first, entry))
    }

    fn overlapping(&self, from: u64, to: u64) -> Vec<(u64, Modelled)> {
        let covering = self.covering(from).filter(|&(first, _)| first < from);
        let inside = self
            .0
            .range(from..=to)
            .map(|(&first, &entry)| (first, entry));
        covering.into_iter().chain(inside).collect()
    }

    fn remove_inside(&mut self, from: u64, to: u64) {
        for (first, _) in self.overlapping(from, to) {
            self.0.remove(&first);
        }
    }

    fn store(&mut self, index: u64, order: Order, kind: Kind) {
        self.remove_inside(index, last(index, order));
        let marks = [false; 3];
        self.0.insert(index, Modelled { order, kind, marks });
    }

    fn split_minimal(&mut self, index: u64, to: Order) {
        let Some((mut first, mut entry)) = self.covering(index) else {
            return;
        };
        while entry.order > to {
            entry.order = entry.order.halved();
            let upper = first + entry.order.span();
            self.0.insert(first, entry);
            self.0.insert(upper, entry);
            if index >= upper {
                first = upper;
            }
        }
    }

    fn split_wholly(&mut self, index: u64, piece: Order) {
        let Some((first, entry)) = self.covering(index) else {
            return;
        };
        let end = last(first, entry.order);
        for at in (first..=end).step_by(usize::try_from(piece.span()).unwrap()) {
            let order = piece;
            self.0.insert(at, Modelled { order, ..entry });
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Store(u64, u8, Kind),
    Add(u64, u8, u64),
    AddRange(u64, Vec<u8>),
    Replace(u64, u64),
    Remove(u64),
    RemoveValues(u64, u64),
    Mark(u64, usize, bool),
    SplitMinimal(u64, u8),
    SplitWholly(u64, u8),
}

fn index() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0u64..256,
        3 => 0u64..20_000,
        1 => prop::sample::select(vec![1 << 20, 1 << 36, (1 << 62) + 7, u64::MAX - 63, u64::MAX]),
    ]
}

fn order() -> impl Strategy<Value = u8> {
    prop_oneof![5 => Just(0u8), 3 => 0u8..7, 2 => 0u8..14]
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        (0u64..1 << 63).prop_map(Kind::Value),
        any::<u64>().prop_map(Kind::Item)
    ];
    prop_oneof![
        4 => (index(), order(), kind).prop_map(|(i, o, k)| Step::Store(i, o, k)),
        3 => (index(), order(), any::<u64>()).prop_map(|(i, o, n)| Step::Add(i, o, n)),
        2 => (index(), prop::collection::vec(0u8..4, 0..80)).prop_map(|(i, o)| Step::AddRange(i, o)),
        1 => (index(), any::<u64>()).prop_map(|(i, n)| Step::Replace(i, n)),
        4 => index().prop_map(Step::Remove),
        1 => (index(), 0u64..2000).prop_map(|(i, n)| Step::RemoveValues(i, n)),
        3 => (index(), 0usize..3, any::<bool>()).prop_map(|(i, m, set)| Step::Mark(i, m, set)),
        2 => (index(), order()).prop_map(|(i, o)| Step::SplitMinimal(i, o)),
        2 => (index(), order()).prop_map(|(i, o)| Step::SplitWholly(i, o)),
    ]
}

struct Pair {
    array: XArray<u64>,
    model: Model,
}

impl Pair {
    fn aligned(index: u64, order: u8) -> (u64, Order) {
        let order = Order::new(order).unwrap();
        (index & !(order.span() - 1), order)
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Store(index, order, kind) => self.store(index, order, kind),
            Step::Add(index, order, number) => self.add(index, order, number),
            Step::AddRange(index, orders) => self.add_range(index, &orders),
            Step::Replace(index, number) => self.replace(index, number),
            Step::Remove(index) => self.remove(index),
            Step::RemoveValues(index, span) => self.remove_values(index, span),
            Step::Mark(index, mark, set) => self.mark(index, mark, set),
            Step::SplitMinimal(index, order) => self.split_minimal(index, order),
            Step::SplitWholly(index, order) => self.split_wholly(index, order),
        }
    }

    fn store(&mut self, index: u64, order: u8, kind: Kind) {
        let (index, order) = Self::aligned(index, order);
        let new = match kind {
            Kind::Value(value) => New::Value(value),
            Kind::Item(number) => New::Item(Ref::new(number)),
        };
        let covering = self.model.covering(index);
        let old = self.array.lock().cursor(index, order).store(new);
        match covering {
            Some((_, entry)) if entry.order > order => {
                assert!(matches!(old, Err(Larger { order }) if order == entry.order));
            }
            _ => {
                let exact = covering.filter(|(_, entry)| entry.order == order);
                assert_same_old(&old.unwrap(), exact);
                self.model.store(index, order, kind);
            }
        }
    }

    fn add(&mut self, index: u64, order: u8, number: u64) {
        let (index, order) = Self::aligned(index, order);
        let overlapping = self.model.overlapping(index, last(index, order));
        let added = self.array.add(index, order, Ref::new(number));
        if overlapping
            .iter()
            .any(|(_, entry)| matches!(entry.kind, Kind::Item(_)))
        {
            assert_eq!(*added.unwrap_err().0, number);
            return;
        }
        let value = overlapping.last().map(|(_, entry)| entry.kind);
        assert_eq!(added.unwrap().map(Kind::Value), value);
        self.model.split_minimal(index, order);
        self.model.store(index, order, Kind::Item(number));
    }

    fn add_range(&mut self, index: u64, orders: &[u8]) {
        let orders: Vec<_> = orders
            .iter()
            .map(|&order| Order::new(order).unwrap())
            .collect();
        let mut expected = Vec::new();
        let mut at = Some(index);
        for (number, &order) in orders.iter().enumerate() {
            let Some(index) = at.filter(|index| index % order.span() == 0) else {
                break;
            };
            let overlapping = self.model.overlapping(index, last(index, order));
            if overlapping
                .iter()
                .any(|(_, entry)| matches!(entry.kind, Kind::Item(_)))
            {
                break;
            }
            let value = overlapping.last().map(|(_, entry)| entry.kind);
            expected.push((number, value));
            self.model.split_minimal(index, order);
            self.model.store(index, order, Kind::Item(number as u64));
            at = last(index, order).checked_add(1);
        }
        let items = orders
            .iter()
            .enumerate()
            .map(|(n, &order)| (Ref::new(n as u64), order));
        let mut seen = Vec::new();
        let added = self.array.lock().add_range(index, items, |number, value| {
            seen.push((number, value.map(Kind::Value)));
        });
        assert_eq!(added, expected.len());
        assert_eq!(seen, expected);
    }

    fn replace(&mut self, index: u64, number: u64) {
        let Some((first, entry)) = self.model.covering(index) else {
            return;
        };
        let old = self
            .array
            .lock()
            .cursor(first, entry.order)
            .replace(Ref::new(number));
        match entry.kind {
            Kind::Value(_) => assert!(old.is_none()),
            Kind::Item(before) => {
                assert_eq!(*old.unwrap(), before);
                let kind = Kind::Item(number);
                self.model.0.insert(first, Modelled { kind, ..entry });
            }
        }
    }

    fn remove(&mut self, index: u64) {
        let covering = self.model.covering(index);
        let old = self.array.lock().cursor(index, Order::ZERO).remove();
        assert_same_old(&old, covering);
        if let Some((first, _)) = covering {
            self.model.0.remove(&first);
        }
    }

    fn remove_values(&mut self, index: u64, span: u64) {
        let end = index.saturating_add(span);
        let removed = self.array.lock().remove_values(index, end);
        let before = self.model.0.len();
        for (first, entry) in self.model.overlapping(index, end) {
            if matches!(entry.kind, Kind::Value(_)) {
                self.model.0.remove(&first);
            }
        }
        assert_eq!(removed, before - self.model.0.len());
    }

    fn mark(&mut self, index: u64, mark: usize, set: bool) {
        let covering = self.model.covering(index);
        let mut locked = self.array.lock();
        let mut cursor = locked.cursor(index, Order::ZERO);
        if set {
            assert_eq!(cursor.set_mark(Mark::ALL[mark]), covering.is_some());
        } else {
            let had = covering.is_some_and(|(_, entry)| entry.marks[mark]);
            assert_eq!(cursor.clear_mark(Mark::ALL[mark]), had);
        }
        if let Some((first, mut entry)) = covering {
            entry.marks[mark] = set;
            self.model.0.insert(first, entry);
        }
    }

    fn split_minimal(&mut self, index: u64, order: u8) {
        let (index, order) = Self::aligned(index, order);
        let larger = self
            .model
            .covering(index)
            .filter(|(_, entry)| entry.order > order);
        let taken = self.array.lock().cursor(index, order).split_minimal();
        let levels = larger.map_or(0, |(_, entry)| entry.order.get() / 6 - order.get() / 6);
        assert_eq!(taken, usize::from(levels));
        self.model.split_minimal(index, order);
    }

    fn split_wholly(&mut self, index: u64, order: u8) {
        let (index, order) = Self::aligned(index, order);
        let larger = self
            .model
            .covering(index)
            .filter(|(_, entry)| entry.order > order);
        let Some((_, entry)) = larger else {
            return;
        };
        let mut locked = self.array.lock();
        let mut cursor = locked.cursor(index, Order::ZERO);
        let plan = SplitPlan::new(&cursor.load().unwrap(), order);
        let end = last(index & !(entry.order.span() - 1), entry.order);
        // A complete split of a huge entry into single indexes is slow and shows nothing more.
        if plan.node_count() <= 80 {
            cursor.split(SplitReserve::new(plan)).unwrap();
            self.model.split_wholly(end, order);
        }
    }

    fn assert_same(&self) {
        let mut locked = self.array.lock();
        locked.assert_invariants();
        let found = all(&mut locked.cursor(0, Order::ZERO), None);
        let model: Vec<_> = self
            .model
            .0
            .iter()
            .map(|(&first, &entry)| (first, entry))
            .collect();
        let plain = |entries: &[(u64, Modelled)]| -> Vec<_> {
            entries
                .iter()
                .map(|&(first, entry)| (first, entry.order, entry.kind))
                .collect()
        };
        assert_eq!(found, plain(&model));
        for (number, mark) in Mark::ALL.into_iter().enumerate() {
            let marked: Vec<_> = model
                .iter()
                .copied()
                .filter(|(_, entry)| entry.marks[number])
                .collect();
            let found = all(&mut locked.cursor(0, Order::ZERO), Some(mark));
            assert_eq!(found, plain(&marked), "{mark:?}");
            assert_eq!(self.array.is_any_marked(mark), !marked.is_empty());
        }
        drop(locked);
        for (first, entry) in model {
            let last = last(first, entry.order);
            for index in [first, last, first.midpoint(last), last.saturating_add(1)] {
                let expected = self.model.covering(index).map(|(_, entry)| entry.kind);
                assert_eq!(self.array.get(index).map(|entry| kind_of(&entry)), expected);
            }
        }
    }
}

fn all(cursor: &mut crate::xarray::Cursor<'_, u64>, mark: Option<Mark>) -> Vec<(u64, Order, Kind)> {
    let mut entries = Vec::new();
    let mut found = match mark {
        None => cursor.find(u64::MAX),
        Some(mark) => cursor.find_marked(u64::MAX, mark),
    };
    while let Some(Found {
        index,
        order,
        content,
    }) = found
    {
        let kind = match content {
            Content::Value(value) => Kind::Value(value),
            Content::Item(item) => Kind::Item(*item.try_get().unwrap()),
        };
        entries.push((index, order, kind));
        found = match mark {
            None => cursor.find_next(u64::MAX),
            Some(mark) => cursor.find_next_marked(u64::MAX, mark),
        };
    }
    entries
}

fn kind_of(entry: &Entry<u64>) -> Kind {
    match entry {
        Entry::Value(value) => Kind::Value(*value),
        Entry::Item(item) => Kind::Item(**item),
    }
}

fn assert_same_old(old: &Old<u64>, model: Option<(u64, Modelled)>) {
    let old = match old {
        Old::Nothing => None,
        Old::Value(value) => Some(Kind::Value(*value)),
        Old::Item(item) => Some(Kind::Item(**item)),
    };
    assert_eq!(old, model.map(|(_, entry)| entry.kind));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_map_of_entries(steps in prop::collection::vec(step(), 1..60)) {
        let mut pair = Pair { array: XArray::new(), model: Model::default() };
        for step in steps {
            pair.apply(step);
            pair.assert_same();
        }
    }

    #[test]
    fn conflicts_are_the_overlapping_entries(
        steps in prop::collection::vec(step(), 1..40), index in index(), order in order(),
    ) {
        let mut pair = Pair { array: XArray::new(), model: Model::default() };
        for step in steps {
            pair.apply(step);
        }
        let (index, order) = Pair::aligned(index, order);
        let mut locked = pair.array.lock();
        let mut cursor = locked.cursor(index, order);
        let mut seen = Vec::new();
        while let Some(found) = cursor.next_conflict() {
            seen.push((found.index, found.order));
        }
        let expected: Vec<_> = pair.model.overlapping(index, last(index, order)).iter()
            .map(|&(first, entry)| (first, entry.order)).collect();
        prop_assert_eq!(seen, expected);
        prop_assert!(cursor.next_conflict().is_none());
    }

    #[test]
    fn find_begins_at_the_covering_entry(
        steps in prop::collection::vec(step(), 1..40), from in index(), to in index(),
    ) {
        let mut pair = Pair { array: XArray::new(), model: Model::default() };
        for step in steps {
            pair.apply(step);
        }
        let mut locked = pair.array.lock();
        let found = locked.cursor(from, Order::ZERO).find(to).map(|found| found.index);
        let covering = pair.model.covering(from).map(|(first, _)| first);
        let next = pair.model.0.range((Bound::Excluded(from), Bound::Unbounded)).next();
        let expected = covering.or(next.map(|(&first, _)| first)).filter(|_| from <= to);
        prop_assert_eq!(found, expected.filter(|&first| first <= to));
    }
}
