//! Recovery on the device itself, for a mount that writes: the log is replayed, which may be repeated after
//! another crash; its intents are finished in one checkpoint; and it is ended. What it leaves to free is freed by
//! transactions of the mount: until then the log is one that Linux recovers, and frees these inodes.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::{Result, Unsupported};

use super::checkpoint::{end_with_unlinked, finish_in_log};
use super::{Counters, RecoveryReport, finish, mark_clean, unlinked};
use crate::ondisk::Geometry;
use crate::superblock;
use crate::txn::{self, Log, LogDevice, LogState};

/// Brings what the log holds to its place. The log ends with an unmount record, or, where unlinked inodes are left, with a
/// checkpoint that changes nothing.
///
/// # Errors
/// `Corrupt` for a log of another filesystem: nothing was changed then.
/// `Unsupported` for a dirty log of version 4, and by name for intents that cannot be finished, likewise.
/// The same where the log has no space for the checkpoint that finishes them, or records of a size that no log buffer has:
/// it was replayed then, and still is dirty.
pub fn recover_in_place(
    data: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<RecoveryReport> {
    let primary = superblock::read(&**data)?;
    let log = LogDevice::open(&primary, data, external)?;
    let position = txn::find_position(&log, primary.features.is_v5())?;
    match position.state {
        LogState::Dirty => Log::check_version(&log, &primary.features)?,
        LogState::Clean => txn::check_last_uuid(&log, &position)?,
    }
    let scan = txn::scan(&log, &position, &primary)?;
    finish::check(&scan.open_intents)?;
    let has_realtime = primary.rt_blocks > 0 || primary.rt_group_count > 0;
    if has_realtime && !scan.open_intents.is_empty() {
        return Err(Unsupported {
            filesystem: "xfs",
            feature: "finishing intents with a realtime section".to_owned(),
            reason: Some("the log is replayed in memory only"),
        }
        .into());
    }
    let replayed = txn::replay(&log, &position, &primary, scan, &**data)?;
    let report = RecoveryReport {
        position,
        log: replayed,
        inodes_freed: 0,
        lost_unlinked: Vec::new(),
    };
    if report.position.state == LogState::Dirty {
        let primary = superblock::read(&**data)?;
        primary.check_device(data.geometry().len_bytes)?;
        let geometry = Geometry::new(&primary);
        let has_unlinked = unlinked::has_unlinked(&**data, &geometry)?;
        let intents = &report.log.open_intents;
        if !intents.is_empty() {
            txn::clear_stale_records(&log, &report.position)?;
            finish_in_log(data, &log, &report.position, intents, has_unlinked)?;
            return Ok(report);
        }
        if geometry.features.has_lazy_count() {
            Counters::read(&**data, &geometry)?.store(&**data, &geometry)?;
        }
        if has_unlinked {
            txn::clear_stale_records(&log, &report.position)?;
            end_with_unlinked(data, &log, &report.position)?;
            return Ok(report);
        }
    }
    mark_clean(data, external, &report)?;
    Ok(report)
}
