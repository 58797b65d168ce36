//! A device that fails one request of a workload, or all from one on; and one that fails while a
//! filesystem that a power cut left is mounted.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use platter_block::sim::{CrashOptions, Effect, Fault, FaultDevice, When};
use platter_block::{Access, BlockDevice, CountingDevice, Operation as Request};
use platter_vfs::Filesystem;
use rustix::io::Errno;

use super::image::ImageFiles;
use super::record::{is_same, mix, model};
use super::{Breakage, record};
use crate::fs_type::FsType;
use crate::subject::{Devices, Scene, overlays, shared};
use crate::workload::{Durability, Generator, History, Operation, Pace, Session, Tree};

/// Later than everything in a log.
const END: usize = usize::MAX;
/// States of a workload whose mounts meet faults.
const MOUNTED_STATES: usize = 4;

/// Which requests fail.
#[derive(Debug, Clone)]
pub struct Faults {
    /// The filesystem.
    pub scene: &'static Scene,
    /// The workload's seed.
    pub seed: u64,
    /// Its length.
    pub operations: usize,
    /// Where images of failures are kept.
    pub keep: Option<PathBuf>,
    /// Of so many writes and flushes one is made to fail in a run of its own: alone, torn, and with
    /// all after it.
    pub one_in: u64,
}

/// What the runs came to.
#[derive(Debug, Clone, Default)]
pub struct FaultCounts {
    /// Writes on a sound device.
    pub writes: u64,
    /// Flushes on a sound device.
    pub flushes: u64,
    /// Runs with a fault.
    pub runs: usize,
    /// Those in which the mount, an operation, a sync or the unmount reported it.
    pub reported: usize,
    /// Those whose mount failed.
    pub unmounted: usize,
    /// Those after which the filesystem refused changes.
    pub read_only: usize,
    /// What was wrong.
    pub failures: Vec<String>,
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} writes and {} flushes, {} runs with a fault, {} reported, {} by a mount that \
             failed, {} read-only after it; {} failures",
            self.writes,
            self.flushes,
            self.runs,
            self.reported,
            self.unmounted,
            self.read_only,
            self.failures.len()
        )
    }
}

impl FaultCounts {
    /// Demands that faults, where there were any, were reported, and that nothing was wrong. Mounts that have nothing to
    /// recover write nothing, and meet none.
    pub fn demand_none(&self) -> Result<()> {
        ensure!(self.runs == 0 || self.reported > 0, "no fault was reported");
        ensure!(
            self.failures.is_empty(),
            "{self}\n{}",
            self.failures.join("\n")
        );
        Ok(())
    }

    fn add_requests(&mut self, counted: &Counted) {
        for device in &counted.0 {
            self.writes += device.counts().writes;
            self.flushes += device.counts().flushes;
        }
    }
}

impl Faults {
    /// Runs the workload once for each fault.
    pub fn run(&self) -> Result<FaultCounts> {
        let images = self.scene.images()?;
        let counted = Counted::over(&overlays(&images));
        let fs = self.scene.mount(&counted.devices(), self.seed)?;
        let sound = self.workload(&*fs)?;
        ensure!(
            sound.error.is_none(),
            "on a sound device: {:?}",
            sound.error
        );
        fs.unmount()?;
        let mut counts = FaultCounts::default();
        counts.add_requests(&counted);
        for fault in self.faults(&counted) {
            let label = format!("{} seed {}, {fault:?}", self.scene.name, self.seed);
            let found = self.run_fault(&overlays(&images), fault, &mut counts);
            counts.note(&label, &found.with_context(|| label.clone())?);
        }
        Ok(counts)
    }

    /// Mounts what cuts of the workload left, once for each fault on the way, and unmounts again.
    pub fn run_mounts(&self) -> Result<FaultCounts> {
        let recorded = record(self.scene, self.seed, self.operations, Breakage::None)?;
        let options = CrashOptions {
            seed: self.seed,
            ..CrashOptions::default()
        };
        let count = recorded.recording.crash_states(options).count();
        let step = count / MOUNTED_STATES.min(count).max(1);
        let mut counts = FaultCounts::default();
        for state in recorded
            .recording
            .crash_states(options)
            .step_by(step.max(1))
        {
            let state = state?;
            let devices = shared(state.devices()?);
            let images = match self.scene.durability() {
                Durability::Journaled | Durability::Logged => devices,
                Durability::Synced => {
                    let image = ImageFiles::of(&devices)?;
                    image.repair(self.scene)?;
                    image.devices(Access::Read)?
                }
            };
            let counted = Counted::over(&overlays(&images));
            let fs = self.scene.mount(&counted.devices(), self.seed)?;
            fs.unmount()?;
            counts.add_requests(&counted);
            for fault in self.faults(&counted) {
                let label = format!(
                    "{} seed {}, mount after cut {}, {fault:?}",
                    self.scene.name, self.seed, state.position
                );
                let cut = (state.position, &recorded.history);
                let found = self.run_mount(&overlays(&images), fault, cut, &mut counts);
                counts.note(&label, &found.with_context(|| label.clone())?);
            }
        }
        Ok(counts)
    }

    /// The faults of each device for a run of so many requests.
    fn faults(&self, counted: &Counted) -> Vec<(usize, Fault)> {
        let of_member = |(member, device): (usize, &Arc<CountingDevice>)| {
            let faults = self.faults_of(member, device).into_iter();
            faults.map(move |fault| (member, fault)).collect::<Vec<_>>()
        };
        counted.0.iter().enumerate().flat_map(of_member).collect()
    }

    /// Whether a torn write to a device can be recovered from. Without a journal nothing brings a torn block back, nor
    /// does XFS a torn block of metadata, but its log, which is the second device where it has one.
    fn recovers_torn_writes(&self, member: usize) -> bool {
        let is_xfs = self.scene.subject.fs_type() == FsType::Xfs;
        self.scene.durability() != Durability::Synced && (!is_xfs || member > 0)
    }

    fn faults_of(&self, member: usize, counted: &CountingDevice) -> Vec<Fault> {
        let fail = Effect::Fail(Errno::IO);
        let mut faults = Vec::new();
        let mut add = |operation, when, effect| {
            faults.push(Fault {
                operation,
                when,
                effect,
            });
        };
        let places = |count: u64| {
            let first = 1 + self.seed % self.one_in;
            (first..=count).step_by(usize::try_from(self.one_in).unwrap_or(usize::MAX))
        };
        for place in places(counted.counts().writes) {
            add(Request::Write, When::Nth(place), fail);
            add(Request::Write, When::From(place), fail);
            if self.recovers_torn_writes(member) {
                let seed = self.seed ^ place;
                add(Request::Write, When::Nth(place), Effect::Tear { seed });
            }
        }
        for place in places(counted.counts().flushes) {
            add(Request::Flush, When::Nth(place), fail);
        }
        faults
    }

    fn run_fault(
        &self,
        devices: &Devices,
        fault: (usize, Fault),
        counts: &mut FaultCounts,
    ) -> Result<Vec<String>> {
        let faulty = faulty(devices, fault);
        counts.runs += 1;
        let Ok(fs) = self.scene.mount(&faulty, self.seed) else {
            counts.reported += 1;
            counts.unmounted += 1;
            let history = History::new(Tree::read(&model(), None)?);
            return self.judge(devices, &history, END);
        };
        let Ran { mut history, error } = self.workload(&*fs)?;
        let is_read_only = fs.is_read_only();
        let unmounted = fs.unmount();
        counts.reported += usize::from(error.is_some() || unmounted.is_err());
        counts.read_only += usize::from(error.is_some() && is_read_only);
        if error.is_none() {
            let pace = Pace {
                begin: history.len(),
                end: unmounted.is_ok().then_some(history.len() + 1),
            };
            history.repeat(Operation::Sync, pace);
        }
        drop(fs);
        self.judge(devices, &history, END)
    }

    fn run_mount(
        &self,
        devices: &Devices,
        fault: (usize, Fault),
        (cut, history): (usize, &History),
        counts: &mut FaultCounts,
    ) -> Result<Vec<String>> {
        let faulty = faulty(devices, fault);
        counts.runs += 1;
        let mut lines = Vec::new();
        match self.scene.mount(&faulty, self.seed) {
            Err(_) => {
                counts.reported += 1;
                counts.unmounted += 1;
            }
            Ok(fs) => {
                counts.read_only += usize::from(fs.is_read_only());
                let durability = self.scene.durability();
                if durability != Durability::Synced {
                    let found = match Tree::read(&*fs, Some(history.now())) {
                        Ok(tree) => history.judge(cut, &tree, durability),
                        Err(error) => vec![format!("{error:#}")],
                    };
                    let found = found.into_iter();
                    lines.extend(found.map(|line| format!("while it fails: {line}")));
                }
                counts.reported += usize::from(fs.unmount().is_err());
            }
        }
        lines.extend(self.judge(devices, history, cut)?);
        Ok(lines)
    }

    /// The workload until the first operation that fails, and another sync then.
    fn workload(&self, fs: &dyn Filesystem) -> Result<Ran> {
        let model = model();
        let mut history = History::new(Tree::read(&model, None)?);
        let (mut ours, mut theirs) = (Session::new(fs), Session::new(&model));
        let mut generator = Generator::new(self.seed, mix(self.scene, 6), &[""], "n");
        for number in 0..self.operations {
            let operation = generator.next(history.now());
            let (done, expected) = (ours.apply(&operation), theirs.apply(&operation));
            if is_same(&done, &expected) {
                let pace = Pace {
                    begin: number,
                    end: Some(number + 1),
                };
                history.add(operation, pace, done.is_ok(), &theirs)?;
            } else if let Err(cause) = done {
                // It may have been done or not; a sync now is one of what was there before it.
                let end = fs.sync().is_ok().then_some(number + 1);
                history.repeat(Operation::Sync, Pace { begin: number, end });
                let pace = Pace {
                    begin: number + 1,
                    end: None,
                };
                history.push(operation, pace, &theirs)?;
                let error = Some(cause);
                return Ok(Ran { history, error });
            } else {
                bail!("{number}: {operation:?} is done, and the model says {expected:?}");
            }
        }
        let begin = history.len();
        let end = fs.sync().is_ok().then_some(begin + 1);
        history.repeat(Operation::Sync, Pace { begin, end });
        Ok(Ran {
            history,
            error: None,
        })
    }

    /// What is wrong with what a run left, on a device that is sound again.
    fn judge(&self, devices: &Devices, history: &History, cut: usize) -> Result<Vec<String>> {
        let durability = self.scene.durability();
        let mut lines = Vec::new();
        // As it is left, others must be able to go on from it too.
        let image = ImageFiles::of(devices)?;
        let left = self.keep.is_some().then(|| ImageFiles::of(devices));
        let left = left.transpose()?;
        let devices = match durability {
            Durability::Journaled | Durability::Logged => {
                let found = image.recover_from_errors(self.scene)?.into_iter();
                lines.extend(found.map(|line| format!("fsck's replay: {line}")));
                lines.extend(self.judge_tree(&image.devices(Access::Write)?, history, cut));
                devices.clone()
            }
            Durability::Synced => {
                image.repair(self.scene)?;
                image.devices(Access::Write)?
            }
        };
        lines.extend(self.judge_tree(&devices, history, cut));
        let image = ImageFiles::of(&devices)?;
        let found = image.recover(self.scene)?;
        // Orphans that were left are errors for our check as well, until they are gone.
        let checked = if found.is_empty() {
            devices
        } else {
            image.devices(Access::Read)?
        };
        let found = image.after_errors(self.scene, &found)?.into_iter();
        lines.extend(found.map(|line| format!("fsck after us: {line}")));
        let found = self.scene.check(&checked)?.into_iter();
        lines.extend(found.map(|line| format!("our check: {line}")));
        if !lines.is_empty() {
            let listing = history.listing();
            lines.extend(listing.into_iter().rev().take(6).rev());
            if let (Some(dir), Some(left)) = (&self.keep, left) {
                lines.push(format!(
                    "kept in {}",
                    left.keep_numbered(dir, self.scene.name)?
                ));
            }
        }
        Ok(lines)
    }

    fn judge_tree(&self, devices: &Devices, history: &History, cut: usize) -> Vec<String> {
        let read = || -> Result<Vec<String>> {
            let fs = self.scene.mount(devices, self.seed)?;
            let tree = Tree::read(&*fs, Some(history.now()))?;
            fs.unmount()?;
            Ok(history.judge(cut, &tree, self.scene.durability()))
        };
        read().unwrap_or_else(|error| vec![format!("mounted again: {error:#}")])
    }
}

impl FaultCounts {
    fn note(&mut self, label: &str, found: &[String]) {
        if !found.is_empty() {
            self.failures
                .push(format!("{label}:\n  {}", found.join("\n  ")));
        }
    }
}

/// A workload that ran, perhaps not to its end.
struct Ran {
    history: History,
    error: Option<platter_vfs::Error>,
}

/// Devices that count their requests.
struct Counted(Vec<Arc<CountingDevice>>);

impl Counted {
    fn over(devices: &Devices) -> Self {
        let counted =
            |device: &Arc<dyn BlockDevice>| Arc::new(CountingDevice::new(Arc::clone(device)));
        Self(devices.iter().map(counted).collect())
    }

    fn devices(&self) -> Devices {
        let device = |device: &Arc<CountingDevice>| -> Arc<dyn BlockDevice> { device.clone() };
        self.0.iter().map(device).collect()
    }
}

/// The devices, one of them with a fault.
fn faulty(devices: &Devices, (member, fault): (usize, Fault)) -> Devices {
    let mut faulty = devices.clone();
    let faults = FaultDevice::new(Arc::clone(&devices[member]));
    faults.arm(fault);
    faulty[member] = Arc::new(faults);
    faulty
}
