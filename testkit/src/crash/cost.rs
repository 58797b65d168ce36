//! What operations cost in requests to the device: exact counts, the same on any machine.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use platter_block::sim::{RecordingDevice, Request};
use platter_block::{BlockDevice, MemoryDevice};
use platter_ext4::recovery::open_journal;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::{CreateKind, RenameMode};

use super::Scene;
use crate::workload::{Fill, Operation};

/// Operations of each kind.
const OPERATIONS: u64 = 200;

/// What one kind of operation took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// What was done.
    pub what: &'static str,
    /// How often.
    pub operations: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Blocks that were written into the journal.
    pub journal_blocks: u64,
}

/// Counts, on a new filesystem: operations without a sync, each kind followed by one sync of
/// everything; appends with a sync each, by one thread and by two at once.
pub fn costs(scene: &Scene) -> Result<Vec<Cost>> {
    let image: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", scene.image()?));
    let (journal, block_bytes) = journal_of(&image)?;
    let recorder = Arc::new(RecordingDevice::new(image));
    let fs = scene.mount(recorder.clone(), 1)?;
    let mut costs = Vec::new();
    let mut count = |what, operations, run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let begin = recorder.position();
        run()?;
        let recording = recorder.recording();
        let mut cost = Cost {
            what,
            operations,
            writes: 0,
            bytes: 0,
            flushes: 0,
            journal_blocks: 0,
        };
        for event in &recording.events()[begin..] {
            match &event.request {
                Request::Write { offset, data } => {
                    cost.writes += 1;
                    cost.bytes += data.len() as u64;
                    if journal.iter().any(|range| range.contains(offset)) {
                        cost.journal_blocks += data.len() as u64 / block_bytes;
                    }
                }
                Request::Flush => cost.flushes += 1,
                Request::Discard(_) => {}
            }
        }
        costs.push(cost);
        Ok(())
    };
    let name = |number: u64| format!("file{number}");
    let all = |operation: &dyn Fn(u64) -> Operation| -> Result<()> {
        for number in 0..OPERATIONS {
            operation(number).apply(&*fs)?;
        }
        Ok(fs.sync()?)
    };
    fs.sync()?;
    count("create", OPERATIONS, &mut || {
        all(&|number| Operation::Create(name(number), CreateKind::Regular, 0o644))
    })?;
    count("rename", OPERATIONS, &mut || {
        let mode = RenameMode::Replace;
        all(&|number| Operation::Rename(name(number), name(number + 1000), mode))
    })?;
    count("unlink", OPERATIONS, &mut || {
        all(&|number| Operation::Unlink(name(number + 1000)))
    })?;
    for thread in ["one", "two"] {
        Operation::Create(thread.to_owned(), CreateKind::Regular, 0o644).apply(&*fs)?;
    }
    fs.sync()?;
    let append = |path: &str, first: u64, count: u64| -> Result<()> {
        for number in first..first + count {
            let fill = Fill {
                offset: number * 4096,
                len: 4096,
                seed: number,
            };
            Operation::Write(path.to_owned(), fill).apply(&*fs)?;
            Operation::Fsync(path.to_owned(), false).apply(&*fs)?;
        }
        Ok(())
    };
    count("4 KiB append + fsync", OPERATIONS, &mut || {
        append("one", 0, OPERATIONS)
    })?;
    count("the same by two threads", OPERATIONS, &mut || {
        std::thread::scope(|scope| {
            let first = scope.spawn(|| append("one", OPERATIONS, OPERATIONS / 2));
            let second = scope.spawn(|| append("two", 0, OPERATIONS / 2));
            for thread in [first, second] {
                thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            Ok(())
        })
    })?;
    count("idle fsync", OPERATIONS, &mut || {
        for _ in 0..OPERATIONS {
            Operation::Fsync("one".to_owned(), false).apply(&*fs)?;
        }
        Ok(())
    })?;
    fs.unmount()?;
    Ok(costs)
}

/// Where the journal lies, in bytes, and how large blocks are.
fn journal_of(image: &Arc<dyn BlockDevice>) -> Result<(Vec<Range<u64>>, u64)> {
    let budget = Arc::new(platter_cache::MemoryBudget::new(8 << 20));
    let clock = Arc::new(platter_vfs::FixedClock::new(
        platter_vfs::Timestamp::default(),
        1,
    ));
    let ext4 = Ext4::mount(Arc::clone(image), &MountOptions::default(), budget, clock)?;
    let volume = ext4.volume();
    let block_bytes = u64::from(volume.geometry.block_bytes);
    if !volume.geometry.features.has_journal() {
        return Ok((Vec::new(), block_bytes));
    }
    let journal = open_journal(volume, None)?;
    let places = journal.map().places().into_iter();
    let bytes = places.map(|place| place.start * block_bytes..place.end * block_bytes);
    Ok((bytes.collect(), block_bytes))
}
