//! The mechanisms on and off, beside what was published of them.

mod insertion;
mod lines;
mod published;
mod sharing;

use super::Page;
use crate::mechanisms::Measured;
use crate::record::Record;

pub(super) fn tell(page: &mut Page, record: &Record<Measured>) {
    page.paragraph("## Mechanisms");
    page.provenance(record);
    insertion::tell(page, &record.result);
    sharing::tell(page, &record.result, record.machine.processors as u64);
    lines::tell(page, &record.result.shapes, &record.result.lines);
}
