//! What operations cost at a mount: requests of the kernel, and what they come to on the device.
//! Exact counts, the same on any machine, but for what depends on how threads meet.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, IoSliceMut, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use platter_block::sim::{Recorder, RecordingDevice, Request};
use platter_block::{BlockDevice, Geometry, IoError};
use platter_fuse::{Operation, Session};
use platter_vfs::Filesystem;

use crate::served;
use crate::subject::{Devices, LogArea, MountRequest, Scene};

/// How long a flush takes: the time in which others join a commit.
const FLUSH: Duration = Duration::from_millis(2);
/// Appends in one go of bytes.
const APPEND: [u8; 4096] = [0x5a; 4096];

/// What one kind of operation took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// What was done.
    pub what: &'static str,
    /// How often.
    pub operations: u64,
    /// Requests of the kernel, without those that only forget.
    pub requests: u64,
    /// Which, by name.
    pub kinds: Vec<(&'static str, u64)>,
    /// Requests to write.
    pub writes: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Blocks that were written into the journal.
    pub journal_blocks: u64,
    /// Transactions that were committed to the journal.
    pub commits: u64,
}

/// Counts on a new filesystem that is mounted: operations without a sync, each kind followed by one
/// sync of everything; then appends with a sync each, by one thread and by two at once.
pub fn costs(scene: &Scene, operations: u64) -> Result<Vec<Cost>> {
    let images = scene.images()?;
    let log = scene.subject.log_area(&images[0])?;
    let recorder = Recorder::new(images);
    let slow = |device: &Arc<RecordingDevice>| -> Arc<dyn BlockDevice> {
        Arc::new(SlowFlush(Arc::clone(device)))
    };
    let devices: Devices = recorder.devices().iter().map(slow).collect();
    let fs = scene.subject.mount(&devices, by_the_clock())?;
    let dir = tempfile::tempdir()?;
    let options = platter_fuse::MountOptions::default();
    let mut session = platter_fuse::mount(Arc::clone(&fs), dir.path(), options)?;
    let counting = Counting {
        fs: &*fs,
        session: &session,
        recorder: &recorder,
        log,
        operations,
    };
    let costs = counting.all(dir.path());
    served::unmount(&mut session)?;
    costs
}

/// A mount whose requests and writes are counted.
struct Counting<'m> {
    fs: &'m dyn Filesystem,
    session: &'m Session,
    recorder: &'m Recorder,
    log: Option<LogArea>,
    operations: u64,
}

impl Counting<'_> {
    fn all(&self, root: &Path) -> Result<Vec<Cost>> {
        let count = self.operations;
        let path = |number: u64| root.join(format!("file{number}"));
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.create(true).append(true);
            options.open(root.join(name)).context("opening a file")
        };
        let (mut one, mut two) = (open("one")?, open("two")?);
        // What is asked once and never again.
        for file in [&mut one, &mut two] {
            append(file, 1)?;
        }
        drop(open("once")?);
        self.fs.sync()?;
        let each = |operation: &dyn Fn(u64) -> std::io::Result<()>| -> Result<()> {
            for number in 0..count {
                operation(number)?;
            }
            Ok(self.fs.sync()?)
        };
        Ok(vec![
            self.count("create", || {
                each(&|number| File::create_new(path(number)).map(drop))
            })?,
            self.count("rename", || {
                each(&|number| fs::rename(path(number), path(number + count)))
            })?,
            self.count("unlink", || {
                each(&|number| fs::remove_file(path(number + count)))
            })?,
            self.count("4 KiB append + fsync", || append(&mut one, count))?,
            self.count("the same by two threads", || {
                thread::scope(|scope| {
                    let first = scope.spawn(|| append(&mut one, count / 2));
                    let second = scope.spawn(|| append(&mut two, count / 2));
                    for thread in [first, second] {
                        thread.join().map_err(|_| anyhow!("a thread panicked"))??;
                    }
                    Ok(())
                })
            })?,
            self.count("idle fsync", || {
                for _ in 0..count {
                    one.sync_all()?;
                }
                Ok(())
            })?,
        ])
    }

    fn count(&self, what: &'static str, run: impl FnOnce() -> Result<()>) -> Result<Cost> {
        let (begin, before) = (self.recorder.position(), self.session.statistics());
        run()?;
        let asked = self.session.statistics().since(&before);
        let kinds: Vec<_> = asked
            .iter()
            .filter(|(operation, _)| *operation != Operation::Forget)
            .map(|(operation, count)| (operation.name(), count))
            .collect();
        let mut cost = Cost {
            what,
            operations: self.operations,
            requests: kinds.iter().map(|(_, count)| count).sum(),
            kinds,
            writes: 0,
            bytes: 0,
            flushes: 0,
            journal_blocks: 0,
            commits: 0,
        };
        let recording = self.recorder.recording();
        for event in &recording.events()[begin..] {
            match &event.request {
                Request::Write { offset, data } => {
                    cost.writes += 1;
                    cost.bytes += data.len() as u64;
                    let is_log = |log: &&LogArea| {
                        event.member == 0 && log.ranges.iter().any(|range| range.contains(offset))
                    };
                    if let Some(log) = self.log.as_ref().filter(is_log) {
                        let blocks = data.chunks(usize::try_from(log.block_bytes)?);
                        cost.journal_blocks += blocks.len() as u64;
                        let commits = blocks.filter(|block| (log.is_commit)(block));
                        cost.commits += commits.count() as u64;
                    }
                }
                Request::Flush => cost.flushes += 1,
                Request::Discard(_) => {}
            }
        }
        Ok(cost)
    }
}

fn append(file: &mut File, count: u64) -> Result<()> {
    for _ in 0..count {
        file.write_all(&APPEND)?;
        file.sync_all()?;
    }
    Ok(())
}

/// A device that takes its time to flush.
#[derive(Debug)]
struct SlowFlush(Arc<RecordingDevice>);

impl BlockDevice for SlowFlush {
    fn name(&self) -> &Arc<str> {
        self.0.name()
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.0.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.0.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.0.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        self.0.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        thread::sleep(FLUSH);
        self.0.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.0.discard(range)
    }
}

/// The machine's clock, by which commits wait for each other.
fn by_the_clock() -> MountRequest {
    MountRequest {
        read_only: false,
        budget: Arc::new(platter_cache::MemoryBudget::new(8 << 20)),
        clock: Arc::new(platter_vfs::SystemClock::new()),
    }
}
