//! M0: heads of delayed references of btrfs.

use std::cmp::Ordering;
use std::fmt::Write;

use super::head_loads::{self, files_over};
use super::published::INSERTIONS;
use super::{BY_LOAD, Entry, Kept, begin, has_effect, verdict};
use crate::measure::{Estimate, median, ratio};
use crate::mechanisms::{
    Call, HeadCounts, HeadShape, Load, Measured, References, Timed, Work, all_present,
};
use crate::report::number::{short, with_range};
use crate::report::page::Page;

const FILE: &str = "delayed-refs.md";
/// The layouts of heads before and after the change that was published.
pub(super) const BEFORE: &str = "rb-split-144";
pub(super) const AFTER: &str = "rb-hot-136";
/// What Linux has since 6.13.
pub(super) const ARRAY: &str = "xarray-128";
/// What a mount uses.
pub(super) const DEFAULT: &str = "rb-line-64";
/// The number of heads that the summary is about.
const HEADS: u64 = 10_000;
/// The number of threads that make the files it is about.
const FILES_THREADS: u64 = 2;

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
Nanoseconds without those of reading the clock: median of the runs' medians with its interval, and the 99th percentile.";

const DISTRIBUTIONS: &str = "\
### Distribution of single calls

Medians over the runs of what each run came to, in nanoseconds. Published are insertions while fs_mark made files by 12 \
threads, with an unknown number of heads: the columns are the same in each row of a figure.";

const COUNTED: &str = "\
## Instructions and cache misses

Instructions and misses of a first-level data cache of 48 KiB for each call, counted by valgrind: searches with 10,000 \
heads, insertions from there up to 70,000, and deletions from 70,000 down, in no order. A deletion has up to one miss \
more, of the table that the slot to be deleted is taken from.";

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
    let measured = measured.filter(|measured| has_files(measured, Load::Library));
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
    let loads = [Load::Library, Load::Mount].into_iter();
    for load in loads.filter(|&load| has_files(measured, load)) {
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

/// Whether the files were made that the summary is about.
fn has_files(measured: &References, load: Load) -> bool {
    let mut made = measured.made.iter();
    made.any(|it| (it.load, it.threads, it.work) == (load, FILES_THREADS, Work::Create))
}

/// Files in a second by two threads, over those with the layout before the change.
fn files_over_before(measured: &References, load: Load, index: &str) -> Estimate {
    files_over(
        measured,
        (load, FILES_THREADS, Work::Create),
        [index, BEFORE],
    )
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
    page.paragraph(DISTRIBUTIONS);
    for call in Call::ALL {
        distributions(page, measured, call);
    }
    counted(page, measured);
    head_loads::write(page, measured);
    page.paragraph(&default_index(measured));
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

/// What a distribution is described by.
const FIGURES: [&str; 7] = [
    "mean",
    "median",
    "standard deviation",
    "90 %",
    "95 %",
    "99 %",
    "longest",
];

fn figures(run: &Timed) -> [f64; 7] {
    let [median, rest @ ..] = run.quantiles;
    let [ninety, ninety_five, ninety_nine, longest] = rest;
    [
        run.mean,
        median,
        run.deviation,
        ninety,
        ninety_five,
        ninety_nine,
        longest,
    ]
}

fn distributions(page: &mut Page, measured: &References, call: Call) {
    let cell = |index: &str, present: u64, figure: usize| {
        let is_of = |run: &&Timed| (run.present, run.call, &*run.index) == (present, call, index);
        let runs = measured.timed.iter().filter(is_of);
        let values: Vec<f64> = runs.map(|run| figures(run)[figure]).collect();
        if values.is_empty() {
            return "-".to_owned();
        }
        short(median(&values).value)
    };
    let mut rows = Vec::new();
    for present in all_present() {
        for (figure, name) in FIGURES.into_iter().enumerate() {
            let mut row = vec![format!("{present} heads, {name}")];
            let indexes = measured.shapes.iter();
            row.extend(indexes.map(|shape| cell(&shape.index, present, figure)));
            if call == Call::Insert {
                row.extend(INSERTIONS.map(|published| short(published[figure])));
            }
            rows.push(row);
        }
    }
    let mut head = vec![call.name().to_owned()];
    let indexes = measured.shapes.iter();
    head.extend(indexes.map(|shape| format!("`{}`", shape.index)));
    if call == Call::Insert {
        head.extend(["published, before", "published, after"].map(str::to_owned));
    }
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    page.table(&head, &rows);
}

/// Why a mount has the index that it has, by what was measured.
fn default_index(measured: &References) -> String {
    let mut text = format!("## The index of a mount\n\nA mount uses `{DEFAULT}`.");
    let sum = |index: &str, present: u64| -> Option<f64> {
        let calls = Call::ALL.map(|call| medians(measured, index, (present, call)));
        let is_whole = calls.iter().all(|runs| !runs.is_empty());
        is_whole.then(|| calls.iter().map(|runs| median(runs).value).sum())
    };
    for present in [1000, HEADS] {
        if let (Some(tree), Some(array)) = (sum(DEFAULT, present), sum(ARRAY, present)) {
            let _ = write!(
                text,
                " With {present} heads, the insertion, a search and the deletion of a head take it {} ns together, and \
                 `{ARRAY}` {} ns.",
                short(tree),
                short(array)
            );
        }
    }
    let loads = head_loads::loads();
    let over = |&load: &head_loads::HeadLoad| files_over(measured, load, [ARRAY, DEFAULT]);
    let changes: Vec<Estimate> = loads.iter().map(over).filter(|it| it.value > 0.0).collect();
    let faster = changes.iter().filter(|it| it.low > 1.0).count();
    let slower = changes.iter().filter(|it| it.high < 1.0).count();
    if changes.is_empty() {
        return text;
    }
    let _ = write!(
        text,
        " Of {} loads of a whole filesystem, the array is faster in {faster} and slower in {slower}",
        changes.len()
    );
    text.push_str(match faster.cmp(&slower) {
        Ordering::Greater => ": by these figures it should be the default.",
        Ordering::Equal => {
            ": a head is queued so seldom that the time of its calls is not seen. What decides is memory: a head of the \
             tree takes 64 bytes with its links, and one of the array 128, with a part of a node of 264 bytes for each 64 \
             sectors of addresses that have any. Heads that lie far apart, as those of files that are removed, have a \
             node, and those above it, for themselves."
        }
        Ordering::Less => ": what its calls save is lost elsewhere.",
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanisms::Queued;

    fn made(index: &str, rate: f64) -> Queued {
        Queued {
            index: index.to_owned(),
            load: Load::Library,
            threads: 2,
            work: Work::Create,
            rates: vec![rate],
            commits: 1,
            files: 100,
            heads: 1,
            refs: 1,
            cancelled: 0,
            searches: 1,
            present: [1, 1],
            waiting: [1, 1, 1],
        }
    }

    #[test]
    fn the_reason_for_the_default_follows_the_loads() {
        let timed = |index: &str, call, nanoseconds| Timed {
            index: index.to_owned(),
            present: HEADS,
            call,
            mean: nanoseconds,
            deviation: 0.0,
            quantiles: [nanoseconds; 5],
        };
        let of = |index, nanoseconds| Call::ALL.map(|call| timed(index, call, nanoseconds));
        let mut measured = References {
            timed: [of(DEFAULT, 10.0), of(ARRAY, 5.0)].concat(),
            made: vec![made(DEFAULT, 100.0), made(ARRAY, 100.0)],
            ..References::default()
        };
        let text = default_index(&measured);
        assert!(
            text.contains("take it 30 ns together, and `xarray-128` 15 ns"),
            "{text}"
        );
        assert!(text.contains("Of 1 loads") && text.contains("What decides is memory"));
        measured.made[1] = made(ARRAY, 200.0);
        assert!(default_index(&measured).contains("it should be the default"));
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
