//! M2: items of block groups of btrfs that are not written.

use super::published::COMMITS;
use super::{BY_LOAD, Entry, Kept, begin, has_effect, verdict};
use crate::measure::{Estimate, median, ratio};
use crate::mechanisms::{Form, GroupRun, Load, Measured};
use crate::report::number::{short, with_range};
use crate::report::page::Page;

const FILE: &str = "block-groups.md";

const ABOUT: &str = "\
A commit writes the items of block groups whose use changed. Copying a tree block on write allocates one block and frees \
one, mostly in the same group: the use is the same as before, and the item need not be written. To write it would cost a \
search, and the copy of its leaf if nothing else of the transaction copied that. Linux skips such items since 6.2. Here the \
whole item is compared.

Published: 20 to 80 % of the items skipped in many workloads, and the times of 24 commits under four jobs of fio on an SSD, \
in the last columns of the second table. Their unit is not named; by its size it is nanoseconds.";

const MEASURED: &str = "\
## Commits with and without the comparison

Direct random writes of 4 KiB to a file of 512 MiB by four jobs with 64 at a time of each: on a mount by fio, as published, \
and as many threads by calls of the library. A commit begins 10 ms after the end of the one before; a run has 200. *Many \
groups* are of 16 MiB, with tree blocks of 4 KiB, and a commit begins after 64 writes, all in the same 1 MiB of the file. The \
comparison is on and off in turns. Figures are means over the commits of a run, then medians of the runs. At the end of each form `btrfs check` judged an \
image of each.";

const TIMES: &str = "\
## Times, and those published

Nanoseconds of a commit without the comparison (before) and with it (after).";

/// As above, of raw runs before there were forms with many groups.
const MEASURED_BEFORE: &str = "\
## Commits with and without the comparison

Direct random writes of 4 KiB to a file of 512 MiB, one at a time, with a commit after every 256, by calls of the library and \
by system calls on a mount, with the comparison on and off in turns. Figures are means over the commits of a run, then medians \
of the runs.";

const CONCLUSION: &str = "\
## What can be concluded

Groups, blocks and references are counted, and the same on any machine. The loop is so small a part of the critical \
section that no change of the latter is to be expected, here as in the published run, where the loop was 0.01 % of it.";

pub(super) fn page(record: Option<&Kept>) -> Page {
    let runs = record.map_or(&[][..], |record| &record.result.groups);
    let title = "M2: block group items that need not be written (btrfs)";
    let mut page = begin((FILE, title, ABOUT), BY_LOAD, record, !runs.is_empty());
    if !runs.is_empty() {
        write(&mut page, runs);
    }
    page
}

pub(super) fn entry(measured: Option<&Measured>) -> Entry {
    let runs = measured.map_or(&[][..], |measured| &measured.groups);
    // The published run was on a mounted disk, with items in the extent tree.
    let is_like = |form: &Form| form.load == Load::Mount && form.is_disk && !form.has_group_tree;
    let mut forms: Vec<Form> = Form::ALL.into_iter().filter(is_like).collect();
    forms.extend(Form::ALL);
    let measured = forms.into_iter().find_map(|form| Changes::of(runs, form));
    Entry {
        number: "M2",
        name: "block group items that are not rewritten when unchanged (btrfs)",
        file: FILE,
        published: "20 to 80 % of items skipped; group loop -18.0 %, critical section of the commit -6.2 %",
        own: measured.as_ref().map(Changes::own),
        conclusion: measured.as_ref().map(Changes::conclusion),
    }
}

fn write(page: &mut Page, runs: &[GroupRun]) {
    let has_many_groups = runs.iter().any(|run| run.form.has_many_groups);
    page.paragraph(if has_many_groups {
        MEASURED
    } else {
        MEASURED_BEFORE
    });
    let mut rows = Vec::new();
    for form in Form::ALL {
        for skips in [false, true] {
            rows.extend(row(runs, form, skips));
        }
    }
    let head = [
        "load, items in, device",
        "comparison",
        "dirty/commit",
        "skipped",
        "written",
        "inserted",
        "blocks copied",
        "references",
        "loop, ns",
        "critical section, ns",
    ];
    page.table(&head, &rows);
    page.paragraph(&copies(runs));
    page.paragraph(TIMES);
    let changes = Form::ALL
        .into_iter()
        .filter_map(|form| Changes::of(runs, form));
    let rows: Vec<_> = changes.flat_map(|changes| changes.rows(runs)).collect();
    let head = [
        "load, items in, device",
        "before",
        "after",
        "after over before",
        "published, before",
        "after",
        "after over before",
    ];
    page.table(&head, &rows);
    page.paragraph(CONCLUSION);
}

/// What the comparison saves of copies, by what was counted.
fn copies(runs: &[GroupRun]) -> String {
    let mut saved = Vec::new();
    let mut measured = 0;
    for form in Form::ALL {
        let [off, on] = [false, true].map(|skips| of(runs, form, skips, |run| run.blocks_copied));
        if off.is_empty() || on.is_empty() {
            continue;
        }
        measured += 1;
        let [off, on] = [off, on].map(|blocks| median(&blocks));
        if on.high < off.low {
            let [on, off] = [on, off].map(|blocks| short(blocks.value));
            saved.push(format!("{on} instead of {off} ({})", form.name()));
        }
    }
    if saved.is_empty() {
        return "With the comparison the loop copies as many blocks as without it in each of these forms: something else \
                of the transaction copies the leaves of the items before. What is saved is the search."
            .to_owned();
    }
    format!(
        "With the comparison the loop copies fewer blocks in {} of {measured} forms: {}. In the others something else of the \
         transaction copies the leaves of the items before, and what is saved is the search.",
        saved.len(),
        saved.join("; ")
    )
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
    Some(vec![
        form.name(),
        if skips { "on" } else { "off" }.to_owned(),
        count(|run| run.dirty),
        format!(
            "{} ({} %)",
            count(|run| run.skipped),
            short(figure(skipped_percent).value)
        ),
        count(|run| run.written),
        count(|run| run.inserted),
        count(|run| run.blocks_copied),
        count(|run| run.refs_created),
        with_range(figure(|run| run.loop_nanoseconds)),
        with_range(figure(|run| run.critical_nanoseconds)),
    ])
}

/// What the comparison changes in one form.
struct Changes {
    form: Form,
    /// Of the dirty groups, in percent.
    skipped: f64,
    /// Times with the comparison over times without.
    in_loop: Estimate,
    critical: Estimate,
}

impl Changes {
    /// Nothing, where one of the two was not measured.
    fn of(runs: &[GroupRun], form: Form) -> Option<Self> {
        let change = |figure: fn(&GroupRun) -> f64| {
            let [with, without] = [true, false].map(|skips| of(runs, form, skips, figure));
            (!with.is_empty() && !without.is_empty()).then(|| ratio(&with, &without))
        };
        Some(Self {
            form,
            skipped: median(&of(runs, form, true, skipped_percent)).value,
            in_loop: change(|run| run.loop_nanoseconds)?,
            critical: change(|run| run.critical_nanoseconds)?,
        })
    }

    /// The loop and the critical section, with what was published of each.
    fn rows(&self, runs: &[GroupRun]) -> [Vec<String>; 2] {
        let row = |name: &str, figure: fn(&GroupRun) -> f64, change, published: [f64; 2]| {
            let time = |skips| with_range(median(&of(runs, self.form, skips, figure)));
            let [before, after] = published;
            vec![
                format!("{name}: {}", self.form.name()),
                time(false),
                time(true),
                verdict(change),
                short(before),
                short(after),
                format!("{:.2}", after / before),
            ]
        };
        [
            row(
                "loop",
                |run| run.loop_nanoseconds,
                self.in_loop,
                COMMITS.in_loop,
            ),
            row(
                "critical section",
                |run| run.critical_nanoseconds,
                self.critical,
                COMMITS.critical,
            ),
        ]
    }

    fn own(&self) -> String {
        format!(
            "{} % of items skipped; time of the loop: {}; of the critical section: {} ({})",
            short(self.skipped),
            verdict(self.in_loop),
            verdict(self.critical),
            self.form.name()
        )
    }

    fn conclusion(&self) -> String {
        let seen = match (has_effect(self.in_loop), has_effect(self.critical)) {
            (true, true) => "both the loop and the critical section change",
            (true, false) => {
                "the loop changes, and the critical section, of which it is a small part, does not"
            }
            (false, true) => {
                "the critical section changes although the loop does not, so the loop is not the cause"
            }
            (false, false) => "no time changes visibly",
        };
        format!("The items skipped are counted and exact; {seen}.")
    }
}

/// The groups that were skipped, of those that were dirty.
fn skipped_percent(run: &GroupRun) -> f64 {
    100.0 * run.skipped / run.dirty.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: [Form; 2] = [
        Form::new(Load::Library, false, false),
        Form::new(Load::Mount, false, true),
    ];

    fn run(form: Form, skips: bool, [in_loop, critical]: [f64; 2]) -> GroupRun {
        GroupRun {
            form,
            skips,
            commits: 1,
            dirty: 4.0,
            skipped: if skips { 3.0 } else { 0.0 },
            written: 1.0,
            inserted: 0.0,
            blocks_copied: 1.0,
            refs_created: 2.0,
            blocks_written: 9.0,
            loop_nanoseconds: in_loop,
            critical_nanoseconds: critical,
        }
    }

    #[test]
    fn copies_are_said_to_be_saved_only_where_they_are() {
        let [memory, disk] = FORMS;
        let of = |form, skips| run(form, skips, [1.0, 1.0]);
        let mut runs = vec![
            of(memory, false),
            of(memory, true),
            of(disk, false),
            of(disk, true),
        ];
        assert!(copies(&runs).contains("as many blocks as without it in each"));
        runs[3].blocks_copied = 0.5;
        let text = copies(&runs);
        assert!(
            text.contains("in 1 of 2 forms: 0.5 instead of 1 (mount, extent tree, 100"),
            "{text}"
        );
    }

    #[test]
    fn the_summary_has_the_form_that_was_published() {
        let [memory, disk] = FORMS;
        let runs = [
            run(memory, false, [10.0, 100.0]),
            run(memory, true, [9.0, 99.0]),
            run(disk, false, [10.0, 100.0]),
            run(disk, true, [5.0, 100.0]),
        ];
        let changes = Changes::of(&runs, disk).unwrap();
        assert_eq!(
            changes.own(),
            "75 % of items skipped; time of the loop: 0.50 (0.50 to 0.50); of the critical section: \
             no effect (1.00 to 1.00) (mount, extent tree, 100 µs a write)"
        );
        assert!(changes.conclusion().contains("the loop changes"));
        let [in_loop, critical] = changes.rows(&runs);
        assert_eq!(in_loop[4..], ["23.1k", "19k", "0.82"]);
        assert_eq!(critical[4..], ["229M", "215M", "0.94"]);
        assert!(Changes::of(&runs, Form::new(Load::Library, true, false)).is_none());
        assert!(Changes::of(&runs[..1], memory).is_none());
    }
}
