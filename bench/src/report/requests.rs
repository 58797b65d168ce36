//! The page about requests that the kernel makes of platter's server, each of which is there for a reason.

use super::number::short;
use super::page::Page;
use super::peers::Series;
use super::raw::{PEERS, Raw};
use crate::peers::{BOUNDS, Measured, Part};
use crate::side::Side;
use crate::work::Workload;

pub(super) const FILE: &str = "requests.md";

const ABOUT: &str = "\
Requests of the kernel to platter's FUSE server for each operation, or for each MiB of sequential work, over both \
transports and in the run with the most. `FORGET`, which drops the kernel's reference to an inode at a time of its choice, is not counted. The tests \
fail where there are more than *at most*, except for a few that come once for a directory or a run.";

pub(super) fn page(raw: &Raw) -> Page {
    let mut page = Page::new(FILE, "FUSE requests of each operation on ext4");
    match raw.ext4() {
        Some(record) => {
            page.provenance(record);
            page.transports(record, &record.result.samples);
            write(&mut page, &record.result);
        }
        None => page.not_measured(PEERS),
    }
    page
}

fn write(page: &mut Page, measured: &Measured) {
    let mut rows = Vec::new();
    for bound in BOUNDS {
        let Ok(workload) = Workload::named(bound.workload) else {
            continue;
        };
        let series = Series::of(measured, workload, 1);
        let [device, rings] =
            [Side::Device, Side::Fuse].map(|side| most(&series, side, bound.phase));
        // What a mount is by default is shown in full.
        let Some(most) = device.or(rings) else {
            continue;
        };
        let kinds = most.asked.fuse.iter();
        let kinds = kinds.map(|(kind, &count)| (kind, most.per(count)));
        let kinds = kinds.filter(|(kind, count)| *kind != "FORGET" && *count >= 0.005);
        let kinds: Vec<String> = kinds
            .map(|(kind, count)| format!("{} {kind}", short(count)))
            .collect();
        rows.push(vec![
            format!("{}: {}", bound.workload, bound.phase),
            short(bound.requests),
            requests(device),
            requests(rings),
            kinds.join(", "),
            bound.why.to_owned(),
        ]);
    }
    page.paragraph(ABOUT);
    let head = [
        "work",
        "at most",
        "over `/dev/fuse`",
        "over rings",
        "of which",
        "why",
    ];
    page.table_of_texts(&head, &rows);
}

/// The run of a side with the most requests for each operation.
fn most<'r>(series: &Series<'r>, side: Side, phase: &str) -> Option<&'r Part> {
    let parts = series.parts(side, phase).into_iter();
    parts.max_by(|one, other| each(one).total_cmp(&each(other)))
}

fn each(part: &Part) -> f64 {
    part.per(part.asked.requests())
}

fn requests(part: Option<&Part>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| short(each(part)))
}
