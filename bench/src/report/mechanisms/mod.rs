//! The mechanisms on and off, compared with what was published of them.

mod groups;
mod insertion;
mod lines;
mod mount;
mod published;
mod references;
mod sharing;

use super::Page;
use crate::measure::Estimate;
use crate::mechanisms::Measured;
use crate::record::Record;

pub(super) fn write(page: &mut Page, record: &Record<Measured>) {
    page.paragraph("## Mechanisms");
    page.provenance(record);
    references::write(page, &record.result.references);
    groups::write(page, &record.result.groups);
    insertion::write(page, &record.result);
    sharing::write(page, &record.result, record.machine.processors as u64);
    lines::write(page, &record.result.shapes, &record.result.lines);
    mount::write(page, &record.result.mount);
}

/// A ratio, or that there is none to be seen.
fn verdict(change: Estimate) -> String {
    if change.low <= 1.0 && 1.0 <= change.high {
        format!("no effect ({:.2} to {:.2})", change.low, change.high)
    } else {
        format!(
            "{:.2} ({:.2} to {:.2})",
            change.value, change.low, change.high
        )
    }
}
