//! The page about whole jobs by programs.

use super::aims::{self, Aim, Group};
use super::charts::{Bar, ratio_bars};
use super::missed::Explanations;
use super::number::{short, with_range};
use super::page::Page;
use super::raw::{PEERS, Raw};
use crate::measure::{median, ratio};
use crate::programs::{JOBS, Job, Run, Way};
use crate::record::Record;

pub(super) const FILE: &str = "jobs.md";

const TRANSPORT: &str = "\
Transport in all tables: none. `platter`, `mke2fs` and `debugfs` open the image themselves; the kernel mounts it by a loop \
device. FUSE has no part.";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "Whole jobs of the platter command");
    let Some(record) = &raw.jobs else {
        page.not_measured(PEERS);
        aims::write(&mut page, aims, Group::Jobs, explanations);
        return page;
    };
    page.provenance(record);
    page.paragraph(TRANSPORT);
    aims::write(&mut page, aims, Group::Jobs, explanations);
    write(&mut page, record);
    page
}

fn write(page: &mut Page, record: &Record<Vec<Run>>) {
    let files = record.result.first().map_or(0, |run| run.files);
    page.paragraph(&format!(
        "The tree has {files} files of 2 KiB on average, 50 in each directory. Images and directories lie on tmpfs. \
         *Times platter's* is the time of a way over that of platter: more than 1 is slower than platter."
    ));
    let mut bars = Vec::new();
    for job in JOBS {
        page.paragraph(&format!("## {}\n\nThe job: {}.", job.name, job.about));
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
