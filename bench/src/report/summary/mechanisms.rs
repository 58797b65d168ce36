//! The five mechanisms in one table.

use crate::report::mechanisms::entries;
use crate::report::page::{Page, not_measured};
use crate::report::raw::{MECHANISMS, Mechanisms};

const ABOUT: &str = "\
Each follows a change of Linux that was published with figures. The benchmark is built so that it can switch each off. They are \
measured in the library, M0 and M2 also by a load on a mount, M1 also on its structure alone. *No effect* means that the \
interval contains 1.";

pub(super) fn write(page: &mut Page, kept: &Mechanisms) {
    page.paragraph(ABOUT);
    let rows = entries(kept).map(|entry| {
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
