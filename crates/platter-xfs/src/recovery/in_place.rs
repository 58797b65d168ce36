//! Recovery on the device itself, for a mount that writes: the log is replayed, which may be repeated after
//! another crash, and then ended. What it leaves to free is freed by transactions of the mount.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::{Result, Unsupported};

use super::{Counters, RecoveryReport, mark_clean};
use crate::ondisk::Geometry;
use crate::superblock;
use crate::txn::{self, LogDevice, LogState};

/// Brings what the log holds to its place, and ends the log.
///
/// # Errors
/// `Unsupported` where the log has unfinished intents: finishing them is not repeatable.
pub fn recover_in_place(
    data: &Arc<dyn BlockDevice>,
    external: Option<&Arc<dyn BlockDevice>>,
) -> Result<RecoveryReport> {
    let primary = superblock::read(&**data)?;
    let log = LogDevice::open(&primary, data, external)?;
    let position = txn::find_position(&log, primary.features.is_v5())?;
    let scan = txn::scan(&log, &position, &primary)?;
    if !scan.open_intents.is_empty() {
        return Err(Unsupported {
            filesystem: "xfs",
            feature: "writing beside a log with unfinished intents".to_owned(),
            reason: Some("mount read-only, or let the kernel recover it"),
        }
        .into());
    }
    let replayed = txn::replay(&log, &position, &primary, scan, &**data)?;
    let report = RecoveryReport {
        position,
        log: replayed,
        inodes_freed: 0,
    };
    if report.position.state == LogState::Dirty {
        let primary = superblock::read(&**data)?;
        let geometry = Geometry::new(&primary);
        if geometry.features.has_lazy_count() {
            Counters::read(&**data, &geometry)?.store(&**data, &geometry)?;
        }
    }
    mark_clean(data, external, &report)?;
    Ok(report)
}
