//! A workload on a device that records it.

use std::sync::Arc;

use anyhow::{Result, bail};
use platter_block::sim::{Effect, Fault, FaultDevice, Recorder, Recording, RecordingDevice, When};
use platter_block::{BlockDevice, Operation as Request};
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Error, FixedClock, Timestamp};

use crate::subject::{Devices, Scene};
use crate::workload::{Generator, History, Mix, Pace, Session, Tree};

/// Number of operations printed before a failed one.
const LINES_MAX: usize = 20;
/// One operation of so many is a sync.
const ONE_SYNC_IN: u64 = 4;

/// What is wrong with the device, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// Nothing.
    None,
    /// Flushes return at once and do nothing.
    DropsFlushes,
}

/// What was done, and what of it reached the device when.
#[derive(Debug)]
pub struct Recorded {
    /// The operations.
    pub history: History,
    /// The devices.
    pub recording: Recording,
}

/// Runs `count` random operations on a new filesystem, and cuts the power.
pub fn record(scene: &Scene, seed: u64, count: usize, breakage: Breakage) -> Result<Recorded> {
    let recorder = Recorder::new(scene.images()?);
    let devices = recorder.devices().iter();
    let devices: Devices = devices.map(|device| broken(device, breakage)).collect();
    let fs = scene.mount(&devices, seed)?;
    let model = model();
    let mut history = History::new(Tree::read(&model, None)?);
    let (mut ours, mut theirs) = (Session::new(&*fs), Session::new(&model));
    let mut generator = Generator::new(seed, mix(scene, ONE_SYNC_IN), &[""], "n");
    for number in 0..count {
        let operation = generator.next(history.now());
        let begin = recorder.position();
        let done = ours.apply(&operation);
        let end = recorder.position();
        let expected = theirs.apply(&operation);
        if !is_same(&done, &expected) {
            let listing = history.listing();
            let last = listing.len().saturating_sub(LINES_MAX);
            let listing = listing[last..].join("\n");
            bail!("{listing}\n{number}: {operation:?}: {done:?}, and the model {expected:?}");
        }
        if operation.is_sync() {
            recorder.mark();
        }
        let pace = Pace {
            begin,
            end: Some(end),
        };
        history.add(operation, pace, done.is_ok(), &theirs)?;
    }
    Ok(Recorded {
        recording: recorder.recording(),
        history,
    })
}

/// A recorded device, with what is wrong with it.
fn broken(recorded: &Arc<RecordingDevice>, breakage: Breakage) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = recorded.clone();
    match breakage {
        Breakage::None => device,
        Breakage::DropsFlushes => {
            let faults = FaultDevice::new(device);
            faults.arm(Fault {
                operation: Request::Flush,
                when: When::Always,
                effect: Effect::Skip,
            });
            Arc::new(faults)
        }
    }
}

/// What is drawn for a filesystem whose history is judged.
pub(super) fn mix(scene: &Scene, one_sync_in: u64) -> Mix {
    Mix {
        one_sync_in,
        one_whole_sync_in: scene.subject.one_whole_sync_in(),
        one_refused_in: 25,
        abilities: scene.abilities(),
        names: true,
    }
}

/// Whether a filesystem and its model came to the same.
pub(crate) fn is_same(ours: &platter_vfs::Result<()>, model: &platter_vfs::Result<()>) -> bool {
    match (ours, model) {
        (Ok(()), Ok(())) => true,
        (Err(Error::Condition(ours)), Err(Error::Condition(model))) => ours == model,
        _ => false,
    }
}

/// An empty filesystem in memory.
pub(crate) fn model() -> MemFs {
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
    MemFs::new(clock, MemFsLimits::default())
}
