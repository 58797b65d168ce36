//! The mechanisms on and off, beside what was published of them.

mod insertion;
mod lines;
mod mount;
mod published;
mod sharing;

use super::Page;
use crate::mechanisms::Measured;
use crate::record::Record;

pub(super) fn write(page: &mut Page, record: &Record<Measured>) {
    page.paragraph("## Mechanisms");
    page.provenance(record);
    insertion::write(page, &record.result);
    sharing::write(page, &record.result, record.machine.processors as u64);
    lines::write(page, &record.result.shapes, &record.result.lines);
    mount::write(page, &record.result.mount);
}
