//! M4: the metadata block cache, by which files share blocks of attributes.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::published::Published;
use super::{Entry, Kept, NO_FUSE, begin, verdict};
use crate::measure::{Estimate, float, median, ratio};
use crate::mechanisms::{Cell, Measured, Operation, SETS, SharingRun, Variant};
use crate::report::charts::{Curve, curves};
use crate::report::number::short;
use crate::report::page::Page;

const FILE: &str = "mbcache.md";

const ABOUT: &str = "\
A file whose attributes do not fit in its inode gets a block for them; files with equal attributes can share one. The \
cache that finds such blocks, mbcache, was rewritten in Linux 4.6, and the grid by which the rewrite was judged is \
measured here: each of P threads sets an attribute of one of its own F files to one of V values, 50,000 times. Values \
have 64 bytes, which do not fit in inodes of 128 bytes. With more threads than processors each sets fewer, after \
every file was given an attribute, and the time is scaled to 50,000 sets. Filesystems lie on a device in memory and are \
used through the library.

Published are processes on 24 processors, means of 5 runs, in this order: the cache before, the new one with an LRU list, \
with list_lru, with a referenced bit (which Linux uses), and without a cache. N/A is where the machine died. In our \
tables, *one lock* stands for the cache before: one list under one lock, without being that code. *Clock per shard* is \
what platter uses.";

const READING: &str = "\
Cells are medians in seconds with the range of all runs. *Referenced bit / one lock* and *disabled / referenced bit* are \
ratios of times: less than 1 is faster. They have the interval of 95 % confidence where there are 5 runs. *Files/block* is \
of the clock per shard.";
/// Of fewer runs an interval says little.
const RUNS_OF_INTERVAL: usize = 5;

const CONCLUSION: &str = "\
## What can be concluded

The space that sharing saves (files for each block) is exact, and the order of the designs with one thread and two is \
that of this machine. The collapse of the cache before, which took 16 processes and more, and the cells where the machine \
died of it cannot be measured on two processors. With more threads than processors (oversubscribed) a table shows what \
happens when the thread with a lock loses its processor, not what more processors would give.";

pub(super) fn page(record: Option<&Kept>) -> Page {
    let measured = record.map(|record| &record.result);
    let measured = measured.filter(|measured| !measured.sharing.is_empty());
    let title = "M4: mbcache, by which files share blocks of attributes (ext2, ext4)";
    let mut page = begin((FILE, title, ABOUT), NO_FUSE, record, measured.is_some());
    if let (Some(record), Some(measured)) = (record, measured) {
        write(&mut page, measured, record.machine.processors as u64);
    }
    page
}

pub(super) fn entry(measured: Option<&Measured>) -> Entry {
    let runs = measured.map(|measured| &*measured.sharing);
    let grid = runs.and_then(Grid::of);
    Entry {
        number: "M4",
        name: "mbcache with a referenced bit (ext2, ext4)",
        file: FILE,
        published: "V=10 F=10: 1 process 0.158 to 0.155 s, 64 processes on 24 processors 61.339 to 2.994 s",
        own: grid.as_ref().map(Grid::own),
        conclusion: grid.as_ref().map(Grid::conclusion),
    }
}

/// The cells of ext4 by one thread and by two, as the summary has them.
struct Grid {
    /// The referenced bit compared with one lock.
    designs: Tally,
    /// No cache compared with the referenced bit.
    without: Tally,
    /// The same ratio of times where most files share a value.
    most_shared: Estimate,
}

/// In how many cells one is faster and slower than another.
#[derive(Default)]
struct Tally {
    cells: usize,
    faster: usize,
    slower: usize,
}

/// Ten values on a thousand files each of two threads.
const MOST_SHARED: Cell = Cell {
    values: 10,
    files: 1000,
    threads: 2,
};

impl Grid {
    /// Nothing, where the cell with the most sharing was not measured.
    fn of(runs: &[SharingRun]) -> Option<Self> {
        let over = |cell: Cell, [above, below]: [Variant; 2]| {
            let [above, below] = [above, below].map(|variant| seconds(runs, "ext4", cell, variant));
            (!above.is_empty() && !below.is_empty()).then(|| ratio(&above, &below))
        };
        let here = runs.iter().map(|run| run.cell);
        let cells: BTreeSet<Cell> = here.filter(|cell| cell.threads <= 2).collect();
        let tally = |designs: [Variant; 2]| {
            let mut tally = Tally::default();
            for change in cells.iter().filter_map(|cell| over(*cell, designs)) {
                tally.cells += 1;
                tally.faster += usize::from(change.high < 1.0);
                tally.slower += usize::from(1.0 < change.low);
            }
            tally
        };
        let without = [Variant::Disabled, Variant::RefBit];
        Some(Self {
            designs: tally([Variant::RefBit, Variant::GlobalLock]),
            without: tally(without),
            most_shared: over(MOST_SHARED, without)?,
        })
    }

    fn own(&self) -> String {
        let Tally {
            cells,
            faster,
            slower,
        } = self.designs;
        format!(
            "ext4, 1 and 2 threads, {cells} cells: the referenced bit is faster than one lock in {faster} and slower in \
             {slower}; no cache is faster than the referenced bit in {} and slower in {}; its time at V=10 F=1000: {}",
            self.without.faster,
            self.without.slower,
            verdict(self.most_shared)
        )
    }

    fn conclusion(&self) -> String {
        let Tally {
            cells,
            faster,
            slower,
        } = self.designs;
        let designs = if 2 * (faster + slower) < cells {
            "Up to two threads the designs differ in few cells"
        } else {
            "The designs differ with two threads"
        };
        let without = match (self.without.faster > 0, self.most_shared.low > 1.0) {
            (true, true) => {
                "the cache costs time where few files share a value and saves more where many do"
            }
            (true, false) => "the cache costs time, even where many files share a value",
            (false, true) => "the cache saves time where many files share a value",
            (false, false) => "the cache neither costs nor saves visible time",
        };
        format!(
            "{designs}; {without}. The published collapse under 16 and more processes cannot be measured here."
        )
    }
}

/// Seconds of each run of a design in a cell.
fn seconds(runs: &[SharingRun], filesystem: &str, cell: Cell, variant: Variant) -> Vec<f64> {
    let is_of = |run: &&SharingRun| {
        run.filesystem == filesystem && (run.cell, run.variant) == (cell, variant)
    };
    let runs = runs.iter().filter(is_of);
    runs.map(SharingRun::seconds_of_all).collect()
}

fn write(page: &mut Page, measured: &Measured, processors: u64) {
    let runs = &measured.sharing;
    instructions(page, measured);
    for filesystem in ["ext4", "ext2"] {
        page.paragraph(&format!("## {filesystem}"));
        page.paragraph(READING);
        let threads: BTreeSet<u64> = runs.iter().map(|run| run.cell.threads).collect();
        for threads in threads {
            table(page, runs, filesystem, [threads, processors]);
        }
        picture(page, runs, filesystem);
    }
    page.paragraph(CONCLUSION);
}

fn instructions(page: &mut Page, measured: &Measured) {
    let rows = measured
        .instructions
        .iter()
        .filter_map(|one| match one.operation {
            Operation::Set { variant } => {
                Some(vec![variant.name().to_owned(), short(one.instructions)])
            }
            Operation::Add { .. } => None,
        });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        page.table(&["V=10 F=100 P=1, ext4", "instructions/set"], &rows);
    }
}

fn table(page: &mut Page, runs: &[SharingRun], filesystem: &str, [threads, processors]: [u64; 2]) {
    let is_here = |run: &&SharingRun| run.filesystem == filesystem && run.cell.threads == threads;
    let here: Vec<&SharingRun> = runs.iter().filter(is_here).collect();
    let cells: BTreeSet<Cell> = here.iter().map(|run| run.cell).collect();
    let sets = here.first().map_or(0, |run| run.sets);
    let mut label = format!("{filesystem}, P={threads}: seconds");
    if threads > processors {
        label.push_str(", oversubscribed");
    }
    if sets != SETS {
        let _ = write!(label, " ({sets} sets of each, scaled to {SETS})");
    }
    let rows = cells
        .into_iter()
        .map(|cell| cell_row(runs, filesystem, cell));
    let mut head = vec![label.as_str(), "runs"];
    head.extend(Variant::ALL.map(Variant::name));
    head.extend([
        "referenced bit / one lock",
        "disabled / referenced bit",
        "files/block",
        "published, P processes of 24",
    ]);
    page.table(&head, &rows.collect::<Vec<_>>());
}

fn cell_row(runs: &[SharingRun], filesystem: &str, cell: Cell) -> Vec<String> {
    let of = |variant: Variant| seconds(runs, filesystem, cell, variant);
    let shown = |variant: Variant| {
        let seconds = of(variant);
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = seconds.iter().copied().fold(0.0, f64::max);
        format!("{:.3} ({least:.3} to {most:.3})", median(&seconds).value)
    };
    let mut row = vec![
        format!("V={} F={}", cell.values, cell.files),
        of(Variant::RefBit).len().to_string(),
    ];
    row.extend(Variant::ALL.map(shown));
    let over = |above: Variant, below: Variant| {
        let [above, below] = [above, below].map(of);
        let change = ratio(&above, &below);
        if above.len().min(below.len()) < RUNS_OF_INTERVAL {
            format!("{:.2}", change.value)
        } else {
            verdict(change)
        }
    };
    row.push(over(Variant::RefBit, Variant::GlobalLock));
    row.push(over(Variant::Disabled, Variant::RefBit));
    let is_of = |run: &&SharingRun| {
        run.filesystem == filesystem && (run.cell, run.variant) == (cell, Variant::ShardedClock)
    };
    let factors: Vec<f64> = runs.iter().filter(is_of).map(SharingRun::factor).collect();
    row.push(short(median(&factors).value));
    let published = Published::of(cell.values, cell.files, cell.threads);
    let second = |second: Option<f64>| {
        second.map_or_else(|| "N/A".to_owned(), |second| format!("{second:.3}"))
    };
    row.push(published.map_or_else(|| "-".to_owned(), |seconds| seconds.map(second).join(" ")));
    row
}

/// Over the number of threads, in the cell with the most sharing.
fn picture(page: &mut Page, runs: &[SharingRun], filesystem: &str) {
    let is_here = |run: &&SharingRun| {
        run.filesystem == filesystem && (run.cell.values, run.cell.files) == (10, 10)
    };
    let here: Vec<&SharingRun> = runs.iter().filter(is_here).collect();
    let threads: BTreeSet<u64> = here.iter().map(|run| run.cell.threads).collect();
    let curve = |variant: Variant| Curve {
        name: variant.name().to_owned(),
        points: threads
            .iter()
            .map(|&threads| {
                let wanted =
                    |run: &&&SharingRun| (run.cell.threads, run.variant) == (threads, variant);
                let seconds = here.iter().filter(wanted);
                let seconds: Vec<f64> = seconds.map(|run| run.seconds_of_all()).collect();
                (float(threads), median(&seconds).value)
            })
            .collect(),
    };
    let drawn = Variant::ALL.map(curve);
    let title = format!("{filesystem}: attributes set, V=10 F=10");
    let name = format!("sharing-{filesystem}");
    let svg = curves(&title, ["threads", "seconds"], &drawn);
    page.picture(&name, &title, svg);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(files: u64, threads: u64, [lock, bit, none]: [f64; 3]) -> Vec<SharingRun> {
        let of = [
            (Variant::GlobalLock, lock),
            (Variant::RefBit, bit),
            (Variant::Disabled, none),
        ];
        let run = |(variant, seconds)| SharingRun {
            filesystem: "ext4".to_owned(),
            cell: Cell {
                values: 10,
                files,
                threads,
            },
            variant,
            seconds,
            sets: SETS,
            users: files,
            blocks: 1,
        };
        of.map(run).into()
    }

    #[test]
    fn the_conclusion_follows_the_cells() {
        let mut all = runs(10, 1, [1.0, 1.0, 1.0]);
        all.extend(runs(10, 2, [1.0, 1.0, 0.5]));
        all.extend(runs(10, 4, [1.0, 3.0, 3.0]));
        assert!(Grid::of(&all).is_none());
        all.extend(runs(1000, 2, [1.0, 0.5, 2.0]));
        let grid = Grid::of(&all).unwrap();
        let own = grid.own();
        assert!(
            own.contains(
                "3 cells: the referenced bit is faster than one lock in 1 and slower in 0"
            )
        );
        assert!(own.contains("no cache is faster than the referenced bit in 1 and slower in 1"));
        assert!(own.ends_with("V=10 F=1000: 4.00 (4.00 to 4.00)"), "{own}");
        let conclusion = grid.conclusion();
        assert!(conclusion.contains("differ in few cells"), "{conclusion}");
        assert!(
            conclusion.contains("saves more where many do"),
            "{conclusion}"
        );
    }
}
