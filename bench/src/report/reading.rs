//! Reading btrfs and XFS.

use super::Page;
use super::aims::Bound;
use super::charts::{Bar, ratio_bars};
use super::number::{short, with_range};
use crate::measure::{float, median, ratio};
use crate::reading::{Counted, JOBS, Job, Kind, Measured, Run};
use crate::record::Record;

pub(super) fn write(page: &mut Page, record: &Record<Measured>) {
    page.paragraph("## Reading btrfs and XFS");
    page.provenance(record);
    let Measured { runs, counted } = &record.result;
    let files = runs.first().map_or(0, |run| run.files);
    page.paragraph(&format!(
        "The images have {files} files of text, 12 KiB in the mean, 50 in each directory, and were \
         written by a kernel mount. They lie on the disk, and before each run the host's caches are \
         emptied, of the image and of all mounts. A time begins at the image that nothing has opened; \
         *mount* is the part that the kernel's mount has in it, and *after it* compares with what \
         remains. Aims are judged by *times platter's*. What is copied out goes to tmpfs."
    ));
    for kind in Kind::ALL {
        page.paragraph(&format!("### {}", kind.name()));
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
        let title = format!(
            "{}, cold: rate over the peer's; right is faster",
            kind.name()
        );
        let letters = kind.name().chars().filter(char::is_ascii_alphanumeric);
        let name = letters.collect::<String>().to_lowercase();
        page.picture(
            &format!("ratio-reading-{name}"),
            &title,
            ratio_bars(&title, &bars),
        );
    }
    page.paragraph(
        "### What reading takes\n\nBy the library in a process of its own, with caches of the usual size. \
         Reads are requests to the device, without those of the mount, which has a column of \
         its own; *decompressions* are for each compressed extent.",
    );
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

fn rows_of(job: &Job, kind: Kind, runs: &[Run], rows: &mut Vec<Vec<String>>, bars: &mut Vec<Bar>) {
    let of_way = |name: &str, figure: fn(&Run) -> f64| -> Vec<f64> {
        let is_of = |run: &&Run| run.image == kind && run.job == job.name && run.way == name;
        runs.iter().filter(is_of).map(figure).collect()
    };
    let Some(ours) = job.ways.first() else {
        return;
    };
    let taken = of_way(ours.name, |run| run.seconds);
    for way in job.ways {
        let seconds = of_way(way.name, |run| run.seconds);
        if seconds.is_empty() {
            continue;
        }
        let after = of_way(way.name, |run| run.seconds - run.mount_seconds);
        let faster = ratio(&seconds, &taken);
        let aim = way.aim(kind).map_or_else(String::new, |aim| {
            let verdict = Bound::AtLeast(aim).verdict(faster);
            format!("{}: {}", short(aim), verdict.shown())
        });
        rows.push(vec![
            way.name.to_owned(),
            seconds.len().to_string(),
            with_range(median(&seconds)),
            short(median(&of_way(way.name, |run| run.mount_seconds)).value),
            short(median(&of_way(way.name, |run| run.cpu_seconds)).value),
            with_range(faster),
            with_range(ratio(&after, &taken)),
            aim,
        ]);
        if way.name != ours.name {
            bars.push(Bar {
                name: format!("{} / {}", ours.name, way.name),
                ratio: faster,
            });
        }
    }
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
