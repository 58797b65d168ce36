//! Images that a command reads without a mount, compared with the kernel and the format's own tool.

use testkit::fs_type::FsType;

use crate::measure::{median, ratio};
use crate::reading::{JOBS, Kind, Run};
use crate::report::number::{short, with_range};
use crate::report::page::Page;
use crate::report::raw::{READING, Raw};
use crate::report::reading::{FILE, picture, picture_title, seconds};

/// The image that the summary is about; nothing of formats whose reading is not measured apart.
const fn kind(format: FsType) -> Option<Kind> {
    match format {
        FsType::Ext4 => None,
        FsType::Btrfs => Some(Kind::Btrfs),
        FsType::Xfs => Some(Kind::Xfs),
    }
}

pub(super) fn write(page: &mut Page, raw: &Raw, format: FsType) {
    let Some(kind) = kind(format) else {
        return;
    };
    let Some(record) = &raw.reading else {
        page.paragraph(&format!(
            "Images read by the command: **not measured**; `{READING}` measures it."
        ));
        return;
    };
    let target = page.link_to_page(FILE);
    page.paragraph(&format!(
        "Images read by the command, without a mount and with cold caches, by `{}`; seconds. [More]({target}).",
        record.command
    ));
    let rows = rows(&record.result.runs, kind);
    page.table(
        &["platter", "s", "peer", "s", "peer's time over platter's"],
        &rows,
    );
    page.show(&picture(kind), &picture_title(kind));
}

/// A row for each peer.
fn rows(runs: &[Run], kind: Kind) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for job in JOBS {
        let Some((ours, peers)) = job.ways.split_first() else {
            continue;
        };
        let taken = seconds(runs, kind, job, ours);
        for peer in peers {
            let theirs = seconds(runs, kind, job, peer);
            if theirs.is_empty() {
                continue;
            }
            rows.push(vec![
                ours.name.to_owned(),
                short(median(&taken).value),
                peer.name.to_owned(),
                short(median(&theirs).value),
                with_range(ratio(&theirs, &taken)),
            ]);
        }
    }
    rows
}
