//! Power failures of every scene, counted by modes.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use testkit::crash::{Breakage, Counts, Matrix};
use testkit::subject::{Mode, Scene, scenes};

use crate::record::Record;
use crate::request::{Amount, Request};
use crate::{KEPT, OPERATIONS, note, seeds};

/// The mount of one of so many states is cut, too.
pub(crate) const RECOVERY_ONE_IN: usize = 32;
/// Where seeds begin, at another place for each scene.
const CRASH_SEED: u64 = 1000;
/// Of so many states the kernel has to have mounted one: 500 of the 20,000 that a run has by default.
const KERNEL_LEAST_ONE_IN: usize = 40;
/// So many states have power failures at each kind of write.
const EVERY_KIND_FROM: usize = 500;
/// Seeds among which the loss of flushes must show.
const UNFLUSHED_SEEDS: u64 = 20;

/// Cuts the power of every scene, and adds up by modes. Returns how many scenes failed.
pub(crate) fn all(request: &Request, record: &mut Record) -> usize {
    let mut totals = Vec::new();
    let mut failures = 0;
    for mode in Mode::ALL {
        let scenes = request.scenes.iter().filter(|scene| scene.mode == mode);
        let count = scenes.clone().count();
        if count == 0 {
            continue;
        }
        let mut total = Counts::default();
        for scene in scenes {
            let amount = match request.amount {
                Amount::States(states) => {
                    Amount::States(states.div_ceil(mode.states_one_in() * count))
                }
                Amount::Seeds(_) | Amount::Seed(_) | Amount::Range => request.amount,
            };
            let done = run(scene, amount, request, record).and_then(|counts| {
                let demanded = counts.demand_sound(scene);
                let every_kind = counts.demand_every_kind(scene);
                let states = counts.states;
                total += counts;
                demanded?;
                if let Amount::States(wanted) = amount {
                    ensure!(states >= wanted, "only {states} distinct states");
                    // A part of a longer run may lack a kind that has few writes.
                    if wanted >= EVERY_KIND_FROM && request.seeds.is_none() {
                        every_kind?;
                    }
                }
                Ok(())
            });
            failures += usize::from(note(scene, done, record).is_none());
        }
        if let Amount::States(states) = request.amount {
            let wanted = states.div_ceil(mode.states_one_in());
            let least = kernel_least(wanted, count);
            if total.by_kernel < least {
                failures += 1;
                let text = format!("the kernel mounted {} states of {least}", total.by_kernel);
                println!("FAILED {}: {text}", mode.name());
                record.add_failure(format!("{}: {text}", mode.name()));
            }
        }
        totals.push((mode, count, total));
    }
    println!();
    for (mode, count, total) in totals {
        println!("{}, {count} scenes: {total}", mode.name());
    }
    failures
}

/// How many states of a mode the kernel has to have mounted: none where each of its scenes has few.
fn kernel_least(states: usize, scenes: usize) -> usize {
    // It mounts one in 32 of each scene, rounded down.
    if states / 32 < states / KERNEL_LEAST_ONE_IN + scenes {
        return 0;
    }
    states / KERNEL_LEAST_ONE_IN
}

fn run(
    scene: &'static Scene,
    amount: Amount,
    request: &Request,
    record: &mut Record,
) -> Result<Counts> {
    let mut matrix = matrix(scene, request);
    match amount {
        Amount::States(states) => {
            // Every workload has states of its own.
            if request.seeds.is_none() {
                matrix.seeds.end = matrix.seeds.start.saturating_add(states as u64);
            }
            matrix.states_max = states;
        }
        Amount::Seed(_) => (matrix.kernel_one_in, matrix.recovery_one_in) = (1, 1),
        Amount::Seeds(_) | Amount::Range => {}
    }
    let begin = now();
    let counts = matrix.run()?;
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = (counts.states + counts.again) as f64 / seconds.max(0.001);
    let begin = matrix.seeds.start;
    let end = begin + counts.workloads as u64;
    println!(
        "crash {}, seeds {begin}..{end}: {counts}; {seconds:.0} s, {rate:.1} states/s",
        scene.name
    );
    record.add_states(scene.name, &counts);
    Ok(counts)
}

/// Demands that failures are found where the device drops its flushes.
pub(crate) fn unflushed(
    scene: &'static Scene,
    request: &Request,
    record: &mut Record,
) -> Result<()> {
    let mut matrix = matrix(scene, request);
    if matches!(request.amount, Amount::Seeds(_)) {
        matrix.seeds.end = matrix.seeds.end.max(matrix.seeds.start + UNFLUSHED_SEEDS);
    }
    let matrix = Matrix {
        fsck_one_in: 0,
        kernel_one_in: 0,
        recovery_one_in: 0,
        breakage: Breakage::DropsFlushes,
        keep: None,
        ..matrix
    };
    let counts = matrix.run()?;
    let found = counts.failures.len();
    println!(
        "crash {}, with its flushes dropped: {found} failures in {} states",
        scene.name, counts.states
    );
    ensure!(found > 0, "lost flushes were not noticed");
    record.add("noticed", 1);
    Ok(())
}

/// Every state of the seeds that are asked for.
fn matrix(scene: &'static Scene, request: &Request) -> Matrix {
    let place = scenes().take_while(|other| other.name != scene.name);
    let first = CRASH_SEED * (1 + place.count() as u64);
    Matrix {
        scene,
        seeds: seeds(request, first, 1),
        states_max: usize::MAX,
        operations: OPERATIONS,
        one_in: 1,
        fsck_one_in: 1,
        kernel_one_in: scene.mode.kernel_one_in(),
        recovery_one_in: RECOVERY_ONE_IN,
        breakage: Breakage::None,
        threads: request.threads,
        keep: Some(PathBuf::from(KEPT)),
    }
}

#[expect(clippy::disallowed_methods, reason = "a rate for people is measured")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_mounts_a_sample_of_every_mode() {
        for mode in Mode::ALL {
            let count = mode.scenes().count();
            let states = 20_000 / mode.states_one_in();
            assert_eq!(kernel_least(states, count), states / 40, "{mode:?}");
            // Each scene has its share.
            let mounted = count * (states.div_ceil(count) / mode.kernel_one_in());
            assert!(mounted >= kernel_least(states, count), "{mode:?}");
        }
        assert_eq!(kernel_least(20_000, 7), 500);
        assert_eq!(kernel_least(60, 7), 0);
    }
}
