//! Insertion into the page cache's index.

use super::verdict;
use crate::measure::{float, median, ratio};
use crate::mechanisms::{Before, Comparison, FaultRun, Insertion, Measured, Operation, Scene, Way};
use crate::report::Page;
use crate::report::charts::{Bar, ratio_bars};
use crate::report::number::{short, with_range};

const ABOUT: &str = "\
### Page cache insertion: one walk of the index

A page that is added to the page cache may find the shadow of one that was evicted, and the shadow may
belong to a larger folio, which is split then. Linux took three walks of the index for that, and takes
one since 6.10. A split to single pages took 8 nodes, and takes one since 6.15. What was published with
the change: 4 KiB random reads through mmap by 16 jobs on a RAM disk, 2445.02 to 2625.56 MiB/s (1.074
times); the same where large folios had been there before, 7935.5 to 8928.7 KiB/s (1.125 times).";

const CONCLUSION: &str = "\
What can be concluded: walks, nodes and instructions are exact, here as anywhere, and so is what one
thread pays for them. What cannot, on two processors: what 16 jobs gain by holding the lock for a shorter
time. A read by the library copies 4 KiB and looks the page up, so that a walk less is a small part of it;
through FUSE the kernel's own page cache serves what was read before, and none of this is on the way.";

pub(super) fn write(page: &mut Page, measured: &Measured) {
    let Some(insertion) = &measured.insertion else {
        return;
    };
    page.paragraph(ABOUT);
    counts(page, measured, insertion);
    let rows: Vec<_> = insertion.comparisons.iter().map(row).collect();
    let head = [
        "added to the index alone",
        "first",
        "ns",
        "second",
        "ns",
        "first/second",
    ];
    page.table(&head, &rows);
    let bars = insertion.comparisons.iter().map(|comparison| {
        let [first, second] = &comparison.times;
        let (before, first_name, second_name) =
            (comparison.before.name(), &first.name, &second.name);
        Bar {
            name: format!("{before}: {second_name} over {first_name}"),
            ratio: ratio(&first.runs, &second.runs),
        }
    });
    let bars: Vec<_> = bars.collect();
    let title = "Page cache insertion: rate over the way before; right is faster";
    page.picture("ratio-insertion", title, ratio_bars(title, &bars));
    faults(page, &measured.faults);
    page.paragraph(CONCLUSION);
}

/// What is exact.
fn counts(page: &mut Page, measured: &Measured, insertion: &Insertion) {
    let instructions = |before: Before, way: Way| {
        let wanted = Operation::Add { before, way };
        let counted = measured.instructions.iter();
        let found = counted.into_iter().find(|one| one.operation == wanted);
        found.map_or_else(|| "-".to_owned(), |one| short(one.instructions))
    };
    let row = |before: Before, way: Way| {
        let mut counts = insertion.counts.iter();
        let count = counts.find(|count| (count.before, count.way) == (before, way))?;
        Some(vec![
            before.name().to_owned(),
            way.name().to_owned(),
            short(count.walks_per_add),
            short(count.nodes_per_add),
            instructions(before, way),
        ])
    };
    let all = Before::ALL
        .into_iter()
        .flat_map(|before| before.ways().map(|way| (before, way)));
    let rows: Vec<_> = all.filter_map(|(before, way)| row(before, way)).collect();
    let head = [
        "what is there",
        "way",
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
        verdict(ratio(&first.runs, &second.runs)),
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
    page.paragraph(
        "The same by the library: every page of a file is read once, from a device in memory. The file is \
         twice as large as the cache, but where nothing is evicted.",
    );
    let head = [
        "pages read",
        "way",
        "walks/page",
        "nodes/page",
        "pages/s",
        "over three walks",
        "published, 16 jobs",
    ];
    page.table(&head, &rows);
}

/// The gain that was published with the change, through mmap on a RAM disk.
const fn published(scene: Scene, way: Way) -> Option<&'static str> {
    match (scene, way) {
        (Scene::AfterPages, Way::OneWalk) => Some("1.074"),
        (Scene::AfterFolios, Way::OneWalk) => Some("1.125"),
        _ => None,
    }
}
