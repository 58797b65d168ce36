//! Inactivation: inodes that have neither a name nor blocks any more become free, many in one transaction
//! (`xfs_inodegc`). Until then they are on their lists of unlinked inodes, where recovery finds them.

use platter_block::lock::Mutex;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, Result};

use super::SuperBlock;
use crate::ag::GroupRule;
use crate::change::{Change, Cost};
use crate::ondisk::InodeNr;

/// As many become free in one transaction.
const BATCH_INODES: usize = 32;

/// Inodes without names, blocks and users, the newest last.
#[derive(Debug, Default)]
pub(super) struct InactiveInodes {
    waiting: Mutex<Vec<InodeNr>>,
}

impl InactiveInodes {
    fn take(&self) -> Vec<InodeNr> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Has an inode become free, with others. It has no name, no blocks, and no user.
///
/// # Errors
/// What kept one of those whose turn has come from becoming free: it stays on its list, for the next mount.
pub(super) fn free_later(superblock: &SuperBlock, number: InodeNr) -> Result<()> {
    let is_due = {
        let mut waiting = superblock.inactive.waiting.lock();
        waiting.push(number);
        waiting.len() >= BATCH_INODES
    };
    if is_due {
        return free_inactive(superblock).map(drop);
    }
    Ok(())
}

/// Frees the inodes that wait for it, unless the filesystem is frozen. Returns how many there were.
///
/// # Errors
/// Those of [`free_later`].
pub(crate) fn free_inactive(superblock: &SuperBlock) -> Result<usize> {
    if superblock.writers.is_frozen() {
        return Ok(0);
    }
    free_waiting(superblock)
}

/// [Frees](free_inactive) the inodes that wait for it, for the thread that freezes the filesystem or ends the mount.
///
/// # Errors
/// Those of [`free_later`].
pub(crate) fn free_waiting(superblock: &SuperBlock) -> Result<usize> {
    let mut waiting = superblock.inactive.take();
    if waiting.is_empty() || !superblock.can_write() || superblock.writes.is_closed() {
        return Ok(0);
    }
    // The newest is the first of its list.
    waiting.reverse();
    let geometry = superblock.context.geometry();
    waiting.sort_by_key(|number| geometry.split_inode(*number).0);
    let mut freed = Ok(waiting.len());
    for batch in waiting.chunks(BATCH_INODES) {
        if free_all(superblock, batch).is_ok() {
            continue;
        }
        // One that cannot be freed keeps no other from it.
        for number in batch {
            if let Err(error) = free_all(superblock, &[*number]) {
                freed = Err(error);
            }
        }
    }
    freed
}

/// Whether there may be space where none was found: inodes became free that waited for it.
pub(super) fn has_more_space(superblock: &SuperBlock, error: &Error) -> bool {
    let is_full = matches!(error, Error::Condition(Condition::NoSpace));
    is_full && free_inactive(superblock).is_ok_and(|count| count > 0)
}

fn free_all(superblock: &SuperBlock, numbers: &[InodeNr]) -> Result<()> {
    let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    let cost = Cost {
        extents: count,
        inodes: count.saturating_mul(3),
        ..Cost::default()
    };
    superblock.context.change(
        &cost,
        || (),
        |change, ()| numbers.iter().try_for_each(|number| free(change, *number)),
    )?;
    Ok(())
}

/// Takes an inode off its list, and frees it.
fn free(change: &mut Change<'_>, number: InodeNr) -> Result<()> {
    let mut edit = change.inode(number)?;
    if edit.inode().links > 0 {
        let (ag, _) = change.geometry().split_inode(number);
        return Err(Corrupt::new(Locus::group(ag.0.into()), GroupRule::UnlinkedList).into());
    }
    change.remove_unlinked(&mut edit)?;
    change.free_inode(edit)
}
