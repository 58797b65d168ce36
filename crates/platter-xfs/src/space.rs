//! Free blocks that are not to be allocated now: those that are claimed for data that is being written, and
//! those that were freed and may come back with a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use platter_vfs::writing::RangeSet;

use crate::ag::Freed;
use crate::ondisk::{AgBlock, AgNr};
use crate::txn::Log;
use crate::xfs_mount::lock;

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

/// Which free blocks are not to be allocated. Its lock is held by the thread that changes the groups, from the first look
/// at them to the commit.
#[derive(Debug, Default)]
pub struct Space {
    /// The groups, from the first look at them to the commit.
    // Lock rank 8.1.
    holds: Mutex<Holds>,
    /// How often freed blocks could be allocated again.
    returned: AtomicU64,
    /// Free blocks that nothing but B-trees may have.
    floor: AtomicI64,
    /// What files held before this mount is never overwritten.
    keeps_old: AtomicBool,
}

/// Free blocks that are not to be allocated.
#[derive(Debug, Default)]
pub struct Holds {
    /// Claimed blocks by group.
    pub(crate) claims: BTreeMap<AgNr, RangeSet<u32>>,
    /// Freed blocks, each with the checkpoint that freed it.
    busy: Vec<(u64, Freed)>,
}

impl Space {
    /// Locks the groups.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Holds> {
        lock(&self.holds)
    }

    /// How often freed blocks could be allocated again.
    pub(crate) fn returned(&self) -> u64 {
        self.returned.load(Ordering::Acquire)
    }

    pub(crate) fn note_returned(&self) {
        self.returned.fetch_add(1, Ordering::AcqRel);
    }

    /// Has contents never overwrite what files held before, nor blocks that were freed.
    pub(crate) fn keep_old(&self) {
        self.keeps_old.store(true, Ordering::Relaxed);
    }

    /// Whether contents never overwrite what files held before.
    pub(crate) fn keeps_old(&self) -> bool {
        self.keeps_old.load(Ordering::Relaxed)
    }

    /// The free blocks that nothing but B-trees may have.
    pub(crate) fn floor(&self) -> i64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Changes the floor. Returns the new one.
    pub(crate) fn add_to_floor(&self, change: i64) -> i64 {
        self.floor.fetch_add(change, Ordering::AcqRel) + change
    }
}

impl Holds {
    /// Claims free blocks.
    pub(crate) fn claim(&mut self, claim: Claim) {
        let claims = self.claims.entry(claim.ag).or_default();
        claims.insert(claim.start.0..claim.start.0.saturating_add(claim.count));
    }

    /// Drops a claim.
    pub(crate) fn unclaim(&mut self, claim: Claim) {
        if let Some(claims) = self.claims.get_mut(&claim.ag) {
            claims.remove(claim.start.0..claim.start.0.saturating_add(claim.count));
        }
    }

    /// Blocks were freed in a checkpoint: they are not to be overwritten before it is durable, nor while what
    /// they held is being written back.
    pub(crate) fn note_freed(&mut self, sequence: u64, freed: Vec<Freed>) {
        let freed = freed.into_iter().map(|freed| (sequence, freed));
        self.busy.extend(freed);
    }

    /// Forgets freed blocks that may be overwritten. True if there were any.
    pub(crate) fn finish(&mut self, log: &Log) -> bool {
        let before = self.busy.len();
        self.busy
            .retain(|(sequence, _)| !log.is_reusable(*sequence));
        self.busy.len() < before
    }

    pub(crate) fn has_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// The freed blocks of a group.
    pub(crate) fn busy_of(&self, ag: AgNr) -> RangeSet<u32> {
        let mut busy = RangeSet::default();
        for (_, freed) in self.busy.iter().filter(|(_, freed)| freed.ag == ag) {
            busy.insert(freed.start.0..freed.start.0.saturating_add(freed.count));
        }
        busy
    }
}
