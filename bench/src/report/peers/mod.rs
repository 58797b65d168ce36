//! Pages that compare platter with its peers, by format and subject.

mod series;
mod tables;

use testkit::fs_type::FsType;

pub(super) use self::series::{Series, per_second};
use super::page::Page;
use super::raw::{Raw, peers_command};
use crate::peers::Measured;
use crate::record::Record;
use crate::work::{self, Workload};

/// Workloads that stand on one page.
#[derive(Debug)]
pub(super) struct Subject {
    word: &'static str,
    title: &'static str,
    workloads: &'static [&'static str],
}

const SUBJECTS: &[Subject] = &[
    Subject {
        word: "metadata",
        title: "names, attributes and trees",
        workloads: &["files", "small", "xattr", "tree", "snapshots", "idle"],
    },
    Subject {
        word: "data",
        title: "contents of files",
        workloads: &["random", "sequential", "compressed"],
    },
    Subject {
        word: "fsync",
        title: "durable changes",
        workloads: &["fsync", "append", "durable"],
    },
];

impl Subject {
    /// The page of this subject and a format.
    fn file(&self, format: FsType) -> String {
        format!("{}-{}.md", format.kernel_name(), self.word)
    }
}

/// Links to the pages of a format.
pub(super) fn links(page: &Page, format: FsType) -> String {
    let link = |subject: &Subject| {
        let target = page.link_to_page(&subject.file(format));
        format!("[{}]({target})", subject.title)
    };
    let links: Vec<String> = SUBJECTS.iter().map(link).collect();
    links.join(", ")
}

/// The name of a format in titles.
pub(super) const fn format_name(format: FsType) -> &'static str {
    match format {
        FsType::Ext4 => "ext4",
        FsType::Btrfs => "btrfs",
        FsType::Xfs => "XFS",
    }
}

/// What was measured of each format, with links to its pages.
pub(super) fn measurements(page: &mut Page, raw: &Raw) {
    for format in FsType::ALL {
        let name = format_name(format);
        let Some(record) = raw.peers.get(&format) else {
            let command = peers_command(format);
            page.paragraph(&format!(
                "{name} was **not measured**; `{command}` measures it."
            ));
            continue;
        };
        page.provenance_of(&format!("{name} was measured"), record);
        let tables = links(page, format);
        page.paragraph(&format!("All tables of {name}: {tables}."));
    }
}

const ABOUT: &str = "\
Rates are medians of the runs with the interval of 95 % confidence; p50 and p99 are latencies of single operations of \
all runs. CPU time is that of the working process and of the server, without kernel threads such as those of loop \
devices and journals. *Requests* are those of the kernel to the FUSE server, counted by our own servers only; \
*writes* and *flushes* are those to the image.";

/// The pages of a format, one for each subject.
pub(super) fn pages(format: FsType, record: &Record<Measured>) -> Vec<Page> {
    let page = |subject: &Subject| page(format, subject, record);
    SUBJECTS.iter().map(page).collect()
}

fn page(format: FsType, subject: &Subject, record: &Record<Measured>) -> Page {
    let title = format!("{} mounted: {}", format_name(format), subject.title);
    let mut page = Page::new(&subject.file(format), &title);
    page.provenance(record);
    page.transports(record, &record.result.samples);
    page.paragraph(ABOUT);
    let is_here = |workload: &&&Workload| subject.workloads.contains(&workload.name);
    for workload in work::ALL.iter().filter(is_here) {
        for failure in record.result.failures_in(workload.name) {
            page.paragraph(&format!("**Not measured to the end:** {failure}."));
        }
        for &threads in workload.threads {
            let series = Series::of(&record.result, workload, threads);
            if !series.is_empty() {
                series.write(&mut page, &record.result);
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_of_one_subject() {
        for workload in work::ALL {
            let of = |subject: &&Subject| subject.workloads.contains(&workload.name);
            assert_eq!(SUBJECTS.iter().filter(of).count(), 1, "{}", workload.name);
        }
        let named = SUBJECTS.iter().flat_map(|subject| subject.workloads);
        assert!(named.copied().all(|name| Workload::named(name).is_ok()));
    }
}
