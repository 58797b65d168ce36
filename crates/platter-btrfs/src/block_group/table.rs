//! All block groups, those whose items are due, and the choice of one to allocate in.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use platter_block::lock::{Mutex, RwLock, rank};
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::{Condition, Result};

use super::group::{BlockGroup, SpaceUse};
use super::ranges::Ranges;
use crate::ondisk::LogicalAddr;
use crate::ondisk::chunk_item::BlockGroupFlags;

rules! {
    /// The rules of the space in block groups.
    pub enum SpaceRule of "block group" {
        /// An extent is in a block group.
        NoGroup => "extent is outside of all block groups",
        /// What is freed was used.
        Account => "used does not match the extents of the block group",
    }
}

/// What the updates of items of block groups came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockGroupCounters {
    /// Groups whose use changed.
    pub dirty: u64,
    /// Of these, groups whose items hold what they should.
    pub skipped: u64,
    /// Items that were written.
    pub written: u64,
    /// Items that were inserted.
    pub inserted: u64,
    /// Rounds until no group was left.
    pub rounds: u64,
    /// Tree blocks that were copied meanwhile.
    pub blocks_copied: u64,
    /// References that were queued meanwhile.
    pub refs_created: u64,
    /// The time that it took.
    pub nanoseconds: u64,
}

impl std::ops::AddAssign for BlockGroupCounters {
    fn add_assign(&mut self, other: Self) {
        self.dirty += other.dirty;
        self.skipped += other.skipped;
        self.written += other.written;
        self.inserted += other.inserted;
        self.rounds += other.rounds;
        self.blocks_copied += other.blocks_copied;
        self.refs_created += other.refs_created;
        self.nanoseconds += other.nanoseconds;
    }
}

/// The block groups of a filesystem.
#[derive(Debug)]
pub struct BlockGroups {
    /// By address.
    groups: RwLock<Vec<Arc<BlockGroup>>, { rank(9, 4) }>,
    /// Groups whose use changed since their items were last compared.
    dirty: Mutex<BTreeSet<LogicalAddr>>,
    /// Where the last allocation for metadata, data and the chunk tree was.
    last: [AtomicUsize; 3],
    /// Bytes that can be allocated for metadata, data and the chunk tree.
    free: [AtomicU64; 3],
}

/// The types, in the order of what is kept by type.
const KINDS: [BlockGroupFlags; 3] = [
    BlockGroupFlags::METADATA,
    BlockGroupFlags::DATA,
    BlockGroupFlags::SYSTEM,
];

impl BlockGroups {
    /// These groups.
    #[must_use]
    pub fn new(groups: Vec<BlockGroup>) -> Self {
        let table = Self {
            groups: RwLock::default(),
            dirty: Mutex::default(),
            last: Default::default(),
            free: Default::default(),
        };
        for group in groups {
            table.add(group);
        }
        table
    }

    /// Adds a group.
    pub fn add(&self, group: BlockGroup) {
        self.count_free(&group);
        let mut groups = self.groups.write();
        let at = groups.partition_point(|it| it.start() < group.start());
        groups.insert(at, Arc::new(group));
    }

    /// Removes a group that nothing is in, unless it is the only one of its type and profile. Returns whether it
    /// did.
    pub fn withdraw(&self, group: &BlockGroup) -> bool {
        let mut groups = self.groups.write();
        let same = groups.iter().filter(|it| it.flags() == group.flags());
        if same.count() < 2 || !group.withdraw() {
            return false;
        }
        groups.retain(|it| it.start() != group.start());
        self.count_free(group);
        true
    }

    /// Removes a group that is [held](Self::hold), and that nothing is in. Returns whether it did.
    pub fn withdraw_held(&self, group: &BlockGroup) -> bool {
        let mut groups = self.groups.write();
        if !group.withdraw_held() {
            return false;
        }
        groups.retain(|it| it.start() != group.start());
        self.count_free(group);
        true
    }

    /// Lets nothing be allocated in a group, nor be counted as free, until it is [let go](Self::let_go). Returns
    /// `false` if the group is being removed.
    pub fn hold(&self, group: &BlockGroup) -> bool {
        let is_held = group.set_read_only(true);
        self.count_free(group);
        is_held
    }

    /// Ends a [hold](Self::hold).
    pub fn let_go(&self, group: &BlockGroup) {
        group.set_read_only(false);
        self.count_free(group);
    }

    /// Unpins what a group [kept](BlockGroup::keep_pinned).
    pub fn unpin_kept(&self, group: &BlockGroup) -> Result<()> {
        let is_unpinned = group.unpin_kept();
        self.count_free(group);
        if is_unpinned {
            return Ok(());
        }
        Err(Corrupt::new(Locus::block(group.start().0), SpaceRule::Account).into())
    }

    /// Brings what is counted as free up to date with a group. Threads may come in another order than their
    /// changes did.
    fn count_free(&self, group: &BlockGroup) {
        group.recount(|before, now| {
            for (kind, free) in KINDS.iter().zip(&self.free) {
                if group.holds(*kind) {
                    free.fetch_add(now.wrapping_sub(before), Ordering::AcqRel);
                }
            }
        });
    }

    /// How many bytes can be allocated for a type, in however many pieces.
    #[must_use]
    pub fn free_bytes(&self, kind: BlockGroupFlags) -> u64 {
        let [metadata, data, system] = &self.free;
        of_kind(kind, metadata, data, system).load(Ordering::Acquire)
    }

    /// All groups in order of address.
    pub fn iter(&self) -> impl Iterator<Item = Arc<BlockGroup>> + use<> {
        self.groups.read().clone().into_iter()
    }

    /// The group that an extent is in.
    pub fn find(&self, address: LogicalAddr, len_bytes: u64) -> Result<Arc<BlockGroup>> {
        let groups = self.groups.read();
        let after = groups.partition_point(|group| group.start() <= address);
        let group = after.checked_sub(1).and_then(|at| groups.get(at));
        let end = address.checked_add(len_bytes);
        let group = group.filter(|group| end.is_some_and(|end| end <= group.end()));
        let missing = || Corrupt::new(Locus::block(address.0), SpaceRule::NoGroup);
        Ok(group.map(Arc::clone).ok_or_else(missing)?)
    }

    /// How the space of the groups of a type is used.
    #[must_use]
    pub fn space(&self, kind: BlockGroupFlags) -> SpaceUse {
        let groups = self.iter().filter(|group| group.holds(kind));
        groups.fold(SpaceUse::default(), |sum, group| {
            let space = group.space();
            SpaceUse {
                total: sum.total + space.total,
                used: sum.used + space.used,
                reserved: sum.reserved + space.reserved,
                pinned: sum.pinned + space.pinned,
                read_only: sum.read_only + space.read_only,
            }
        })
    }

    /// Bytes of all extents with items.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.iter().map(|group| group.space().used).sum()
    }

    /// Allocates a range in a group of a type: in the one of the last allocation if there is space, else in
    /// the next.
    ///
    /// # Errors
    /// `ENOSPC`; those of `read`.
    pub fn allocate(
        &self,
        kind: BlockGroupFlags,
        len_bytes: u64,
        align: u64,
        read: &dyn Fn(&BlockGroup) -> Result<Ranges>,
    ) -> Result<LogicalAddr> {
        // Groups that are added meanwhile may be found or not.
        let groups = self.groups.read().clone();
        let count = groups.len();
        let last = self.last_of(kind).load(Ordering::Relaxed);
        for at in (0..count).map(|step| (last + step) % count.max(1)) {
            let Some(group) = groups.get(at).filter(|group| group.holds(kind)) else {
                continue;
            };
            if let Some(found) = group.allocate(len_bytes, align, read)? {
                self.last_of(kind).store(at, Ordering::Relaxed);
                self.count_free(group);
                return Ok(found);
            }
        }
        Err(Condition::NoSpace.into())
    }

    /// As [`allocate`](Self::allocate), in one of these groups alone; `None` if none has the space.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn allocate_in(
        &self,
        among: &BTreeSet<LogicalAddr>,
        (len_bytes, align): (u64, u64),
        read: &dyn Fn(&BlockGroup) -> Result<Ranges>,
    ) -> Result<Option<LogicalAddr>> {
        let groups = self.groups.read().clone();
        for group in groups.iter().filter(|it| among.contains(&it.start())) {
            if let Some(found) = group.allocate(len_bytes, align, read)? {
                self.count_free(group);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Allocates this range, if it is free.
    pub fn allocate_at(
        &self,
        range: &Range<u64>,
        read: &dyn Fn(&BlockGroup) -> Result<Ranges>,
    ) -> Result<bool> {
        let len_bytes = range.end - range.start;
        let group = self.find(LogicalAddr(range.start), len_bytes)?;
        let is_free = group.allocate_at(range, read)?;
        if is_free {
            self.count_free(&group);
        }
        Ok(is_free)
    }

    fn last_of(&self, kind: BlockGroupFlags) -> &AtomicUsize {
        let [metadata, data, system] = &self.last;
        of_kind(kind, metadata, data, system)
    }

    /// An allocated range got an item.
    pub fn commit_allocation(&self, address: LogicalAddr, len_bytes: u64) -> Result<()> {
        self.change(address, len_bytes, |group| {
            group.commit_allocation(len_bytes)
        })
    }

    /// An allocated range will not be used.
    pub fn release(&self, address: LogicalAddr, len_bytes: u64) -> Result<()> {
        let range = address.0..address.0 + len_bytes;
        let group = self.account(address, len_bytes, |group| group.release(range))?;
        self.count_free(&group);
        Ok(())
    }

    /// An allocated range will not be used, but may have been written.
    pub fn pin_allocation(&self, address: LogicalAddr, len_bytes: u64) -> Result<()> {
        self.account(address, len_bytes, |group| group.pin_allocation(len_bytes))
            .map(drop)
    }

    /// An extent has no item any more.
    pub fn free(&self, address: LogicalAddr, len_bytes: u64) -> Result<()> {
        self.change(address, len_bytes, |group| group.free(len_bytes))
    }

    /// A pinned range can be used.
    pub fn unpin(&self, range: &Range<u64>) -> Result<()> {
        self.unpin_with(range, &|_| ())
    }

    /// A pinned range can be used. Calls `discard` with what can be, before it is.
    pub fn unpin_with(&self, range: &Range<u64>, discard: &dyn Fn(&Range<u64>)) -> Result<()> {
        // What was pinned of two neighbours is one range.
        let mut at = range.start;
        while at < range.end {
            let group = self.find(LogicalAddr(at), 1)?;
            let end = range.end.min(group.end().0);
            let is_unpinned = group.unpin_with(at..end, discard);
            self.count_free(&group);
            if !is_unpinned {
                return Err(Corrupt::new(Locus::block(at), SpaceRule::Account).into());
            }
            at = end;
        }
        Ok(())
    }

    fn change(
        &self,
        address: LogicalAddr,
        len_bytes: u64,
        change: impl FnOnce(&BlockGroup) -> bool,
    ) -> Result<()> {
        let group = self.account(address, len_bytes, change)?;
        self.mark_dirty(&group);
        Ok(())
    }

    fn account(
        &self,
        address: LogicalAddr,
        len_bytes: u64,
        change: impl FnOnce(&BlockGroup) -> bool,
    ) -> Result<Arc<BlockGroup>> {
        let group = self.find(address, len_bytes)?;
        if change(&group) {
            return Ok(group);
        }
        Err(Corrupt::new(Locus::block(address.0), SpaceRule::Account).into())
    }

    /// Takes the groups whose use changed, in order of address.
    #[must_use]
    pub fn take_dirty(&self) -> Vec<Arc<BlockGroup>> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        let find = |start| self.find(start, 1).ok();
        dirty.into_iter().filter_map(find).collect()
    }

    /// Says that the item of a group is due.
    pub fn mark_dirty(&self, group: &BlockGroup) {
        self.dirty.lock().insert(group.start());
    }

    /// Whether the use of a group changed.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.lock().is_empty()
    }
}

/// What is kept of a type.
fn of_kind<'k, T>(kind: BlockGroupFlags, metadata: &'k T, data: &'k T, system: &'k T) -> &'k T {
    if kind.contains(BlockGroupFlags::DATA) {
        data
    } else if kind.contains(BlockGroupFlags::SYSTEM) {
        system
    } else {
        metadata
    }
}
