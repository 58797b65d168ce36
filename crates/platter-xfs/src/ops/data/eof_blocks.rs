//! Blocks beyond the end of a file, which it grows into: allocated with the blocks before them, and freed when the file
//! is closed, has not grown for a while, or others find no space.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::lock::Mutex;
use platter_vfs::file::{self, Backing, BlockRuns, FileBlocks, FileRun, write_back_files};
use platter_vfs::writing::{ListedInode, ReturnsSpace};
use platter_vfs::{Condition, Error, FileKind, Result};

use super::super::space::FreedSpace;
use super::super::{Inode, SuperBlock};
use super::steps::{self, STEP_MAPPINGS, unmap_cost};
use crate::change::{Unmapped, unmap};
use crate::ondisk::{FileBlock, ForkKind, InodeFlags};
use crate::preallocation::{Growth, Preallocation};

/// How long blocks beyond the end of a file stay that does not grow. Linux keeps them for five minutes, but only where
/// the file was not closed, which a mount without `OPEN` requests does not see.
const LIFETIME: Duration = Duration::from_secs(30);
/// Files that have blocks beyond their end at most: they stay in memory.
const FILES_MAX: usize = 1024;
/// Files that get nothing beyond their end.
const WITHOUT_GROWTH: InodeFlags = InodeFlags::EXTSIZE
    .union(InodeFlags::PREALLOC)
    .union(InodeFlags::REALTIME);
/// How often a thread that finds no space waits for files that others use this moment, and for how long.
const WAITS_MAX: u32 = 200;
const WAIT: Duration = Duration::from_millis(1);

/// The files of a filesystem that may have blocks beyond their end, those first that have had them for longest.
///
/// # Invariants
/// A file is on the list once, exactly as long as its [`FileGrowth`] says so, which changes with the list locked.
#[derive(Debug)]
pub(in crate::ops) struct GrowingFiles {
    preallocation: Preallocation,
    /// Files that may have blocks beyond their end.
    files: Mutex<Listed>,
    /// Threads that find no space: until they do, no file gets blocks beyond its end.
    short_of_space: AtomicUsize,
}

/// A thread that finds no space.
struct Shortage<'g>(&'g GrowingFiles);

#[derive(Debug, Default)]
struct Listed {
    inodes: VecDeque<Arc<Inode>>,
    is_closed: bool,
}

/// What is kept of how a file grows.
#[derive(Debug, Default)]
pub(in crate::ops) struct FileGrowth {
    is_listed: AtomicBool,
    /// Nothing lies beyond its end that a crash left.
    is_checked: AtomicBool,
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
            short_of_space: AtomicUsize::new(0),
        }
    }

    fn begin_shortage(&self) -> Shortage<'_> {
        self.short_of_space.fetch_add(1, Ordering::AcqRel);
        Shortage(self)
    }

    fn is_short_of_space(&self) -> bool {
        self.short_of_space.load(Ordering::Acquire) > 0
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

    /// The files of the list that are due. They stay on it until what they have is freed.
    fn due(&self, is_due: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let files = self.files.lock();
        let due = files.inodes.iter().filter(|inode| is_due(inode));
        due.cloned().collect()
    }

    /// Takes all files off the list, to which none is added any more.
    pub(in crate::ops) fn close(&self) -> VecDeque<Arc<Inode>> {
        let mut files = self.files.lock();
        files.is_closed = true;
        let all = std::mem::take(&mut files.inodes);
        for inode in &all {
            inode.growth.is_listed.store(false, Ordering::Release);
        }
        all
    }
}

impl Drop for Shortage<'_> {
    fn drop(&mut self) {
        self.0.short_of_space.fetch_sub(1, Ordering::AcqRel);
    }
}

impl FileGrowth {
    /// Whether the file may have blocks beyond its end, or get some, which it loses later.
    pub(in crate::ops) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }
}

impl ReturnsSpace for SuperBlock {
    fn returned(&self) -> u64 {
        FreedSpace(self).returned()
    }

    fn return_freed(&self) -> Result<()> {
        let free_blocks = self.context.mount().free_blocks();
        let before = free_blocks.sum();
        free_all(self);
        FreedSpace(self).return_freed()?;
        if free_blocks.sum() > before {
            // Reservations that were not needed are in no checkpoint.
            self.context.space().note_returned();
        }
        Ok(())
    }
}

/// Writes all dirty files back: what is reserved for their trees of mappings is more than these need in the end. An
/// error is reported by the next sync of the file that it belongs to. No lock is held, or inode locks.
fn write_back_all(superblock: &SuperBlock) {
    let _ = superblock.dirty.write_back(write_back_files);
}

/// Frees what files have beyond their end that have not grown for a while. No lock is held.
pub(crate) fn free_idle(superblock: &SuperBlock) {
    // What is frozen stays as it is.
    let Some(_writer) = superblock.writers.try_enter() else {
        return;
    };
    let now = monotonic_millis(superblock);
    let lifetime = u64::try_from(LIFETIME.as_millis()).unwrap_or(u64::MAX);
    free_due(superblock, |inode| {
        let written = inode.growth.written.load(Ordering::Relaxed);
        now.saturating_sub(written) >= lifetime
    });
}

/// Writes dirty files back, frees what files have beyond their end, and waits for those that have something there and
/// are in use. No lock is held, or locks of directories.
fn free_all(superblock: &SuperBlock) {
    let _shortage = superblock.growing.begin_shortage();
    write_back_all(superblock);
    for _ in 0..WAITS_MAX {
        if !free_due(superblock, |_| true) {
            return;
        }
        thread::sleep(WAIT);
    }
}

/// Frees what files have beyond their end that are not in use. No lock is held, and no writer is inside the gate.
pub(crate) fn trim(superblock: &SuperBlock) {
    free_due(superblock, |_| true);
}

/// Ends preallocation, and frees what files have beyond their end.
pub(crate) fn end_preallocation(superblock: &SuperBlock) {
    for inode in superblock.growing.close() {
        if let Some(_lock) = inode.order.try_write() {
            // What stays is unwritten, and harmless.
            let _ = free(&inode);
        }
    }
}

/// Frees what files have beyond their end that are due. Returns whether any that has something there was in use, and
/// keeps it: one that is on the list for what it may get is not worth waiting for, such as that of another thread which
/// finds no space.
fn free_due(superblock: &SuperBlock, is_due: impl Fn(&Inode) -> bool) -> bool {
    let mut is_any_left = false;
    for inode in superblock.growing.due(is_due) {
        // One that has an error stays on the list, but is not waited for.
        is_any_left |= matches!(try_end_growth(&inode), Ok(false)) && has_any(&inode);
    }
    is_any_left
}

fn monotonic_millis(superblock: &SuperBlock) -> u64 {
    u64::try_from(superblock.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
}

/// Records that these blocks make the file longer, if they do: it gets blocks beyond its end when they are written
/// back. The inode lock is held.
pub(super) fn note_growth(file: &Inode, blocks: &Range<u64>) {
    let growing = &file.superblock.growing;
    if blocks.start > end_block(file).0 {
        // They would stay in the hole. Where they do, they read as zeros.
        let _ = end_growth(file);
    }
    if !file.growth.is_listed() {
        let is_due = grows(file, blocks) || has_leftovers(file);
        // The caller uses the inode, so it is there.
        let found = is_due.then(|| file.superblock.inodes.get(file.number.id()));
        match found.flatten() {
            Some(inode) => growing.add(inode),
            None => return,
        }
    }
    let now = monotonic_millis(&file.superblock);
    file.growth.written.store(now, Ordering::Relaxed);
}

/// Whether these blocks make a file longer that gets blocks beyond its end.
fn grows(file: &Inode, blocks: &Range<u64>) -> bool {
    let inode = &file.state.read().inode;
    let size = inode.size_bytes;
    // While there is too little space, it would get nothing.
    !file.superblock.growing.is_short_of_space()
        && blocks.end > size.div_ceil(1 << file.block_bits())
        && file.superblock.growing.preallocation.is_due(size)
        && !inode.flags.intersects(WITHOUT_GROWTH)
        && inode.links != 0
}

/// Whether a crash left blocks beyond the end of a file. One that has none is not examined again.
fn has_leftovers(file: &Inode) -> bool {
    if file.growth.is_checked.load(Ordering::Acquire) || file.kind != FileKind::Regular {
        return false;
    }
    let state = file.state.read();
    // Those of append-only files stay, as in Linux.
    let no = WITHOUT_GROWTH.union(InodeFlags::APPEND);
    if state.inode.flags.intersects(no) || state.inode.links == 0 {
        return false;
    }
    match state.map.end(file.context()) {
        Ok(end) if end > end_block(file) => true,
        Ok(_) => {
            file.growth.is_checked.store(true, Ordering::Release);
            false
        }
        Err(_) => false,
    }
}

/// Whether the file may have blocks beyond its end that were not asked for.
fn may_have_any(file: &Inode) -> bool {
    file.growth.is_listed() || has_leftovers(file)
}

/// Whether the file has blocks beyond its end that were not asked for, or is getting some.
fn has_any(file: &Inode) -> bool {
    let state = file.state.read();
    let is_kept = state.inode.flags.contains(InodeFlags::PREALLOC);
    let has_any = || {
        let end = state.map.end(file.context());
        end.is_ok_and(|end| end > end_block(file))
    };
    state.delayed.has_ahead() || !is_kept && has_any()
}

/// The first block beyond the end of the file.
fn end_block(file: &Inode) -> FileBlock {
    FileBlock(file.data.size_bytes().div_ceil(1 << file.block_bits()))
}

/// Reserves blocks for the end of the file, to be allocated after some that are about to be. Returns how many.
pub(super) fn reserve_ahead(file: &Inode, blocks: &Range<u64>) -> Result<u64> {
    let is_end = blocks.end << file.block_bits() >= file.data.size_bytes();
    if !file.growth.is_listed() || !is_end {
        return Ok(0);
    }
    let context = file.context();
    let mut state = file.state.write();
    let (growing, inode) = (&file.superblock.growing, &state.inode);
    // A thread that becomes short of space later finds with the state locked what is reserved here.
    if growing.is_short_of_space()
        || !growing.preallocation.is_due(inode.size_bytes)
        || inode.flags.intersects(WITHOUT_GROWTH)
    {
        return Ok(0);
    }
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
    let wanted = growing.preallocation.blocks(&growth);
    let count = wanted.min(after.count);
    if count == 0 {
        return Ok(0);
    }
    // What is allocated is one more extent.
    let reserved = count + state.mapping_tree(context).growth_max(1, 1);
    let amount = i64::try_from(reserved).unwrap_or(i64::MAX);
    if !free_blocks.try_sub(amount, space.floor()) {
        return Ok(0);
    }
    state.delayed.reserve_ahead(reserved);
    Ok(count)
}

/// Returns what was reserved for the end of the file.
pub(super) fn return_ahead(file: &Inode) {
    let reserved = file.state.write().delayed.take_ahead();
    let reserved = i64::try_from(reserved).unwrap_or(i64::MAX);
    file.context().mount().free_blocks().add(reserved);
}

/// Does the work again where it found no space, once dirty files are written back, and without what files have beyond
/// their end. The inode lock is held, and no other but those of files that have nothing there.
pub(in crate::ops) fn retry_without<T>(file: &Inode, work: impl Fn() -> Result<T>) -> Result<T> {
    let is_no_space = |done: &Result<T>| matches!(done, Err(Error::Condition(Condition::NoSpace)));
    let done = work();
    if !is_no_space(&done) {
        return done;
    }
    let _shortage = file.superblock.growing.begin_shortage();
    // Others may have more where this fails.
    let _ = end_growth(file);
    write_back_all(&file.superblock);
    // It may have no name, and be on no list. An error is reported by its next sync.
    if file.pages().is_dirty() {
        let _ = file::write_back(file);
    }
    let mut waits = 0;
    loop {
        let is_other = |inode: &Inode| inode.number != file.number;
        let is_any_left = free_due(&file.superblock, is_other);
        // Also where another thread has freed it all.
        let done = work();
        if !is_no_space(&done) || !is_any_left || waits == WAITS_MAX {
            return done;
        }
        thread::sleep(WAIT);
        waits += 1;
    }
}

/// Frees what the file has beyond its end, and takes it off the list. The inode lock is held.
pub(super) fn end_growth(file: &Inode) -> Result<()> {
    if may_have_any(file) {
        free(file)?;
    }
    Ok(())
}

/// Frees what the file has beyond its end, before blocks are moved into its place. The inode lock is held, and the
/// mapping is locked.
pub(super) fn end_growth_locked(file: &Inode) -> Result<()> {
    if may_have_any(file) {
        free_locked(file)?;
    }
    Ok(())
}

/// Frees what a range has beyond the end of the file, also what was allocated on request. No lock is held.
pub(in crate::ops) fn punch(file: &Inode, range: &Range<u64>) -> Result<()> {
    file.check_write()?;
    let _lock = file.order.write();
    if file.is_append_only() || range.end > file.size_bytes_max() {
        return Ok(());
    }
    let bits = file.block_bits();
    let first = file.data.size_bytes().max(range.start).div_ceil(1 << bits);
    let blocks = first..range.end >> bits;
    let has_any = {
        let state = file.state.read();
        let next = state.map.next(file.context(), FileBlock(first))?;
        next.is_some_and(|next| next.first.0 < blocks.end)
    };
    if !has_any {
        return Ok(());
    }
    {
        let _alone = file.data.mapping.write();
        steps::unmap_all(file, blocks)?;
    }
    file.touch()
}

/// Takes a file off the list that has nothing beyond its end any more since it was truncated. Its next close frees
/// what it gets until then. The mapping is locked.
pub(super) fn note_truncation(file: &Inode) {
    file.superblock.growing.remove(file);
    file.growth.was_closed.store(false, Ordering::Release);
}

/// Frees what the file has beyond its end at its first close, also what a crash left.
pub(in crate::ops) fn close(file: &Inode) {
    if file.growth.was_closed.load(Ordering::Acquire)
        || !file.superblock.can_write()
        || !may_have_any(file)
    {
        return;
    }
    let Some(_writer) = file.superblock.writers.try_enter() else {
        return;
    };
    // Where another uses it, it is left to that one's close, or until it is idle.
    if matches!(try_end_growth(file), Ok(true)) {
        file.growth.was_closed.store(true, Ordering::Release);
    }
}

/// As [`end_growth`], unless the file is in use. Returns whether it is not.
fn try_end_growth(file: &Inode) -> Result<bool> {
    let lock = file.order.try_write();
    if lock.is_some() {
        end_growth(file)?;
    }
    Ok(lock.is_some())
}

/// Frees what lies beyond the end of the file, unless it was allocated on request, and takes the file off the list.
/// The inode lock is held.
pub(super) fn free(file: &Inode) -> Result<()> {
    let _alone = file.data.mapping.write();
    free_locked(file)
}

/// As [`free`], with the mapping locked: writeback gives the file no more, nor later, since it is off the list then.
fn free_locked(file: &Inode) -> Result<()> {
    let context = file.context();
    let first = end_block(file);
    // Until all is free.
    file.growth.is_checked.store(false, Ordering::Release);
    let has_any = {
        let state = file.state.read();
        let is_kept = state.inode.flags.contains(InodeFlags::PREALLOC);
        !is_kept && state.map.end(context)? > first
    };
    let mut end = has_any.then_some(FileBlock(u64::MAX));
    while let Some(before) = end {
        let left = file.change(unmap_cost(), |change, edit, _| {
            unmap(change, edit, ForkKind::Data, first..before, STEP_MAPPINGS)
        })?;
        end = match left {
            Unmapped::All => None,
            Unmapped::Before(before) => Some(before),
        };
    }
    file.growth.is_checked.store(true, Ordering::Release);
    file.superblock.growing.remove(file);
    Ok(())
}
