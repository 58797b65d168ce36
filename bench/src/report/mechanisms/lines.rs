//! Fields that are read apart from fields that are written.

use crate::measure::median;
use crate::mechanisms::{Distance, LineRun, Shape, pauses};
use crate::report::Page;
use crate::report::number::{short, with_range};

const ABOUT: &str = "\
### Shared structures: what is read apart from what is written

A line of the cache that one processor writes has to be fetched by each other one that reads anything in
it. Linux separated the geometry of a mounted XFS from its counters for that: removing 50 million files
by 16 threads took 8m30s instead of 13m20s, and on another machine 5m02s instead of 5m30s (published with
the change). Here every field of what all threads of a mount share has a class: never written once it
is shared, rarely (mounting, failing), or hot. No pair of lines, 128 bytes, mixes hot fields with others;
that is checked when the program is compiled, and this is the table it is checked by. *Apart* is a
structure with a table of its own.";

const CONCLUSION: &str = "\
What can be concluded: that the layout is as the table says, on every machine, and what a read costs next to
a counter in the same line, on this one. What cannot, on two processors: the cost between sockets, with
more readers, and what a whole workload gains; at the rate that one mount begins transactions (far below a
million a second) next to nothing is to be seen here.";

/// What a field can be, as the tables have it.
const CLASSES: [&str; 4] = ["read-only", "rare", "hot", "apart"];

pub(super) fn write(page: &mut Page, shapes: &[Shape], runs: &[LineRun]) {
    page.paragraph(ABOUT);
    let rows: Vec<_> = shapes.iter().map(shape).collect();
    let mut head = vec!["structure", "bytes"];
    head.extend(CLASSES);
    page.table(&head, &rows);
    if !runs.is_empty() {
        page.paragraph(
            "One thread reads a value, another counts, in one structure; with pauses between counts, the \
             counter is written less often. Nanoseconds for each read, and counts in a second:",
        );
        let rows: Vec<_> = pauses().map(|pause| row(runs, pause)).into();
        let mut head = vec!["turns between counts"];
        head.extend(Distance::ALL.map(Distance::name));
        head.extend(["counts/s, same line", "counts/s, apart"]);
        page.table(&head, &rows);
    }
    page.paragraph(CONCLUSION);
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
    let of = |distance: Distance, figure: fn(&LineRun) -> f64| -> Vec<f64> {
        let wanted = |run: &&LineRun| (run.pause, run.distance) == (pause, distance);
        runs.iter().filter(wanted).map(figure).collect()
    };
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
