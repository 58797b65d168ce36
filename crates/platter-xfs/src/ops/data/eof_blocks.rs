//! Blocks beyond the end of a file, which it grows into: allocated with the blocks before them, and freed when the file
//! is closed, has not grown for a while, or others find no space.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use platter_block::lock::Mutex;
use platter_vfs::file::{Backing, BlockRuns, FileRun};
use platter_vfs::writing::ListedInode;
use platter_vfs::{Condition, Error, Result};

use super::super::{Inode, SuperBlock};
use super::steps::{STEP_MAPPINGS, indirect_blocks, unmap_cost};
use crate::change::{Cost, Unmapped};
use crate::ondisk::inode::edit::core_mut;
use crate::ondisk::{FileBlock, ForkKind, InodeFlags};
use crate::preallocation::{Growth, Preallocation};

/// How long blocks beyond the end of a file stay that does not grow. Linux keeps them for five minutes, but only where
/// the file was not closed, which a mount without `OPEN` requests does not see.
const LIFETIME: Duration = Duration::from_secs(30);
/// Files that have blocks beyond their end at most: they stay in memory.
const FILES_MAX: usize = 1024;

/// The files of a filesystem that may have blocks beyond their end, those first that have had them for longest.
///
/// # Invariants
/// A file is on the list once, exactly as long as its [`FileGrowth`] says so, which changes with the list locked.
#[derive(Debug)]
pub(in crate::ops) struct GrowingFiles {
    preallocation: Preallocation,
    /// Files that may have blocks beyond their end.
    files: Mutex<Listed>,
}

#[derive(Debug, Default)]
struct Listed {
    inodes: VecDeque<Arc<Inode>>,
    is_closed: bool,
}

/// What is kept of how a file grows.
#[derive(Debug, Default)]
pub(in crate::ops) struct FileGrowth {
    is_listed: AtomicBool,
    /// It was closed before: then it keeps what it has beyond its end, as it may be opened and written again.
    was_closed: AtomicBool,
    /// When it was written last, in milliseconds of the monotonic clock.
    written: AtomicU64,
}

impl GrowingFiles {
    pub(in crate::ops) fn new(preallocation: Preallocation) -> Self {
        Self {
            preallocation,
            files: Mutex::default(),
        }
    }

    fn add(&self, inode: Arc<Inode>) {
        let mut files = self.files.lock();
        let has_place = !files.is_closed && files.inodes.len() < FILES_MAX;
        if has_place && !inode.growth.is_listed.swap(true, Ordering::AcqRel) {
            files.inodes.push_back(inode);
        }
    }

    /// Takes a file off the list.
    pub(in crate::ops) fn remove(&self, inode: &Inode) {
        if !inode.growth.is_listed() {
            return;
        }
        let removed = {
            let mut files = self.files.lock();
            let listed = &mut files.inodes;
            let at = listed.iter().position(|listed| listed.id() == inode.id());
            inode.growth.is_listed.store(false, Ordering::Release);
            at.and_then(|at| listed.remove(at))
        };
        // The last user of an inode may free it, which is not done with the list locked.
        drop(removed);
    }

    /// Takes those files off the list that are due.
    fn take(&self, is_due: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let mut files = self.files.lock();
        let all = std::mem::take(&mut files.inodes);
        let (due, others): (VecDeque<_>, _) = all.into_iter().partition(|inode| is_due(inode));
        for inode in &due {
            inode.growth.is_listed.store(false, Ordering::Release);
        }
        files.inodes = others;
        due.into()
    }

    /// Takes all files off the list, to which none is added any more.
    pub(in crate::ops) fn close(&self) -> Vec<Arc<Inode>> {
        self.files.lock().is_closed = true;
        self.take(|_| true)
    }
}

impl FileGrowth {
    fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }
}

impl SuperBlock {
    /// Frees what files have beyond their end that have not grown for a while. No lock is held.
    pub(crate) fn free_idle_eof_blocks(&self) {
        // What is frozen stays as it is.
        let Some(_writer) = self.writers.try_enter() else {
            return;
        };
        let now = self.monotonic_millis();
        let lifetime = u64::try_from(LIFETIME.as_millis()).unwrap_or(u64::MAX);
        self.free_eof_blocks(|inode| {
            let written = inode.growth.written.load(Ordering::Relaxed);
            now.saturating_sub(written) >= lifetime
        });
    }

    /// Frees what files have beyond their end, but for those that are in use this moment. No lock is held, or inode
    /// locks. Returns whether any was freed.
    pub(in crate::ops) fn free_all_eof_blocks(&self) -> bool {
        self.free_eof_blocks(|_| true)
    }

    /// Ends preallocation, and frees what files have beyond their end.
    pub(crate) fn end_preallocation(&self) {
        for inode in self.growing.close() {
            // What stays is unwritten, and harmless.
            let _ = inode.try_free_eof_blocks();
        }
    }

    fn free_eof_blocks(&self, is_due: impl Fn(&Inode) -> bool) -> bool {
        let mut is_any_freed = false;
        for inode in self.growing.take(is_due) {
            match inode.try_free_eof_blocks() {
                Ok(true) => is_any_freed = true,
                // In use, or full: later.
                Ok(false) | Err(_) => self.growing.add(inode),
            }
        }
        is_any_freed
    }

    fn monotonic_millis(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Inode {
    /// Records that these blocks make the file longer, if they do: it gets blocks beyond its end when they are written
    /// back. The inode lock is held.
    pub(super) fn note_growth(&self, blocks: &Range<u64>) {
        let growing = &self.superblock.growing;
        if growing.preallocation == Preallocation::Off {
            return;
        }
        if !self.growth.is_listed() {
            let is_due = {
                let inode = &self.state.read().inode;
                let size = inode.size_bytes;
                let no = InodeFlags::EXTSIZE | InodeFlags::PREALLOC | InodeFlags::REALTIME;
                blocks.end > size.div_ceil(1 << self.block_bits())
                    && growing.preallocation.is_due(size)
                    && !inode.flags.intersects(no)
                    && inode.links != 0
            };
            // The caller uses the inode, so it is there.
            let found = is_due.then(|| self.superblock.inodes.get(self.number.id()));
            match found.flatten() {
                Some(inode) => growing.add(inode),
                None => return,
            }
        }
        let now = self.superblock.monotonic_millis();
        self.growth.written.store(now, Ordering::Relaxed);
    }

    /// Reserves blocks for the end of the file, to be allocated after some that are about to be. Returns how many.
    pub(super) fn reserve_ahead(&self, blocks: &Range<u64>) -> Result<u64> {
        let is_end = blocks.end << self.block_bits() >= self.data.size_bytes();
        if !self.growth.is_listed() || !is_end {
            return Ok(0);
        }
        let context = self.context();
        let mut state = self.state.write();
        let after = state.run(context, blocks.end)?;
        let is_hole = |run: &FileRun| run.backing == Backing::Hole;
        if !is_hole(&after) || !is_hole(&state.run(context, blocks.start)?) {
            return Ok(0);
        }
        let before = match blocks.start.checked_sub(1) {
            Some(before) => state.map.mapping_of(context, FileBlock(before))?,
            None => None,
        };
        let (geometry, space) = (context.geometry(), context.space());
        let free_blocks = context.mount().free_blocks();
        let free = free_blocks.sum().saturating_sub(space.floor());
        let growth = Growth {
            block_bits: geometry.block_bits,
            end: blocks.end,
            before: before.map_or(0, |before| before.count),
            free: u64::try_from(free).unwrap_or_default(),
            total: geometry.data_blocks(),
        };
        let wanted = self.superblock.growing.preallocation.blocks(&growth);
        let count = wanted.min(after.count);
        if count == 0 {
            return Ok(0);
        }
        let reserved = count + indirect_blocks(count, geometry);
        let amount = i64::try_from(reserved).unwrap_or(i64::MAX);
        if !free_blocks.try_sub(amount, space.floor()) {
            return Ok(0);
        }
        state.delayed.reserve_ahead(reserved);
        Ok(count)
    }

    /// Returns what was reserved for the end of the file.
    pub(super) fn return_ahead(&self) {
        let reserved = self.state.write().delayed.take_ahead();
        let reserved = i64::try_from(reserved).unwrap_or(i64::MAX);
        self.context().mount().free_blocks().add(reserved);
    }

    /// Does the work once more where it found no space, if what files have beyond their end is space. The inode lock is
    /// held, and no other.
    pub(super) fn retry_without_eof_blocks<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(Error::Condition(Condition::NoSpace)) if self.free_eof_blocks_of_all() => work(),
            done => done,
        }
    }

    fn free_eof_blocks_of_all(&self) -> bool {
        let is_own_freed = self.growth.is_listed() && self.end_growth().is_ok();
        self.superblock.free_all_eof_blocks() || is_own_freed
    }

    /// Frees what the file has beyond its end. The inode lock is held.
    pub(super) fn end_growth(&self) -> Result<()> {
        if self.growth.is_listed() {
            self.superblock.growing.remove(self);
            self.free_eof_blocks()?;
        }
        Ok(())
    }

    /// Says in the inode that blocks beyond its end were asked for, which stay.
    pub(super) fn keep_eof_blocks(&self) -> Result<()> {
        if self.has_flag(InodeFlags::PREALLOC) {
            return Ok(());
        }
        self.end_growth()?;
        self.change(Cost::default(), |_, edit, _| {
            let flags = edit.inode().flags | InodeFlags::PREALLOC;
            edit.change(|bytes| {
                core_mut(bytes)?.core.flags.set(flags.bits());
                Some(())
            })
        })
    }

    /// Frees what the file has beyond its end at its first close.
    pub(in crate::ops) fn close_writer(&self) {
        if !self.growth.is_listed() || self.growth.was_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(_writer) = self.superblock.writers.try_enter() {
            self.superblock.growing.remove(self);
            // What stays is freed with the next that it gets.
            let _ = self.try_free_eof_blocks();
        }
    }

    /// Frees what lies beyond the end of the file. Returns whether it could: the file may be in use.
    fn try_free_eof_blocks(&self) -> Result<bool> {
        match self.order.try_write() {
            Some(_lock) => self.free_eof_blocks(),
            None => Ok(false),
        }
    }

    /// As [`try_free_eof_blocks`](Self::try_free_eof_blocks), with the inode lock held.
    fn free_eof_blocks(&self) -> Result<bool> {
        let Some(_alone) = self.data.mapping.try_write() else {
            return Ok(false);
        };
        let context = self.context();
        let first = self.data.size_bytes().div_ceil(1 << self.block_bits());
        {
            let state = self.state.read();
            // What was allocated on request stays.
            let is_kept = state.inode.flags.contains(InodeFlags::PREALLOC);
            if is_kept || state.map.end(context)? <= FileBlock(first) {
                return Ok(true);
            }
        }
        let mut end = FileBlock(u64::MAX);
        loop {
            let left = self.change(unmap_cost(), |change, edit, _| {
                change.unmap(edit, ForkKind::Data, FileBlock(first)..end, STEP_MAPPINGS)
            })?;
            match left {
                Unmapped::All => return Ok(true),
                Unmapped::Before(before) => end = before,
            }
        }
    }
}
