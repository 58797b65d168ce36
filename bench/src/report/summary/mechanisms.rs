//! The five mechanisms in one table.

use crate::mechanisms::Measured;
use crate::record::Record;
use crate::report::mechanisms::entries;
use crate::report::page::{Page, not_measured};
use crate::report::raw::MECHANISMS;

const ABOUT: &str = "\
Each follows a change of Linux that was published with figures, and can be switched off here. They are measured in the \
library: FUSE has no part. *No effect* means that the interval contains 1.";

pub(super) fn write(page: &mut Page, record: Option<&Record<Measured>>) {
    let by = record.map_or_else(String::new, |record| {
        format!(" Measured by `{}`.", record.command)
    });
    page.paragraph(&format!("{ABOUT}{by}"));
    let rows = entries(record).map(|entry| {
        let target = page.link_to_page(entry.file);
        vec![
            format!("[{}]({target}): {}", entry.number, entry.name),
            entry.published.to_owned(),
            entry.own.unwrap_or_else(|| not_measured(MECHANISMS)),
            entry.conclusion.unwrap_or_else(|| "None yet.".to_owned()),
        ]
    });
    page.table_of_texts(&["mechanism", "published", "here", "conclusion"], &rows);
}
