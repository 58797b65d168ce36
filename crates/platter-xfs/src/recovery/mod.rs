//! Recovery after a crash: replays the log, finishes what it leaves open, and brings the superblock's
//! counters up to date.

pub mod counters;
mod rules;
pub(crate) mod realtime;
mod finish;
mod unlinked;
mod checkpoint;
mod in_place;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Corruption;
use platter_vfs::Result;

use crate::ondisk::Geometry;
use crate::superblock;
use crate::txn::{self, LogDevice, LogPosition, LogState, ReplayReport};
pub use counters::Counters;
pub use in_place::recover_in_place;
pub use rules::IntentRule;

/// What a recovery did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Where the log begins and ends.
    pub position: LogPosition,
    /// What came from the log.
    pub log: ReplayReport,
    /// Inodes without a name that were freed.
    pub inodes_freed: u64,
    /// Of each list of unlinked inodes that could not be followed to its end, why not. The rest of it stays in use, and
    /// is on no list.
    pub lost_unlinked: Vec<Corruption>,
}

/// Recovers the filesystem on `data`, an overlay of its device or the device itself, from its log. The
/// log stays as it is, and the superblock must be read anew afterwards.
pub fn recover(
    data: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<RecoveryReport> {
    let before = superblock::read(&**data)?;
    let log = LogDevice::open(&before, data, external)?;
    let has_checksums = before.features.is_v5();
    let position = txn::find_position(&log, has_checksums)?;
    let scan = txn::scan(&log, &position, &before)?;
    finish::check(&scan.open_intents)?;
    let report = txn::replay(&log, &position, &before, scan, &**data)?;
    if position.state == LogState::Clean {
        return Ok(RecoveryReport {
            position,
            log: report,
            inodes_freed: 0,
            lost_unlinked: Vec::new(),
        });
    }
    let primary = superblock::read(&**data)?;
    if primary.data_blocks != before.data_blocks {
        primary.check_device(data.geometry().len_bytes)?;
    }
    let geometry = Geometry::new(&primary);
    let mut rt_freed = finish::finish(data, &geometry, &report.open_intents)?;
    let processed = unlinked::process(data, &geometry, &mut rt_freed)?;
    unlinked::free_staged(data, &geometry)?;
    realtime::free_extents(data, primary, &rt_freed)?;
    let counters = Counters::read(&**data, &geometry)?;
    if geometry.features.has_lazy_count() {
        counters.store(&**data, &geometry)?;
    }
    Ok(RecoveryReport {
        position,
        log: report,
        inodes_freed: processed.freed,
        lost_unlinked: processed.corruptions,
    })
}

/// Ends the log of a filesystem that was [recovered](recover) in place. In one that is clean, what a crash left
/// of records that were being written is cleared.
pub fn mark_clean(
    data: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
    report: &RecoveryReport,
) -> Result<()> {
    let primary = superblock::read(&**data)?;
    let log = LogDevice::open(&primary, data, external)?;
    match report.position.state {
        LogState::Dirty => {
            data.flush()?;
            txn::write_unmount_record(&log, &report.position)
        }
        LogState::Clean => txn::clear_stale_records(&log, &report.position),
    }
}

#[cfg(test)]
mod tests;
