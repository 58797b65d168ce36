//! The log: whether it was replayed, and whether metadata is newer than its end.

use platter_ondisk::{Corrupt, Corruption, Locus};
use platter_vfs::check::{Checking as _, Finding};

use super::{Checker, Flow, LogUseRule};
use crate::ondisk::Lsn;
use crate::recovery::RecoveryReport;

/// What opening the filesystem found in the log.
pub(super) struct LogFindings<'a> {
    /// Why it was not replayed.
    pub(super) failure: Option<Corruption>,
    /// What recovery did.
    pub(super) recovery: Option<&'a RecoveryReport>,
}

/// Reports what opening the filesystem found in the log.
pub(super) fn check(checker: &mut Checker<'_>, log: &LogFindings<'_>) -> Flow {
    if let Some(failure) = &log.failure {
        checker.report_finding(Finding::error(failure.clone()))?;
    }
    let lost = log.recovery.into_iter();
    for corruption in lost.flat_map(|report| &report.lost_unlinked) {
        checker.report_finding(Finding::error(corruption.clone()))?;
    }
    if was_replayed(log.recovery) {
        let replayed = Corrupt::new(Locus::UNKNOWN, LogUseRule::Replayed);
        checker.report_finding(Finding::notice(replayed.into()))?;
    }
    Ok(())
}

/// Metadata never names a position in the log that was not written yet.
pub(super) fn check_lsn(checker: &mut Checker<'_>, log: &LogFindings<'_>) -> Flow {
    let (Some(report), Some((greatest, locus))) = (log.recovery, checker.lsn_max) else {
        return Ok(());
    };
    let end = Lsn::new(report.position.cycle, report.position.head);
    if checker.context.geometry().features.is_v5() && greatest >= end {
        checker.found(locus, LogUseRule::Ahead)?;
    }
    Ok(())
}

fn was_replayed(recovery: Option<&RecoveryReport>) -> bool {
    recovery.is_some_and(|report| report.position.state == crate::txn::LogState::Dirty)
}
