//! The groups of a mount, each in use by one thread at a time that changes it; with its free blocks that are not to
//! be allocated now: those that are claimed for data that is being written, and those that were freed and may come
//! back with a crash.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use platter_block::lock::{Condvar, Mutex, rank};
use platter_vfs::writing::RangeSet;

use crate::ondisk::{AgBlock, AgNr, Agf, Agi};
use crate::txn::Log;
use crate::xfs_mount::{Padded, Shelves};

/// Blocks that are claimed for data, and not in any transaction yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The group.
    pub ag: AgNr,
    /// The first block.
    pub start: AgBlock,
    /// How many.
    pub count: u32,
}

/// The groups of a mount.
#[derive(Debug, Default)]
pub struct Space {
    groups: Shelves<Padded<Slot>>,
    /// Free blocks that files cannot have: what the B-trees of groups may need, and the reserve pool.
    floor: AtomicI64,
    /// Blocks of the floor that are the reserve pool.
    pool: AtomicI64,
    /// What files held before this mount is never overwritten.
    keeps_old: AtomicBool,
    counts: Padded<Counts>,
}

platter_cache::layout!(
    /// Of the groups of a mount.
    pub(crate) LAYOUT: Space {
        ReadOnly: groups;
        Rare: floor, pool, keeps_old;
        Hot: counts;
    }
);

/// What changes count that free blocks.
#[derive(Debug, Default)]
struct Counts {
    /// Freed extents that may come back with a crash.
    busy: AtomicUsize,
    /// Extents that a crash may bring back to others.
    unshared: AtomicUsize,
    /// How often blocks that were freed or reserved could be allocated again.
    returned: AtomicU64,
    /// Changes that were begun again since another one had a group.
    conflicts: AtomicU64,
}

/// Where a group lies while no thread has it.
#[derive(Debug)]
struct Slot {
    /// Held to take the group and to give it back.
    place: Mutex<Place, { rank(8, 1) }>,
    returned: Condvar,
}

#[derive(Debug)]
struct Place {
    /// Absent while a thread has the group.
    holds: Option<Box<Holds>>,
    waiting: u32,
}

/// What a thread has with a group.
#[derive(Debug, Default)]
pub struct Holds {
    /// Claimed blocks.
    pub(crate) claims: RangeSet<u32>,
    /// Freed blocks, each extent with the checkpoint that freed it.
    busy: Vec<(u64, Range<u32>)>,
    /// Blocks that one file has now of several, or at another place, each extent with the checkpoint that says so.
    unshared: Vec<(u64, Range<u32>)>,
    /// Those freed blocks that metadata may not have either: they are claimed until then.
    withheld: Vec<(u64, Range<u32>)>,
    /// What the headers of the group hold, as it was last committed.
    pub(crate) headers: Option<Arc<Headers>>,
}

/// The headers and the free list of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) agf: Agf,
    pub(crate) agi: Agi,
    /// Changed by few changes of a group: shared with the versions before.
    pub(crate) free_list: Arc<VecDeque<AgBlock>>,
    pub(crate) limits: TreeLimits,
}

/// What the B-trees of a group may come to need, by the length of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeLimits {
    /// The most levels of the trees that take their blocks from the free list: those of free space, and that of owners.
    pub(crate) levels: [u32; 3],
    /// The blocks of the trees of owners, of reference counts and of free inodes.
    pub(crate) blocks: [u64; 3],
}

/// A group that this thread has, until this is dropped.
#[derive(Debug)]
pub struct Held {
    space: Arc<Space>,
    ag: AgNr,
    holds: Option<Box<Holds>>,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            place: Mutex::new(Place {
                holds: Some(Box::default()),
                waiting: 0,
            }),
            returned: Condvar::new(),
        }
    }
}

impl Space {
    /// Waits for a group. The thread has none with a higher number.
    pub fn lock(self: &Arc<Self>, ag: AgNr) -> Held {
        let slot = self.slot(ag);
        let mut place = slot.place.lock();
        let holds = loop {
            if let Some(holds) = place.holds.take() {
                break holds;
            }
            place.waiting += 1;
            slot.returned.wait(&mut place);
            place.waiting -= 1;
        };
        self.held(ag, holds)
    }

    /// Takes a group unless another thread has it.
    pub fn try_lock(self: &Arc<Self>, ag: AgNr) -> Option<Held> {
        let holds = self.slot(ag).place.lock().holds.take()?;
        Some(self.held(ag, holds))
    }

    fn held(self: &Arc<Self>, ag: AgNr, holds: Box<Holds>) -> Held {
        Held {
            space: Arc::clone(self),
            ag,
            holds: Some(holds),
        }
    }

    fn slot(&self, ag: AgNr) -> &Slot {
        self.groups.get(ag, Padded::default)
    }

    /// Counts a change that is begun again.
    pub(crate) fn note_conflict(&self) {
        self.counts.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes that were begun again since another one had a group.
    #[must_use]
    pub fn conflicts(&self) -> u64 {
        self.counts.conflicts.load(Ordering::Relaxed)
    }

    /// Whether blocks were freed that may not be allocated yet.
    pub(crate) fn has_busy(&self) -> bool {
        !self.keeps_old() && self.counts.busy.load(Ordering::Acquire) > 0
    }

    /// Looks in all groups for freed blocks that may be allocated again.
    pub(crate) fn finish(self: &Arc<Self>, groups: impl Iterator<Item = AgNr>, log: &Log) {
        for ag in groups {
            self.lock(ag).finish(log);
        }
    }

    /// For how many of some blocks of a group holds what does of the first: whether others had it, or another place in its
    /// file, until a checkpoint that is not durable. After a crash they have it again: it must not be overwritten.
    pub(crate) fn may_be_shared_again(
        self: &Arc<Self>,
        ag: AgNr,
        blocks: &Range<u64>,
        log: &Log,
    ) -> (u64, bool) {
        let all = blocks.end.saturating_sub(blocks.start);
        if self.counts.unshared.load(Ordering::Acquire) == 0 {
            return (all, false);
        }
        let mut held = self.lock(ag);
        held.finish_unshared(log);
        if held.holds().unshared.is_empty() {
            return (all, false);
        }
        let mut unshared = RangeSet::default();
        for (_, extent) in &held.holds().unshared {
            unshared.insert(extent.clone());
        }
        let first = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        let found = unshared.next(first(blocks.start));
        let found = found.map(|found| u64::from(found.start)..u64::from(found.end));
        match found {
            Some(found) if found.start <= blocks.start => (all.min(found.end - blocks.start), true),
            Some(found) => (all.min(found.start - blocks.start), false),
            None => (all, false),
        }
    }

    /// How often blocks that were freed or reserved could be allocated again.
    pub(crate) fn returned(&self) -> u64 {
        self.counts.returned.load(Ordering::Acquire)
    }

    /// Counts free blocks that can be allocated again and were in no checkpoint.
    pub(crate) fn note_returned(&self) {
        self.counts.returned.fetch_add(1, Ordering::AcqRel);
    }

    /// Has contents never overwrite what files held before, nor blocks that were freed.
    pub(crate) fn keep_old(&self) {
        self.keeps_old.store(true, Ordering::Relaxed);
    }

    /// Whether contents never overwrite what files held before.
    pub(crate) fn keeps_old(&self) -> bool {
        self.keeps_old.load(Ordering::Relaxed)
    }

    /// The free blocks that files cannot have.
    pub(crate) fn floor(&self) -> i64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Has so many free blocks as a reserve pool, in addition to the floor.
    pub(crate) fn keep_pool(&self, blocks: i64) {
        self.pool.store(blocks, Ordering::Release);
        self.add_to_floor(blocks);
    }

    /// Whether there is a reserve pool.
    pub(crate) fn has_pool(&self) -> bool {
        self.pool.load(Ordering::Acquire) > 0
    }

    /// Changes the floor.
    pub(crate) fn add_to_floor(&self, change: i64) {
        self.floor.fetch_add(change, Ordering::AcqRel);
    }
}

impl Held {
    /// What the thread has with the group.
    pub(crate) fn holds(&mut self) -> &mut Holds {
        self.holds.get_or_insert_default()
    }

    /// Claims free blocks.
    pub(crate) fn claim(&mut self, start: AgBlock, count: u32) {
        let end = start.0.saturating_add(count);
        self.holds().claims.insert(start.0..end);
    }

    /// Drops a claim.
    pub(crate) fn unclaim(&mut self, start: AgBlock, count: u32) {
        let end = start.0.saturating_add(count);
        self.holds().claims.remove(start.0..end);
    }

    /// Blocks were freed in a checkpoint: they are not to be overwritten before it is durable, nor while what
    /// they held is being written back.
    pub(crate) fn note_freed(&mut self, sequence: u64, start: AgBlock, count: u32) {
        let blocks = start.0..start.0.saturating_add(count);
        self.holds().busy.push((sequence, blocks));
        self.space.counts.busy.fetch_add(1, Ordering::AcqRel);
    }

    /// Blocks have one user left since a checkpoint, or were moved by it: they are not to be overwritten before it is durable.
    pub(crate) fn note_unshared(&mut self, sequence: u64, start: AgBlock, count: u32) {
        let blocks = start.0..start.0.saturating_add(count);
        self.holds().unshared.push((sequence, blocks));
        self.space.counts.unshared.fetch_add(1, Ordering::AcqRel);
    }

    fn finish_unshared(&mut self, log: &Log) {
        let unshared = &mut self.holds().unshared;
        let before = unshared.len();
        unshared.retain(|(sequence, _)| !log.is_durable(*sequence));
        let gone = before - unshared.len();
        if gone > 0 {
            self.space.counts.unshared.fetch_sub(gone, Ordering::AcqRel);
        }
    }

    /// Blocks were freed in a checkpoint, which nothing may have before it is durable.
    pub(crate) fn withhold(&mut self, sequence: u64, start: AgBlock, count: u32) {
        self.claim(start, count);
        let blocks = start.0..start.0.saturating_add(count);
        self.holds().withheld.push((sequence, blocks));
    }

    /// Whether there are blocks that nothing may have before the checkpoint that freed them is durable.
    pub(crate) fn has_withheld(&self) -> bool {
        let holds = self.holds.as_ref();
        holds.is_some_and(|holds| !holds.withheld.is_empty())
    }

    /// Forgets freed blocks that may be overwritten. Returns those that are not claimed any more.
    pub(crate) fn finish(&mut self, log: &Log) -> Vec<Range<u32>> {
        let reusable = log.reusable();
        self.finish_unshared(log);
        let holds = self.holds();
        let mut released = Vec::new();
        holds.withheld.retain(|(sequence, blocks)| {
            let stays = *sequence > reusable;
            if !stays {
                released.push(blocks.clone());
            }
            stays
        });
        for blocks in &released {
            holds.claims.remove(blocks.clone());
        }
        self.finish_busy(reusable);
        released
    }

    fn finish_busy(&mut self, reusable: u64) {
        if self.space.keeps_old() {
            return;
        }
        let busy = &mut self.holds().busy;
        let before = busy.len();
        if before == 0 {
            return;
        }
        busy.retain(|(sequence, _)| *sequence > reusable);
        let gone = before - busy.len();
        if gone > 0 {
            self.space.counts.busy.fetch_sub(gone, Ordering::AcqRel);
            self.space.counts.returned.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The freed blocks, each extent with the checkpoint that freed it.
    pub(crate) fn freed(&self) -> &[(u64, Range<u32>)] {
        self.holds.as_ref().map_or(&[], |holds| &holds.busy)
    }

    /// The freed blocks.
    pub(crate) fn busy(&mut self) -> RangeSet<u32> {
        let mut busy = RangeSet::default();
        for (_, blocks) in &self.holds().busy {
            busy.insert(blocks.clone());
        }
        busy
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let slot = self.space.slot(self.ag);
        let mut place = slot.place.lock();
        place.holds = self.holds.take();
        if place.waiting > 0 {
            slot.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_one_threads_at_a_time() {
        let space = Arc::new(Space::default());
        let held = space.lock(AgNr(3));
        assert!(space.try_lock(AgNr(3)).is_none());
        drop(space.try_lock(AgNr(2)).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let mut held = space.lock(AgNr(3));
                        let next = held.holds().claims.within(0..u32::MAX).count();
                        held.claim(AgBlock(u32::try_from(next).unwrap() * 2), 1);
                    }
                });
            }
            drop(held);
        });
        let mut held = space.lock(AgNr(3));
        assert_eq!(held.holds().claims.within(0..u32::MAX).count(), 4000);
    }
}
