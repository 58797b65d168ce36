//! M3: insertion into the index of the page cache.

use super::{Entry, Kept, NO_FUSE, begin, has_effect, verdict};
use crate::measure::{Estimate, float, median, ratio};
use crate::mechanisms::{
    Before, Comparison, FaultRun, Insertion, InsertionCount, Measured, Operation, Scene, Way,
};
use crate::report::charts::{Bar, ratio_bars};
use crate::report::number::{short, with_range};
use crate::report::page::Page;

const FILE: &str = "page-cache.md";

/// Where fewer additions split, how they do it cannot be seen.
const FEW_SPLITS: f64 = 0.1;

const ABOUT: &str = "\
A page that is added to the page cache may find the shadow of an evicted one, and the shadow may belong to a larger \
folio and has to be split. Linux took three walks of the index for that, and takes one since 6.10. A split to single \
pages took 8 nodes, and takes one since 6.15.

Published with the change: random reads of 4 KiB through mmap by 16 jobs on a RAM disk, 2445.02 to 2625.56 MiB/s \
(1.074 times); the same after a pass with large folios, 7935.5 to 8928.7 KiB/s (1.125 times).";

const INDEX: &str = "\
## The index alone

Walks and nodes are counted, instructions are those of callgrind. In the table of times each path is compared with the \
one before it, in turns.";

const READS: &str = "\
## Reads by the library

Every page of a file is read once, from a device in memory. The file is twice as large as the cache, except where \
nothing is evicted. Published are gains of 16 jobs.";

const CONCLUSION: &str = "\
## What can be concluded

Walks, nodes and instructions are exact on any machine, and so is the cost of an insertion for one thread on this one. \
What 16 jobs gain by a shorter critical section cannot be measured on two processors. A read by the library copies 4 \
KiB and looks the page up, so one walk less is a small part of it. Through FUSE the kernel's own page cache serves what \
was read before, and this index is not on the path.";

pub(super) fn page(record: Option<&Kept>) -> Page {
    let measured = record.map(|record| &record.result);
    let insertion = measured.and_then(|measured| measured.insertion.as_ref());
    let title = "M3: page cache insertion with one walk of the index";
    let mut page = begin((FILE, title, ABOUT), NO_FUSE, record, insertion.is_some());
    if let (Some(measured), Some(insertion)) = (measured, insertion) {
        write(&mut page, measured, insertion);
    }
    page
}

pub(super) fn entry(measured: Option<&Measured>) -> Entry {
    let insertion = measured.and_then(|measured| measured.insertion.as_ref());
    let both = measured.zip(insertion);
    Entry {
        number: "M3",
        name: "page cache insertion with one walk of the index",
        file: FILE,
        published: "16 jobs of mmap reads +7.4 %, after large folios +12.5 %",
        own: both.map(|(measured, insertion)| own(measured, insertion)),
        conclusion: measured.filter(|_| insertion.is_some()).map(conclusion),
    }
}

fn own(measured: &Measured, insertion: &Insertion) -> String {
    let ways = [Way::ThreeWalks, Way::OneWalk];
    let before = Before::Pages;
    let mut parts = Vec::new();
    let walks = ways.map(|way| {
        let is_of = |count: &&InsertionCount| is_count(count, before, way);
        insertion
            .counts
            .iter()
            .find(is_of)
            .map(|count| count.walks_per_add)
    });
    if let [Some(three), Some(one)] = walks {
        parts.push(format!("walks/page {} to {}", short(three), short(one)));
    }
    if let [Some(three), Some(one)] = ways.map(|way| instructions(measured, before, way)) {
        parts.push(format!(
            "instructions/page {} to {}",
            short(three),
            short(one)
        ));
    }
    let compared = insertion.comparisons.iter().find(|comparison| {
        comparison.before == before && comparison.times[0].name == Way::ThreeWalks.name()
    });
    if let Some(comparison) = compared {
        parts.push(format!(
            "rate of insertions: {}",
            verdict(faster(comparison))
        ));
    }
    let reads = [Scene::AfterPages, Scene::AfterFolios].map(|scene| reads(measured, scene));
    if let [Some(pages), Some(folios)] = reads {
        parts.push(format!(
            "rate of reads by 2 threads: {}; after large folios: {}",
            verdict(pages),
            verdict(folios)
        ));
    }
    parts.join("; ")
}

fn conclusion(measured: &Measured) -> String {
    let seen = match reads(measured, Scene::AfterPages) {
        Some(reads) if has_effect(reads) && reads.value > 1.0 => {
            "reads by the library gain as well"
        }
        Some(reads) if has_effect(reads) => "reads by the library lose nevertheless",
        _ => "reads by the library, of which it is a small part, show no effect",
    };
    format!(
        "The walks saved are exact, and an insertion costs less; {seen}. Mounts do not use this index for reads that the \
         kernel has cached."
    )
}

/// The rate of reads with one walk over that with three, by two threads.
fn reads(measured: &Measured, scene: Scene) -> Option<Estimate> {
    let seconds = |way: Way| -> Vec<f64> {
        let runs = measured.faults.iter();
        let of_way = runs.filter(|run| run.is_of(scene, way, 2));
        of_way.map(|run| run.seconds).collect()
    };
    let [three, one] = [Way::ThreeWalks, Way::OneWalk].map(seconds);
    (!three.is_empty() && !one.is_empty()).then(|| ratio(&three, &one))
}

/// The rate of the second way over that of the first.
fn faster(comparison: &Comparison) -> Estimate {
    let [first, second] = &comparison.times;
    ratio(&first.runs, &second.runs)
}

fn is_count(count: &InsertionCount, before: Before, way: Way) -> bool {
    (count.before, count.way) == (before, way)
}

fn instructions(measured: &Measured, before: Before, way: Way) -> Option<f64> {
    let wanted = Operation::Add { before, way };
    let mut counted = measured.instructions.iter();
    let found = counted.find(|one| one.operation == wanted);
    found.map(|one| one.instructions)
}

fn write(page: &mut Page, measured: &Measured, insertion: &Insertion) {
    page.paragraph(INDEX);
    counts(page, measured, insertion);
    let rows: Vec<_> = insertion.comparisons.iter().map(row).collect();
    let head = [
        "index before",
        "first path",
        "ns/page",
        "second path",
        "ns/page",
        "rate of the second over the first",
        "runs",
    ];
    page.table(&head, &rows);
    let bars = insertion.comparisons.iter().map(|comparison| {
        let [first, second] = &comparison.times;
        let (before, first, second) = (comparison.before.name(), &first.name, &second.name);
        Bar {
            name: format!("{before}: {second} over {first}"),
            ratio: faster(comparison),
        }
    });
    let bars: Vec<_> = bars.collect();
    let title = "Page cache insertion: rate over the path before; right is faster";
    page.picture("ratio-insertion", title, ratio_bars(title, &bars));
    faults(page, &measured.faults);
    page.paragraph(CONCLUSION);
}

/// What is exact.
fn counts(page: &mut Page, measured: &Measured, insertion: &Insertion) {
    let row = |before: Before, way: Way| {
        let mut counts = insertion.counts.iter();
        let count = counts.find(|count| is_count(count, before, way))?;
        let instructions = instructions(measured, before, way);
        Some(vec![
            before.name().to_owned(),
            way.name().to_owned(),
            short(count.walks_per_add),
            short(count.nodes_per_add),
            instructions.map_or_else(|| "-".to_owned(), short),
        ])
    };
    let all = Before::ALL
        .into_iter()
        .flat_map(|before| before.ways().map(|way| (before, way)));
    let rows: Vec<_> = all.filter_map(|(before, way)| row(before, way)).collect();
    let head = [
        "index before",
        "path",
        "walks/page",
        "nodes/page",
        "instructions/page",
    ];
    page.table(&head, &rows);
}

fn row(comparison: &Comparison) -> Vec<String> {
    let [first, second] = &comparison.times;
    let [ns_first, ns_second] = comparison.ns_per_add.map(short);
    vec![
        comparison.before.name().to_owned(),
        first.name.clone(),
        ns_first,
        second.name.clone(),
        ns_second,
        verdict(faster(comparison)),
        first.runs.len().min(second.runs.len()).to_string(),
    ]
}

/// Reads by the library.
fn faults(page: &mut Page, runs: &[FaultRun]) {
    let mut rows = Vec::new();
    for (scene, threads) in Scene::ALL
        .into_iter()
        .flat_map(|scene| [1, 2].map(|threads| (scene, threads)))
    {
        let of_way = |way: Way| {
            runs.iter()
                .filter(move |run| run.is_of(scene, way, threads))
        };
        let seconds = |way| -> Vec<f64> { of_way(way).map(|run| run.seconds).collect() };
        let Some((&first, _)) = scene.ways().split_first() else {
            continue;
        };
        for &way in scene.ways() {
            let Some(run) = of_way(way).next() else {
                continue;
            };
            let rate = |run: &FaultRun| float(run.pages) / run.seconds;
            let rates: Vec<f64> = of_way(way).map(rate).collect();
            let change = ratio(&seconds(first), &seconds(way));
            rows.push(vec![
                format!("{}, {threads} thread(s)", scene.name()),
                way.name().to_owned(),
                short(float(run.walks) / float(run.pages)),
                short(float(run.nodes) / float(run.pages)),
                with_range(median(&rates)),
                rates.len().to_string(),
                if way == first {
                    "-".to_owned()
                } else {
                    verdict(change)
                },
                published(scene, way).unwrap_or("-").to_owned(),
            ]);
        }
    }
    if rows.is_empty() {
        return;
    }
    page.paragraph(READS);
    let head = [
        "pages read",
        "path",
        "walks/page",
        "nodes/page",
        "pages/s",
        "runs",
        "rate over three walks",
        "published",
    ];
    page.table(&head, &rows);
    if let Some(share) = split_share(runs) {
        page.paragraph(&format!(
            "After large folios {} % of the additions or fewer split a shadow (nodes/page with minimal splits){}.",
            short(100.0 * share),
            if share < FEW_SPLITS {
                ": the reads keep so few large folios that the way to split makes no difference there"
            } else {
                ""
            }
        ));
    }
}

/// The part of all additions after large folios that split a shadow, at most: a minimal split takes a node.
fn split_share(runs: &[FaultRun]) -> Option<f64> {
    let is_of = |run: &&FaultRun| run.is_of(Scene::AfterFolios, Way::MinimalSplit, 1);
    let runs = runs.iter().filter(is_of);
    let shares: Vec<f64> = runs
        .map(|run| float(run.nodes) / float(run.pages.max(1)))
        .collect();
    (!shares.is_empty()).then(|| median(&shares).value)
}

/// The gain that was published with the change, through mmap on a RAM disk.
const fn published(scene: Scene, way: Way) -> Option<&'static str> {
    match (scene, way) {
        (Scene::AfterPages, Way::OneWalk) => Some("1.074"),
        (Scene::AfterFolios, Way::OneWalk) => Some("1.125"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conclusion_follows_reads_by_two_threads() {
        let run = |way, seconds| FaultRun {
            scene: Scene::AfterPages,
            way,
            threads: 2,
            pages: 10,
            seconds,
            walks: 10,
            nodes: 0,
        };
        let conclusion = |one: f64| {
            let measured = Measured {
                faults: vec![run(Way::ThreeWalks, 2.0), run(Way::OneWalk, one)],
                ..Measured::default()
            };
            super::conclusion(&measured)
        };
        assert!(conclusion(1.0).contains("gain as well"));
        assert!(conclusion(2.0).contains("show no effect"));
        assert!(conclusion(4.0).contains("lose nevertheless"));
    }
}
