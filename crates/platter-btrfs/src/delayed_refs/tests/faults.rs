//! Faults that delayed references had in the kernel, and conditions that were its `BUG`s.

use std::sync::Arc;
use std::thread;

use platter_block::lock::Mutex;

use super::*;
use crate::delayed_refs::queue::DelayedRefRule;
use crate::ondisk::Key;
use crate::ondisk::extent_item::ExtentFlags;

#[test]
fn extent_freed_and_allocated_again_is_inserted_anew() {
    let mut queue = RefQueue::<Heads>::default();
    queue.queue(&of_file(BLOCK, 257, Action::Drop, 1)).unwrap();
    let again = Change {
        len_bytes: 8192,
        allocates: true,
        ..of_file(BLOCK, 258, Action::Add, 1)
    };
    queue.queue(&again).unwrap();
    queue.assert_invariants();
    let running = queue.select().unwrap();
    let (steps, finished) = run(&mut queue, running);
    let RunStep::Reference {
        must_insert,
        len_bytes,
        action,
        ..
    } = steps[0]
    else {
        panic!("{steps:?}");
    };
    assert!(must_insert && action == Action::Add);
    assert_eq!((len_bytes, finished.len_bytes), (8192, 8192));
}

#[test]
fn pair_that_cancels_leaves_an_extent_without_an_item() {
    let mut queue = RefQueue::<Heads>::default();
    queue.queue(&allocated(BLOCK, 5)).unwrap();
    queue.queue(&of_tree(BLOCK, 5, Action::Drop)).unwrap();
    let running = queue.select().unwrap();
    let (steps, finished) = run(&mut queue, running);
    assert_eq!(steps, []);
    assert!(finished.must_insert, "its space is to be freed");
    assert_eq!(queue.counters().cancelled, 1);
}

#[test]
fn block_allocated_and_freed_is_forgotten_at_once() {
    let mut queue = RefQueue::<Heads>::default();
    let op = Some(ExtentOp::default());
    queue
        .queue(&Change {
            op,
            ..allocated(BLOCK, 5)
        })
        .unwrap();
    assert_eq!(queue.forget(LogicalAddr(BLOCK)), None, "it has a reference");
    queue.queue(&of_tree(BLOCK, 5, Action::Drop)).unwrap();
    let freed = queue.forget(LogicalAddr(BLOCK));
    assert_eq!(freed, Some(Freed { must_insert: true }));
    assert!(queue.is_empty());
    queue.assert_invariants();
}

#[test]
fn forgetting_keeps_a_head_that_runs_or_has_an_op() {
    let mut queue = RefQueue::<Heads>::default();
    let address = LogicalAddr(BLOCK);
    let op = ExtentOp {
        key: None,
        flags: ExtentFlags::FULL_BACKREF,
    };
    queue.queue_op(address, BLOCK, TREE_BLOCK, op).unwrap();
    assert_eq!(queue.forget(address), None);
    let running = queue.select().unwrap();
    assert_eq!(queue.forget(address), None);
    let (steps, finished) = run(&mut queue, running);
    assert!(matches!(steps[..], [RunStep::Op { op: found, .. }] if found == op));
    assert!(!finished.must_insert);
    assert_eq!(queue.forget(address), None);
}

#[test]
fn flags_and_keys_of_several_changes_are_set_once() {
    let mut queue = RefQueue::<Heads>::default();
    let key = Some(crate::ondisk::Key::MAX);
    let first = ExtentOp {
        key,
        flags: ExtentFlags::empty(),
    };
    let change = Change {
        op: Some(first),
        ..of_tree(BLOCK, 5, Action::Add)
    };
    queue.queue(&change).unwrap();
    let second = ExtentOp {
        key: None,
        flags: ExtentFlags::FULL_BACKREF,
    };
    queue
        .queue_op(LogicalAddr(BLOCK), BLOCK, TREE_BLOCK, second)
        .unwrap();
    queue.queue(&of_tree(BLOCK, 6, Action::Add)).unwrap();
    let running = queue.select().unwrap();
    let (steps, _) = run(&mut queue, running);
    let ops: Vec<_> = steps
        .iter()
        .map(|step| match step {
            RunStep::Reference { op, .. } => *op,
            RunStep::Op { .. } | RunStep::Blocked | RunStep::Done => panic!("{step:?}"),
        })
        .collect();
    let both = ExtentOp {
        key,
        flags: ExtentFlags::FULL_BACKREF,
    };
    assert_eq!(ops, [Some(both), None]);
}

#[test]
fn extent_that_changes_its_kind_is_corrupt() {
    let mut queue = RefQueue::<Heads>::default();
    queue.queue(&of_tree(BLOCK, 5, Action::Add)).unwrap();
    let data = of_file(BLOCK, 257, Action::Add, 1);
    let corrupt = queue.queue(&data).unwrap_err();
    assert_eq!(corrupt.rule, DelayedRefRule::Kind);
    let mixed = Change {
        kind: TREE_BLOCK,
        ..data
    };
    let corrupt = queue.queue(&mixed).unwrap_err();
    assert_eq!(corrupt.rule, DelayedRefRule::Reference);
    queue.assert_invariants();
}

#[test]
fn counts_that_overflow_are_corrupt_and_change_nothing() {
    let mut queue = RefQueue::<Heads>::default();
    let most = u32::try_from(i32::MAX).unwrap();
    queue
        .queue(&of_file(BLOCK, 257, Action::Add, most))
        .unwrap();
    for count in [1, u32::MAX] {
        let more = of_file(BLOCK, 258, Action::Add, count);
        assert_eq!(queue.queue(&more).unwrap_err().rule, DelayedRefRule::Count);
    }
    let first = of_file(2 * BLOCK, 258, Action::Add, u32::MAX);
    assert!(queue.queue(&first).is_err());
    queue.assert_invariants();
    assert_eq!(queue.len(), 1);
}

#[test]
fn change_that_finds_no_slot_changes_nothing() {
    let mut queue = RefQueue::<Heads>::default();
    queue.refs = crate::delayed_refs::slab::Slab::with_slots_max(0);
    let op = Some(ExtentOp::default());
    let change = Change {
        op,
        ..allocated(BLOCK, 5)
    };
    let corrupt = queue.queue(&change).unwrap_err();
    assert_eq!(corrupt.rule, DelayedRefRule::Full);
    assert!(queue.is_empty());
    queue.assert_invariants();
    queue.ops = crate::delayed_refs::slab::Slab::with_slots_max(0);
    let address = LogicalAddr(BLOCK);
    let corrupt = queue.queue_op(address, BLOCK, TREE_BLOCK, ExtentOp::default());
    assert_eq!(corrupt.unwrap_err().rule, DelayedRefRule::Full);
    assert!(queue.is_empty());
    queue.assert_invariants();
}

#[test]
fn reference_that_finds_no_slot_leaves_the_op_of_its_head() {
    let mut queue = RefQueue::<Heads>::default();
    let address = LogicalAddr(BLOCK);
    queue
        .queue_op(address, BLOCK, TREE_BLOCK, ExtentOp::default())
        .unwrap();
    queue.refs = crate::delayed_refs::slab::Slab::with_slots_max(0);
    let before = queue.counters;
    let change = Change {
        op: Some(ExtentOp {
            key: Some(Key::MIN),
            ..ExtentOp::default()
        }),
        ..of_tree(BLOCK, 5, Action::Add)
    };
    let corrupt = queue.queue(&change).unwrap_err();
    assert_eq!(corrupt.rule, DelayedRefRule::Full);
    let slot = queue.heads.find(BLOCK).unwrap();
    let op = queue.heads.state(slot).extent_op.get().unwrap();
    assert_eq!(*queue.ops.get(op), ExtentOp::default());
    assert_eq!(queue.counters, before);
    queue.assert_invariants();
}

#[test]
fn drop_from_an_extent_without_an_item_is_corrupt() {
    let mut queue = RefQueue::<Heads>::default();
    queue.queue(&allocated(BLOCK, 5)).unwrap();
    queue.queue(&of_tree(BLOCK, 5, Action::Drop)).unwrap();
    queue.queue(&of_tree(BLOCK, 6, Action::Drop)).unwrap();
    let running = queue.select().unwrap();
    let corrupt = queue.next_step(&running).unwrap_err();
    assert_eq!(corrupt.rule, DelayedRefRule::InsertedByDrop);
    queue.unselect(running);
    queue.assert_invariants();
}

#[test]
fn checksum_account_moves_only_with_the_sign() {
    let mut queue = RefQueue::<Heads>::default();
    let mut total = 0i32;
    for (action, count) in [
        (Action::Drop, 2),
        (Action::Drop, 3),
        (Action::Add, 4),
        (Action::Add, 1),
        (Action::Add, 2),
        (Action::Drop, 3),
    ] {
        queue.queue(&of_file(BLOCK, 257, action, count)).unwrap();
        total += action.signed(count).unwrap();
        let expected = if total < 0 { 4096 } else { 0 };
        assert_eq!(queue.checksum_deletions(), expected);
    }
    // It stays when references were run, until the head is gone.
    let running = queue.select().unwrap();
    let step = queue.next_step(&running).unwrap();
    assert!(matches!(step, RunStep::Reference { count: 1, .. }));
    assert_eq!(queue.checksum_deletions(), 4096);
    assert_eq!(queue.next_step(&running).unwrap(), RunStep::Done);
    queue.finish(running).unwrap();
    assert_eq!(queue.checksum_deletions(), 0);
}

fn abort_discards_all<I: HeadIndex>() {
    let mut queue = RefQueue::<I>::default();
    for place in 1..200 {
        let op = (place % 7 == 0).then(ExtentOp::default);
        let change = allocated(place * BLOCK, 5);
        queue.queue(&Change { op, ..change }).unwrap();
        queue
            .queue(&of_file((place + 500) * BLOCK, 257, Action::Drop, 1))
            .unwrap();
    }
    let running = queue.select().unwrap();
    queue.unselect(running);
    let discarded = queue.abort();
    assert_eq!(discarded.len(), 398);
    // Of these the space stays in use until the next mount.
    let pinned = discarded.iter().filter(|it| it.must_insert).count();
    assert_eq!(pinned, 199);
    assert_eq!(queue.checksum_deletions(), 0);
    assert_eq!(queue.ready(), 0);
    queue.assert_invariants();
}

#[test]
fn abort_discards_each_head_and_its_accounting() {
    on_all_indexes!(abort_discards_all);
}

#[test]
fn abort_waits_for_a_head_that_runs() {
    let refs = Arc::new(DelayedRefs::<Heads>::default());
    refs.queue(&allocated(BLOCK, 5)).unwrap();
    refs.queue(&allocated(2 * BLOCK, 5)).unwrap();
    let running = refs.select().unwrap();
    thread::scope(|scope| {
        let aborting = scope.spawn(|| refs.abort());
        while let RunStep::Reference { .. } = refs.next_step(&running).unwrap() {}
        refs.finish(running).unwrap();
        let discarded = aborting.join().unwrap();
        assert_eq!(discarded.len(), 1);
        assert_eq!(discarded[0].address, LogicalAddr(2 * BLOCK));
    });
}

#[test]
fn head_that_changed_while_it_ran_is_run_again() {
    let mut queue = RefQueue::<Heads>::default();
    queue.queue(&allocated(BLOCK, 5)).unwrap();
    let running = queue.select().unwrap();
    while queue.next_step(&running).unwrap() != RunStep::Done {}
    queue.queue(&of_tree(BLOCK, 6, Action::Add)).unwrap();
    let running = queue.finish(running).unwrap_err();
    assert_eq!(queue.counters().retries, 1);
    let (steps, _) = run(&mut queue, running);
    assert_eq!(steps.len(), 1);
}

#[test]
fn lookup_waits_for_a_head_that_runs_and_searches_again() {
    let refs = DelayedRefs::<Heads>::default();
    let address = LogicalAddr(BLOCK);
    refs.queue(&of_tree(BLOCK, 5, Action::Add)).unwrap();
    let net = |refs: &DelayedRefs<Heads>| {
        loop {
            match refs.pending(address) {
                Ok(pending) => return pending.map(|it| it.net_change),
                Err(Busy) => refs.wait_for(address),
            }
        }
    };
    assert_eq!(net(&refs), Some(1));
    let running = refs.select().unwrap();
    assert_eq!(refs.pending(address), Err(Busy));
    thread::scope(|scope| {
        let looking = scope.spawn(|| net(&refs));
        while refs.next_step(&running).unwrap() != RunStep::Done {}
        refs.finish(running).unwrap();
        // Another head of the same extent may take its place.
        assert_eq!(looking.join().unwrap(), None);
    });
    refs.queue(&of_tree(BLOCK, 5, Action::Drop)).unwrap();
    assert_eq!(net(&refs), Some(-1));
}

#[test]
fn heads_of_all_shards_are_run_in_order_of_address() {
    let refs = DelayedRefs::<Heads>::default();
    let mut random = Random(1);
    let queue = |random: &mut Random| {
        let address = random.below(1 << 18) * BLOCK;
        refs.queue(&of_tree(address, 5, Action::Add)).unwrap();
    };
    (0..500).for_each(|_| queue(&mut random));
    let mut addresses = Vec::new();
    while let Some(running) = refs.select() {
        addresses.push(running.address().0);
        while refs.next_step(&running).unwrap() != RunStep::Done {}
        refs.finish(running).unwrap();
        // Those before it wait for the next turn.
        if addresses.len() < 100 {
            queue(&mut random);
        }
    }
    assert!(addresses.len() > 400 && refs.is_empty());
    let turns = addresses.windows(2).filter(|pair| pair[0] > pair[1]);
    assert_eq!(turns.count(), 1);
}

fn merging_takes_no_slots<I: HeadIndex>() {
    let mut queue = RefQueue::<I>::default();
    for _ in 0..10_000 {
        queue.queue(&of_file(BLOCK, 257, Action::Add, 1)).unwrap();
        queue.queue(&of_file(BLOCK, 257, Action::Drop, 1)).unwrap();
    }
    assert_eq!((queue.len(), queue.refs.len()), (1, 0));
    queue.assert_invariants();
}

#[test]
fn merge_returns_the_slot_reserved_for_a_head() {
    on_all_indexes!(merging_takes_no_slots);
}

#[test]
fn threads_that_queue_and_run_lose_nothing() {
    let refs = DelayedRefs::<Heads>::default();
    let sums: Mutex<_> = Mutex::new(std::collections::BTreeMap::<u64, i64>::new());
    thread::scope(|scope| {
        for thread in 0..3 {
            let (refs, sums) = (&refs, &sums);
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..3000 {
                    // In all shards.
                    let address = (random.below(50) + 1) << 25;
                    let count = u32::try_from(random.below(3) + 1).unwrap();
                    refs.queue(&of_file(address, 257 + thread, Action::Add, count))
                        .unwrap();
                    *sums.lock().entry(address).or_default() += i64::from(count);
                    if random.below(4) == 0
                        && let Some(running) = refs.select()
                    {
                        run_shared(refs, running, sums);
                    }
                }
            });
        }
    });
    while let Some(running) = refs.select() {
        run_shared(&refs, running, &sums);
    }
    assert!(sums.lock().values().all(|sum| *sum == 0));
}

fn run_shared(
    refs: &DelayedRefs<Heads>,
    running: Running,
    sums: &Mutex<std::collections::BTreeMap<u64, i64>>,
) {
    let mut running = running;
    loop {
        while let RunStep::Reference { count, .. } = refs.next_step(&running).unwrap() {
            *sums.lock().entry(running.address().0).or_default() -= i64::from(count);
        }
        match refs.finish(running) {
            Ok(_) => return,
            Err(again) => running = again,
        }
    }
}
