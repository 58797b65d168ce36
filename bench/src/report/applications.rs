//! The page about applications on mounts.

use testkit::fs_type::FsType;

use super::aims::{self, Aim, Group};
use super::charts::{Bar, ratio_bars};
use super::missed::Explanations;
use super::number::{of_runs, short};
use super::page::Page;
use super::peers::format_name;
use super::raw::{APPLICATIONS, Raw};
use crate::applications::{Measured, SIDES, SUITES, Step};
use crate::measure::{float, median, ratio};
use crate::side::Side;

pub(super) const FILE: &str = "applications.md";

const TRANSPORT: &str = "\
Transport in all tables: `/dev/fuse` for platter, which is mounted with its default options and caches of the default size, \
and for fuse2fs. The kernel's filesystem is mounted with its default options on a loop device. Rings are not used.";

const STATES: &str = "\
*New*: the image was made and mounted for the program, so that nothing of it is cached but what was put there for it. \
*Cold*: the image was mounted for the program, with empty caches of the filesystem. *Warm*: after the program of the row \
above. Images lie on tmpfs, where a flush does nothing, and so does what programs are given. A time ends with the \
program: what the kernel or a server writes later is not in it. After each turn the image is checked by `e2fsck`, \
`btrfs check` or `xfs_repair -n`, and all sides have to print and to make the same.";

const REQUESTS: &str = "\
*Requests* are those of the kernel to the server of platter's mount, of the run with the most; `FORGET` is not counted.";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "Applications on mounts");
    let Some(record) = &raw.applications else {
        page.not_measured(APPLICATIONS);
        return page;
    };
    let measured = &record.result;
    page.provenance(record);
    page.paragraph(TRANSPORT);
    page.paragraph(&format!(
        "Trees have {} files of text, 4 KB on average, 20 in each directory; the overlay, whose lower layer is that tree \
         on tmpfs, takes a fifth of them anew; the package and the repository hold the tree. SQLite does {} transactions. \
         The program has {} sources in C.",
        measured.files, measured.transactions, measured.sources
    ));
    page.paragraph(STATES);
    aims::write(&mut page, aims, Group::Applications, explanations);
    for format in FsType::ALL {
        write(&mut page, measured, format);
    }
    if !measured.failures.is_empty() {
        page.paragraph("## What went wrong");
        for failure in &measured.failures {
            let lines: Vec<&str> = failure.lines().collect();
            page.paragraph(&format!("- {}", lines.join(" ")));
        }
    }
    page
}

fn write(page: &mut Page, measured: &Measured, format: FsType) {
    if !measured.runs.iter().any(|run| run.format == format) {
        return;
    }
    page.paragraph(&format!("## {}", format_name(format)));
    let steps = || SUITES.iter().flat_map(|suite| suite.steps);
    let sides: Vec<Side> = SIDES
        .into_iter()
        .filter(|side| side.serves(format))
        .collect();
    let place =
        |side: Side, step: &Step| measured.figures((format, side, step.name), |run| run.seconds);
    let is_there = |step: &&Step| !place(SIDES[0], step).is_empty();
    let mut head = vec!["application", "caches", "runs"];
    let names: Vec<String> = sides
        .iter()
        .map(|side| format!("{}, s", side.name(format)))
        .collect();
    head.extend(names.iter().map(String::as_str));
    let over: Vec<String> = sides[1..]
        .iter()
        .map(|side| format!("platter's over {}", side.name(format)))
        .collect();
    head.extend(over.iter().map(String::as_str));
    head.push("requests");
    let mut rows = Vec::new();
    let mut bars = Vec::new();
    let mut kinds = Vec::new();
    for step in steps().filter(is_there) {
        let ours = place(SIDES[0], step);
        let mut row = vec![
            step.name.to_owned(),
            step.state.name().to_owned(),
            ours.len().to_string(),
        ];
        row.extend(sides.iter().map(|&side| seconds(&place(side, step))));
        row.extend(
            sides[1..]
                .iter()
                .map(|&side| over_ours(&ours, &place(side, step))),
        );
        let asked = measured.most_asked((format, SIDES[0], step.name));
        row.push(asked.map_or_else(String::new, |asked| asked.requests().to_string()));
        rows.push(row);
        let kernel = place(Side::Kernel, step);
        if !kernel.is_empty() {
            bars.push(Bar {
                name: step.name.to_owned(),
                ratio: ratio(&kernel, &ours),
            });
        }
        if let Some(asked) = asked {
            let mut counts: Vec<(&String, u64)> = asked
                .fuse
                .iter()
                .filter(|(kind, _)| *kind != "FORGET")
                .map(|(kind, &count)| (kind, count))
                .collect();
            counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
            let counts = counts
                .iter()
                .map(|(kind, count)| format!("{} {kind}", short(float(*count))));
            let counts: Vec<String> = counts.collect();
            kinds.push(vec![step.name.to_owned(), counts.join(", ")]);
        }
    }
    page.table(&head, &rows);
    let title = format!(
        "{}: rate of a mount of platter over the kernel's; right is faster",
        format_name(format)
    );
    let name = format!("ratio-applications-{}", format.kernel_name());
    page.picture(&name, &title, ratio_bars(&title, &bars));
    page.paragraph(REQUESTS);
    page.table_of_texts(&["application", "requests of each kind"], &kinds);
}

fn seconds(seconds: &[f64]) -> String {
    of_runs(seconds, || median(seconds))
}

fn over_ours(ours: &[f64], theirs: &[f64]) -> String {
    of_runs(theirs, || ratio(ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_that_was_not_measured_has_no_section() {
        let mut page = Page::new(FILE, "Title");
        write(&mut page, &Measured::default(), FsType::Xfs);
        assert!(!page.text().contains("## "));
    }
}
