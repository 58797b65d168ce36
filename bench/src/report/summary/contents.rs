//! All pages, with the command and the commit that they are of.

use testkit::fs_type::FsType;

use crate::mechanisms::Mechanism;
use crate::record::Record;
use crate::report::page::{Page, not_measured};
use crate::report::peers::{self, format_name};
use crate::report::raw::{
    APPLICATIONS, CHECKS, MECHANISMS, PEERS, READING, Raw, SCALE, jobs_command, peers_command,
};
use crate::report::{
    applications, checks, fuse, library, mechanisms, programs, reading, requests, scale,
};

pub(super) fn write(page: &mut Page, raw: &Raw) {
    let link = |title: &str, file: &str| format!("[{title}]({})", page.link_to_page(file));
    let mut rows = Vec::new();
    let mounts = [
        link("aims of mounts", fuse::FILE),
        link("requests on ext4", requests::FILE),
        link("aims of the library", library::FILE),
    ];
    let sources = raw.peers.values().map(source).collect::<Vec<_>>();
    rows.push(row(
        mounts.join(", "),
        (!sources.is_empty()).then(|| sources.join(", ")),
        PEERS,
    ));
    for format in FsType::ALL {
        let record = raw.peers.get(&format);
        let pages = record.map(|_| peers::links(page, format));
        let pages = pages.unwrap_or_else(|| "mounts".to_owned());
        rows.push(row(
            format!("{}: {pages}", format_name(format)),
            record.map(source),
            &peers_command(format),
        ));
    }
    for (mechanism, entry) in Mechanism::ALL
        .into_iter()
        .zip(mechanisms::entries(&raw.mechanisms))
    {
        rows.push(row(
            link(entry.number, entry.file),
            raw.mechanisms.get(&mechanism).map(source),
            &format!("{MECHANISMS} --only {}", mechanism.word()),
        ));
    }
    for format in FsType::ALL {
        rows.push(row(
            format!(
                "{}: {}",
                format_name(format),
                link("whole jobs", programs::FILE)
            ),
            raw.jobs.get(&format).map(source),
            &jobs_command(format),
        ));
    }
    rows.push(row(
        link("how costs grow", scale::FILE),
        raw.scale.as_ref().map(source),
        SCALE,
    ));
    rows.push(row(
        link("reading btrfs and XFS", reading::FILE),
        raw.reading.as_ref().map(source),
        READING,
    ));
    rows.push(row(
        link("checking and copying out images", checks::FILE),
        raw.checks.as_ref().map(source),
        CHECKS,
    ));
    rows.push(row(
        link("applications on mounts", applications::FILE),
        raw.applications.as_ref().map(source),
        APPLICATIONS,
    ));
    page.table_of_texts(&["page", "measured by"], &rows);
}

fn row(pages: String, source: Option<String>, command: &str) -> Vec<String> {
    vec![pages, source.unwrap_or_else(|| not_measured(command))]
}

fn source<T>(record: &Record<T>) -> String {
    format!("`{}` at `{}`", record.command, record.commit)
}
