//! A file whose block mapping is a table in memory, overwriting or copying on write.

use crate::inode::InodeLock;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_block::{BlockDevice, CountingDevice, IoError, MemoryDevice, Operation};
use platter_cache::page::WritableSpace;
use platter_cache::{AddressSpace, Mapping, MemoryBudget};

use super::super::*;
use crate::writing::{Invalidations, RangeSet};
use crate::{Condition, Error, Result};
use platter_block::lock::RwLock;

const BITS: u32 = 10;
pub(super) const BLOCK: u64 = 1 << BITS;
/// The last block that can be mapped.
const BLOCKS_MAX: u64 = 1 << 32;

/// A device and the blocks of it that are free, less those that are reserved.
pub(super) struct Disk {
    pub(super) device: CountingDevice,
    space: Mutex<Space, { rank(8, 0) }>,
}

struct Space {
    free: BTreeSet<u64>,
    reserved: u64,
}

impl Disk {
    pub(super) fn new(blocks: u64) -> Arc<Self> {
        let bytes = vec![0xEE; usize::try_from(blocks * BLOCK).unwrap()];
        let device = Arc::new(MemoryDevice::new("memory", bytes));
        Arc::new(Self {
            device: CountingDevice::new(device),
            space: Mutex::new(Space {
                free: (0..blocks).collect(),
                reserved: 0,
            }),
        })
    }

    /// Free blocks, and those of them that are reserved.
    pub(super) fn free(&self) -> (u64, u64) {
        let space = self.space.lock();
        (space.free.len() as u64, space.reserved)
    }
}

/// What another thread does at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum During {
    /// Writes the file back.
    WritesBack,
    /// Writes it back, and takes its pages out of the cache.
    Evicts,
}

pub(super) struct DiskFile {
    disk: Arc<Disk>,
    copies: bool,
    pages: Mapping<Error>,
    data: FileData<()>,
    lock: InodeLock,
    state: Mutex<State, { rank(7, 0) }>,
    /// Whether reading the device fails.
    pub(super) fails_reads: AtomicBool,
    /// How many blocks a step punches, and the first one for which there is no step.
    pub(super) steps: Mutex<Option<(u64, u64)>>,
    invalidations: Invalidations,
    /// What happens once when space was reserved.
    pub(super) after_reserving: Mutex<Option<During>>,
}

#[derive(Default)]
struct State {
    size: u64,
    map: BTreeMap<u64, Mapped>,
    delayed: RangeSet<u64>,
}

#[derive(Clone, Copy)]
struct Mapped {
    block: u64,
    is_written: bool,
}

impl DiskFile {
    pub(super) fn new(disk: &Arc<Disk>, copies: bool) -> Arc<Self> {
        let budget = Arc::new(MemoryBudget::new(4 << 20));
        Arc::new(Self {
            disk: Arc::clone(disk),
            copies,
            pages: Mapping::new(budget),
            data: FileData::new(0, false),
            lock: RwLock::new(()),
            state: Mutex::default(),
            fails_reads: AtomicBool::new(false),
            steps: Mutex::default(),
            invalidations: Invalidations::default(),
            after_reserving: Mutex::default(),
        })
    }

    pub(super) fn read_all(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.data.size_bytes()).unwrap()];
        let count = self.pages.read_at(self, 0, &mut bytes).unwrap();
        assert_eq!(count, bytes.len());
        bytes
    }

    /// Blocks on the device of the written part of the file.
    pub(super) fn written(&self) -> Vec<u64> {
        let state = self.state.lock();
        let written = state.map.values().filter(|mapped| mapped.is_written);
        written.map(|mapped| mapped.block).collect()
    }

    /// Frees blocks of the device.
    fn free(&self, blocks: impl IntoIterator<Item = u64>) {
        self.disk.space.lock().free.extend(blocks);
    }

    fn unreserve(&self, count: u64) {
        self.disk.space.lock().reserved -= count;
    }

    fn unmap(&self, state: &mut State, blocks: &Range<u64>) {
        let mapped: Vec<u64> = state.map.range(blocks.clone()).map(|(&at, _)| at).collect();
        let freed = mapped.iter().filter_map(|at| state.map.remove(at));
        self.free(freed.map(|mapped| mapped.block));
        let released = state.delayed.remove(blocks.clone());
        self.unreserve(released);
    }
}

impl AddressSpace for DiskFile {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.data.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        if self.fails_reads.load(Ordering::Relaxed) {
            let source = io::Error::other("the disk is scratched");
            let error = IoError::new(self.disk.device.name(), Operation::Read, offset, 0, source);
            return Err(Error::Io(Box::new(error)));
        }
        let _mapping = self.data.mapping.read();
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let blocks = blocks_of(self, &(offset..offset + len));
        let mut pieces = Vec::new();
        for block in blocks {
            let mapped = self.state.lock().map.get(&block).copied();
            let written = mapped.filter(|mapped| mapped.is_written);
            pieces.push(Piece {
                len_bytes: BLOCK,
                device: written.map(|mapped| mapped.block * BLOCK),
            });
        }
        let mut rest = pieces.into_iter();
        let first = rest.next().unwrap_or(Piece {
            len_bytes: 0,
            device: None,
        });
        let rest = rest.collect();
        Sources::Pieces { first, rest }.read(&self.disk.device, bufs)
    }
}

impl WritableSpace for DiskFile {
    fn extend(&self, end: u64) {
        self.data.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        write_runs(self, offset, bufs)
    }
}

impl BlockRuns for DiskFile {
    fn block_bits(&self) -> u32 {
        BITS
    }

    fn run(&self, block: u64) -> Result<Option<FileRun>> {
        if block > BLOCKS_MAX {
            return Ok(None);
        }
        let state = self.state.lock();
        let next = state.map.range(block..).next();
        let (count, backing) = match next {
            Some((&at, mapped)) if at == block && mapped.is_written => {
                (1, Backing::Written(mapped.block * BLOCK))
            }
            Some((&at, mapped)) if at == block => (1, Backing::Unwritten(mapped.block * BLOCK)),
            Some((&at, _)) => (at - block, Backing::Hole),
            None => (BLOCKS_MAX, Backing::Hole),
        };
        Ok(Some(FileRun {
            first: block,
            count,
            backing,
        }))
    }

    fn next_delayed(&self, block: u64) -> Option<Range<u64>> {
        self.state.lock().delayed.next(block)
    }
}

impl FileMap for DiskFile {
    fn filesystem_blocks(&self) -> u64 {
        1 << 20
    }

    fn too_many_blocks(&self) -> Error {
        Condition::InvalidArgument.into()
    }
}

impl FileBlocks for DiskFile {
    type Placement = ();
    type Allocation = FileRun;

    fn pages(&self) -> &Mapping<Error> {
        &self.pages
    }

    fn data(&self) -> &FileData<()> {
        &self.data
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.lock
    }

    fn invalidations(&self) -> &Invalidations {
        &self.invalidations
    }

    fn size_bytes_max(&self) -> u64 {
        1 << 20
    }

    fn size_on_disk(&self) -> u64 {
        self.state.lock().size
    }

    fn check_write(&self) -> Result<()> {
        Ok(())
    }

    fn is_sync(&self) -> bool {
        false
    }

    fn is_append_only(&self) -> bool {
        false
    }

    fn throttle(&self) {}

    fn note_dirty(&self) {}

    fn note_failure(&self, _: &Error) {}

    fn write_target(&self, blocks: Range<u64>) -> Result<(Target, u64)> {
        let state = self.state.lock();
        let is_delayed = state.delayed.contains(blocks.start);
        let target = match state.map.get(&blocks.start) {
            Some(_) | None if !is_delayed && self.copies => Target::Nothing,
            Some(_) | None if self.copies => Target::New,
            Some(mapped) if mapped.is_written => Target::Overwrite(mapped.block * BLOCK),
            Some(_) | None if !is_delayed => Target::Nothing,
            Some(mapped) => Target::Unwritten(mapped.block * BLOCK),
            None => Target::New,
        };
        if target != Target::New {
            return Ok((target, 1));
        }
        let delayed = state.delayed.next(blocks.start).unwrap_or(blocks.clone());
        let mut count = 1;
        while blocks.start + count < delayed.end.min(blocks.end)
            && (self.copies || !state.map.contains_key(&(blocks.start + count)))
        {
            count += 1;
        }
        Ok((target, count))
    }

    fn reserve(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut state = self.state.lock();
        let mut wanted = RangeSet::<u64>::default();
        for block in blocks.clone() {
            let needs_block = self.copies || !state.map.contains_key(&block);
            let is_written = state
                .map
                .get(&block)
                .is_some_and(|mapped| mapped.is_written);
            if (needs_block || !is_written) && !state.delayed.contains(block) {
                wanted.insert(block..block + 1);
            }
        }
        let new: Vec<_> = wanted.within(blocks).collect();
        let count: u64 = new.iter().map(|run| run.end - run.start).sum();
        let mut space = self.disk.space.lock();
        if space.reserved + count > space.free.len() as u64 {
            return Err(Condition::NoSpace.into());
        }
        space.reserved += count;
        for run in &new {
            state.delayed.insert(run.clone());
        }
        drop((state, space));
        let during = self.after_reserving.lock().take();
        if let Some(during) = during {
            self.pages.write_back(self, 0..u64::MAX)?;
            if during == During::Evicts {
                self.pages.invalidate(0..u64::MAX);
            }
        }
        Ok(new)
    }

    fn release(&self, blocks: Range<u64>) {
        let released = self.state.lock().delayed.remove(blocks);
        self.unreserve(released);
    }

    fn are_reserved(&self, blocks: Range<u64>) -> bool {
        !self.copies || self.state.lock().delayed.gaps(blocks).next().is_none()
    }

    fn allocate(&self, blocks: Range<u64>, _: &Request<'_>, (): &mut ()) -> Result<FileRun> {
        assert!(
            self.are_reserved(blocks.clone()),
            "{blocks:?} have no space"
        );
        let mut space = self.disk.space.lock();
        let first = *space.free.first().ok_or(Condition::NoSpace)?;
        let mut count = 0;
        while count < blocks.end - blocks.start && space.free.remove(&(first + count)) {
            count += 1;
        }
        Ok(FileRun {
            first: blocks.start,
            count,
            backing: Backing::Written(first * BLOCK),
        })
    }

    fn give_back(&self, run: FileRun) -> Result<()> {
        if let Backing::Written(start) = run.backing {
            self.free(start / BLOCK..start / BLOCK + run.count);
        }
        Ok(())
    }

    fn map_written(&self, run: &mut FileRun, end: u64, _: Option<&Request<'_>>) -> Result<()> {
        let Backing::Written(start) = run.backing else {
            return Ok(());
        };
        let mut state = self.state.lock();
        for (at, block) in (run.first..run.end()).zip(start / BLOCK..) {
            let mapped = Mapped {
                block,
                is_written: true,
            };
            let before = state.map.insert(at, mapped);
            self.free(before.map(|before| before.block));
        }
        let placed = state.delayed.remove(run.first..run.end());
        self.unreserve(placed);
        state.size = state.size.max(end);
        Ok(())
    }

    fn note_placed(&self, (): &mut (), _: &FileRun) {}

    fn convert_written(&self, run: &FileRun, end: u64) -> Result<()> {
        let mut state = self.state.lock();
        for (_, mapped) in state.map.range_mut(run.first..run.end()) {
            mapped.is_written = true;
        }
        let placed = state.delayed.remove(run.first..run.end());
        self.unreserve(placed);
        state.size = state.size.max(end);
        Ok(())
    }

    fn write_device(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        Ok(self.disk.device.write_vectored_at(at, bufs)?)
    }

    fn overwrite(&self, request: &Request<'_>, run: &FileRun) -> Result<()> {
        let Backing::Written(start) = run.backing else {
            return Ok(());
        };
        self.write_device(start, &request.blocks(run, BITS))
    }

    fn extend_on_disk(&self, end: FileEnd) -> Result<()> {
        let mut state = self.state.lock();
        if self.data.is_current(end) {
            let left = end.offset.min(self.data.size_bytes());
            state.size = state.size.max(left);
        }
        Ok(())
    }

    fn touch(&self) -> Result<()> {
        Ok(())
    }

    fn set_larger_size(&self, size: u64) -> Result<()> {
        self.state.lock().size = size;
        Ok(())
    }

    fn prepare_truncate(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn prepare_punch(&self, blocks: Range<u64>) -> Result<Range<u64>> {
        match *self.steps.lock() {
            Some((_, refused)) if blocks.start >= refused => Err(Condition::NoSpace.into()),
            Some((count, _)) => Ok(blocks.start..blocks.end.min(blocks.start + count)),
            None => Ok(blocks),
        }
    }

    fn is_truncation_left(&self) -> bool {
        false
    }

    fn truncate_blocks(&self, size: u64, first: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.size = size;
        self.data.truncate(size);
        self.unmap(&mut state, &(first..u64::MAX));
        Ok(())
    }

    fn abort(&self, error: &Error) {
        panic!("{error}");
    }

    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()> {
        self.unmap(&mut self.state.lock(), &blocks);
        Ok(())
    }

    fn convert_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        let mut state = self.state.lock();
        for (_, mapped) in state.map.range_mut(blocks.clone()) {
            mapped.is_written = false;
        }
        let released = state.delayed.remove(blocks);
        self.unreserve(released);
        Ok(())
    }

    fn allocate_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        let mut state = self.state.lock();
        let holes: Vec<u64> = blocks.filter(|at| !state.map.contains_key(at)).collect();
        let mut space = self.disk.space.lock();
        if space.reserved + holes.len() as u64 > space.free.len() as u64 {
            return Err(Condition::NoSpace.into());
        }
        for at in holes {
            let block = space.free.pop_first().ok_or(Condition::NoSpace)?;
            let mapped = Mapped {
                block,
                is_written: false,
            };
            state.map.insert(at, mapped);
        }
        Ok(())
    }

    fn collapse_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        let mut state = self.state.lock();
        self.unmap(&mut state, &blocks);
        let moved = state.map.split_off(&blocks.end);
        let count = blocks.end - blocks.start;
        state
            .map
            .extend(moved.into_iter().map(|(at, mapped)| (at - count, mapped)));
        state.size = size;
        self.data.truncate(size);
        Ok(())
    }

    fn may_shift_up(&self, _: u64) -> Result<bool> {
        Ok(true)
    }

    fn insert_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        let mut state = self.state.lock();
        let moved = state.map.split_off(&blocks.start);
        let count = blocks.end - blocks.start;
        state
            .map
            .extend(moved.into_iter().map(|(at, mapped)| (at + count, mapped)));
        state.size = size;
        self.data.set_size(size);
        Ok(())
    }

    fn commit_mapping(&self) -> Result<()> {
        Ok(())
    }

    fn commit(&self, _: bool) -> Result<()> {
        Ok(())
    }
}
