//! The page about reading btrfs and XFS.

use super::aims::{Bound, Verdict};
use super::charts::{Bar, ratio_bars};
use super::number::{short, with_range};
use super::page::Page;
use super::raw::{READING, Raw};
use crate::measure::{Estimate, float, median, ratio};
use crate::reading::{Counted, JOBS, Job, Kind, Measured, Run, Way};

pub(super) const FILE: &str = "reading.md";

const TRANSPORT: &str = "\
Transport in all tables: none. `platter` and `btrfs restore` open the image themselves; the kernel mounts it by a loop \
device. FUSE has no part.";

const COUNTS: &str = "\
## Requests to the device

By the library in a process of its own, with caches of the default size. *Reads* are requests to the device, without \
those of the mount, which have a column of their own; *decompressions* are for each compressed extent.";

pub(super) fn page(raw: &Raw) -> Page {
    let mut page = Page::new(FILE, "Reading btrfs and XFS");
    match &raw.reading {
        Some(record) => {
            page.provenance(record);
            page.paragraph(TRANSPORT);
            write(&mut page, &record.result);
        }
        None => page.not_measured(READING),
    }
    page
}

/// The name of the picture of an image.
pub(super) fn picture(kind: Kind) -> String {
    let letters = kind.name().chars().filter(char::is_ascii_alphanumeric);
    format!(
        "ratio-reading-{}",
        letters.collect::<String>().to_lowercase()
    )
}

/// What the picture of an image shows.
pub(super) fn picture_title(kind: Kind) -> String {
    format!(
        "{}, cold: rate of the first over the second; right is faster",
        kind.name()
    )
}

fn write(page: &mut Page, measured: &Measured) {
    let Measured { runs, counted } = measured;
    let files = runs.first().map_or(0, |run| run.files);
    page.paragraph(&format!(
        "The images have {files} files of text, 12 KiB on average, 50 in each directory, and were written by a kernel \
         mount. They lie on the disk, and before each run the host's page cache is dropped. A time begins with the \
         image closed; *mount* is the part of it that the kernel's mount takes, and *after it* compares what remains. \
         Aims are judged by *times platter's*, the time of a way over that of platter. Files are copied to tmpfs."
    ));
    for kind in Kind::ALL {
        page.paragraph(&format!("## {}", kind.name()));
        let mut rows = Vec::new();
        let mut bars = Vec::new();
        for job in JOBS {
            rows_of(job, kind, runs, &mut rows, &mut bars);
        }
        let head = [
            "work",
            "runs",
            "s",
            "mount, s",
            "CPU s",
            "times platter's",
            "after it",
            "aim",
        ];
        page.table(&head, &rows);
        let title = picture_title(kind);
        page.picture(&picture(kind), &title, ratio_bars(&title, &bars));
    }
    page.paragraph(COUNTS);
    let rows: Vec<_> = counted.iter().map(counts_of).collect();
    let head = [
        "image",
        "work",
        "count",
        "reads",
        "for each",
        "MiB read",
        "decompressions",
        "mount: reads",
        "mount: ms",
        "peak MiB",
    ];
    page.table(&head, &rows);
}

/// Seconds of each run of a way.
pub(super) fn seconds(runs: &[Run], kind: Kind, job: &Job, way: &Way) -> Vec<f64> {
    figures(runs, (kind, job, way), |run| run.seconds)
}

fn figures(
    runs: &[Run],
    (kind, job, way): (Kind, &Job, &Way),
    figure: fn(&Run) -> f64,
) -> Vec<f64> {
    let is_of = |run: &&Run| run.image == kind && run.job == job.name && run.way == way.name;
    runs.iter().filter(is_of).map(figure).collect()
}

/// Verdicts of all aims of reading, in any order.
pub(super) fn verdicts(measured: &Measured) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for kind in Kind::ALL {
        for job in JOBS {
            let of_way = |way: &Way| seconds(&measured.runs, kind, job, way);
            let ours = job.ways.first().map(of_way).unwrap_or_default();
            for way in job.ways {
                let theirs = of_way(way);
                if let (false, Some(aim)) = (theirs.is_empty(), way.aim(kind)) {
                    verdicts.push(Bound::AtLeast(aim).verdict(ratio(&theirs, &ours)));
                }
            }
        }
    }
    verdicts
}

fn rows_of(job: &Job, kind: Kind, runs: &[Run], rows: &mut Vec<Vec<String>>, bars: &mut Vec<Bar>) {
    let of_way = |way: &Way, figure: fn(&Run) -> f64| figures(runs, (kind, job, way), figure);
    let Some(ours) = job.ways.first() else {
        return;
    };
    let taken = of_way(ours, |run| run.seconds);
    for way in job.ways {
        let seconds = of_way(way, |run| run.seconds);
        if seconds.is_empty() {
            continue;
        }
        let after = of_way(way, |run| run.seconds - run.mount_seconds);
        let slower = ratio(&seconds, &taken);
        rows.push(vec![
            way.name.to_owned(),
            seconds.len().to_string(),
            with_range(median(&seconds)),
            short(median(&of_way(way, |run| run.mount_seconds)).value),
            short(median(&of_way(way, |run| run.cpu_seconds)).value),
            with_range(slower),
            with_range(ratio(&after, &taken)),
            aim(way, kind, slower),
        ]);
        if way.name != ours.name {
            bars.push(Bar {
                name: format!("{} / {}", ours.name, way.name),
                ratio: slower,
            });
        }
    }
}

fn aim(way: &Way, kind: Kind, reached: Estimate) -> String {
    let shown = |aim: f64| {
        let verdict = Bound::AtLeast(aim).verdict(reached);
        format!("{}: {}", short(aim), verdict.shown())
    };
    way.aim(kind).map_or_else(String::new, shown)
}

fn counts_of(counted: &Counted) -> Vec<String> {
    let per = |number: u64, of: u64| float(number) / float(of.max(1));
    let decompressions = match counted.extents {
        0 => String::new(),
        extents => format!("{:.2}", per(counted.decompressions, extents)),
    };
    vec![
        counted.image.clone(),
        counted.work.clone(),
        counted.amount.to_string(),
        counted.reads.to_string(),
        short(per(counted.reads, counted.amount)),
        short(per(counted.read_bytes, 1 << 20)),
        decompressions,
        counted.mount_reads.to_string(),
        short(counted.mount_seconds * 1e3),
        short(per(counted.peak_bytes, 1 << 20)),
    ]
}
