//! Subvolumes that were deleted, whose trees are dropped afterwards, in steps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_vfs::{Error, Result};

use super::SuperBlock;
use super::state::Purpose;
use crate::context::Subvolume;
use crate::ondisk::{Generation, Key, TreeId};
use crate::subvolume;
use crate::txn::{PruneProgress, partly_dropped, prune, quotas};

/// Tree blocks that a step of dropping a tree changes besides those that it frees.
const STEP_CREDITS: u32 = 64;

/// A subvolume whose tree is to be dropped.
#[derive(Debug, Clone, Copy)]
struct DeadSubvolume {
    id: TreeId,
    /// The transaction that made it a snapshot.
    since: Generation,
    /// Where the kernel has come to, which began to drop it.
    dropped_before: Option<(Key, u8)>,
    progress: PruneProgress,
}

/// Deleted subvolumes that still have trees.
#[derive(Debug, Default)]
pub(crate) struct DeadSubvolumes {
    /// Deleted subvolumes whose trees are to be dropped.
    queue: Mutex<VecDeque<DeadSubvolume>, { rank(8, 6) }>,
    /// Held while a thread drops a part of one.
    dropping: Mutex<(), { rank(2, 4) }>,
    /// Syncs drop them.
    in_syncs: AtomicBool,
}

impl DeadSubvolumes {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Has syncs drop them: no thread does.
    pub(crate) fn drop_in_syncs(&self) {
        self.in_syncs.store(true, Ordering::Relaxed);
    }

    /// Whether syncs drop them.
    pub(super) fn are_dropped_in_syncs(&self) -> bool {
        self.in_syncs.load(Ordering::Relaxed)
    }
}

/// Queues the subvolumes that were deleted before the mount: their trees are to be dropped.
pub(crate) fn queue_all(superblock: &SuperBlock) -> Result<()> {
    for subvolume in superblock.context().deleted_subvolumes()? {
        add(superblock, &subvolume)?;
    }
    Ok(())
}

/// Queues a subvolume that was deleted: its tree is to be dropped.
pub(super) fn queue(superblock: &SuperBlock, id: TreeId) -> Result<()> {
    if let Some(item) = superblock.context().read_root_item(id)? {
        add(superblock, &Subvolume { id, item })?;
    }
    Ok(())
}

fn add(superblock: &SuperBlock, subvolume: &Subvolume) -> Result<()> {
    let item = &subvolume.item;
    let has_begun = item.drop_progress != Key::MIN;
    let context = superblock.context();
    let since = context.root_item_offset(subvolume.id)?;
    superblock.keep_number(subvolume.id);
    superblock
        .dead_subvolumes
        .queue
        .lock()
        .push_back(DeadSubvolume {
            id: subvolume.id,
            since,
            dropped_before: has_begun.then_some((item.drop_progress, item.drop_level)),
            progress: PruneProgress::default(),
        });
    Ok(())
}

/// Drops a part of the trees of subvolumes that were deleted and are not in use. Returns whether there is
/// more to do now.
///
/// # Errors
/// Those of dropping a tree, which is tried again after the others.
pub(crate) fn drop_some(superblock: &SuperBlock) -> Result<bool> {
    if !superblock.can_write() {
        return Ok(false);
    }
    // One thread at a time.
    let Some(_dropping) = superblock.dead_subvolumes.dropping.try_lock() else {
        return Ok(false);
    };
    let next = {
        let mut dead = superblock.dead_subvolumes.queue.lock();
        let free = dead
            .iter()
            .position(|it| superblock.in_use.get(it.id).is_none());
        free.and_then(|at| dead.remove(at))
    };
    let Some(mut next) = next else {
        return Ok(false);
    };
    let dropped = drop_step(superblock, &mut next);
    let queue = &superblock.dead_subvolumes.queue;
    match &dropped {
        Ok(true) => {}
        Ok(false) => queue.lock().push_front(next),
        // No deletion can have left the tree so. Nothing has changed: it stays as it is in this mount.
        Err(Error::Corrupt(_)) if next.dropped_before.is_some() && superblock.can_write() => {
            return Ok(true);
        }
        Err(_) => queue.lock().push_back(next),
    }
    dropped.map(|_| true)
}

fn drop_step(superblock: &SuperBlock, dead: &mut DeadSubvolume) -> Result<bool> {
    let handle = superblock.begin(STEP_CREDITS, Purpose::Free)?;
    let is_gone = match dead.dropped_before {
        Some((start, level)) => {
            let is_gone = handle.whole(|handle| {
                let is_gone = partly_dropped::cut(handle, dead.id, start, level)?;
                subvolume::clear_progress(handle, dead.id)?;
                Ok(is_gone)
            })?;
            dead.dropped_before = None;
            is_gone
        }
        None => prune::step(&handle, dead.id, dead.since, &mut dead.progress)?,
    };
    if is_gone {
        handle.whole(|handle| subvolume::clear_dead(handle, dead.id))?;
        drop(handle);
        superblock.context().forget_root_item(dead.id);
    } else {
        drop(handle);
    }
    let writing = superblock.transactions()?;
    if quotas::has_many_traced(writing) {
        writing.sync()?;
    }
    Ok(is_gone)
}

/// Drops all that can be dropped, unless the filesystem is frozen.
pub(crate) fn drop_all(superblock: &SuperBlock) -> Result<()> {
    while let Some(_writer) = superblock.writers.try_enter()
        && drop_some(superblock)?
    {}
    Ok(())
}
