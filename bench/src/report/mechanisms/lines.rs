//! Fields that are read apart from fields that are written.

use crate::measure::{Estimate, median, ratio};
use crate::mechanisms::{Distance, LineRun, Shape, pauses};
use crate::report::number::{short, with_range};
use crate::report::page::Page;

const STRUCTURES: &str = "\
## Structures that all threads share

Every field has a class: never written once the structure is shared, rarely written (mounting, failing), or hot. No pair \
of cache lines, 128 bytes, mixes hot fields with others. That is checked at compile time, against this table: each \
field with the pairs of lines that it lies in. *Apart* is a structure with a table of its own.";

const READS: &str = "\
## A value next to a counter

One thread reads a value and another increments a counter, in one structure. With more spins between increments the \
counter is written less often. Nanoseconds for each read, and increments in a second.";

/// What a field can be, as the tables have it.
const CLASSES: [&str; 4] = ["read-only", "rare", "hot", "apart"];

pub(super) fn write(page: &mut Page, shapes: &[Shape], runs: &[LineRun]) {
    if !runs.is_empty() {
        page.paragraph(READS);
        let rows: Vec<_> = pauses().map(|pause| row(runs, pause)).into();
        let mut head = vec!["spins between increments"];
        head.extend(Distance::ALL.map(Distance::name));
        head.extend(["increments/s, same line", "increments/s, apart"]);
        page.table(&head, &rows);
    }
    page.paragraph(STRUCTURES);
    let rows: Vec<_> = shapes.iter().map(shape).collect();
    let mut head = vec!["structure", "bytes"];
    head.extend(CLASSES);
    page.table(&head, &rows);
}

/// The time of a read with the counter in its line over that with the counter apart, while the counter is
/// written as often as possible.
pub(super) fn shared_over_apart(runs: &[LineRun]) -> Option<Estimate> {
    let taken = |distance: Distance| figures(runs, (pauses()[0], distance), |run| run.ns_per_read);
    let [line, apart] = [Distance::Line, Distance::Apart].map(taken);
    (!line.is_empty() && !apart.is_empty()).then(|| ratio(&line, &apart))
}

fn figures(
    runs: &[LineRun],
    (pause, distance): (u32, Distance),
    figure: fn(&LineRun) -> f64,
) -> Vec<f64> {
    let wanted = |run: &&LineRun| (run.pause, run.distance) == (pause, distance);
    runs.iter().filter(wanted).map(figure).collect()
}

/// The fields of each class, with the pairs of lines they lie in.
fn shape(shape: &Shape) -> Vec<String> {
    let of_class = |class: &str| {
        let fields = shape.fields.iter().filter(|field| field.class == class);
        let fields = fields.map(|field| match field.pairs {
            (first, last) if first == last => format!("{} {first}", field.name),
            (first, last) => format!("{} {first}-{last}", field.name),
        });
        fields.collect::<Vec<_>>().join(", ")
    };
    let mut row = vec![format!("`{}`", shape.name), shape.len_bytes.to_string()];
    row.extend(CLASSES.map(of_class));
    row
}

fn row(runs: &[LineRun], pause: u32) -> Vec<String> {
    let of =
        |distance: Distance, figure: fn(&LineRun) -> f64| figures(runs, (pause, distance), figure);
    let mut row = vec![pause.to_string()];
    row.extend(Distance::ALL.map(|distance| {
        let taken = of(distance, |run| run.ns_per_read);
        with_range(median(&taken))
    }));
    row.extend([Distance::Line, Distance::Apart].map(|distance| {
        let rates = of(distance, |run| run.counts_per_second);
        short(median(&rates).value)
    }));
    row
}
