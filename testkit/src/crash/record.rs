//! A workload on a device that records it.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use platter_block::sim::{Effect, Fault, FaultDevice, Recording, RecordingDevice, When};
use platter_block::{BlockDevice, MemoryDevice, Operation as Request};
use platter_vfs::memory::{MemFs, MemFsLimits};
use platter_vfs::{FixedClock, Timestamp};

use super::Scene;
use crate::workload::{Generator, History, Mix, Pace, Tree};

/// What the device writes whole or not at all. The superblock is of this size, and the format knows
/// no remedy for a torn one.
const SECTOR_BYTES: u32 = 1024;
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
    /// The device.
    pub recording: Recording,
}

/// Runs `count` random operations on a new filesystem, and cuts the power.
pub fn record(scene: &Scene, seed: u64, count: usize, breakage: Breakage) -> Result<Recorded> {
    let image = MemoryDevice::new("image", scene.image()?).with_blocks(SECTOR_BYTES);
    let image: Arc<dyn BlockDevice> = Arc::new(image);
    let recorder = Arc::new(RecordingDevice::new(image));
    let mut device: Arc<dyn BlockDevice> = recorder.clone();
    if breakage == Breakage::DropsFlushes {
        let faults = FaultDevice::new(device);
        faults.arm(Fault {
            operation: Request::Flush,
            when: When::Always,
            effect: Effect::Skip,
        });
        device = Arc::new(faults);
    }
    let fs = scene.mount(device, seed)?;
    let model = model();
    let mut history = History::new(Tree::read(&model, None)?);
    let mix = Mix {
        one_sync_in: ONE_SYNC_IN,
        shift_bytes: 0,
        one_refused_in: 0,
        fallocate: scene.takes_space(),
        names: true,
    };
    let mut generator = Generator::new(seed, mix, &[""], "n");
    for number in 0..count {
        let operation = generator.next(history.now());
        let begin = recorder.position();
        let fail = |who: &str, error: platter_vfs::Error| {
            let listing = history.listing().join("\n");
            anyhow!("{listing}\n{number}: {operation:?} on {who}: {error}")
        };
        operation
            .apply(&*fs)
            .map_err(|error| fail("the filesystem", error))?;
        let end = recorder.position();
        operation
            .apply(&model)
            .map_err(|error| fail("the model", error))?;
        if operation.is_sync() {
            recorder.mark();
        }
        let pace = Pace {
            begin,
            end: Some(end),
        };
        history.push(operation, pace, &model)?;
    }
    Ok(Recorded {
        recording: recorder.recording(),
        history,
    })
}

/// An empty filesystem in memory.
pub(super) fn model() -> MemFs {
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 1));
    MemFs::new(clock, MemFsLimits::default())
}
