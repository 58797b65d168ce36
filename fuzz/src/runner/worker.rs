//! A worker process: mutants one after the other, each under a watchdog.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use platter::MountOptions;
use platter::options::{MountOption, Recovery};
use testkit::fs_type::FsType;

use super::memory::Resident;
use super::{Failure, Job, Limits, Part, Tallies};
use crate::exercise::{Tally, check, exercise};
use crate::mutation::{Mutant, mutate};
use crate::open;
use crate::operations::{Desk, OPERATIONS, Operation};
use crate::seeds;

/// The exit code of a worker whose image took too long.
pub(super) const HANG: i32 = 99;
/// How often the watch looks.
const WATCH: Duration = Duration::from_millis(250);
/// Failures that one worker keeps.
const FAILURES_MAX: usize = 20;

/// What a worker is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) number: u64,
    /// The operation, or that it is read.
    pub(super) step: String,
}

impl Progress {
    /// Reads what a worker wrote last.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)?;
        let (number, step) = bytes.split_first_chunk().context("a worker's progress")?;
        let end = step.iter().position(|&byte| byte == 0);
        Ok(Self {
            number: u64::from_le_bytes(*number),
            step: String::from_utf8_lossy(&step[..end.unwrap_or(step.len())]).into_owned(),
        })
    }

    fn write(number: u64, step: &str, file: &File) -> Result<()> {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let step = &step.as_bytes()[..step.len().min(24)];
        bytes[8..8 + step.len()].copy_from_slice(step);
        Ok(file.write_all_at(&bytes, 0)?)
    }
}

/// A worker at its job.
struct Worker {
    limits: Limits,
    progress: File,
    epoch: Instant,
    /// When the step at work began, in milliseconds since the epoch; 0 between two.
    started: Arc<AtomicU64>,
    /// The text of a panic in any thread.
    panicked: Arc<Mutex<Option<String>>>,
    tallies: Tallies,
}

/// Runs a job; `progress` is a file that always contains the current number.
pub fn work(job: Job, limits: Limits, progress: &Path) -> Result<Tallies> {
    let seeds = seeds::of(&[job.format])?;
    let mut worker = Worker {
        limits,
        progress: File::create(progress)?,
        epoch: now(),
        started: Arc::default(),
        panicked: Arc::default(),
        tallies: Tallies::default(),
    };
    super::memory::limit(limits.process_bytes)?;
    watch(worker.epoch, Arc::clone(&worker.started), limits.time)?;
    let panicked = Arc::clone(&worker.panicked);
    std::panic::set_hook(Box::new(move |panic| {
        let mut panicked = panicked.lock().unwrap_or_else(PoisonError::into_inner);
        panicked.get_or_insert_with(|| panic.to_string());
    }));
    let desk = match job.part {
        Part::Reading => None,
        Part::Operations => Some(Desk::new(limits.cache_bytes)?),
    };
    for number in job.numbers() {
        let mutant = mutate(&seeds, number);
        worker.tallies.images += 1;
        worker.tallies.sealed += u64::from(mutant.is_sealed);
        match &desk {
            None => worker.step(&mutant, "reading", || Ok(examine(&mutant, limits)))?,
            Some(desk) => {
                for &operation in OPERATIONS {
                    let perform = || perform(desk, operation, &mutant);
                    worker.step(&mutant, operation.name, perform)?;
                }
            }
        }
        if worker.tallies.failures.len() >= FAILURES_MAX {
            break;
        }
    }
    Ok(worker.tallies)
}

impl Worker {
    /// Does one thing with one mutant and adds what it came to.
    fn step(
        &mut self,
        mutant: &Mutant,
        step: &str,
        action: impl FnOnce() -> Result<Tallies>,
    ) -> Result<()> {
        let number = mutant.number;
        Progress::write(number, step, &self.progress)?;
        Resident::reset_peak()?;
        let before = Resident::read()?.now;
        let start = now();
        self.started
            .store(millis(self.epoch).max(1), Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(action));
        self.started.store(0, Ordering::Relaxed);
        let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let grown = Resident::read()?.peak.saturating_sub(before);
        let tallies = &mut self.tallies;
        tallies.slowest = tallies.slowest.max((micros, number));
        tallies.largest = tallies.largest.max((grown, number));
        let mut fail = |what: String| {
            let what = format!("{step}: {what}");
            tallies.failures.push(Failure { number, what });
        };
        if grown > self.limits.cache_bytes + self.limits.memory_bytes {
            fail(format!("took {} MiB of memory", grown >> 20));
        }
        let mut panicked = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = panicked.take() {
            fail(text);
        }
        if let Ok(found) = outcome {
            tallies.add(found?);
        }
        Ok(())
    }
}

/// Does each operation with a copy of the mutant. From then on this process has no more memory than a
/// worker.
pub fn perform_all(mutant: &Mutant, limits: Limits) -> Result<Tallies> {
    super::memory::limit(limits.process_bytes)?;
    let desk = Desk::new(limits.cache_bytes)?;
    let mut tallies = Tallies::default();
    for &operation in OPERATIONS {
        tallies.add(perform(&desk, operation, mutant)?);
    }
    Ok(tallies)
}

fn perform(desk: &Desk, operation: Operation, mutant: &Mutant) -> Result<Tallies> {
    let mut tally = Tally::default();
    desk.perform(operation, &mutant.contents, &mutant.devices, &mut tally)?;
    let name = operation.name;
    let errors = tally.errors.into_iter();
    Ok(Tallies {
        bytes: tally.bytes,
        operations: 1,
        errors: errors
            .map(|(kind, count)| (format!("{name}: {kind}"), count))
            .collect(),
        ..Tallies::default()
    })
}

/// Opens a mutant, asks everything of it and checks it. Some are opened leniently, too.
#[must_use]
pub fn examine(mutant: &Mutant, limits: Limits) -> Tallies {
    let mut tallies = Tallies::default();
    let mut tally = Tally::default();
    let images = mutant.images();
    let options = open::options(limits.cache_bytes);
    match options.mount(&images) {
        Ok(volume) => {
            tallies.opened = 1;
            exercise(&**volume.filesystem(), &mut tally);
        }
        Err(error) => {
            tallies.refused = 1;
            tally.refusal(&error);
        }
    }
    if let Some(lenient) = lenient(mutant, &options)
        && let Ok(volume) = lenient.mount(&images)
    {
        exercise(&**volume.filesystem(), &mut Tally::default());
    }
    tallies.checked_clean = u64::from(check(&options, &images, &mut tally));
    tallies.findings = tally.findings;
    (tallies.files, tallies.bytes) = (tally.files, tally.bytes);
    tallies.errors = tally.errors;
    tallies
}

/// The options that overlook most, for one mutant in eight of a format that has them.
fn lenient(mutant: &Mutant, options: &MountOptions) -> Option<MountOptions> {
    let options = options.clone();
    match mutant.fs_type {
        _ if !mutant.number.is_multiple_of(8) => None,
        FsType::Ext4 => None,
        FsType::Btrfs => {
            let words = ["rescue=all", "degraded"].map(MountOption::parse);
            Some(words.into_iter().fold(options, MountOptions::option))
        }
        FsType::Xfs => Some(options.recovery(Recovery::Skip)),
    }
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
