//! Random handles on a device that remembers everything, and what each power cut must leave of them.
//!
//! They allocate, change and free blocks of metadata, of journaled data, and of data that is written
//! past the log, as a filesystem would: data before the handle that names it, and freed blocks used
//! again only when the log says so.

use std::collections::BTreeMap;

use platter_block::lock::{Mutex, rank};
use platter_block::sim::{CrashOptions, CrashState, Fault, FaultDevice, RecordingDevice};
use platter_vfs::{FixedClock, Timestamp};

use super::journal::log_on;
use super::*;
use crate::ondisk::jbd2::{Checksums, JBD2_MAGIC};
use crate::txn::replay::replay;
use crate::txn::sample_log::{BLOCK_BYTES, FILESYSTEM_BLOCKS, SampleLog, open_on};

/// The block that names data: changed when data comes and goes.
const INODE: u64 = 8;
/// What the log's client changes in each transaction.
const COUNTS: u64 = 9;
/// Blocks to allocate.
const POOL: Range<u64> = 10..40;

/// What each transaction made of which block, in the order of the changes to a block; `None` when
/// it was freed.
#[derive(Default)]
struct Changes(Mutex<Vec<(Sequence, u64, Option<u64>)>>);

impl Changes {
    fn note(&self, transaction: Sequence, block: u64, tag: Option<u64>) {
        self.0.lock().push((transaction, block, tag));
    }

    /// What the blocks hold after the transaction `last`.
    fn until(&self, last: Sequence) -> BTreeMap<u64, Option<u64>> {
        let changes = self.0.lock();
        let counted = changes.iter().filter(|(of, ..)| !last.is_before(*of));
        counted.map(|&(_, block, tag)| (block, tag)).collect()
    }
}

/// Blocks that may be allocated, and a client of the log.
#[derive(Default)]
pub(super) struct TestAllocator {
    free: Mutex<Vec<u64>, { rank(15, 9) }>,
    changes: Changes,
    /// What the log says that it failed with.
    pub(super) failures: Mutex<Vec<String>>,
}

impl CommitClient for TestAllocator {
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()> {
        let tag = u64::from(handle.transaction().0) | 1 << 40;
        let transaction = handle.transaction();
        handle.edit(BlockNr(COUNTS), &Unverified, |bytes| {
            bytes.copy_from_slice(&contents(tag));
            self.changes.note(transaction, COUNTS, Some(tag));
            Ok(())
        })
    }

    fn committed(&self, freed: &[Range<BlockNr>]) {
        for range in freed {
            self.free.lock().extend(range.start.0..range.end.0);
        }
    }

    fn failed(&self, error: &Error) {
        self.failures.lock().push(error.to_string());
    }
}

/// A block that bears a tag. Some begin like a block of the log.
fn contents(tag: u64) -> Vec<u8> {
    let mut bytes = tag.to_le_bytes().repeat(BLOCK_BYTES / 8);
    if tag.is_multiple_of(5) {
        bytes[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    }
    bytes
}

/// A log on a recording device, and what was done through it.
pub(super) struct Scene {
    pub(super) device: Arc<RecordingDevice>,
    pub(super) log: Log,
    pub(super) space: Arc<TestAllocator>,
    /// Transactions reported durable, each with the position in the recording from which on it is.
    durable: Mutex<Vec<(usize, Sequence)>, { rank(15, 9) }>,
}

impl Scene {
    pub(super) fn new(layout: (Checksums, bool), faults: &[Fault]) -> Self {
        let mut sample = SampleLog::new(layout.0, layout.1);
        sample.superblock.start = 0.into();
        let device = Arc::new(RecordingDevice::new(sample.disk()));
        let below = FaultDevice::new(Arc::<RecordingDevice>::clone(&device));
        for fault in faults {
            below.arm(fault.clone());
        }
        let log = log_on(Arc::new(below), &Features::from_bits(0, 0, 0));
        let space = Arc::new(TestAllocator::default());
        space.free.lock().extend(POOL);
        let client: Weak<dyn CommitClient> = Arc::<TestAllocator>::downgrade(&space);
        log.attach(client);
        Self {
            device,
            log,
            space,
            durable: Mutex::default(),
        }
    }

    pub(super) fn close(&self) -> Result<()> {
        self.log.close()?;
        self.note_durable(self.log.latest());
        Ok(())
    }

    /// Examines every crash state; returns how many there are, and those that lose a durable transaction.
    pub(super) fn examine(&self, options: CrashOptions) -> (usize, Vec<String>) {
        let recording = self.device.recording();
        let (mut count, mut broken) = (0, Vec::new());
        for state in recording.crash_states(options) {
            let state = state.unwrap();
            count += 1;
            if let Err(problem) = self.check(&state) {
                broken.push(format!(
                    "cut {}, {:?}: {problem}",
                    state.position, state.losses
                ));
            }
        }
        (count, broken)
    }

    /// Checks that a replay restores what some transaction left, no earlier one than was durable.
    fn check(&self, state: &CrashState<'_>) -> std::result::Result<(), String> {
        let device: Arc<dyn BlockDevice> = Arc::new(state.device().unwrap());
        let report = replay(&open_on(Arc::clone(&device)), &*device, FILESYSTEM_BLOCKS);
        let report = report.map_err(|error| error.to_string())?;
        let last = Sequence(report.end.0.wrapping_sub(1));
        for (from, durable) in self.durable.lock().iter() {
            if *from <= state.position && last.is_before(*durable) {
                return Err(format!("{durable} was durable, {last} is there"));
            }
        }
        for (block, tag) in self.space.changes.until(last) {
            let Some(tag) = tag else { continue };
            let mut found = vec![0; BLOCK_BYTES];
            let offset = block * BLOCK_BYTES as u64;
            device.read_at(offset, &mut found).unwrap();
            if found != contents(tag) {
                return Err(format!("block {block} is not {tag} after {last}"));
            }
        }
        Ok(())
    }

    fn note_durable(&self, transaction: Sequence) {
        let mut durable = self.durable.lock();
        durable.push((self.device.mark(), transaction));
    }

    fn note(&self, handle: &Handle<'_>, block: u64, tag: Option<u64>) {
        self.space.changes.note(handle.transaction(), block, tag);
    }

    fn edit(&self, handle: &mut Handle<'_>, block: u64, tag: u64) -> Result<()> {
        let bytes = contents(tag);
        let transaction = handle.transaction();
        handle.edit(BlockNr(block), &Unverified, |old| {
            old.copy_from_slice(&bytes);
            self.space.changes.note(transaction, block, Some(tag));
            Ok(())
        })
    }
}

/// A thread's random operations, on blocks of its own and on the inode.
pub(super) struct Actor<'s> {
    scene: &'s Scene,
    dice: FixedClock,
    metadata: Vec<u64>,
    data: Vec<u64>,
    tags: u64,
}

impl<'s> Actor<'s> {
    pub(super) fn new(scene: &'s Scene, seed: u64) -> Self {
        Self {
            scene,
            dice: FixedClock::new(Timestamp::default(), seed),
            metadata: Vec::new(),
            data: Vec::new(),
            tags: seed << 41,
        }
    }

    pub(super) fn run(&mut self, steps: usize) -> Result<()> {
        for _ in 0..steps {
            match self.roll(20) {
                0..=4 => self.change()?,
                5..=8 => self.create()?,
                9..=12 => self.write_data()?,
                13 => self.free_metadata()?,
                14 | 15 => self.free_data()?,
                16 => self.scene.log.checkpoint_all()?,
                17 => self.scene.log.maintain()?,
                _ => self.commit()?,
            }
        }
        self.commit()
    }

    fn roll(&self, sides: usize) -> usize {
        usize::try_from(self.dice.random_u64() >> 33).unwrap() % sides
    }

    fn pick(&self, from: &[u64]) -> Option<usize> {
        (!from.is_empty()).then(|| self.roll(from.len()))
    }

    fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags
    }

    fn take(&self) -> Option<u64> {
        let mut free = self.scene.space.free.lock();
        let index = self.pick(&free)?;
        Some(free.swap_remove(index))
    }

    fn commit(&mut self) -> Result<()> {
        let latest = self.scene.log.latest();
        self.scene.log.sync(latest)?;
        // One that nothing was changed in is not committed, and others may change something in it.
        let committed = self.scene.log.transactions.committed();
        let is_empty = committed.is_before(latest);
        self.scene
            .note_durable(if is_empty { committed } else { latest });
        Ok(())
    }

    /// Changes some blocks of metadata, with a handle that grows and perhaps begins anew.
    fn change(&mut self) -> Result<()> {
        let picked: Vec<_> = (0..3).filter_map(|_| self.pick(&self.metadata)).collect();
        let tag = self.tag();
        let mut handle = self.scene.log.begin(1)?;
        for index in picked {
            if handle.credits() == 0 && !handle.extend(1) {
                handle.restart(1)?;
            }
            self.scene.edit(&mut handle, self.metadata[index], tag)?;
        }
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        let Some(block) = self.take() else {
            return Ok(());
        };
        let (tag, other) = (self.tag(), self.tag());
        let mut handle = self.scene.log.begin(2)?;
        if self.roll(3) == 0 {
            handle.journal_data(BlockNr(block), contents(tag))?;
        } else {
            handle.create(BlockNr(block), &Unverified, contents(tag))?;
        }
        self.scene.note(&handle, block, Some(tag));
        self.scene.edit(&mut handle, INODE, other)?;
        self.metadata.push(block);
        Ok(())
    }

    fn write_data(&mut self) -> Result<()> {
        let Some(block) = self.take() else {
            return Ok(());
        };
        let (tag, other) = (self.tag(), self.tag());
        let offset = block * BLOCK_BYTES as u64;
        self.scene.device.write_at(offset, &contents(tag))?;
        let mut handle = self.scene.log.begin(1)?;
        self.scene.edit(&mut handle, INODE, other)?;
        self.scene.note(&handle, block, Some(tag));
        self.data.push(block);
        Ok(())
    }

    fn free_metadata(&mut self) -> Result<()> {
        let Some(index) = self.pick(&self.metadata) else {
            return Ok(());
        };
        let block = self.metadata.swap_remove(index);
        self.free(block, self.roll(2) == 0)
    }

    fn free_data(&mut self) -> Result<()> {
        let Some(index) = self.pick(&self.data) else {
            return Ok(());
        };
        let block = self.data.swap_remove(index);
        self.free(block, false)
    }

    fn free(&mut self, block: u64, forget: bool) -> Result<()> {
        let tag = self.tag();
        let range = BlockNr(block)..BlockNr(block + 1);
        let mut handle = self.scene.log.begin(1)?;
        self.scene.edit(&mut handle, INODE, tag)?;
        self.scene.note(&handle, block, None);
        handle.free_when_durable(range.clone());
        if forget {
            handle.forget(range);
        }
        Ok(())
    }
}
