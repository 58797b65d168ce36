//! A device that fails one write of a workload, or all from one on.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{BlockDevice, CountingDevice, MemoryDevice, Operation as Request};
use platter_vfs::Filesystem;
use rustix::io::Errno;

use super::Scene;
use super::image::ImageFile;
use super::record::model;
use crate::workload::{Durability, Generator, History, Mix, Operation, Pace, Tree};

/// Later than everything in a log.
const END: usize = usize::MAX;

/// Which writes fail.
#[derive(Debug, Clone)]
pub struct Faults {
    /// The filesystem.
    pub scene: &'static Scene,
    /// The workload's seed.
    pub seed: u64,
    /// Its length.
    pub operations: usize,
    /// Of so many writes one is made to fail in a run of its own, alone and with all after it.
    pub one_in: u64,
}

/// What the runs came to.
#[derive(Debug, Clone, Default)]
pub struct FaultCounts {
    /// Writes of the workload on a sound device.
    pub writes: u64,
    /// Runs with a fault.
    pub runs: usize,
    /// Those in which an operation, a sync or the unmount reported it.
    pub reported: usize,
    /// Those after which the filesystem refused changes.
    pub read_only: usize,
    /// What was wrong.
    pub failures: Vec<String>,
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} writes, {} runs with a fault, {} reported, {} read-only after it; {} failures",
            self.writes,
            self.runs,
            self.reported,
            self.read_only,
            self.failures.len()
        )
    }
}

impl FaultCounts {
    /// Demands that there were faults, and that nothing was wrong.
    pub fn demand_none(&self) -> Result<()> {
        ensure!(self.reported > 0, "no fault was reported");
        ensure!(
            self.failures.is_empty(),
            "{self}\n{}",
            self.failures.join("\n")
        );
        Ok(())
    }
}

impl Faults {
    /// Runs the workload once for each fault.
    pub fn run(&self) -> Result<FaultCounts> {
        let image = self.scene.image()?;
        let counted = Arc::new(CountingDevice::new(memory(image.clone())));
        let fs = self.scene.mount(counted.clone(), self.seed)?;
        let sound = self.workload(&*fs)?;
        ensure!(
            sound.error.is_none(),
            "on a sound device: {:?}",
            sound.error
        );
        fs.unmount()?;
        let mut counts = FaultCounts {
            writes: counted.counts().writes,
            ..FaultCounts::default()
        };
        let mut write = 1 + self.seed % self.one_in;
        while write <= counts.writes {
            for when in [When::Nth(write), When::From(write)] {
                let label = format!("{} seed {}, {when:?}", self.scene.name, self.seed);
                let found = self.run_fault(&image, when, &mut counts);
                let found = found.with_context(|| label.clone())?;
                if !found.is_empty() {
                    counts
                        .failures
                        .push(format!("{label}:\n  {}", found.join("\n  ")));
                }
            }
            write += self.one_in;
        }
        Ok(counts)
    }

    fn run_fault(&self, image: &[u8], when: When, counts: &mut FaultCounts) -> Result<Vec<String>> {
        let device = memory(image.to_vec());
        let faults = Arc::new(FaultDevice::new(Arc::clone(&device)));
        faults.arm(Fault {
            operation: Request::Write,
            when,
            effect: Effect::Fail(Errno::IO),
        });
        counts.runs += 1;
        let Ok(fs) = self.scene.mount(faults.clone(), self.seed) else {
            counts.reported += 1;
            return Ok(Vec::new());
        };
        let Ran {
            mut history,
            error,
            model,
        } = self.workload(&*fs)?;
        let unmounted = fs.unmount();
        counts.reported += usize::from(error.is_some() || unmounted.is_err());
        counts.read_only += usize::from(error.is_some() && fs.is_read_only());
        if error.is_none() {
            let pace = Pace {
                begin: history.len(),
                end: unmounted.is_ok().then_some(history.len() + 1),
            };
            history.push(Operation::Sync, pace, &*model)?;
        }
        drop(fs);
        self.judge(&device, &history)
    }

    /// The workload until the first operation that fails, and another sync then.
    fn workload(&self, fs: &dyn Filesystem) -> Result<Ran> {
        let model = Box::new(model());
        let mut history = History::new(Tree::read(&*model, None)?);
        let mix = Mix {
            one_sync_in: 6,
            shift_bytes: 0,
            one_refused_in: 0,
            fallocate: self.scene.takes_space(),
            names: true,
        };
        let mut generator = Generator::new(self.seed, mix, &[""], "n");
        let mut error = None;
        for number in 0..self.operations {
            let operation = generator.next(history.now());
            let done = operation.apply(fs);
            if let Err(cause) = done {
                // It may have been done or not; a sync now is one of what was there before it.
                let end = fs.sync().is_ok().then_some(number + 1);
                let pace = Pace { begin: number, end };
                history.push(Operation::Sync, pace, &*model)?;
                operation.apply(&*model)?;
                let pace = Pace {
                    begin: number + 1,
                    end: None,
                };
                history.push(operation, pace, &*model)?;
                error = Some(cause);
                break;
            }
            operation.apply(&*model)?;
            let pace = Pace {
                begin: number,
                end: Some(number + 1),
            };
            history.push(operation, pace, &*model)?;
        }
        if error.is_none() {
            let begin = history.len();
            let end = fs.sync().is_ok().then_some(begin + 1);
            history.push(Operation::Sync, Pace { begin, end }, &*model)?;
        }
        Ok(Ran {
            history,
            error,
            model,
        })
    }

    /// What is wrong with what a run left, on a device that is sound again.
    fn judge(&self, device: &Arc<dyn BlockDevice>, history: &History) -> Result<Vec<String>> {
        let device = match self.scene.durability {
            Durability::Journaled => Arc::clone(device),
            Durability::Synced => {
                let image = ImageFile::of(&**device)?;
                image.mend()?;
                image.device()?
            }
        };
        let mut lines = match self.scene.mount(Arc::clone(&device), self.seed) {
            Ok(fs) => {
                let lines = match Tree::read(&*fs, None) {
                    Ok(tree) => history.judge(END, &tree, self.scene.durability),
                    Err(error) => vec![format!("read: {error:#}")],
                };
                fs.unmount()?;
                lines
            }
            Err(error) => vec![format!("mount: {error}")],
        };
        // The filesystem, or its journal, remembers that there was an error; that is all that may
        // have to be put right.
        let image = ImageFile::of(&*device)?;
        match image.preen() {
            Ok(()) => {
                let found = image.complaints()?;
                lines.extend(found.into_iter().map(|line| format!("e2fsck: {line}")));
                let found = self.scene.check(image.device()?)?;
                lines.extend(found.into_iter().map(|line| format!("our check: {line}")));
            }
            Err(error) => lines.push(error.to_string()),
        }
        if !lines.is_empty() {
            let listing = history.listing();
            lines.extend(listing.into_iter().rev().take(6).rev());
        }
        Ok(lines)
    }
}

/// A workload that ran, perhaps not to its end.
struct Ran {
    history: History,
    error: Option<platter_vfs::Error>,
    model: Box<dyn Filesystem>,
}

fn memory(image: Vec<u8>) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new("image", image))
}
