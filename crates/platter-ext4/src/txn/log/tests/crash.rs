//! Power cuts: whatever a cut leaves, a replay makes of it what some transaction left, no earlier
//! one than was promised.
//!
//! Random handles allocate, change and free blocks of metadata, of journaled data, and of data that
//! is written past the log, as a filesystem would: data before the handle that names it, and freed
//! blocks used again only when the log says so.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use platter_block::Operation;
use platter_block::sim::{
    CrashOptions, CrashState, Effect, Fault, FaultDevice, RecordingDevice, When,
};
use platter_vfs::{FixedClock, Timestamp};

use super::journal::{LAYOUTS, log_on};
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

/// Blocks that may be allocated.
#[derive(Default)]
struct Space {
    free: Mutex<Vec<u64>>,
    changes: Arc<Changes>,
}

/// What each transaction made of which block, in the order of the changes to a block; `None` when
/// it was freed.
#[derive(Default)]
struct Changes(Mutex<Vec<(Sequence, u64, Option<u64>)>>);

impl Changes {
    fn note(&self, sequence: Sequence, block: u64, tag: Option<u64>) {
        self.0.lock().push((sequence, block, tag));
    }

    /// What the blocks hold after the transaction `last`.
    fn until(&self, last: Sequence) -> BTreeMap<u64, Option<u64>> {
        let changes = self.0.lock();
        let counted = changes
            .iter()
            .filter(|(sequence, ..)| !last.is_before(*sequence));
        counted.map(|&(_, block, tag)| (block, tag)).collect()
    }
}

impl CommitClient for Space {
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()> {
        let tag = u64::from(handle.transaction().0) | 1 << 40;
        self.changes.note(handle.transaction(), COUNTS, Some(tag));
        handle.edit(BlockNr(COUNTS), &Unverified, |bytes| {
            bytes.copy_from_slice(&contents(tag));
            Ok(())
        })
    }

    fn committed(&self, freed: &[Range<BlockNr>]) {
        for range in freed {
            self.free.lock().extend(range.start.0..range.end.0);
        }
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

/// A workload under way.
struct Workload {
    device: Arc<RecordingDevice>,
    /// What the log writes to.
    below: Arc<dyn BlockDevice>,
    log: Log,
    space: Arc<Space>,
    dice: FixedClock,
    metadata: Vec<u64>,
    data: Vec<u64>,
    tags: u64,
    /// From which position of the recording on which transaction is promised.
    promises: Vec<(usize, Sequence)>,
}

impl Workload {
    fn new(layout: (Checksums, bool), seed: u64, faults: &[Fault]) -> Self {
        let mut sample = SampleLog::new(layout.0, layout.1);
        sample.superblock.start = 0.into();
        let device = Arc::new(RecordingDevice::new(sample.disk()));
        let below = Arc::new(FaultDevice::new(Arc::<RecordingDevice>::clone(&device)));
        for fault in faults {
            below.arm(fault.clone());
        }
        let log = log_on(
            Arc::<FaultDevice>::clone(&below),
            &Features::from_bits(0, 0, 0),
        );
        let space = Arc::new(Space::default());
        space.free.lock().extend(POOL);
        let client: Weak<dyn CommitClient> = Arc::<Space>::downgrade(&space);
        log.attach(client);
        Self {
            device,
            below,
            log,
            space,
            dice: FixedClock::new(Timestamp::default(), seed),
            metadata: Vec::new(),
            data: Vec::new(),
            tags: 0,
            promises: Vec::new(),
        }
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
        let mut free = self.space.free.lock();
        let index = self.pick(&free)?;
        Some(free.swap_remove(index))
    }

    /// Does `steps` random things, and closes the log.
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.roll(20) {
                0..=4 => self.change(),
                5..=8 => self.create(),
                9..=12 => self.write_data(),
                13 => self.free_metadata(),
                14 | 15 => self.free_data(),
                16 => self.log.checkpoint_all().unwrap(),
                17 => self.log.tend().unwrap(),
                _ => self.commit(),
            }
        }
        self.commit();
        self.log.close().unwrap();
        self.promise(self.log.latest());
    }

    fn promise(&mut self, transaction: Sequence) {
        self.promises.push((self.device.mark(), transaction));
    }

    fn commit(&mut self) {
        let latest = self.log.latest();
        self.log.sync(latest).unwrap();
        self.promise(latest);
    }

    fn note(&self, handle: &Handle<'_>, block: u64, tag: Option<u64>) {
        self.space.changes.note(handle.transaction(), block, tag);
    }

    fn edit(&self, handle: &mut Handle<'_>, block: u64, tag: u64) {
        let bytes = contents(tag);
        let change = |old: &mut [u8]| {
            old.copy_from_slice(&bytes);
            Ok(())
        };
        handle.edit(BlockNr(block), &Unverified, change).unwrap();
        self.note(handle, block, Some(tag));
    }

    /// Changes some blocks of metadata together.
    fn change(&mut self) {
        let picked: Vec<_> = (0..3).filter_map(|_| self.pick(&self.metadata)).collect();
        let tag = self.tag();
        let mut handle = self.log.begin(3).unwrap();
        for index in picked {
            self.edit(&mut handle, self.metadata[index], tag);
        }
    }

    fn create(&mut self) {
        let Some(block) = self.take() else { return };
        let (tag, other) = (self.tag(), self.tag());
        let mut handle = self.log.begin(2).unwrap();
        if self.roll(3) == 0 {
            handle.journal_data(BlockNr(block), contents(tag)).unwrap();
        } else {
            handle
                .create(BlockNr(block), &Unverified, contents(tag))
                .unwrap();
        }
        self.note(&handle, block, Some(tag));
        self.edit(&mut handle, INODE, other);
        drop(handle);
        self.metadata.push(block);
    }

    fn write_data(&mut self) {
        let Some(block) = self.take() else { return };
        let (tag, other) = (self.tag(), self.tag());
        let offset = block * BLOCK_BYTES as u64;
        self.below.write_at(offset, &contents(tag)).unwrap();
        let mut handle = self.log.begin(1).unwrap();
        self.edit(&mut handle, INODE, other);
        self.note(&handle, block, Some(tag));
        drop(handle);
        self.data.push(block);
    }

    fn free_metadata(&mut self) {
        let Some(index) = self.pick(&self.metadata) else {
            return;
        };
        let block = self.metadata.swap_remove(index);
        self.free(block, self.roll(2) == 0);
    }

    fn free_data(&mut self) {
        let Some(index) = self.pick(&self.data) else {
            return;
        };
        let block = self.data.swap_remove(index);
        self.free(block, false);
    }

    fn free(&mut self, block: u64, forget: bool) {
        let tag = self.tag();
        let range = BlockNr(block)..BlockNr(block + 1);
        let mut handle = self.log.begin(1).unwrap();
        self.edit(&mut handle, INODE, tag);
        handle.free_when_durable(range.clone());
        if forget {
            handle.forget(range);
        }
        self.note(&handle, block, None);
    }

    /// Looks at every crash state, and gives how many there are and those that break a promise.
    fn examine(&self, seed: u64) -> (usize, Vec<String>) {
        let options = CrashOptions {
            seed,
            ..CrashOptions::default()
        };
        let recording = self.device.recording();
        let (mut count, mut broken) = (0, Vec::new());
        for state in recording.crash_states(options) {
            let state = state.unwrap();
            count += 1;
            if let Err(problem) = self.check(&state) {
                broken.push(format!("cut {}, {:?}: {problem}", state.cut, state.losses));
            }
        }
        (count, broken)
    }

    fn check(&self, state: &CrashState<'_>) -> std::result::Result<(), String> {
        let device: Arc<dyn BlockDevice> = Arc::new(state.device().unwrap());
        let report = replay(&open_on(Arc::clone(&device)), &*device, FILESYSTEM_BLOCKS);
        let report = report.map_err(|error| error.to_string())?;
        let last = Sequence(report.end.0.wrapping_sub(1));
        let mut promises = self.promises.iter().rev();
        if let Some((_, promised)) = promises.find(|(from, _)| *from <= state.cut)
            && last.is_before(*promised)
        {
            return Err(format!(
                "transaction {promised} was promised, {last} is there"
            ));
        }
        for (block, tag) in self.space.changes.until(last) {
            let Some(tag) = tag else { continue };
            let mut found = vec![0; BLOCK_BYTES];
            let offset = block * BLOCK_BYTES as u64;
            device.read_at(offset, &mut found).unwrap();
            if found != contents(tag) {
                return Err(format!(
                    "block {block} is not {tag} after transaction {last}"
                ));
            }
        }
        Ok(())
    }
}

fn examine(layout: (Checksums, bool), seed: u64, faults: &[Fault]) -> (usize, Vec<String>) {
    let mut workload = Workload::new(layout, seed, faults);
    workload.run(200);
    workload.examine(seed)
}

fn lost(operation: Operation, when: When) -> Fault {
    Fault {
        operation,
        when,
        effect: Effect::Skip,
    }
}

#[test]
fn power_cut_at_any_moment_leaves_a_state_that_was_promised() {
    let mut states = 0;
    for (index, layout) in LAYOUTS.into_iter().enumerate() {
        for seed in 0..2 {
            let seed = seed * 100 + index as u64;
            let (count, broken) = examine(layout, seed, &[]);
            assert!(broken.is_empty(), "{layout:?}, seed {seed}: {broken:#?}");
            states += count;
        }
    }
    println!("{states} crash states");
    assert!(states > 10_000, "only {states} crash states");
}

#[test]
fn log_without_flushes_is_caught() {
    let faults = [lost(Operation::Flush, When::Always)];
    for layout in LAYOUTS {
        let (_, broken) = examine(layout, 1, &faults);
        assert!(!broken.is_empty(), "{layout:?}");
    }
}
