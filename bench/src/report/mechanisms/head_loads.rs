//! M0: what loads queue and run, with each index of heads.

use super::published::FILES_MADE;
use super::references::{AFTER, BEFORE};
use super::verdict;
use crate::measure::{Estimate, float, median, ratio};
use crate::mechanisms::{Load, Queued, References, Work};
use crate::report::number::{short, with_range};
use crate::report::page::Page;

const FILES: &str = "\
## Files made and removed

Empty files made on a device in memory in five loops, as fs_mark makes them, and removed in the same order: in a loop \
100,000 by calls of the library, and 20,000 by system calls on a mount; and a file written in \
extents of 4 KiB, each apart from the others, and removed before most of them are in a commit. *Heads in all shards* are those \
that wait at some time of the work: median, 99 %, and most. *Heads at an insertion* are those of the shard that one is \
inserted in. Other figures but the rate are those of a commit on average.";

/// As above, of raw runs before anything was removed.
const FILES_BEFORE: &str = "\
## Files made

Empty files made on a device in memory in five loops, as fs_mark makes them, 20,000 of each thread in a loop by calls of the \
library and 4000 by system calls on a mount. *Heads at an insertion* are those of the shard that one is inserted in. How \
many wait in all shards was not counted. Other figures but the rate are those of a commit on average.";

const LOOPS: &str = "\
### Each loop

Files in a second: medians over the runs. Published are loops with 12 threads and 100,000 files of each; with the \
xarray, 3.4 % more files were made than with the tree.";

/// What does the work, threads, and which it is.
pub(super) type HeadLoad = (Load, u64, Work);

/// All loads.
pub(super) fn loads() -> Vec<HeadLoad> {
    let mut loads = Vec::new();
    for load in [Load::Library, Load::Mount] {
        for threads in [1, 2] {
            loads.extend(Work::ALL.map(|work| (load, threads, work)));
        }
    }
    loads
}

fn of(measured: &References, index: &str, load: HeadLoad, figure: fn(&Queued) -> f64) -> Vec<f64> {
    let is_of = |it: &&Queued| (&*it.index, (it.load, it.threads, it.work)) == (index, load);
    measured.made.iter().filter(is_of).map(figure).collect()
}

/// The rate of the first index over that of the second one.
pub(super) fn files_over(measured: &References, load: HeadLoad, indexes: [&str; 2]) -> Estimate {
    let [rates, of_rates] = indexes.map(|index| of(measured, index, load, rate));
    ratio(&rates, &of_rates)
}

/// Files in a second of all loops.
fn rate(queued: &Queued) -> f64 {
    let loops = queued.rates.len().max(1) as u64;
    let files = float(queued.files) / float(loops);
    let seconds: f64 = queued.rates.iter().map(|rate| files / rate).sum();
    float(queued.files) / seconds
}

pub(super) fn write(page: &mut Page, measured: &References) {
    let has_removals = measured.made.iter().any(|it| it.work != Work::Create);
    page.paragraph(if has_removals { FILES } else { FILES_BEFORE });
    let is_measured = |load: &HeadLoad| {
        let mut made = measured.made.iter();
        made.any(|it| (it.load, it.threads, it.work) == *load)
    };
    let loads: Vec<HeadLoad> = loads().into_iter().filter(is_measured).collect();
    for &load in &loads {
        table(page, measured, load);
    }
    page.paragraph(LOOPS);
    for &load in &loads {
        if matches!(load.2, Work::Create | Work::Unlink) {
            each_loop(page, measured, load);
        }
    }
}

fn title((load, threads, work): HeadLoad) -> String {
    format!("{}, {threads} thread(s), {}", load.name(), work.name())
}

fn table(page: &mut Page, measured: &References, load: HeadLoad) {
    let Some(first) = measured.shapes.first() else {
        return;
    };
    let row = |index: &str| {
        let figure =
            |figure: fn(&Queued) -> f64| short(median(&of(measured, index, load, figure)).value);
        let waiting = [
            figure(|it| float(it.waiting[0])),
            figure(|it| float(it.waiting[1])),
            figure(|it| float(it.waiting[2])),
        ];
        let waiting = if waiting.iter().all(|count| count == "0") {
            "-".to_owned()
        } else {
            waiting.join(", ")
        };
        vec![
            format!("`{index}`"),
            with_range(median(&of(measured, index, load, rate))),
            verdict(files_over(measured, load, [index, &first.index])),
            figure(|it| float(it.commits)),
            figure(|it| float(it.heads) / float(it.commits.max(1))),
            figure(|it| float(it.refs) / float(it.commits.max(1))),
            figure(|it| float(it.cancelled) / float(it.commits.max(1))),
            figure(|it| float(it.searches) / float(it.commits.max(1))),
            waiting,
            figure(|it| float(it.present[0])),
            figure(|it| float(it.present[1])),
        ]
    };
    let rows = measured.shapes.iter().map(|shape| row(&shape.index));
    let title = title(load);
    let head = [
        title.as_str(),
        "in a second",
        "over the first",
        "commits",
        "heads",
        "references",
        "cancelled",
        "searches",
        "heads in all shards",
        "heads at an insertion, median",
        "99 %",
    ];
    page.table(&head, &rows.collect::<Vec<_>>());
}

fn each_loop(page: &mut Page, measured: &References, load: HeadLoad) {
    let indexes: Vec<&str> = measured.shapes.iter().map(|shape| &*shape.index).collect();
    let rates = |index: &str, number: usize| -> Vec<f64> {
        let is_of = |it: &&Queued| (&*it.index, (it.load, it.threads, it.work)) == (index, load);
        let runs = measured.made.iter().filter(is_of);
        runs.filter_map(|it| it.rates.get(number).copied())
            .collect()
    };
    let has_published = load.2 == Work::Create;
    let row = |number: usize| {
        let mut row = vec![format!("loop {}", number + 1)];
        row.extend(
            indexes
                .iter()
                .map(|index| short(median(&rates(index, number)).value)),
        );
        if has_published {
            row.extend(FILES_MADE.map(|loops| short(loops[number])));
        }
        row
    };
    let mut rows: Vec<_> = (0..FILES_MADE[0].len()).map(row).collect();
    let mut sums = vec!["over the first column".to_owned()];
    let over = |index: &&str| verdict(files_over(measured, load, [index, indexes[0]]));
    sums.extend(indexes.iter().map(over));
    if has_published {
        let [before, after] = FILES_MADE.map(|loops| loops.iter().sum::<f64>());
        sums.extend(["-".to_owned(), format!("{:.2}", after / before)]);
    }
    rows.push(sums);
    let mut head = vec![title(load)];
    head.extend(indexes.iter().map(|index| format!("`{index}`")));
    if has_published {
        head.extend([
            format!("published, before (`{BEFORE}`)"),
            format!("published, after (`{AFTER}`)"),
        ]);
    }
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    page.table(&head, &rows);
}
