//! How many aims are reached.

use crate::report::aims::{Aim, Group, Verdict, counts};
use crate::report::page::Page;
use crate::report::raw::Raw;
use crate::report::{applications, checks, fuse, library, programs, reading, scale};

/// The words for [`Verdict::ALL`] in the head of the table.
const HEAD: [&str; 6] = [
    "aims",
    "met",
    "met by the median",
    "missed",
    "not measured",
    "not judged",
];

pub(super) fn write(page: &mut Page, raw: &Raw, aims: &[Aim]) {
    let mut rows = Vec::new();
    for group in Group::ALL {
        let target = page.link_to_page(file(group));
        let title = format!("[{}]({target})", group.title());
        if group.is_mounted() {
            let by_default = counts(aims, group, Aim::default_verdict);
            rows.push(row(
                format!("{title}, over `/dev/fuse`, the default"),
                by_default,
            ));
            let rings = counts(aims, group, Aim::verdict);
            rows.push(row(format!("{title}, over rings"), rings));
        } else {
            rows.push(row(title, counts(aims, group, Aim::verdict)));
        }
    }
    if let Some(record) = &raw.reading {
        let target = page.link_to_page(reading::FILE);
        let verdicts = reading::verdicts(&record.result);
        let of = |wanted: Verdict| verdicts.iter().filter(|found| **found == wanted).count();
        let title = format!("[Reading btrfs and XFS]({target})");
        rows.push(row(title, Verdict::ALL.map(of)));
    }
    page.table(&HEAD, &rows);
}

fn row(title: String, counts: [usize; Verdict::ALL.len()]) -> Vec<String> {
    let counts = counts.map(|count| count.to_string());
    [title].into_iter().chain(counts).collect()
}

/// The page that has the aims of a group.
const fn file(group: Group) -> &'static str {
    match group {
        Group::Stock | Group::Fuse2fs | Group::Bindfs => fuse::FILE,
        Group::Library => library::FILE,
        Group::Jobs => programs::FILE,
        Group::Growth => scale::FILE,
        Group::Checks => checks::FILE,
        Group::Applications => applications::FILE,
    }
}
