//! The work: each kind is written once, and done by whatever side it is given.

mod files;
mod durable;
mod attributes;
mod contents;
mod tree;
mod subvolumes;
mod idle;

use std::thread;

use anyhow::{Context, Result, anyhow};
use testkit::fs_type::FsType;

use crate::measure::{Latencies, stay_on_processor};
use crate::place::Directory;
use crate::side::Side;

pub(crate) use self::tree::plant;

/// A kind of work, in phases that follow each other on one filesystem.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// What it does, for people.
    pub(crate) about: &'static str,
    /// How many of what it counts: for a smoke test, and for measuring.
    pub(crate) count: Amount,
    /// Threads that do it, each in a directory of its own.
    pub(crate) threads: &'static [usize],
    /// How many times as many rounds as usual it has: more, where one takes little time and rates differ much.
    pub(crate) rounds_times: usize,
    /// `mke2fs -I`.
    pub(crate) inode_bytes: u32,
    /// Space the image needs, from the count.
    pub(crate) image_mib: fn(u64) -> u64,
    pub(crate) storage: Storage,
    /// Whether each thread stays on a processor, as threads that wait for a device, or have a filesystem's own threads
    /// work for them, should not.
    pub(crate) is_pinned: bool,
    /// An option of all mounts.
    pub(crate) mount: Option<&'static str>,
    /// What images hold that it is for.
    pub(crate) formats: &'static [FsType],
    /// Of the sides that differ from another in some work only, those that do in this.
    pub(crate) particular: &'static [Side],
    /// The sides that it is for; all, if empty.
    pub(crate) only: &'static [Side],
    pub(crate) phases: &'static [Phase],
}

/// What most of them have in common.
const USUAL: Workload = Workload {
    name: "",
    about: "",
    count: Amount { quick: 0, full: 0 },
    threads: &[1],
    rounds_times: 1,
    inode_bytes: 256,
    image_mib: |count| 256 + count / 100,
    storage: Storage::Memory,
    is_pinned: true,
    mount: None,
    formats: &FsType::ALL,
    particular: &[],
    only: &[],
    phases: &[],
};

/// Where images lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// A tmpfs, where a flush has nothing to do.
    Memory,
    /// The machine's disk, where it has.
    Disk,
}

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    pub(crate) quick: u64,
    pub(crate) full: u64,
}

/// A part of a workload that is measured by itself.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// What is counted.
    pub(crate) unit: Unit,
    /// Whether the filesystem is mounted anew before, so that nothing of it is in memory.
    pub(crate) cold: bool,
    pub(crate) run: fn(&Site<'_>) -> Result<Done>,
}

/// What a phase counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// It only makes ready for the next, and is not reported.
    Preparation,
    /// Each counts by itself.
    Operations,
    /// Bytes moved, reported in MiB.
    Bytes,
    /// One for the whole.
    Once,
}

/// Where and how much.
pub(crate) struct Site<'a> {
    pub(crate) root: &'a dyn Directory,
    pub(crate) count: u64,
    pub(crate) threads: usize,
    /// Whether each thread stays on a processor.
    pub(crate) is_pinned: bool,
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) amount: u64,
    pub(crate) latencies: Latencies,
    /// Time measured elsewhere.
    pub(crate) seconds: Option<f64>,
    /// What the longest operation took, where each is timed.
    pub(crate) longest_seconds: Option<f64>,
}

/// What is done to compare.
pub(crate) const ALL: &[&Workload] = &[
    &files::EMPTY,
    &files::SMALL,
    &durable::FSYNC,
    &durable::APPEND,
    &durable::DURABLE,
    &attributes::XATTR,
    &contents::RANDOM,
    &contents::SEQUENTIAL,
    &contents::COMPRESSED,
    &tree::TREE,
    &subvolumes::SNAPSHOTS,
    &idle::IDLE,
];

/// What is done to see how it grows, besides.
const GROWING: &[&Workload] = &[&contents::EXTENTS, &files::CREATE, &files::MOUNT];

impl Workload {
    /// The one of a name.
    pub(crate) fn named(name: &str) -> Result<&'static Self> {
        let mut all = ALL.iter().chain(GROWING).copied();
        let found = all.find(|workload| workload.name == name);
        found.with_context(|| format!("no workload is called {name}"))
    }
}

impl Done {
    fn one() -> Self {
        Self {
            amount: 1,
            ..Self::default()
        }
    }
}

impl Site<'_> {
    /// How many of the count fall to each thread.
    fn share(&self) -> u64 {
        (self.count / self.threads as u64).max(1)
    }

    /// Lets each thread do its share in its directory, on a processor of its own. The thread that calls
    /// starts servers, which are to run where they like; and where the disk takes part, so are all:
    /// bound to the processor that takes the disk's interrupts, a thread is measured by those.
    fn in_threads(
        &self,
        work: impl Fn(u64, &dyn Directory, &mut Latencies) -> Result<u64> + Sync,
    ) -> Result<Done> {
        let one = |number: usize| -> Result<Done> {
            if self.is_pinned {
                stay_on_processor(number)?;
            }
            let dir = self.root.dir(&dir_name(number))?;
            let mut latencies = Latencies::default();
            let amount = work(number as u64, &*dir, &mut latencies)?;
            Ok(Done {
                amount,
                latencies,
                ..Done::default()
            })
        };
        let mut all = Done::default();
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for number in 0..self.threads {
                let worker = thread::Builder::new().name(format!("work-{number}"));
                workers.push(worker.spawn_scoped(scope, move || one(number))?);
            }
            for worker in workers {
                let done = worker
                    .join()
                    .map_err(|_| anyhow!("a thread broke down"))??;
                all.amount += done.amount;
                all.latencies.merge(&done.latencies);
            }
            Ok(all)
        })
    }
}

/// Makes the directories of all threads.
fn make_dirs(site: &Site<'_>) -> Result<Done> {
    for number in 0..site.threads {
        site.root.make_dir(&dir_name(number))?;
    }
    Ok(Done::one())
}

/// Makes all durable, as far as one can ask for it on every side.
fn sync(site: &Site<'_>) -> Result<Done> {
    for number in 0..site.threads {
        site.root.dir(&dir_name(number))?.sync()?;
    }
    Ok(Done::one())
}

fn dir_name(number: usize) -> String {
    format!("thread{number}")
}

const MAKE_DIRS: Phase = Phase {
    name: "make directories",
    unit: Unit::Preparation,
    cold: false,
    run: make_dirs,
};

const fn phase(name: &'static str, unit: Unit, run: fn(&Site<'_>) -> Result<Done>) -> Phase {
    Phase {
        name,
        unit,
        cold: false,
        run,
    }
}

const fn cold(name: &'static str, unit: Unit, run: fn(&Site<'_>) -> Result<Done>) -> Phase {
    Phase {
        name,
        unit,
        cold: true,
        run,
    }
}

impl Unit {
    /// The word for one of them.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Preparation => "preparation",
            Self::Operations => "operation",
            Self::Bytes => "byte",
            Self::Once => "whole",
        }
    }
}
