//! The mount object of XFS in its three layouts.

use crate::measure::{float, median};
use crate::mechanisms::{LAYOUTS, MountRuns, Sweep, Trees, mount_pauses};
use crate::report::Page;
use crate::report::number::{short, with_range};

const ABOUT: &str = "\
### The mount object of XFS

The same on the driver's own mount object, in three layouts: *packed*, with the byte that each check of an inode
number reads next to the count of transactions, as before Linux 5.8; *separated*, with the byte in the geometry; and
*counterless*, which the driver uses, where the gate of freezes knows what runs. One thread checks inode numbers, the
other begins and ends transactions, with pauses between them. Nanoseconds for each check, and transactions in a second:";

const TREES: &str = "\
Trees of empty files, made and removed by two threads on a memory device, each its own; published of Linux are 50
million files removed by 16 threads, of 13m20s and 8m30s, and 5m30s and 5m02s. Changes that were begun again are those
that found another one in their group of blocks:";

const CONCLUSION: &str = "\
What two processors do not show: what sixteen that take one line from each other pay, and what lines cost between
sockets. A mount here begins some ten thousands of transactions in a second, at which the sweep has no difference
between the layouts: that the removal of a tree takes less time with one of them is not to be concluded from this.";

pub(super) fn write(page: &mut Page, runs: &MountRuns) {
    if runs.sweep.is_empty() {
        return;
    }
    page.paragraph(ABOUT);
    let rows: Vec<_> = mount_pauses().map(|pause| row(&runs.sweep, pause)).into();
    let mut head = vec!["turns between transactions"];
    head.extend(LAYOUTS);
    head.extend(["transactions/s, packed", "transactions/s, counterless"]);
    page.table(&head, &rows);
    page.paragraph(TREES);
    let figure = |of: fn(&Trees) -> f64| {
        let figures: Vec<f64> = runs.trees.iter().map(of).collect();
        with_range(median(&figures))
    };
    let layout = runs.trees.first().map_or("", |run| &run.layout);
    let files = runs.trees.first().map_or(0, |run| run.files);
    let rows = [vec![
        layout.to_owned(),
        files.to_string(),
        figure(|run| run.create_seconds),
        figure(|run| run.remove_seconds),
        figure(|run| float(run.files as u64) / run.remove_seconds),
        figure(|run| float(run.transactions) / run.remove_seconds),
        figure(|run| float(run.checks) / float(run.files as u64)),
        figure(|run| float(run.conflicts)),
    ]];
    page.table(
        &[
            "layout",
            "files",
            "made, s",
            "removed, s",
            "removals/s",
            "transactions/s",
            "checks/removal",
            "begun again",
        ],
        &rows,
    );
    page.paragraph(CONCLUSION);
}

fn row(runs: &[Sweep], pause: u32) -> Vec<String> {
    let of = |layout: &str, figure: fn(&Sweep) -> f64| -> Vec<f64> {
        let wanted = |run: &&Sweep| run.pause == pause && run.layout == layout;
        runs.iter().filter(wanted).map(figure).collect()
    };
    let mut row = vec![pause.to_string()];
    let checks = LAYOUTS.map(|layout| with_range(median(&of(layout, |run| run.ns_per_check))));
    row.extend(checks);
    let rates = [LAYOUTS[0], LAYOUTS[2]].map(|layout| {
        let rates = of(layout, |run| run.transactions_per_second);
        short(median(&rates).value)
    });
    row.extend(rates);
    row
}
