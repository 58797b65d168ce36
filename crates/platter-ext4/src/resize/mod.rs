//! Growing an offline filesystem.
//!
//! New groups are initialised first; they become visible when the superblock is updated. All
//! changes within the old filesystem are one transaction: the old last group's bitmap and
//! descriptor, the descriptors of new groups, the resize inode with its blocks, and the superblock.
//! So with a journal, the filesystem has its old or its new size at any time. Without one it is
//! marked as not clean meanwhile. The backups of superblock and descriptors are written last.

mod plan;
mod fresh;
mod resize_inode;
mod in_place;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Condition, Error, Result, Unsupported};

use crate::groups::backups::write_backups;
use crate::mount::Offline;
use crate::ondisk::Geometry;
use crate::superblock;
use plan::Plan;

/// Length of a filesystem before and after growing, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Before.
    pub before_bytes: u64,
    /// New length: whole clusters, without a last group that is too short.
    pub after_bytes: u64,
}

/// Grows the filesystem on `device` to at most `len_bytes`.
///
/// # Errors
/// `NoSpace` beyond the end of the device. `Unsupported` for shrinking, for a filesystem that is
/// not clean, and if the journal or the memory budget is too small for the transaction.
pub fn grow(
    device: &Arc<dyn BlockDevice>,
    len_bytes: u64,
    budget: &Arc<MemoryBudget>,
    clock: &Arc<dyn Clock>,
) -> Result<Grown> {
    if len_bytes > device.geometry().len_bytes {
        return Err(Condition::NoSpace.into());
    }
    let offline = Offline::open(device, budget, clock)?;
    let before = offline.fs.geometry.clone();
    let disk = superblock::read(&offline.fs)?;
    let plan = Plan::choose(&disk, &before, len_bytes)?;
    let Some(plan) = plan else {
        offline.leave()?;
        return Ok(grown(&before, &before));
    };
    let fresh = fresh::write(&**device, &plan)?;
    device.flush()?;
    let changing = offline.begin(clock)?;
    if let Err(error) = in_place::change(&changing.fs, &plan, &fresh, clock.now()) {
        changing.abandon()?;
        return Err(error);
    }
    changing.end()?;
    write_backups(&**device, &plan.after)?;
    device.flush()?;
    Ok(grown(&before, &plan.after))
}

/// Whether the filesystem has a journal, so that growing it is atomic.
///
/// # Errors
/// `Corrupt` without a valid superblock.
pub fn is_journaled(device: &dyn BlockDevice) -> Result<bool> {
    Ok(crate::Ext4::identify(device)?.features.has_journal())
}

fn grown(before: &Geometry, after: &Geometry) -> Grown {
    Grown {
        before_bytes: before.len_bytes(),
        after_bytes: after.len_bytes(),
    }
}

fn unsupported(feature: &'static str, reason: Option<&'static str>) -> Error {
    let unsupported = Unsupported {
        filesystem: "ext4",
        feature: feature.into(),
        reason,
    };
    unsupported.into()
}
