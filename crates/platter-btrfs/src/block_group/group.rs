//! One block group.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::{Mutex, MutexGuard, rank};
use platter_vfs::Result;

use super::persisted::{Insertion, Persisted, Recorded, Update};
use super::ranges::Ranges;
use crate::ondisk::LogicalAddr;
use crate::ondisk::block_group::BlockGroupItem;
use crate::ondisk::chunk_item::BlockGroupFlags;

/// Takes a piece of a free range, and the whole range.
type VisitFree<'v> = dyn FnMut(&Range<u64>, &Range<u64>) -> Result<()> + 'v;

/// Free ranges that are visited while others wait.
const VISITED_MAX: usize = 256;

/// How the space of a block group, or of several, is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceUse {
    /// All of it.
    pub total: u64,
    /// Extents that have items.
    pub used: u64,
    /// Extents that were allocated in the running transaction and have no items yet.
    pub reserved: u64,
    /// Extents that were freed in the running transaction, or in one that is being written: used by the last commit.
    pub pinned: u64,
    /// Free space that cannot be allocated, as its group is read-only.
    pub read_only: u64,
}

/// A block group.
///
/// # Invariants
/// - `used + reserved + pinned` is at most the length.
/// - The free ranges, once they were read, are those that are neither used, reserved nor pinned, except
///   for copies of the superblock.
pub struct BlockGroup {
    start: LogicalAddr,
    len_bytes: u64,
    chunk_object: u64,
    /// Bits of [`BlockGroupFlags`].
    flags: AtomicU64,
    /// The logical ranges that copies of the superblock make unusable.
    superblocks: Vec<Range<u64>>,
    /// Free space of the group.
    state: Mutex<State, { rank(9, 5) }>,
}

#[derive(Debug)]
struct State {
    used: u64,
    reserved: u64,
    pinned: u64,
    is_read_only: bool,
    /// Its items are being removed.
    is_removed: bool,
    /// The bytes that the table counts as free for it.
    counted: u64,
    /// What would have been unpinned since it keeps what is pinned.
    kept: Option<Ranges>,
    recorded: Recorded,
    /// `None` until they are needed.
    free: Option<Ranges>,
    /// Where the last allocation ended.
    cursor: u64,
}

impl State {
    fn is_unused(&self) -> bool {
        let has_item = matches!(self.recorded.persisted, Persisted::Item(_));
        let held = self.used + self.reserved + self.pinned;
        let is_held = self.is_read_only || self.kept.is_some();
        has_item && held == 0 && !is_held && !self.is_removed
    }
}

impl BlockGroup {
    /// The group that an item describes, which is in a tree or not.
    #[must_use]
    pub fn new(item: BlockGroupItem, is_persisted: bool, superblocks: Vec<Range<u64>>) -> Self {
        let persisted = if is_persisted {
            Persisted::Item(item)
        } else {
            Persisted::Absent
        };
        Self {
            start: item.start,
            len_bytes: item.len_bytes,
            chunk_object: item.chunk_object,
            flags: AtomicU64::new(item.flags.bits()),
            superblocks,
            state: Mutex::new(State {
                used: item.used_bytes,
                reserved: 0,
                pinned: 0,
                is_read_only: false,
                is_removed: false,
                counted: 0,
                kept: None,
                recorded: Recorded::new(persisted),
                free: None,
                cursor: item.start.0,
            }),
        }
    }

    /// The first address.
    #[must_use]
    pub fn start(&self) -> LogicalAddr {
        self.start
    }

    /// The length.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The address after the last.
    #[must_use]
    pub fn end(&self) -> LogicalAddr {
        LogicalAddr(self.start.0 + self.len_bytes)
    }

    /// What it holds, and how.
    #[must_use]
    pub fn flags(&self) -> BlockGroupFlags {
        BlockGroupFlags::from_bits_retain(self.flags.load(Ordering::Acquire))
    }

    /// Changes its profile.
    pub fn set_flags(&self, flags: BlockGroupFlags) {
        self.flags.store(flags.bits(), Ordering::Release);
    }

    /// Whether it can hold extents of such a type.
    #[must_use]
    pub fn holds(&self, kind: BlockGroupFlags) -> bool {
        self.flags().contains(kind)
    }

    /// How its space is used.
    #[must_use]
    pub fn space(&self) -> SpaceUse {
        let state = self.state.lock();
        let allocated = state.used + state.reserved + state.pinned;
        SpaceUse {
            total: self.len_bytes,
            used: state.used,
            reserved: state.reserved,
            pinned: state.pinned,
            read_only: if state.is_read_only {
                self.len_bytes.saturating_sub(allocated)
            } else {
                0
            },
        }
    }

    /// Lets nothing be allocated in it, or lets it again. Returns `false` if it is being removed.
    pub fn set_read_only(&self, is_read_only: bool) -> bool {
        let mut state = self.state.lock();
        state.is_read_only = is_read_only;
        !state.is_removed
    }

    /// Has what is freed stay pinned, until it is [no longer kept](Self::unpin_kept). Returns `false` if the group is being
    /// removed.
    pub fn keep_pinned(&self) -> bool {
        let mut state = self.state.lock();
        state.kept.get_or_insert_default();
        !state.is_removed
    }

    /// Unpins what was kept. Returns `false` if that cannot be.
    #[must_use]
    pub fn unpin_kept(&self) -> bool {
        let kept = self.state.lock().kept.take();
        let kept = kept.unwrap_or_default();
        let mut ranges = kept.iter();
        ranges.all(|range| self.unpin(range))
    }

    /// The bytes that can be allocated in it, in however many pieces.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_of(&self.state.lock())
    }

    fn free_of(&self, state: &State) -> u64 {
        if state.is_read_only || state.is_removed {
            return 0;
        }
        let held = state.used + state.reserved + state.pinned;
        self.usable_bytes().saturating_sub(held)
    }

    /// Passes what is counted as free for it, and what is to be, to `change`: no other thread does so meanwhile.
    pub(super) fn recount(&self, change: impl FnOnce(u64, u64)) {
        let mut state = self.state.lock();
        let now = self.free_of(&state);
        let before = std::mem::replace(&mut state.counted, now);
        if before != now {
            change(before, now);
        }
    }

    /// Whether nothing is allocated in it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.state.lock().is_read_only
    }

    /// What a tree says of it.
    #[must_use]
    pub fn persisted(&self) -> Persisted {
        self.state.lock().recorded.persisted
    }

    /// What the item should hold.
    fn desired(&self, state: &State) -> BlockGroupItem {
        BlockGroupItem {
            start: self.start,
            len_bytes: self.len_bytes,
            used_bytes: state.used,
            chunk_object: self.chunk_object,
            flags: self.flags(),
        }
    }

    /// Begins an update of the item. With `skips`, not if it holds what it should.
    pub fn begin_update(&self, skips: bool) -> Update<'_> {
        let mut state = self.state.lock();
        if state.is_removed {
            return Update::Unchanged;
        }
        let desired = self.desired(&state);
        state.recorded.begin_update(self, desired, skips)
    }

    /// Begins the insertion of the item.
    pub fn begin_insertion(&self) -> Insertion<'_> {
        let mut state = self.state.lock();
        let desired = self.desired(&state);
        state.recorded.begin_insertion(self, desired)
    }

    /// Whether nothing is in it and it has an item.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.state.lock().is_unused()
    }

    /// Lets nothing be allocated in it any more, nor its item be updated, if nothing is in it. Returns whether
    /// that is so.
    pub(super) fn withdraw(&self) -> bool {
        let mut state = self.state.lock();
        let is_unused = state.is_unused();
        state.is_removed |= is_unused;
        is_unused
    }

    /// As [`withdraw`](Self::withdraw), of a group that is held.
    pub(super) fn withdraw_held(&self) -> bool {
        let mut state = self.state.lock();
        let has_item = matches!(state.recorded.persisted, Persisted::Item(_));
        let is_empty = state.used + state.reserved + state.pinned == 0;
        let is_unused = has_item && is_empty && state.is_read_only && state.kept.is_none();
        state.is_removed |= is_unused;
        is_unused
    }

    /// Ends a change of the item that was begun.
    pub(super) fn end_change(&self, change: u64, is_done: bool) {
        self.state.lock().recorded.end(change, is_done);
    }

    /// The state with its free ranges, which `read` reads if they are not known.
    fn loaded(&self, read: &dyn Fn(&Self) -> Result<Ranges>) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        if state.free.is_none() {
            let mut free = read(self)?;
            for range in &self.superblocks {
                free.exclude(range);
            }
            state.free = Some(free);
        }
        Ok(state)
    }

    /// Reads the free ranges, if they are not known: before anything changes what they are read from.
    pub fn load(&self, read: &dyn Fn(&Self) -> Result<Ranges>) -> Result<()> {
        self.loaded(read).map(drop)
    }

    /// Calls `visit` with free ranges from `from` on, in pieces, and with the whole range that each is of, while none of
    /// them is allocated: up to `most` bytes and some ranges. Returns where to go on; `None` after the last one, where the
    /// free ranges are not known, and where the group is held, as what was freed in it may still be read.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn visit_free(
        &self,
        from: u64,
        most: u64,
        visit: &mut VisitFree<'_>,
    ) -> Result<Option<u64>> {
        let state = self.state.lock();
        let may_visit = !state.is_removed && !state.is_read_only;
        let free = state.free.as_ref().filter(|_| may_visit);
        let Some(free) = free else { return Ok(None) };
        let mut left = most;
        for (number, range) in free.since(from).enumerate() {
            let start = range.start.max(from);
            if left == 0 || number == VISITED_MAX {
                return Ok(Some(start));
            }
            let end = range.end.min(start.saturating_add(left));
            visit(&(start..end), &range)?;
            left -= end - start;
            if end < range.end {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Whether it is not in the table any more.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.state.lock().is_removed
    }

    /// Allocates a range. `None` if there is none so long.
    pub fn allocate(
        &self,
        len_bytes: u64,
        align: u64,
        read: &dyn Fn(&Self) -> Result<Ranges>,
    ) -> Result<Option<LogicalAddr>> {
        let mut state = self.loaded(read)?;
        if state.is_read_only || state.is_removed {
            return Ok(None);
        }
        let cursor = state.cursor;
        let Some(free) = &mut state.free else {
            return Ok(None);
        };
        let found = free.find(cursor, len_bytes, align);
        let found = found.or_else(|| free.find(self.start.0, len_bytes, align));
        let Some(range) = found else { return Ok(None) };
        free.remove(&range);
        state.cursor = range.end;
        state.reserved += len_bytes;
        Ok(Some(LogicalAddr(range.start)))
    }

    /// Allocates this range, if it is free.
    pub fn allocate_at(
        &self,
        range: &Range<u64>,
        read: &dyn Fn(&Self) -> Result<Ranges>,
    ) -> Result<bool> {
        let mut state = self.loaded(read)?;
        let is_free = state.free.as_mut().is_some_and(|free| free.remove(range));
        if is_free {
            state.reserved += range.end - range.start;
        }
        Ok(is_free)
    }

    /// The allocated range got an item. Returns `false` if that cannot be.
    #[must_use]
    pub fn commit_allocation(&self, len_bytes: u64) -> bool {
        let mut state = self.state.lock();
        let Some(reserved) = state.reserved.checked_sub(len_bytes) else {
            return false;
        };
        state.reserved = reserved;
        state.used += len_bytes;
        true
    }

    /// The allocated range is free again: no committed tree refers to it. Returns `false` if that cannot be.
    #[must_use]
    pub fn release(&self, range: Range<u64>) -> bool {
        let mut state = self.state.lock();
        let len_bytes = range.end - range.start;
        let Some(reserved) = state.reserved.checked_sub(len_bytes) else {
            return false;
        };
        state.reserved = reserved;
        // The next one is as near as this one was.
        state.cursor = state.cursor.min(range.start);
        state.free.as_mut().is_none_or(|free| free.add(range))
    }

    /// The allocated range will not get an item, and is not used before the next commit. Returns `false` if
    /// that cannot be.
    #[must_use]
    pub fn pin_allocation(&self, len_bytes: u64) -> bool {
        let mut state = self.state.lock();
        let Some(reserved) = state.reserved.checked_sub(len_bytes) else {
            return false;
        };
        state.reserved = reserved;
        state.pinned += len_bytes;
        true
    }

    /// An extent has no item any more. Its space is pinned. Returns `false` if that cannot be.
    #[must_use]
    pub fn free(&self, len_bytes: u64) -> bool {
        let mut state = self.state.lock();
        let Some(used) = state.used.checked_sub(len_bytes) else {
            return false;
        };
        state.used = used;
        state.pinned += len_bytes;
        true
    }

    /// A pinned range can be allocated, as the commit that does not use it is durable. Returns `false` if that cannot be.
    #[must_use]
    pub fn unpin(&self, range: Range<u64>) -> bool {
        self.unpin_with(range, &|_| ())
    }

    /// As [`unpin`](Self::unpin), with a call for what can be allocated, before it is, unless the group is held.
    #[must_use]
    pub(super) fn unpin_with(&self, range: Range<u64>, discard: &dyn Fn(&Range<u64>)) -> bool {
        let usable = self.usable_of(&range);
        let mut state = self.state.lock();
        if let Some(kept) = &mut state.kept {
            return kept.add(range);
        }
        let Some(pinned) = state.pinned.checked_sub(range.end - range.start) else {
            return false;
        };
        let is_free = |free: &Ranges| usable.iter().any(|part| free.intersects(&part));
        if state.free.as_ref().is_some_and(is_free) {
            return false;
        }
        // What is held is copied, with extents that were listed before they were freed.
        if !state.is_read_only {
            usable.iter().for_each(|part| discard(&part));
        }
        state.pinned = pinned;
        let free = state.free.as_mut();
        free.is_none_or(|free| usable.iter().all(|part| free.add(part)))
    }

    fn usable_of(&self, range: &Range<u64>) -> Ranges {
        let mut usable = Ranges::default();
        usable.add(range.clone());
        for superblock in &self.superblocks {
            usable.exclude(superblock);
        }
        usable
    }

    /// How many bytes are outside of the copies of the superblock.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        let superblocks = self.superblocks.iter().map(|it| it.end - it.start);
        self.len_bytes.saturating_sub(superblocks.sum())
    }

    /// The group of a chunk that was just allocated: all of it is free, and there is no item yet.
    #[must_use]
    pub fn empty(item: BlockGroupItem, superblocks: Vec<Range<u64>>) -> Self {
        let mut free = Ranges::default();
        free.add(item.start.0..item.start.0 + item.len_bytes);
        for superblock in &superblocks {
            free.exclude(superblock);
        }
        let mut group = Self::new(item, false, superblocks);
        group.state.get_mut().free = Some(free);
        group
    }
}

impl fmt::Debug for BlockGroup {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BlockGroup")
            .field("start", &self.start)
            .field("len_bytes", &self.len_bytes)
            .field("flags", &self.flags())
            .finish_non_exhaustive()
    }
}
