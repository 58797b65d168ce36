//! The pages about the mechanisms on and off, compared with what was published of them.

mod groups;
mod head_loads;
mod insertion;
mod lines;
mod mount;
mod published;
mod references;
mod sharing;

use super::page::{NO_FUSE, Page};
use super::raw::{MECHANISMS, Mechanisms};
use crate::measure::Estimate;
use crate::mechanisms::{Measured, Mechanism};
use crate::record::Record;

type Kept = Record<Measured>;

/// The transport where a load is one by calls of the library, or one on a mount.
const BY_LOAD: &str = "\
Transport: none in rows and tables of the *library*, which is called within the process that measures; `/dev/fuse`, the \
default of every mount, in those of a *mount*.";

/// A mechanism in one line.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: &'static str,
    pub(super) name: &'static str,
    /// The page about it.
    pub(super) file: &'static str,
    /// What was published with the change of Linux that it follows.
    pub(super) published: &'static str,
    /// What was measured here, if it was.
    pub(super) own: Option<String>,
    /// What both allow to conclude; nothing without figures of our own.
    pub(super) conclusion: Option<String>,
}

/// A page for each mechanism.
pub(super) fn pages(kept: &Mechanisms) -> Vec<Page> {
    let page = |mechanism| {
        let record = kept.get(&mechanism);
        match mechanism {
            Mechanism::M0 => references::page(record),
            Mechanism::M1 => mount::page(record),
            Mechanism::M2 => groups::page(record),
            Mechanism::M3 => insertion::page(record),
            Mechanism::M4 => sharing::page(record),
        }
    };
    Mechanism::ALL.map(page).into()
}

/// A line for each mechanism.
pub(super) fn entries(kept: &Mechanisms) -> [Entry; 5] {
    Mechanism::ALL.map(|mechanism| {
        let measured = kept.get(&mechanism).map(|record| &record.result);
        match mechanism {
            Mechanism::M0 => references::entry(measured),
            Mechanism::M1 => mount::entry(measured),
            Mechanism::M2 => groups::entry(measured),
            Mechanism::M3 => insertion::entry(measured),
            Mechanism::M4 => sharing::entry(measured),
        }
    })
}

/// A page with what the mechanism is, and where and whether it was measured.
fn begin(
    (file, title, about): (&str, &str, &str),
    transport: &str,
    record: Option<&Kept>,
    is_measured: bool,
) -> Page {
    let mut page = Page::new(file, title);
    match record {
        Some(record) if is_measured => page.provenance(record),
        _ => page.not_measured(MECHANISMS),
    }
    page.paragraph(about);
    page.paragraph(transport);
    page
}

/// Whether a ratio differs from 1 with 95 % confidence.
fn has_effect(change: Estimate) -> bool {
    change.high < 1.0 || 1.0 < change.low
}

/// A ratio, or that there is none to be seen.
fn verdict(change: Estimate) -> String {
    let Estimate { value, low, high } = change;
    if has_effect(change) {
        format!("{value:.2} ({low:.2} to {high:.2})")
    } else {
        format!("no effect ({low:.2} to {high:.2})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_raw_runs_pages_say_what_would_measure_them() {
        let nothing = Mechanisms::new();
        for page in pages(&nothing) {
            assert!(page.text().contains(MECHANISMS), "{}", page.path());
        }
        let entries = entries(&nothing);
        assert!(entries.iter().all(|entry| entry.own.is_none()));
        assert!(entries.iter().all(|entry| entry.conclusion.is_none()));
        let files: Vec<String> = entries
            .iter()
            .map(|entry| super::super::page::path_of(entry.file))
            .collect();
        let pages: Vec<String> = pages(&nothing)
            .iter()
            .map(|page| page.path().to_owned())
            .collect();
        assert_eq!(files, pages);
    }

    #[test]
    fn an_interval_around_one_is_no_effect() {
        let change = |low, high| Estimate {
            value: 1.2,
            low,
            high,
        };
        assert_eq!(verdict(change(1.1, 1.3)), "1.20 (1.10 to 1.30)");
        assert_eq!(verdict(change(0.9, 1.3)), "no effect (0.90 to 1.30)");
    }
}
