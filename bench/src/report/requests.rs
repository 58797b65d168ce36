//! Requests that the kernel makes of platter's server, each of which is there for a reason.

use super::Page;
use super::number::short;
use super::peers::Series;
use crate::peers::{BOUNDS, Measured, Part};
use crate::side::Side;
use crate::work::Workload;

pub(super) fn write(page: &mut Page, measured: &Measured) {
    let mut rows = Vec::new();
    for bound in BOUNDS {
        let Ok(workload) = Workload::named(bound.workload) else {
            continue;
        };
        let series = Series::of(measured, workload, 1);
        let parts = series.parts(Side::Fuse, bound.phase);
        let requests = |part: &&Part| part.per(part.asked.requests());
        let Some(most) = parts
            .into_iter()
            .max_by(|one, other| requests(one).total_cmp(&requests(other)))
        else {
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
            short(requests(&most)),
            kinds.join(", "),
            bound.why.to_owned(),
        ]);
    }
    if rows.is_empty() {
        return;
    }
    page.paragraph(
        "### Requests that remain\n\nFrom the kernel to platter's FUSE server, for each operation (for \
         each MiB of what is read or written in order), in the run with the most. `FORGET`, which takes \
         a word back when the kernel likes to, is not counted. The tests fail where there are more than \
         *at most*, but for a few that come once for a directory or a run.",
    );
    page.table(&["work", "at most", "requests", "of which", "why"], &rows);
}
