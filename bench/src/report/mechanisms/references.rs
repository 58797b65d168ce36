//! M0: heads of delayed references of btrfs.

use super::{BY_LOAD, Entry, Kept, begin, has_effect, verdict};
use crate::measure::{Estimate, float, median, ratio};
use crate::mechanisms::{
    Call, HeadCounts, HeadShape, Load, Made, Measured, References, Timed, all_present,
};
use crate::report::number::{short, with_range};
use crate::report::page::Page;

const FILE: &str = "delayed-refs.md";
/// The layouts of heads before and after the change that was published.
const BEFORE: &str = "rb-split-144";
const AFTER: &str = "rb-hot-136";
/// What Linux has since 6.13.
const ARRAY: &str = "xarray-128";
/// The number of heads that the summary is about.
const HEADS: u64 = 10_000;

const ABOUT: &str = "\
Changes of reference counts are queued in heads, one for each extent, which are found by the extent's address. Linux 6.5 \
moved the tree links of a head next to its address, and Linux 6.13 replaced the tree by an xarray that is indexed by \
address. Every index has the same interface here: `rb-split-144` and `rb-hot-136` are the layouts before and after 6.5, \
byte for byte, `xarray-128` is the shape since 6.13, the others are ours. A mount uses `rb-line-64`.";

const SHAPES: &str = "\
## Layout

A search reads the address and one link of a head at each level. The number of cache lines for that follows from the \
layout; it is the mean over the heads of a page and both links.";

const TIMES: &str = "\
## Time of single calls

One call of 64 is timed in an index with as many heads as the column says, with addresses in random order. \
Nanoseconds without those of reading the clock: median of the runs' medians with its interval, and the 99th percentile. \
Published of insertions while fs_mark made files, with an unknown number of heads: mean 619.7 before and 587.8 after, \
median 548 and 542, 90 % 980 and 918, 95 % 1208 and 1113, 99 % 2090 and 1987, standard deviation 1834 and 1030, \
maximum 940,647 and 299,200.";

const COUNTED: &str = "\
## Instructions and cache misses

Instructions and misses of a first-level data cache of 48 KiB for each call with 10,000 heads and more, counted by \
valgrind.";

const FILES: &str = "\
## Files made

Empty files made on a device in memory, five loops, as fs_mark makes them, by calls of the library and by system calls on \
a mount, and the counts of the commits. \
Published with 12 threads and 100,000 files of each in a loop: 664,165 files/s before and 840,208 after, as sums of \
five loops (132,833 and 168,042 on average); with the xarray, 3.4 % more than with the tree.";

const CONCLUSION: &str = "\
## What can be concluded

Sizes, lines and counts are exact, and the order of the indexes for one thread is that of this machine. Contention of \
twelve threads for one lock cannot be measured on two processors. An insertion is so small a part of making a file that \
the index alone can hardly be seen in files/s, here as in the published run (735,241 insertions of 620 ns are 0.46 s of \
47.8 s).";

pub(super) fn page(record: Option<&Kept>) -> Page {
    let measured = record.map(|record| &record.result.references);
    let measured = measured.filter(|measured| !measured.shapes.is_empty());
    let title = "M0: delayed reference heads of btrfs";
    let mut page = begin((FILE, title, ABOUT), BY_LOAD, record, measured.is_some());
    if let Some(measured) = measured {
        write(&mut page, measured);
    }
    page
}

pub(super) fn entry(measured: Option<&Measured>) -> Entry {
    let measured = measured.map(|measured| &measured.references);
    let measured = measured.filter(|measured| !measured.made.is_empty());
    Entry {
        number: "M0",
        name: "delayed reference heads: key and tree links in one cache line (btrfs)",
        file: FILE,
        published: "files made by 12 threads +26.5 %; mean insertion 619.7 to 587.8 ns",
        own: measured.map(own),
        conclusion: measured.map(conclusion),
    }
}

fn own(measured: &References) -> String {
    let mut parts = Vec::new();
    let lines = |index: &str| shape_of(measured, index)?.lines_per_level;
    if let (Some(before), Some(after)) = (lines(BEFORE), lines(AFTER)) {
        parts.push(format!("lines/level {} to {}", short(before), short(after)));
    }
    let misses = |index: &str| {
        let is_of = |one: &&HeadCounts| one.index == index && one.call == Call::Find;
        measured.counted.iter().find(is_of).map(|one| one.misses)
    };
    if let (Some(before), Some(after)) = (misses(BEFORE), misses(AFTER)) {
        parts.push(format!(
            "D1 misses/search {} to {}",
            short(before),
            short(after)
        ));
    }
    let inserted = |index: &str| medians(measured, index, (HEADS, Call::Insert));
    let [before, after] = [BEFORE, AFTER].map(inserted);
    if !before.is_empty() && !after.is_empty() {
        parts.push(format!(
            "time of an insertion, {HEADS} heads: {}",
            verdict(ratio(&after, &before))
        ));
    }
    for load in [Load::Library, Load::Mount] {
        let files = |index: &str| verdict(files_over_before(measured, load, index));
        parts.push(format!(
            "files/s, {}, 2 threads: {}, with the xarray {}",
            load.name(),
            files(AFTER),
            files(ARRAY)
        ));
    }
    parts.join("; ")
}

fn conclusion(measured: &References) -> String {
    let files = files_over_before(measured, Load::Library, AFTER);
    let seen = match (has_effect(files), files.value > 1.0) {
        (false, _) => {
            "the layout of 6.5 has no visible effect on files/s, of which an insertion is a small part"
        }
        (true, true) => "files/s gain as well",
        (true, false) => "files/s lose nevertheless",
    };
    format!(
        "The lines and misses saved are exact; {seen}. Contention of 12 threads cannot be measured here."
    )
}

/// Files in a second by two threads, over those with the layout before the change.
fn files_over_before(measured: &References, load: Load, index: &str) -> Estimate {
    let rates = |index: &str| made(measured, (index, load, 2), rate);
    ratio(&rates(index), &rates(BEFORE))
}

fn shape_of<'m>(measured: &'m References, index: &str) -> Option<&'m HeadShape> {
    let mut shapes = measured.shapes.iter();
    shapes.find(|shape| shape.index == index)
}

fn medians(measured: &References, index: &str, (present, call): (u64, Call)) -> Vec<f64> {
    let is_of = |run: &&Timed| (run.present, run.call, &*run.index) == (present, call, index);
    let runs = measured.timed.iter().filter(is_of);
    runs.map(|run| run.quantiles[0]).collect()
}

fn made(
    measured: &References,
    (index, load, threads): (&str, Load, u64),
    figure: fn(&Made) -> f64,
) -> Vec<f64> {
    let is_of = |made: &&Made| (&*made.index, made.load, made.threads) == (index, load, threads);
    measured.made.iter().filter(is_of).map(figure).collect()
}

fn rate(made: &Made) -> f64 {
    float(made.files) / sum_of_seconds(made)
}

fn write(page: &mut Page, measured: &References) {
    page.paragraph(SHAPES);
    let rows = measured.shapes.iter().map(|shape| {
        let lines = shape.lines_per_level;
        vec![
            format!("`{}`", shape.index),
            shape.len_bytes.to_string(),
            shape.per_page.to_string(),
            lines.map_or_else(|| "-".to_owned(), short),
        ]
    });
    let head = ["index", "bytes of a head", "heads in a page", "lines/level"];
    page.table(&head, &rows.collect::<Vec<_>>());
    page.paragraph(TIMES);
    for call in Call::ALL {
        times(page, measured, call);
    }
    counted(page, measured);
    page.paragraph(FILES);
    for load in [Load::Library, Load::Mount] {
        for threads in [1, 2] {
            files(page, measured, (load, threads));
        }
    }
    page.paragraph(CONCLUSION);
}

fn times(page: &mut Page, measured: &References, call: Call) {
    let mut head = vec![call.name().to_owned()];
    head.extend(all_present().map(|present| format!("{present} heads")));
    let cell = |index: &str, present: u64| {
        let is_of = |run: &&Timed| (run.present, run.call, &*run.index) == (present, call, index);
        let of = |at: usize| -> Vec<f64> {
            let runs = measured.timed.iter().filter(is_of);
            runs.map(|run| run.quantiles[at]).collect()
        };
        if of(0).is_empty() {
            return "-".to_owned();
        }
        let late = short(median(&of(3)).value);
        format!("{}, 99 % {late}", with_range(median(&of(0))))
    };
    let row = |index: &str| {
        let mut row = vec![format!("`{index}`")];
        row.extend(all_present().map(|present| cell(index, present)));
        row
    };
    let rows: Vec<_> = measured
        .shapes
        .iter()
        .map(|shape| row(&shape.index))
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    page.table(&head, &rows);
}

fn counted(page: &mut Page, measured: &References) {
    page.paragraph(COUNTED);
    let row = |one: &HeadCounts| {
        vec![
            format!("`{}`", one.index),
            one.call.name().to_owned(),
            short(one.instructions),
            short(one.misses),
        ]
    };
    let rows: Vec<_> = measured.counted.iter().map(row).collect();
    page.table(&["index", "call", "instructions", "D1 misses"], &rows);
}

fn files(page: &mut Page, measured: &References, (load, threads): (Load, u64)) {
    let of = |index: &str, figure: fn(&Made) -> f64| made(measured, (index, load, threads), figure);
    let Some(first) = measured.shapes.first() else {
        return;
    };
    let row = |index: &str| {
        let per_commit = |figure: fn(&Made) -> f64| short(median(&of(index, figure)).value);
        vec![
            format!("`{index}`"),
            with_range(median(&of(index, rate))),
            verdict(ratio(&of(index, rate), &of(&first.index, rate))),
            per_commit(|made| float(made.heads) / float(made.commits.max(1))),
            per_commit(|made| float(made.refs) / float(made.commits.max(1))),
            per_commit(|made| float(made.cancelled) / float(made.commits.max(1))),
            per_commit(|made| float(made.searches) / float(made.commits.max(1))),
            per_commit(|made| float(made.present[0])),
            per_commit(|made| float(made.present[1])),
        ]
    };
    let rows: Vec<_> = measured
        .shapes
        .iter()
        .map(|shape| row(&shape.index))
        .collect();
    let title = format!("{}, {threads} thread(s)", load.name());
    let head = [
        title.as_str(),
        "files/s",
        "over the first",
        "heads/commit",
        "references/commit",
        "cancelled/commit",
        "searches/commit",
        "heads at an insertion, median",
        "99 %",
    ];
    page.table(&head, &rows);
}

/// What all loops took.
fn sum_of_seconds(made: &Made) -> f64 {
    let loops = made.rates.len().max(1) as u64;
    let files = float(made.files) / float(loops);
    made.rates.iter().map(|rate| files / rate).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(index: &str, rate: f64) -> Made {
        Made {
            index: index.to_owned(),
            load: Load::Library,
            threads: 2,
            rates: vec![rate],
            commits: 1,
            files: 100,
            heads: 1,
            refs: 1,
            cancelled: 0,
            searches: 1,
            present: [1, 1],
        }
    }

    #[test]
    fn the_conclusion_follows_files_per_second() {
        let shape = |index: &str, lines: f64| HeadShape {
            index: index.to_owned(),
            len_bytes: 144,
            per_page: 28,
            lines_per_level: Some(lines),
        };
        let mut measured = References {
            shapes: vec![shape(BEFORE, 2.0), shape(AFTER, 1.44)],
            made: vec![made(BEFORE, 100.0), made(AFTER, 100.0), made(ARRAY, 200.0)],
            ..References::default()
        };
        let text = own(&measured);
        assert!(
            text.starts_with("lines/level 2 to 1.44; files/s, library, 2 threads: no effect"),
            "{text}"
        );
        assert!(
            text.contains("with the xarray 2.00 (2.00 to 2.00)"),
            "{text}"
        );
        assert!(conclusion(&measured).contains("no visible effect on files/s"));
        measured.made[1] = made(AFTER, 200.0);
        assert!(conclusion(&measured).contains("files/s gain as well"));
    }
}
