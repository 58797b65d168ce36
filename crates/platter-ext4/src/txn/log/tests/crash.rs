//! Power failures and failing devices: whatever happens, a replay restores the state that some
//! transaction left, no earlier one than was reported durable.

use platter_block::Operation;
use platter_block::sim::{CrashOptions, Effect, Fault, When};

use super::journal::LAYOUTS;
use super::workload::{Actor, Scene};
use super::*;
use crate::ondisk::jbd2::Checksums;
use crate::txn::sample_log::open_on;

fn seeded(seed: u64) -> CrashOptions {
    CrashOptions {
        seed,
        ..CrashOptions::default()
    }
}

fn examine(layout: (Checksums, bool), seed: u64, faults: &[Fault]) -> (usize, Vec<String>) {
    let scene = Scene::new(layout, faults);
    Actor::new(&scene, seed).run(200).unwrap();
    scene.close().unwrap();
    scene.examine(seeded(seed))
}

#[test]
fn crash_at_any_moment_keeps_durable_transactions() {
    let mut states = 0;
    for (index, layout) in LAYOUTS.into_iter().enumerate() {
        for seed in 0..2 {
            let seed = seed * 100 + index as u64;
            let (count, broken) = examine(layout, seed, &[]);
            assert!(broken.is_empty(), "{layout:?}, seed {seed}: {broken:#?}");
            states += count;
        }
    }
    println!("{states} crash states");
    assert!(states > 10_000, "only {states} crash states");
}

#[test]
fn crash_under_several_threads_keeps_durable_transactions() {
    let mut states = 0;
    for seed in 1..5 {
        let scene = Scene::new(LAYOUTS[7], &[]);
        std::thread::scope(|scope| {
            for actor in 0..4 {
                let scene = &scene;
                scope.spawn(move || Actor::new(scene, seed * 10 + actor).run(200).unwrap());
            }
        });
        scene.close().unwrap();
        let (count, broken) = scene.examine(seeded(seed));
        assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
        states += count;
    }
    println!("{states} crash states");
}

#[test]
fn log_without_flushes_is_caught() {
    let faults = [Fault {
        operation: Operation::Flush,
        when: When::Always,
        effect: Effect::Skip,
    }];
    for layout in LAYOUTS {
        let (_, broken) = examine(layout, 1, &faults);
        assert!(!broken.is_empty(), "{layout:?}");
    }
}

/// Makes the n-th request of a kind fail, for every n that a workload reaches.
fn fail_each(operation: Operation) {
    let mut nth = 1;
    loop {
        let fault = Fault {
            operation,
            when: When::Nth(nth),
            effect: Effect::Tear { seed: nth },
        };
        let scene = Scene::new(LAYOUTS[7], &[fault]);
        let worked = Actor::new(&scene, 3).run(200).and_then(|()| scene.close());
        let last_cut = CrashOptions {
            first_position: scene.device.recording().events().len(),
            ..seeded(nth)
        };
        let (count, broken) = scene.examine(last_cut);
        assert!(count > 0);
        assert!(broken.is_empty(), "{operation} {nth}: {broken:#?}");
        let Err(error) = worked else { break };
        assert!(matches!(error, Error::Io(_)), "{operation} {nth}: {error}");
        assert!(matches!(
            scene.log.begin(1),
            Err(Error::Condition(Condition::ReadOnly))
        ));
        assert!(scene.log.failure().is_some());
        assert!(scene.log.close().is_err());
        assert_eq!(scene.space.failures.lock().len(), 1);
        let journal = open_on(Arc::<platter_block::sim::RecordingDevice>::clone(
            &scene.device,
        ));
        assert_eq!(journal.superblock().errno, -5, "{operation} {nth}");
        nth += 1;
    }
    println!("{nth} of {operation}");
    assert!(nth > 20);
}

#[test]
fn failed_write_aborts_the_log_and_loses_nothing_durable() {
    fail_each(Operation::Write);
}

#[test]
fn failed_flush_aborts_the_log_and_loses_nothing_durable() {
    fail_each(Operation::Flush);
}
