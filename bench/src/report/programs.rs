//! Whole jobs by programs.

use super::Page;
use super::charts::{Bar, ratio_bars};
use super::number::{short, with_range};
use crate::measure::{median, ratio};
use crate::programs::{JOBS, Job, Run, Way};
use crate::record::Record;

pub(super) fn write(page: &mut Page, record: &Record<Vec<Run>>) {
    page.paragraph("## Whole jobs");
    page.provenance(record);
    let files = record.result.first().map_or(0, |run| run.files);
    page.paragraph(&format!(
        "The tree has {files} files of 2 KiB in the mean, 50 in each directory; images and directories lie \
         on tmpfs."
    ));
    let mut bars = Vec::new();
    for job in JOBS {
        page.paragraph(&format!("### {}\n\nThe job: {}.", job.name, job.about));
        let Some((ours, theirs)) = job.ways.split_first() else {
            continue;
        };
        let of_way = |way: &Way, figure: fn(&Run) -> f64| -> Vec<f64> {
            let runs = record.result.iter().filter(|run| is_of(run, job, way));
            runs.map(figure).collect()
        };
        let seconds = |way: &Way| of_way(way, |run| run.seconds);
        let row = |way: &Way| {
            let faster = ratio(&seconds(way), &seconds(ours));
            vec![
                way.name.to_owned(),
                seconds(way).len().to_string(),
                with_range(median(&seconds(way))),
                short(median(&of_way(way, |run| run.cpu_seconds)).value),
                with_range(faster),
            ]
        };
        let rows: Vec<_> = job.ways.iter().map(row).collect();
        page.table(&[job.name, "runs", "s", "CPU s", "times platter's"], &rows);
        bars.extend(theirs.iter().map(|way| Bar {
            name: format!("{} / {}", ours.name, way.name),
            ratio: ratio(&seconds(way), &seconds(ours)),
        }));
    }
    let title = "Whole jobs: rate over the peer's; right is faster";
    page.picture("ratio-jobs", title, ratio_bars(title, &bars));
}

fn is_of(run: &Run, job: &Job, way: &Way) -> bool {
    run.job == job.name && run.way == way.name
}
