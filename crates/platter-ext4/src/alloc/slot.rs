//! The state of every group: its locks, its bitmaps while they are in use, and hints that let a
//! search skip it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use platter_block::lock::{MappedMutexGuard, Mutex, MutexGuard, rank};
use platter_vfs::{Error, Result};

use super::Allocator;
use super::group::Clusters;
use super::group_inodes::Inodes;
use crate::FsContext;
use crate::ondisk::{GroupDesc, GroupNr};

/// The largest free chunk is unknown: the bitmap was not read yet.
const ORDER_UNKNOWN: u8 = u8::MAX;

/// The locked in-memory state of a group.
pub(super) type Loaded<'s, T> = MutexGuard<'s, Option<Box<T>>>;

/// One group. Groups do not share cache lines.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// Free clusters of the group.
    clusters: Mutex<Option<Box<Clusters>>, { rank(8, 2) }>,
    /// Taken before the lock of the clusters.
    inodes: Mutex<Option<Box<Inodes>>, { rank(8, 1) }>,
    /// Free clusters, as of the last change.
    free: AtomicU32,
    /// One more than the order of the largest free chunk.
    order: AtomicU8,
    /// The bitmap is corrupt: its free clusters are not counted as available.
    is_lost: AtomicBool,
    /// Free inodes, as of the last change.
    free_inodes: AtomicU32,
    /// Directories, as of the last change.
    directories: AtomicU32,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    pub(super) fn new(desc: &GroupDesc) -> Self {
        Self {
            clusters: Mutex::default(),
            inodes: Mutex::default(),
            free: AtomicU32::new(desc.free_clusters),
            order: AtomicU8::new(ORDER_UNKNOWN),
            is_lost: AtomicBool::new(false),
            free_inodes: AtomicU32::new(desc.free_inodes),
            directories: AtomicU32::new(desc.used_dirs),
        }
    }

    /// A group that cannot be used.
    pub(super) fn lost() -> Self {
        Self {
            clusters: Mutex::default(),
            inodes: Mutex::default(),
            free: AtomicU32::new(0),
            order: AtomicU8::new(0),
            is_lost: AtomicBool::new(true),
            free_inodes: AtomicU32::new(0),
            directories: AtomicU32::new(0),
        }
    }

    /// Whether a run of `need` clusters may be found here; never false if there is one.
    pub(super) fn may_hold(&self, need: u32) -> bool {
        if self.free.load(Ordering::Relaxed) < need {
            return false;
        }
        match self.order.load(Ordering::Relaxed) {
            ORDER_UNKNOWN => true,
            // A run contains an aligned chunk of more than a quarter of its length.
            order => u64::from(need) < 1 << (u32::from(order).min(32) + 1),
        }
    }

    /// Returns the free clusters, as of the last change.
    pub(super) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Whether the bitmap was ever read.
    pub(super) fn is_known(&self) -> bool {
        self.order.load(Ordering::Relaxed) != ORDER_UNKNOWN
    }

    /// Returns the free inodes, as of the last change.
    pub(super) fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Relaxed)
    }

    pub(super) fn has_inodes(&self) -> bool {
        self.free_inodes() > 0
    }

    /// Returns the directories, as of the last change.
    pub(super) fn directories(&self) -> u32 {
        self.directories.load(Ordering::Relaxed)
    }

    /// Locks and returns the in-memory state of the group.
    pub(super) fn loaded(&self) -> (Loaded<'_, Inodes>, Loaded<'_, Clusters>) {
        let inodes = self.inodes.lock();
        (inodes, self.clusters.lock())
    }

    /// Updates the hints about inodes, whose lock is held.
    pub(super) fn note_inodes(&self, inodes: &Inodes) {
        self.free_inodes.store(inodes.free(), Ordering::Relaxed);
        self.directories
            .store(inodes.directories(), Ordering::Relaxed);
    }

    /// Makes searches for inodes skip the group: its bitmap cannot be used.
    pub(super) fn lose_inodes(&self) {
        self.free_inodes.store(0, Ordering::Relaxed);
    }

    /// Updates the hints from the clusters, whose lock is held.
    pub(super) fn note(&self, clusters: &Clusters) {
        let order = clusters.free.order().map_or(0, |order| order + 1);
        self.free.store(clusters.free.free(), Ordering::Relaxed);
        self.order
            .store(u8::try_from(order).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Locks the clusters of a group, reading the bitmap if necessary, with the lock held.
pub(super) fn clusters<'s>(
    space: &'s Allocator,
    fs: &FsContext,
    group: GroupNr,
) -> Result<MappedMutexGuard<'s, Clusters>> {
    let slot = space.slot(group);
    let mut held = slot.clusters.lock();
    if held.is_none() {
        match Clusters::load(fs, &space.fixed, space.excluded.as_ref(), group) {
            Ok(clusters) => {
                slot.note(&clusters);
                *held = Some(Box::new(clusters));
                keep_bounded(space, group);
            }
            Err(error) => {
                lose(space, slot, &error);
                return Err(error);
            }
        }
    }
    Ok(MutexGuard::map(held, |held| {
        let Some(clusters) = held else {
            unreachable!("the clusters are loaded");
        };
        &mut **clusters
    }))
}

/// Locks the inodes of a group, reading the bitmap if necessary, with the lock held.
pub(super) fn inodes<'s>(
    space: &'s Allocator,
    fs: &FsContext,
    group: GroupNr,
) -> Result<MappedMutexGuard<'s, Inodes>> {
    let mut held = space.slot(group).inodes.lock();
    if held.is_none() {
        *held = Some(Box::new(Inodes::load(fs, group, space.excluded.is_some())?));
        keep_bounded(space, group);
    }
    Ok(MutexGuard::map(held, |held| {
        let Some(inodes) = held else {
            unreachable!("the inodes are loaded");
        };
        &mut **inodes
    }))
}

/// Locks the clusters of a group that are in memory already.
pub(super) fn loaded_clusters(
    space: &Allocator,
    group: GroupNr,
) -> Option<MappedMutexGuard<'_, Clusters>> {
    let held = space.slot(group).clusters.lock();
    MutexGuard::try_map(held, Option::as_deref_mut)
}

/// Removes the free clusters of a group with a corrupt bitmap from the counters.
fn lose(space: &Allocator, slot: &Slot, error: &Error) {
    if matches!(error, Error::Corrupt(_)) && !slot.is_lost.swap(true, Ordering::Relaxed) {
        let free = slot.free.swap(0, Ordering::Relaxed);
        slot.order.store(0, Ordering::Relaxed);
        space.counters.write_off(u64::from(free));
    }
}

/// Records that a bitmap of `group`, whose lock is held, was read, and drops others beyond the
/// limit.
fn keep_bounded(space: &Allocator, group: GroupNr) {
    let mut loaded = space.loaded.lock();
    loaded.push_back(group);
    drop_idle(space, &mut loaded, space.loaded_max);
}

/// Drops bitmaps that are unused and have no pending changes until `left` groups remain.
fn drop_idle(space: &Allocator, loaded: &mut VecDeque<GroupNr>, left: usize) {
    let mut tries = loaded.len();
    while loaded.len() > left && tries > 0 {
        tries -= 1;
        let Some(oldest) = loaded.pop_front() else {
            break;
        };
        let slot = space.slot(oldest);
        let inodes_gone = drop_if(&slot.inodes, |inodes| !inodes.recording.is_pending());
        let clusters_gone = drop_if(&slot.clusters, |clusters| {
            clusters.unfinished == 0 && !clusters.recording.is_pending()
        });
        if !(inodes_gone && clusters_gone) {
            loaded.push_back(oldest);
        }
    }
}

#[cfg(test)]
pub(super) fn drop_idle_groups(space: &Allocator) {
    drop_idle(space, &mut space.loaded.lock(), 0);
}

/// Drops the state if it is idle and not locked. Returns whether nothing is left.
fn drop_if<T, const RANK: u16>(
    held: &Mutex<Option<Box<T>>, RANK>,
    is_idle: impl FnOnce(&T) -> bool,
) -> bool {
    let Some(mut held) = held.try_lock() else {
        return false;
    };
    if held.as_deref().is_some_and(is_idle) {
        *held = None;
    }
    held.is_none()
}
