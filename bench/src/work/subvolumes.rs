//! Snapshots of a subvolume with many files.

use std::time::Duration;

use anyhow::Result;
use testkit::fs_type::FsType;

use super::{Amount, Done, MAKE_DIRS, Site, USUAL, Unit, Workload, phase, sync};
use crate::place::Mode;

const SOURCE: &str = "source";
/// Files in each directory.
const DIR_FILES: u64 = 1000;
const SNAPSHOTS_MADE: u64 = 20;
/// What is written to a file before each.
const CHANGE: [u8; 4096] = [7; 4096];

pub(crate) const SNAPSHOTS: Workload = Workload {
    name: "snapshots",
    about: "20 snapshots of a subvolume, each after 4 KiB were written to another of its files, which is not timed; the \
            count is in empty files that it has, 1000 in each directory",
    count: Amount {
        quick: 300,
        full: 100_000,
    },
    image_mib: |count| 256 + count / 500,
    formats: &[FsType::Btrfs],
    phases: &[
        MAKE_DIRS,
        phase("make files", Unit::Preparation, make_files),
        phase("sync", Unit::Preparation, sync),
        phase("snapshot", Unit::Operations, make_snapshots),
    ],
    ..USUAL
};

fn dir_name(first: u64) -> String {
    format!("subdir-{first}")
}

fn file_name(number: u64) -> String {
    format!("file-{number:08}")
}

fn make_files(site: &Site<'_>) -> Result<Done> {
    let source = site.root.make_subvolume(SOURCE)?;
    for first in (0..site.count).step_by(usize::try_from(DIR_FILES)?) {
        let dir = source.make_dir(&dir_name(first))?;
        for number in first..site.count.min(first + DIR_FILES) {
            dir.create(&file_name(number))?;
        }
    }
    Ok(Done::one())
}

/// Changes one file, each time another: a snapshot of what has not changed since the last has next to nothing to do.
fn change_file(site: &Site<'_>, turn: u64) -> Result<()> {
    let number = turn * (site.count / SNAPSHOTS_MADE);
    let dir = dir_name(number - number % DIR_FILES);
    let dir = site.root.dir(SOURCE)?.dir(&dir)?;
    dir.open(&file_name(number), Mode::Write)?
        .write_at(0, &CHANGE)
}

fn make_snapshots(site: &Site<'_>) -> Result<Done> {
    let mut done = Done::default();
    let (mut all, mut longest) = (Duration::ZERO, Duration::ZERO);
    for turn in 0..SNAPSHOTS_MADE {
        change_file(site, turn)?;
        let name = format!("snapshot-{turn}");
        let snapshot = || site.root.snapshot(SOURCE, &name);
        let (made, taken) = done.latencies.time_always(snapshot);
        made?;
        all += taken;
        longest = longest.max(taken);
    }
    done.amount = SNAPSHOTS_MADE;
    done.seconds = Some(all.as_secs_f64());
    done.longest_seconds = Some(longest.as_secs_f64());
    Ok(done)
}
