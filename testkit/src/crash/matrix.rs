//! Many seeds, many cuts of each, and the judgement of every state.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::ops::{AddAssign, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use platter_block::sim::{CrashOptions, CrashState, Recording, Request};

use super::image::ImageFiles;
use super::judge::{Judge, Judged};
use super::{Breakage, Recorded, record};
use crate::subject::{Scene, shared as of_state};
use crate::workload::Durability;

/// Random mixes of kept, lost and torn writes at each cut.
const MIXES_PER_CUT: u32 = 4;
/// Failures after which a run ends.
const FAILURES_MAX: usize = 5;
/// Maximum number of states of a workload that are kept for comparison with later guarantees.
const REMEMBERED_MAX: usize = 64;
/// A run in which no state is judged for so long hangs.
const PATIENCE: Duration = Duration::from_mins(10);

/// What to cut, and how thoroughly to look.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// The filesystem.
    pub scene: &'static Scene,
    /// Seeds of workloads.
    pub seeds: Range<u64>,
    /// With so many distinct states no further seed is begun.
    pub states_max: usize,
    /// Operations of each workload.
    pub operations: usize,
    /// Of so many states one is judged.
    pub one_in: usize,
    /// Of so many judged states one is shown to the checker of Linux too; 0 for none.
    pub fsck_one_in: usize,
    /// Of so many judged states one is mounted by the kernel too; 0 for none.
    pub kernel_one_in: usize,
    /// Of so many judged states one is mounted, and that cut too; 0 for none.
    pub recovery_one_in: usize,
    /// What is wrong with the device.
    pub breakage: Breakage,
    /// Workloads that run at once.
    pub threads: usize,
    /// Where images of failures are kept.
    pub keep: Option<PathBuf>,
}

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Workloads, of as many seeds, from the first on.
    pub workloads: usize,
    /// Operations in them.
    pub operations: usize,
    /// Syncs among these.
    pub syncs: usize,
    /// States that were judged: mounted, compared, unmounted and checked. No two of them have the
    /// same contents, in whatever workloads.
    pub states: usize,
    /// States with a log of what single files were synced to, over what the last commit has.
    pub logs: usize,
    /// States in which a file was stored compressed.
    pub compressed: usize,
    /// States by what the last write or flush was of that had begun.
    pub cuts: BTreeMap<&'static str, usize>,
    /// How often such a state recurred after a later guarantee, and was compared again.
    pub again: usize,
    /// States judged by the checker of Linux: after our mount, and after its own replay; without a
    /// journal, after its repair and then our mount.
    pub by_fsck: usize,
    /// States that the kernel mounted, after a repair if there is no journal.
    pub by_kernel: usize,
    /// States that cuts of recoveries left, which were recovered again.
    pub recoveries: usize,
    /// What was wrong, with seed and cut.
    pub failures: Vec<String>,
    /// A fingerprint of each state's contents. Runs of the same filesystem are compared by them.
    pub contents: Vec<u128>,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.operations += other.operations;
        self.syncs += other.syncs;
        self.states += other.states;
        self.logs += other.logs;
        self.compressed += other.compressed;
        for (kind, count) in other.cuts {
            *self.cuts.entry(kind).or_default() += count;
        }
        self.again += other.again;
        self.by_fsck += other.by_fsck;
        self.by_kernel += other.by_kernel;
        self.recoveries += other.recoveries;
        self.failures.extend(other.failures);
        self.contents.extend(other.contents);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} workloads of {} operations, {} of them syncs; {} distinct states judged, {} of \
             them with logs of files, {} with compressed files, {} again later, {} by fsck, {} by the kernel, {} of recoveries that \
             were cut; {} failures",
            self.workloads,
            self.operations,
            self.syncs,
            self.states,
            self.logs,
            self.compressed,
            self.again,
            self.by_fsck,
            self.by_kernel,
            self.recoveries,
            self.failures.len()
        )?;
        for (number, (kind, count)) in self.cuts.iter().enumerate() {
            let before = if number == 0 { "; cut at" } else { "," };
            write!(out, "{before} {kind}: {count}")?;
        }
        Ok(())
    }
}

impl Counts {
    /// Demands that states of the scene were judged, that they have what it is for, and that nothing was wrong.
    pub fn demand_sound(&self, scene: &Scene) -> Result<()> {
        ensure!(
            self.failures.is_empty(),
            "{self}\n{}",
            self.failures.join("\n")
        );
        ensure!(self.states > 0, "no state was judged");
        let has_logs = scene.durability() == Durability::Logged;
        ensure!(!has_logs || self.logs > 0, "no state has a log: {self}");
        ensure!(
            !scene.subject.compresses() || self.compressed > 0,
            "no state has a compressed file: {self}"
        );
        Ok(())
    }

    /// Demands that power failures fell on each kind of write, which a sample need not show.
    pub fn demand_every_kind(&self, scene: &Scene) -> Result<()> {
        for kind in scene.subject.kinds_of_writes(scene) {
            ensure!(
                self.cuts.contains_key(kind),
                "none is cut at {kind}: {self}"
            );
        }
        Ok(())
    }
}

/// What the workloads that run at once share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Progress>,
    finished: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Seeds that were begun, and those that are under way.
    begun: u64,
    under_way: Vec<u64>,
    /// Threads that have ended.
    ended: usize,
    /// States that were come by.
    found: usize,
    /// The contents that were judged.
    judged: HashSet<u128>,
    total: Counts,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a state is shown to.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is independent of the others"
)]
struct Due {
    is_new: bool,
    by_fsck: bool,
    by_kernel: bool,
    cuts_recovery: bool,
}

impl Matrix {
    /// Runs all seeds, or until there are enough states or failures.
    ///
    /// # Errors
    /// When nothing is judged any more. A workload that fails, or panics, is a failure that is
    /// counted.
    pub fn run(&self) -> Result<Counts> {
        let shared = Shared::default();
        let threads = self.threads.max(1);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    self.run_seeds(&shared);
                    shared.lock().ended += 1;
                    shared.finished.notify_all();
                });
            }
            wait(&shared, threads, self.scene);
        });
        let mut progress = shared.lock();
        let mut total = std::mem::take(&mut progress.total);
        total.contents = progress.judged.drain().collect();
        Ok(total)
    }

    fn run_seeds(&self, shared: &Shared) {
        loop {
            let seed = {
                let mut progress = shared.lock();
                let seed = self.seeds.start + progress.begun;
                let is_enough = progress.judged.len() >= self.states_max
                    || progress.total.failures.len() >= FAILURES_MAX;
                if is_enough || !self.seeds.contains(&seed) {
                    return;
                }
                progress.begun += 1;
                progress.under_way.push(seed);
                seed
            };
            let mut counts = Counts {
                workloads: 1,
                ..Counts::default()
            };
            let done = catch_unwind(AssertUnwindSafe(|| {
                self.run_seed(seed, shared, &mut counts)
            }));
            let done = done.unwrap_or_else(|_| Err(anyhow!("panicked")));
            if let Err(error) = done {
                let failure = format!("{} seed {seed}: {error:#}", self.scene.name);
                counts.failures.push(failure);
            }
            let mut progress = shared.lock();
            progress.under_way.retain(|&under_way| under_way != seed);
            progress.total += counts;
        }
    }

    /// One workload and its cuts.
    fn run_seed(&self, seed: u64, shared: &Shared, counts: &mut Counts) -> Result<()> {
        let recorded = record(self.scene, seed, self.operations, self.breakage)?;
        counts.operations = recorded.history.len();
        counts.syncs = recorded.history.syncs();
        let options = CrashOptions {
            seed,
            mixes_per_position: MIXES_PER_CUT,
            ..CrashOptions::default()
        };
        let mut remembered: VecDeque<(u128, Judged)> = VecDeque::new();
        for (number, state) in (1..).zip(recorded.recording.crash_states(options)) {
            let state = state?;
            let Some(due) = self.due(shared, state.contents) else {
                continue;
            };
            let devices = of_state(state.devices()?);
            let judge = Judge {
                scene: self.scene,
                recorded: &recorded,
                devices: &devices,
                cut: state.position,
                seed,
            };
            let known = |known: &&(u128, Judged)| known.0 == state.contents;
            let mut lines = if let Some((_, judged)) = remembered.iter().find(known) {
                judge.compare(judged)
            } else {
                let judged = judge.judge(due.by_fsck, due.by_kernel)?;
                counts.logs += usize::from(judged.has_file_log);
                counts.compressed += usize::from(judged.is_compressed);
                let mut lines = judged.complaints.clone();
                lines.extend(judge.compare(&judged));
                if remembered.len() == REMEMBERED_MAX {
                    remembered.pop_front();
                }
                remembered.push_back((state.contents, judged));
                lines
            };
            if due.cuts_recovery && lines.is_empty() {
                let (count, found) = judge.judge_cut_recovery()?;
                counts.recoveries += count;
                lines = found;
            }
            counts.states += usize::from(due.is_new);
            if due.is_new {
                *counts
                    .cuts
                    .entry(self.kind_of_cut(&recorded.recording, state.position))
                    .or_default() += 1;
            }
            counts.again += usize::from(!due.is_new);
            counts.by_fsck += usize::from(due.by_fsck);
            counts.by_kernel += usize::from(due.by_kernel);
            if lines.is_empty() {
                continue;
            }
            let head = format!(
                "{} seed {seed}, state {number}, cut {} after {} flushes:",
                self.scene.name, state.position, state.flushes
            );
            self.keep(&recorded, &state, seed, &head)?;
            let text = std::iter::once(head).chain(lines).collect::<Vec<_>>();
            counts.failures.push(text.join("\n  "));
            if counts.failures.len() >= FAILURES_MAX {
                break;
            }
        }
        Ok(())
    }

    /// What the last request was of that had begun.
    fn kind_of_cut(&self, recording: &Recording, position: usize) -> &'static str {
        let last = position.checked_sub(1);
        match last.map(|last| &recording.events()[last].request) {
            Some(Request::Write { offset, data }) => {
                self.scene.subject.kind_of_write(*offset, data)
            }
            Some(Request::Flush) => "flush",
            Some(Request::Discard(_)) => "discard",
            None => "nothing",
        }
    }

    /// What is done with a state of these contents; `None` if it is passed over.
    fn due(&self, shared: &Shared, contents: u128) -> Option<Due> {
        let mut progress = shared.lock();
        progress.found += 1;
        if !is_due(progress.found, self.one_in) {
            return None;
        }
        let is_new = progress.judged.insert(contents);
        let number = progress.judged.len();
        Some(Due {
            is_new,
            by_fsck: is_new && is_due(number, self.fsck_one_in),
            by_kernel: is_new && is_due(number, self.kernel_one_in),
            cuts_recovery: is_new && is_due(number, self.recovery_one_in),
        })
    }

    fn keep(
        &self,
        recorded: &Recorded,
        state: &CrashState<'_>,
        seed: u64,
        head: &str,
    ) -> Result<()> {
        let Some(dir) = &self.keep else {
            return Ok(());
        };
        std::fs::create_dir_all(dir)?;
        let name = format!("{}-{seed}-{}", self.scene.name, state.position);
        ImageFiles::of(&of_state(state.devices()?))?.keep(&dir.join(format!("{name}.img")))?;
        let text = recorded.history.listing().join("\n");
        let text = format!("{text}\n{head}\n{:?}\n", state.losses);
        std::fs::write(dir.join(format!("{name}.txt")), text)?;
        Ok(())
    }
}

/// Returns when all threads have ended. A thread that hangs cannot be stopped: the program ends.
fn wait(shared: &Shared, threads: usize, scene: &Scene) {
    let mut progress = shared.lock();
    while progress.ended < threads {
        let (ended, found) = (progress.ended, progress.found);
        let waited = shared.finished.wait_timeout(progress, PATIENCE);
        let waited = waited.unwrap_or_else(PoisonError::into_inner);
        progress = waited.0;
        let is_stuck = progress.ended == ended && progress.found == found;
        if waited.1.timed_out() && is_stuck {
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("{} hangs in seeds {:?}\n", scene.name, progress.under_way),
            );
            std::process::exit(1);
        }
    }
}

/// Whether the `number`-th of a row is one that a sample of one in `one_in` takes.
fn is_due(number: usize, one_in: usize) -> bool {
    one_in != 0 && number.is_multiple_of(one_in)
}
