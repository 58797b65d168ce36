//! The page about whole jobs by programs.

use testkit::fs_type::FsType;

use super::aims::{self, Aim, Group};
use super::charts::{Bar, ratio_bars};
use super::missed::Explanations;
use super::number::{short, with_range};
use super::page::Page;
use super::peers::format_name;
use super::raw::{Raw, jobs_command};
use crate::measure::{median, ratio};
use crate::programs::{JOBS, Job, Run, Way, record_name};
use crate::record::Record;

pub(super) const FILE: &str = "jobs.md";

const TRANSPORT: &str = "\
Transport in all tables: none. `platter`, `mke2fs`, `debugfs`, `mkfs.btrfs` and `mkfs.xfs` open the image themselves; the \
kernel mounts it by a loop device. FUSE has no part.";

pub(super) fn page(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
    let mut page = Page::new(FILE, "Whole jobs of the platter command");
    page.paragraph(TRANSPORT);
    aims::write(&mut page, aims, Group::Jobs, explanations);
    for format in FsType::ALL {
        page.paragraph(&format!("## {}", format_name(format)));
        match raw.jobs.get(&format) {
            Some(record) => write(&mut page, format, record),
            None => page.not_measured(&jobs_command(format)),
        }
    }
    page
}

fn write(page: &mut Page, format: FsType, record: &Record<Vec<Run>>) {
    page.provenance(record);
    let files = record.result.first().map_or(0, |run| run.files);
    page.paragraph(&format!(
        "The tree has {files} files of 2 KiB on average, 50 in each directory. Images and directories lie on tmpfs. \
         *Times platter's* is the time of a way over that of platter: more than 1 is slower than platter."
    ));
    let mut bars = Vec::new();
    for job in JOBS.iter().filter(|job| job.format == format) {
        page.paragraph(&format!("The job: {}.", job.about));
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
    let title = format!(
        "Whole jobs: {}: rate over the peer's; right is faster",
        format_name(format)
    );
    let name = format!("ratio-{}", record_name(format));
    page.picture(&name, &title, ratio_bars(&title, &bars));
}

fn is_of(run: &Run, job: &Job, way: &Way) -> bool {
    run.job == job.name && run.way == way.name
}
