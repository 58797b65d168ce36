//! One worker: mutants one after the other, each under watch.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::memory::Resident;
use super::{Failure, Job, Limits, Tallies};
use crate::exercise::{Tally, check, exercise};
use crate::mutation::{Mutant, mutate};
use crate::open;
use crate::seeds;

/// The exit code of a worker whose image took too long.
pub(super) const HANG: i32 = 99;
/// How often the watch looks.
const WATCH: Duration = Duration::from_millis(250);
/// Failures that one worker keeps.
const FAILURES_MAX: usize = 20;

/// Runs a job; `progress` is a file that always holds the number at work.
pub fn work(job: Job, limits: Limits, progress: &Path) -> Result<Tallies> {
    let seeds = seeds::all()?;
    let progress = File::create(progress)?;
    let started = Arc::new(AtomicU64::new(0));
    let epoch = now();
    watch(epoch, Arc::clone(&started), limits.time)?;
    std::panic::set_hook(Box::new(|_| {}));
    let mut tallies = Tallies::default();
    for number in job.numbers() {
        progress.write_all_at(&number.to_le_bytes(), 0)?;
        let mutant = mutate(&seeds, number);
        started.store(millis(epoch).max(1), Ordering::Relaxed);
        examine_into(&mutant, limits, &mut tallies)?;
        started.store(0, Ordering::Relaxed);
        if tallies.failures.len() >= FAILURES_MAX {
            break;
        }
    }
    Ok(tallies)
}

/// Examines one mutant and adds what it came to.
fn examine_into(mutant: &Mutant, limits: Limits, tallies: &mut Tallies) -> Result<()> {
    Resident::reset_peak()?;
    let before = Resident::read()?.now;
    let start = now();
    let outcome = catch_unwind(AssertUnwindSafe(|| examine(mutant, limits)));
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    let grown = Resident::read()?.peak.saturating_sub(before);
    let number = mutant.number;
    tallies.images += 1;
    tallies.sealed += u64::from(mutant.is_sealed);
    tallies.slowest = tallies.slowest.max((micros, number));
    tallies.largest = tallies.largest.max((grown, number));
    let mut fail = |what: String| tallies.failures.push(Failure { number, what });
    if grown > limits.cache_bytes + limits.memory_bytes {
        fail(format!("took {} MiB of memory", grown >> 20));
    }
    match outcome {
        Ok(found) => tallies.add(found),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied());
            fail(format!("panicked: {}", text.unwrap_or("?")));
        }
    }
    Ok(())
}

/// Opens a mutant, asks everything of it and checks it.
#[must_use]
pub fn examine(mutant: &Mutant, limits: Limits) -> Tallies {
    let mut tallies = Tallies::default();
    let mut tally = Tally::default();
    let image = open::image(mutant.image.clone());
    let options = open::options(limits.cache_bytes);
    match options.mount(&image) {
        Ok(volume) => {
            tallies.opened = 1;
            exercise(&**volume.filesystem(), &mut tally);
        }
        Err(error) => {
            tallies.refused = 1;
            tally.refusal(&error);
        }
    }
    tallies.checked_clean = u64::from(check(&options, &image, &mut tally));
    tallies.findings = tally.findings;
    (tallies.files, tallies.bytes) = (tally.files, tally.bytes);
    tallies.errors = tally.errors;
    tallies
}

/// Ends the process when one image takes longer than `limit`.
fn watch(epoch: Instant, started: Arc<AtomicU64>, limit: Duration) -> Result<()> {
    let limit = u64::try_from(limit.as_millis())?;
    std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(WATCH);
                let start = started.load(Ordering::Relaxed);
                if start != 0 && millis(epoch).saturating_sub(start) > limit {
                    std::process::exit(HANG);
                }
            }
        })
        .context("the watch")?;
    Ok(())
}

fn millis(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[expect(
    clippy::disallowed_methods,
    reason = "times are limits and results here, not data"
)]
fn now() -> Instant {
    Instant::now()
}
