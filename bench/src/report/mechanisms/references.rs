//! Heads of delayed references.

use super::verdict;
use crate::measure::{float, median, ratio};
use crate::mechanisms::{Call, HeadCounts, Made, References, Timed, all_present};
use crate::report::Page;
use crate::report::number::{short, with_range};

const ABOUT: &str = "\
### Delayed references of btrfs: heads and their index

Changes of reference counts wait in heads, one for each extent, which are found by their addresses. Linux 6.5 moved the
links of a head next to its address, and Linux 6.13 left the tree for an array that is indexed by address. Each index
has the same interface here: `rb-split-144` and `rb-hot-136` are the layouts before and after 6.5, byte for byte,
`xarray-128` is the shape since 6.13, the others are ours; a mount uses `rb-line-64`. A search reads the address and one link
of a head at each level: the lines that this takes follow from the layout (mean over a page, both links).";

const TIMES: &str = "\
Single calls in an index with so many heads whose addresses have no order, one of 64 timed, without what the clock takes;
nanoseconds, median of the runs' medians with its range, and the 99th percentile. Published of insertions while fs_mark
made files, with a number of heads that is not known: mean 619.7 before and 587.8 after, median 548 and 542, 90 % 980 and
918, 95 % 1208 and 1113, 99 % 2090 and 1987, deviation 1834 and 1030, at most 940,647 and 299,200.";

const COUNTED: &str = "\
Instructions and misses of a first-level data cache of 48 KiB for each call with 10,000 heads and more, counted by
valgrind:";

const FILES: &str = "\
Empty files made in a mount on a device in memory, five loops, as fs_mark makes them; and what its commits counted.
Published with 12 threads and 100,000 files of each in a loop: 664,165 files/s before and 840,208 after, sums of five
loops (132,833 and 168,042 in the mean); with the array, 3.4 % more than with the tree.";

const CONCLUSION: &str = "\
What can be concluded: sizes, lines and counts are exact, the order of the indexes for one thread is that of this machine.
What cannot, on two processors: what twelve threads lose at one lock. An insertion is so small a part of the creation of a
file that an index alone can hardly be seen in files/s, here as in what was published (735,241 insertions of 620 ns are
0.46 s of 47.8 s).";

pub(super) fn write(page: &mut Page, measured: &References) {
    if measured.shapes.is_empty() {
        return;
    }
    page.paragraph(ABOUT);
    let rows = measured.shapes.iter().map(|shape| {
        let lines = shape.lines_per_level;
        vec![
            format!("`{}`", shape.index),
            shape.len_bytes.to_string(),
            shape.per_page.to_string(),
            lines.map_or_else(|| "-".to_owned(), short),
        ]
    });
    let head = ["index", "bytes of a head", "in a page", "lines/level"];
    page.table(&head, &rows.collect::<Vec<_>>());
    page.paragraph(TIMES);
    for call in Call::ALL {
        times(page, measured, call);
    }
    counted(page, measured);
    page.paragraph(FILES);
    for threads in [1, 2] {
        files(page, measured, threads);
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

fn files(page: &mut Page, measured: &References, threads: u64) {
    let of = |index: &str, figure: fn(&Made) -> f64| -> Vec<f64> {
        let made = measured.made.iter();
        let of_index = made.filter(|made| (made.threads, &*made.index) == (threads, index));
        of_index.map(figure).collect()
    };
    let rate = |made: &Made| float(made.files) / sum_of_seconds(made);
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
    let title = format!("{threads} thread(s)");
    let head = [
        title.as_str(),
        "files/s",
        "over the first",
        "heads/commit",
        "references/commit",
        "cancelled/commit",
        "searches/commit",
        "heads there, median",
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
