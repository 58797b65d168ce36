//! Items of block groups that are not written.

use super::verdict;
use crate::measure::{median, ratio};
use crate::mechanisms::{Form, GroupRun};
use crate::report::Page;
use crate::report::number::{short, with_range};

const ABOUT: &str = "\
### Block groups of btrfs: items that are as they should be

A commit writes the items of block groups whose use changed. A copy of a tree block takes a block and frees one, mostly of
the same group: its use is what it was, and to write it would copy one block more. Linux skips such items since 6.2. Here
what the item holds is compared as a whole. Random writes of 4 KiB to a file of 512 MiB with a commit after every 256,
through the library, with the comparison and without, in turns; figures are means of a run's commits, medians of the
runs. Published: 20 to 80 % of the items skipped in many workloads; of 24 commits under four jobs of fio on an SSD, the loop
over groups 23,133 before and 18,971 after (-18.0 %), the critical section 229,247,198 and 215,016,934 (-6.2 %), in a
unit that is not named, by its size nanoseconds.";

const CONCLUSION: &str = "\
What can be concluded: groups, blocks and references are counted, and the same on any machine. The loop is so small a part
of the critical section that a change of the latter by it is not to be expected, here as in what was published (the loop was
0.01 % of it).";

pub(super) fn write(page: &mut Page, runs: &[GroupRun]) {
    if runs.is_empty() {
        return;
    }
    page.paragraph(ABOUT);
    let mut rows = Vec::new();
    for form in Form::ALL {
        for skips in [false, true] {
            rows.extend(row(runs, form, skips));
        }
    }
    let head = [
        "items in, device",
        "comparison",
        "dirty/commit",
        "skipped",
        "written",
        "inserted",
        "blocks copied",
        "references",
        "loop, ns",
        "critical, ns",
    ];
    page.table(&head, &rows);
    let rows: Vec<_> = Form::ALL
        .into_iter()
        .filter_map(|form| changes(runs, form))
        .collect();
    page.table(&["with over without", "loop", "critical"], &rows);
    page.paragraph(CONCLUSION);
}

fn of(runs: &[GroupRun], form: Form, skips: bool, figure: fn(&GroupRun) -> f64) -> Vec<f64> {
    let is_of = |run: &&GroupRun| (run.form, run.skips) == (form, skips);
    runs.iter().filter(is_of).map(figure).collect()
}

fn row(runs: &[GroupRun], form: Form, skips: bool) -> Option<Vec<String>> {
    let figure = |figure: fn(&GroupRun) -> f64| median(&of(runs, form, skips, figure));
    if of(runs, form, skips, |run| run.dirty).is_empty() {
        return None;
    }
    let count = |of: fn(&GroupRun) -> f64| short(figure(of).value);
    let share = |run: &GroupRun| 100.0 * run.skipped / run.dirty.max(f64::MIN_POSITIVE);
    Some(vec![
        form.name().to_owned(),
        if skips { "on" } else { "off" }.to_owned(),
        count(|run| run.dirty),
        format!(
            "{} ({} %)",
            count(|run| run.skipped),
            short(figure(share).value)
        ),
        count(|run| run.written),
        count(|run| run.inserted),
        count(|run| run.blocks_copied),
        count(|run| run.refs_created),
        with_range(figure(|run| run.loop_nanoseconds)),
        with_range(figure(|run| run.critical_nanoseconds)),
    ])
}

fn changes(runs: &[GroupRun], form: Form) -> Option<Vec<String>> {
    let change = |figure: fn(&GroupRun) -> f64| {
        let [with, without] = [true, false].map(|skips| of(runs, form, skips, figure));
        (!with.is_empty() && !without.is_empty()).then(|| verdict(ratio(&with, &without)))
    };
    Some(vec![
        form.name().to_owned(),
        change(|run| run.loop_nanoseconds)?,
        change(|run| run.critical_nanoseconds)?,
    ])
}
