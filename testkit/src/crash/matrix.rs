//! Many seeds, many cuts of each, and the judgement of every state.

use std::fmt;
use std::ops::{AddAssign, Range};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use platter_block::BlockDevice;
use platter_block::sim::{CrashOptions, CrashState};

use super::image::ImageFile;
use super::{Breakage, Recorded, Scene, record};
use crate::workload::{Durability, Tree};

/// Random mixes of kept, lost and torn writes at each cut.
const MIXES_PER_CUT: u32 = 4;
/// Failures after which a run ends.
const FAILURES_MAX: usize = 5;

/// What to cut, and how thoroughly to look.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// The filesystem.
    pub scene: &'static Scene,
    /// Seeds of workloads.
    pub seeds: Range<u64>,
    /// Operations of each.
    pub operations: usize,
    /// Of so many states one is judged.
    pub one_in: usize,
    /// Of so many judged states one is shown to `e2fsck` too; 0 for none.
    pub e2fsck_one_in: usize,
    /// Of so many judged states one is mounted by the kernel too; 0 for none.
    pub kernel_one_in: usize,
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
    /// Workloads.
    pub workloads: usize,
    /// Operations in them.
    pub operations: usize,
    /// Syncs among these.
    pub syncs: usize,
    /// Distinct states of cuts.
    pub states: usize,
    /// Those that were mounted, compared, unmounted and checked.
    pub judged: usize,
    /// Those that `e2fsck` judged, after our replay and after its own.
    pub by_e2fsck: usize,
    /// Those that the kernel mounted.
    pub by_kernel: usize,
    /// What was wrong, with seed and cut.
    pub failures: Vec<String>,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.operations += other.operations;
        self.syncs += other.syncs;
        self.states += other.states;
        self.judged += other.judged;
        self.by_e2fsck += other.by_e2fsck;
        self.by_kernel += other.by_kernel;
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} workloads of {} operations, {} of them syncs; {} states, {} judged, {} by e2fsck, \
             {} by the kernel; {} failures",
            self.workloads,
            self.operations,
            self.syncs,
            self.states,
            self.judged,
            self.by_e2fsck,
            self.by_kernel,
            self.failures.len()
        )
    }
}

impl Matrix {
    /// Runs all seeds, or until there are enough failures.
    pub fn run(&self) -> Result<Counts> {
        let seeds = Mutex::new(self.seeds.clone());
        let total = Mutex::new(Counts::default());
        let lock = |total: &Mutex<Counts>| -> Counts {
            total.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        let work = || -> Result<()> {
            while lock(&total).failures.len() < FAILURES_MAX {
                let seed = seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(seed) = seed else {
                    break;
                };
                let counts = self.run_seed(seed);
                let counts = counts.with_context(|| format!("{}, seed {seed}", self.scene.name))?;
                *total.lock().unwrap_or_else(PoisonError::into_inner) += counts;
            }
            Ok(())
        };
        std::thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = (0..self.threads.max(1))
                .map(|_| scope.spawn(work))
                .collect();
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a workload panicked"))??;
            }
            Ok(())
        })?;
        Ok(lock(&total))
    }

    /// One workload and its cuts.
    fn run_seed(&self, seed: u64) -> Result<Counts> {
        let recorded = record(self.scene, seed, self.operations, self.breakage)?;
        let mut counts = Counts {
            workloads: 1,
            operations: recorded.history.len(),
            syncs: recorded.history.syncs(),
            ..Counts::default()
        };
        let options = CrashOptions {
            seed,
            mixes_per_cut: MIXES_PER_CUT,
            ..CrashOptions::default()
        };
        for state in recorded.recording.crash_states(options) {
            let state = state?;
            counts.states += 1;
            if !is_due(counts.states, self.one_in) {
                continue;
            }
            let by_e2fsck = is_due(counts.judged, self.e2fsck_one_in);
            let by_kernel = is_due(counts.judged, self.kernel_one_in);
            counts.judged += 1;
            counts.by_e2fsck += usize::from(by_e2fsck);
            counts.by_kernel += usize::from(by_kernel);
            let judge = Judge {
                scene: self.scene,
                recorded: &recorded,
                state: &state,
                seed,
            };
            let lines = judge.judge(by_e2fsck, by_kernel)?;
            if lines.is_empty() {
                continue;
            }
            let head = format!(
                "{} seed {seed}, state {}, cut {} after {} flushes:",
                self.scene.name, counts.states, state.cut, state.flushes
            );
            self.keep(&judge, &head)?;
            let text = std::iter::once(head).chain(lines).collect::<Vec<_>>();
            counts.failures.push(text.join("\n  "));
            if counts.failures.len() >= FAILURES_MAX {
                break;
            }
        }
        Ok(counts)
    }

    fn keep(&self, judge: &Judge<'_>, head: &str) -> Result<()> {
        let Some(folder) = &self.keep else {
            return Ok(());
        };
        std::fs::create_dir_all(folder)?;
        let name = format!("{}-{}-{}", self.scene.name, judge.seed, judge.state.cut);
        ImageFile::of(&judge.state.device()?)?.keep(&folder.join(format!("{name}.img")))?;
        let text = judge.recorded.history.listing().join("\n");
        let text = format!("{text}\n{head}\n{:?}\n", judge.state.losses);
        std::fs::write(folder.join(format!("{name}.txt")), text)?;
        Ok(())
    }
}

/// Whether the `number`-th of a row is one that a sample of one in `one_in` takes.
fn is_due(number: usize, one_in: usize) -> bool {
    one_in != 0 && number.is_multiple_of(one_in)
}

/// One state of a cut.
struct Judge<'a> {
    scene: &'a Scene,
    recorded: &'a Recorded,
    state: &'a CrashState<'a>,
    seed: u64,
}

impl Judge<'_> {
    /// What is wrong with the state.
    fn judge(&self, by_e2fsck: bool, by_kernel: bool) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let device: Arc<dyn BlockDevice> = Arc::new(self.state.device()?);
        let mended;
        let ours = match self.scene.durability {
            Durability::Journaled => Arc::clone(&device),
            Durability::Synced => {
                // Without a journal somebody has to put the halves together first.
                let image = ImageFile::of(&*device)?;
                image.mend()?;
                mended = image.device()?;
                mended
            }
        };
        match self.mount_and_compare(&ours) {
            Ok(found) => lines.extend(found),
            Err(error) => lines.push(format!("our mount: {error:#}")),
        }
        match self.scene.check(Arc::clone(&ours)) {
            Ok(found) => lines.extend(found.into_iter().map(|line| format!("our check: {line}"))),
            Err(error) => lines.push(format!("our check: {error}")),
        }
        if by_e2fsck {
            let found = ImageFile::of(&*ours)?.complaints()?;
            lines.extend(
                found
                    .into_iter()
                    .map(|line| format!("e2fsck after us: {line}")),
            );
            if self.scene.durability == Durability::Journaled {
                lines.extend(self.replay_by_e2fsck(&*device)?);
            }
        }
        if by_kernel && self.scene.durability == Durability::Journaled {
            lines.extend(self.mount_by_kernel(&*device)?);
        }
        Ok(lines)
    }

    fn mount_and_compare(&self, device: &Arc<dyn BlockDevice>) -> Result<Vec<String>> {
        let fs = self.scene.mount(Arc::clone(device), self.seed)?;
        let tree = Tree::read(&*fs, None)?;
        let lines = self.compare(&tree, "our mount");
        fs.unmount()?;
        Ok(lines)
    }

    fn replay_by_e2fsck(&self, device: &dyn BlockDevice) -> Result<Vec<String>> {
        let image = ImageFile::of(device)?;
        if let Err(error) = image.preen() {
            return Ok(vec![format!("{error}")]);
        }
        let mut lines = image.complaints()?;
        let fs = self.scene.mount(image.device()?, self.seed)?;
        lines.extend(self.compare(&Tree::read(&*fs, None)?, "e2fsck's replay"));
        Ok(lines)
    }

    fn mount_by_kernel(&self, device: &dyn BlockDevice) -> Result<Vec<String>> {
        let image = ImageFile::of(device)?;
        let tree = image.kernel_view();
        let mut lines = match tree {
            Ok(tree) => self.compare(&tree, "the kernel's mount"),
            Err(error) => vec![format!("the kernel's mount: {error:#}")],
        };
        let found = image.complaints()?;
        lines.extend(
            found
                .into_iter()
                .map(|line| format!("e2fsck after the kernel: {line}")),
        );
        Ok(lines)
    }

    fn compare(&self, tree: &Tree, who: &str) -> Vec<String> {
        let (history, cut) = (&self.recorded.history, self.state.cut);
        let lines = history.judge(cut, tree, self.scene.durability);
        lines
            .into_iter()
            .map(|line| format!("{who}: {line}"))
            .collect()
    }
}

impl Counts {
    /// Demands that states were judged, and that nothing was wrong.
    pub fn demand_none(&self) -> Result<()> {
        ensure!(self.judged > 0, "no state was judged");
        ensure!(
            self.failures.is_empty(),
            "{self}\n{}",
            self.failures.join("\n")
        );
        Ok(())
    }
}
