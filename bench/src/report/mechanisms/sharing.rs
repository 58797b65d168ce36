//! Attributes whose blocks files share.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::published::Published;
use crate::measure::{deviation, float, mean, median};
use crate::mechanisms::{Cell, Measured, Operation, SETS, SharingRun, Variant};
use crate::report::Page;
use crate::report::charts::{Curve, curves};
use crate::report::number::short;

const ABOUT: &str = "\
### Metadata block cache: files that share blocks of attributes

A file whose attributes have no space in its inode gets a block for them; files whose attributes are equal
can share one. The cache that finds such blocks was rewritten in Linux 4.6, and the grid that it was
measured with then is measured here: each of P threads sets an attribute of one of its own F files to one
of V values, 50,000 times; values have 64 bytes, which inodes of 128 bytes have no space for. With more
threads than processors each sets fewer, after all files were given an attribute, and the time is scaled to
50,000 sets. Filesystems lie on a device in memory and are used by the library. What was
published is of processes on 24 processors, means of 5 runs: the cache before, with an LRU list, with one
for each NUMA node, with referenced bits, and without one; N/A is where the machine died. Ours are means
with the standard deviation, *files/block* is of the clock per shard.";

const CONCLUSION: &str = "\
What can be concluded: how much space sharing saves (files for each block), which is exact, and the order
of the designs with one thread and two. What cannot, on two processors: the collapse of the cache before,
which took 16 processes and more, and the cells where the machine died of it. `one lock` stands for that
cache here, all entries in one list under one lock, without being it: its times are no times of Linux. With more threads than processors (oversubscribed) a table shows what
happens when the thread with a lock loses its processor, and not what more processors would give.";

pub(super) fn write(page: &mut Page, measured: &Measured, processors: u64) {
    let runs = &measured.sharing;
    if runs.is_empty() {
        return;
    }
    page.paragraph(ABOUT);
    instructions(page, measured);
    for filesystem in ["ext4", "ext2"] {
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
    let mut note = String::new();
    if threads > processors {
        note.push_str(", oversubscribed");
    }
    if sets != SETS {
        let _ = write!(note, " ({sets} sets of each, scaled to {SETS})");
    }
    let rows: Vec<_> = cells
        .into_iter()
        .map(|cell| {
            let of = |variant: Variant| {
                let wanted = move |run: &&&SharingRun| (run.cell, run.variant) == (cell, variant);
                here.iter().filter(wanted)
            };
            let seconds =
                |variant| -> Vec<f64> { of(variant).map(|run| run.seconds_of_all()).collect() };
            let factors: Vec<f64> = of(Variant::ShardedClock).map(|run| run.factor()).collect();
            let mut row = vec![format!("V={} F={}", cell.values, cell.files)];
            row.extend(Variant::ALL.map(|variant| {
                let seconds = seconds(variant);
                format!("{:.3} ± {:.3}", mean(&seconds), deviation(&seconds))
            }));
            row.push(short(median(&factors).value));
            let published = Published::of(cell.values, cell.files, threads);
            let second = |second: Option<f64>| {
                second.map_or_else(|| "N/A".to_owned(), |second| format!("{second:.3}"))
            };
            row.push(
                published.map_or_else(|| "-".to_owned(), |seconds| seconds.map(second).join(" ")),
            );
            row
        })
        .collect();
    let label = format!("{filesystem}, P={threads}: seconds{note}");
    let mut head = vec![label.as_str()];
    head.extend(Variant::ALL.map(Variant::name));
    head.extend(["files/block", "published, P processes of 24"]);
    page.table(&head, &rows);
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
