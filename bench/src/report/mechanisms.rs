//! The mechanisms on and off, beside what was published of them.

use super::Page;
use super::charts::{Bar, ratio_bars};
use super::number::short;
use crate::m3::{Comparison, Measured};
use crate::measure::ratio;
use crate::record::Record;

const M3: &str = "\
### Page cache insertion: one walk of the index

A page that is added to the page cache may meet the shadow of one that was evicted, and the shadow may
belong to a larger folio, which is split then. Linux took three walks of the index for that, and takes
one since 6.10: +7.4 % of faults at 4 KiB random reads through mmap, 16 jobs on a RAM disk, and +12.5 %
where large folios had been there before (published with the change). A split to single pages took 8
nodes, and takes one since 6.15.

Walks and nodes are exact, here as there. Times are of the index alone, one thread, without the fault
around it, so they show what a walk costs and not what a program gains. What 16 jobs gain by holding the
lock for a shorter time cannot be seen on two processors. Through FUSE, the kernel's own page cache
serves what was read before, and none of this is on the way.";

pub(super) fn tell(page: &mut Page, record: &Record<Measured>) {
    page.paragraph("## Mechanisms");
    page.provenance(record);
    page.paragraph(M3);
    let counts = record.result.counts.iter().map(|count| {
        vec![
            count.before.name().to_owned(),
            count.way.name().to_owned(),
            short(count.walks_per_add),
            short(count.nodes_per_add),
        ]
    });
    let counts: Vec<_> = counts.collect();
    page.table(
        &["what is there", "way", "walks/page", "nodes/page"],
        &counts,
    );
    let rows: Vec<_> = record.result.comparisons.iter().map(row).collect();
    let head = [
        "what is there",
        "first",
        "ns",
        "second",
        "ns",
        "first/second",
    ];
    page.table(&head, &rows);
    let bars = record.result.comparisons.iter().map(|comparison| {
        let [first, second] = &comparison.times;
        Bar {
            name: format!(
                "{}: {} over {}",
                comparison.before.name(),
                second.name,
                first.name
            ),
            ratio: ratio(&first.runs, &second.runs),
        }
    });
    let bars: Vec<_> = bars.collect();
    let title = "Page cache insertion: rate over the way before; right is faster";
    page.picture("ratio-m3", title, ratio_bars(title, &bars));
}

fn row(comparison: &Comparison) -> Vec<String> {
    let [first, second] = &comparison.times;
    let change = ratio(&first.runs, &second.runs);
    let verdict = if change.low <= 1.0 && 1.0 <= change.high {
        format!("no effect ({:.2} to {:.2})", change.low, change.high)
    } else {
        format!(
            "{:.2} ({:.2} to {:.2})",
            change.value, change.low, change.high
        )
    };
    let [ns_first, ns_second] = comparison.ns_per_add.map(short);
    vec![
        comparison.before.name().to_owned(),
        first.name.clone(),
        ns_first,
        second.name.clone(),
        ns_second,
        verdict,
    ]
}
