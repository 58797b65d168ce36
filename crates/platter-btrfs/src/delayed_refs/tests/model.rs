//! Random changes against a model that keeps a number for each reference.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

type Model = BTreeMap<u64, BTreeMap<RefKey, i64>>;

fn random_change(random: &mut Random, model: &Model) -> Change {
    let place = random.below(40);
    let action = if random.below(2) == 0 {
        Action::Add
    } else {
        Action::Drop
    };
    if place < 20 {
        let mut change = of_tree((place + 1) * BLOCK, 5 + random.below(3), action);
        if random.below(5) == 0 {
            let parent = LogicalAddr(random.below(4) * BLOCK);
            change.reference = RefKey::SharedBlock { parent };
        }
        // Only what has no head was allocated: else it were the extent of another one.
        let is_new = !model.contains_key(&change.address.0);
        change.allocates = is_new && action == Action::Add;
        return change;
    }
    let count = u32::try_from(random.below(3) + 1).unwrap();
    of_file((place + 1) * BLOCK, 257 + random.below(4), action, count)
}

fn record(model: &mut Model, change: &Change) {
    let sum = model.entry(change.address.0).or_default();
    let sum = sum.entry(change.reference).or_default();
    let count = i64::from(change.count);
    *sum += match change.action {
        Action::Add => count,
        Action::Drop => -count,
    };
}

/// Runs a head, and compares with the model what was done of it.
fn run_and_compare<I: HeadIndex>(queue: &mut RefQueue<I>, running: Running, model: &mut Model) {
    let address = running.address();
    let mut expected = model.remove(&address.0).expect("a head that was changed");
    expected.retain(|_, sum| *sum != 0);
    let mut is_dropping = false;
    loop {
        match queue.next_step(&running) {
            Ok(RunStep::Reference {
                key, count, action, ..
            }) => {
                assert!(!is_dropping || action == Action::Drop, "adds come first");
                is_dropping = action == Action::Drop;
                let sum = expected.remove(&key).expect("a reference of the model");
                let signed = i64::from(count) * if is_dropping { -1 } else { 1 };
                assert_eq!(sum, signed);
            }
            Ok(RunStep::Done) => break,
            Ok(step) => panic!("{step:?}"),
            // The model frees what it allocated more than once.
            Err(_) => {
                queue.unselect(running);
                queue.abort();
                model.clear();
                return;
            }
        }
        queue.assert_invariants();
    }
    assert!(expected.is_empty(), "{expected:?} did not run");
    queue.finish(running).unwrap();
}

fn agree_with_the_model<I: HeadIndex>() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let mut queue = RefQueue::<I>::default();
        let mut model = Model::new();
        for _ in 0..400 {
            if random.below(10) == 0 {
                if let Some(running) = queue.select() {
                    run_and_compare(&mut queue, running, &mut model);
                }
            } else {
                let change = random_change(&mut random, &model);
                queue.queue(&change).unwrap();
                record(&mut model, &change);
            }
            queue.assert_invariants();
            assert_eq!(queue.len(), model.len());
        }
        while let Some(running) = queue.select() {
            run_and_compare(&mut queue, running, &mut model);
        }
        assert!(queue.is_empty() && model.is_empty());
        queue.assert_invariants();
        assert_eq!(queue.checksum_deletions(), 0);
    }
}

#[test]
fn random_changes_agree_with_a_model() {
    on_all_indexes!(agree_with_the_model);
}

/// Extents by their references: as an extent tree has them, and as they are to be when all that is queued was run.
#[derive(Default)]
struct Extents {
    /// Lengths and references of those that have items.
    items: BTreeMap<u64, (u64, BTreeMap<RefKey, u32>)>,
    /// References that are to be.
    wanted: BTreeMap<u64, BTreeMap<RefKey, u32>>,
    /// Lengths of those that were allocated last.
    lens: BTreeMap<u64, u64>,
    /// How many were allocated, and allocated again before they had an item.
    allocated: [u64; 2],
}

impl Extents {
    /// A change that fits: an extent without references and item is allocated with its first one, and what is dropped was
    /// added before.
    fn random_change(&mut self, random: &mut Random) -> Change {
        // Many are anywhere, and many are those of a moment ago.
        let spread = [1 << 14, 200][usize::try_from(random.below(2)).unwrap()];
        let place = random.below(spread);
        let inode = 257 + random.below(4);
        let mut change = match random.below(2) {
            0 => of_file((place + 1) * BLOCK, inode, Action::Add, 1),
            // Tree blocks lie elsewhere.
            _ => of_tree(((1 << 14) + place + 1) * BLOCK, inode, Action::Add),
        };
        let address = change.address.0;
        let refs = self.wanted.entry(address).or_default();
        if refs.is_empty() {
            change.allocates = !self.items.contains_key(&address);
            if change.allocates {
                change.len_bytes = 4096 * (1 + random.below(4));
                self.allocated[0] += 1;
                self.allocated[1] +=
                    u64::from(self.lens.insert(address, change.len_bytes).is_some());
            }
        } else if random.below(3) > 0 {
            // One of those that there are.
            let at = usize::try_from(random.below(refs.len() as u64)).unwrap();
            change.reference = *refs.keys().nth(at).unwrap();
            change.action = Action::Drop;
        }
        let count = refs.entry(change.reference).or_default();
        match change.action {
            Action::Add => *count += 1,
            Action::Drop => *count -= 1,
        }
        refs.retain(|_, count| *count > 0);
        change
    }

    /// Runs a head in the extent tree.
    fn run<I: HeadIndex>(&mut self, queue: &mut RefQueue<I>, running: Running) -> Vec<RunStep> {
        let address = running.address().0;
        let (steps, finished) = run(queue, running);
        for step in &steps {
            let RunStep::Reference {
                key,
                count,
                action,
                must_insert,
                len_bytes,
                ..
            } = *step
            else {
                panic!("{step:?}");
            };
            assert_eq!(must_insert, !self.items.contains_key(&address));
            if must_insert {
                assert_eq!(
                    (Some(&len_bytes), action),
                    (self.lens.get(&address), Action::Add)
                );
            }
            let (_, refs) = self
                .items
                .entry(address)
                .or_insert((len_bytes, BTreeMap::new()));
            let there = refs.entry(key).or_default();
            *there = match action {
                Action::Add => *there + count,
                Action::Drop => there.checked_sub(count).expect("a reference of the item"),
            };
            refs.retain(|_, count| *count > 0);
            if refs.is_empty() {
                self.items.remove(&address);
            }
        }
        let has_item = self.items.contains_key(&address);
        assert!(!finished.must_insert || (steps.is_empty() && !has_item));
        let refs = self.items.get(&address).map(|(_, refs)| refs.clone());
        assert_eq!(
            refs.unwrap_or_default(),
            self.wanted.remove(&address).unwrap_or_default()
        );
        if has_item {
            let refs = self.items[&address].1.clone();
            self.wanted.insert(address, refs);
        }
        self.lens.remove(&address);
        steps
    }
}

/// What came of random changes, in the order in which it was run.
fn outcome<I: HeadIndex>(changes: u64) -> (u64, DelayedRefCounters) {
    let mut random = Random(changes);
    let mut queue = RefQueue::<I>::default();
    let mut extents = Extents::default();
    let mut digest = 0_u64;
    let mut note = |value: u64| digest = (digest ^ value).wrapping_mul(0x0100_0000_01b3);
    for _ in 0..changes {
        if random.below(3) == 0 {
            if let Some(running) = queue.select() {
                note(running.address().0);
                for step in extents.run(&mut queue, running) {
                    let mut hasher = DefaultHasher::new();
                    format!("{step:?}").hash(&mut hasher);
                    note(hasher.finish());
                }
            }
        } else {
            let change = extents.random_change(&mut random);
            queue.queue(&change).unwrap();
            note(queue.len() as u64);
        }
    }
    while let Some(running) = queue.select() {
        extents.run(&mut queue, running);
    }
    assert!(queue.is_empty());
    assert!(extents.allocated.iter().all(|&count| count > 0));
    (digest, queue.counters())
}

/// Changes of a normal run; `PLATTER_BTRFS_REFS` has another number.
const CHANGES: u64 = 40_000;

#[test]
fn indexes_agree_on_random_changes() {
    let given = std::env::var("PLATTER_BTRFS_REFS").ok();
    let changes = given.map_or(CHANGES, |text| text.parse().unwrap());
    let expected = outcome::<TreeIndex<SplitHead>>(changes);
    assert!(expected.1.cancelled > 0 && expected.1.merged_heads > 0);
    assert_eq!(outcome::<TreeIndex<HotHead>>(changes), expected);
    assert_eq!(outcome::<TreeIndex<AlignedHead>>(changes), expected);
    assert_eq!(outcome::<TreeIndex<LineHead>>(changes), expected);
    assert_eq!(outcome::<SideIndex>(changes), expected);
    assert_eq!(outcome::<ArrayIndex>(changes), expected);
}

fn heads_run_in_order<I: HeadIndex>() {
    let mut random = Random(1);
    let mut queue = RefQueue::<I>::default();
    for _ in 0..500 {
        let place = random.below(4000);
        queue.queue(&allocated(place * BLOCK, 5)).unwrap();
    }
    let mut last = None;
    let mut wraps = 0;
    while let Some(running) = queue.select() {
        let address = running.address();
        if last.is_some_and(|last| last > address) {
            wraps += 1;
        }
        last = Some(address);
        run(&mut queue, running);
        // One before the cursor waits for the next turn.
        if address.0 > BLOCK && random.below(50) == 0 {
            queue.queue(&allocated(address.0 - BLOCK, 5)).unwrap();
        }
    }
    assert!(wraps <= 12, "{wraps}");
    assert!(queue.is_empty());
}

#[test]
fn heads_run_in_order_of_address_and_wrap_around() {
    on_all_indexes!(heads_run_in_order);
}

#[test]
fn younger_refs_wait_for_a_walk_and_are_not_merged() {
    let mut queue = RefQueue::<Heads>::default();
    queue.queue(&of_tree(BLOCK, 5, Action::Add)).unwrap();
    let walk = queue.begin_walk();
    let second = queue.begin_walk();
    queue.queue(&of_tree(BLOCK, 5, Action::Drop)).unwrap();
    queue.assert_invariants();
    let running = queue.select().unwrap();
    // The reference before the walk runs, the one after it does not, although they would cancel.
    let step = queue.next_step(&running).unwrap();
    assert!(matches!(
        step,
        RunStep::Reference {
            action: Action::Add,
            ..
        }
    ));
    assert_eq!(queue.next_step(&running).unwrap(), RunStep::Blocked);
    queue.end_walk(walk);
    assert_eq!(queue.next_step(&running).unwrap(), RunStep::Blocked);
    queue.unselect(running);
    queue.queue(&of_tree(BLOCK, 5, Action::Add)).unwrap();
    queue.end_walk(second);
    let running = queue.select().unwrap();
    assert_eq!(run(&mut queue, running).0, []);
}

#[test]
fn refs_of_different_walks_merge_when_both_ended() {
    let mut queue = RefQueue::<Heads>::default();
    for (tree, action) in [(5, Action::Add), (5, Action::Drop), (6, Action::Drop)] {
        let walk = queue.begin_walk();
        queue.queue(&of_tree(BLOCK, tree, action)).unwrap();
        queue.end_walk(walk);
        queue.assert_invariants();
    }
    assert_eq!(queue.refs.len(), 3);
    let running = queue.select().unwrap();
    let (steps, _) = run(&mut queue, running);
    assert_eq!(steps.len(), 1);
    assert_eq!(queue.counters().cancelled, 1);
}
