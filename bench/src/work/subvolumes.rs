//! Snapshots of a subvolume with many files.

use anyhow::Result;
use testkit::fs_type::FsType;

use super::{Amount, Done, MAKE_DIRS, Site, USUAL, Unit, Workload, phase, sync};

const SOURCE: &str = "source";
/// Files in each directory.
const DIR_FILES: u64 = 1000;
const SNAPSHOTS_MADE: u64 = 20;

pub(crate) const SNAPSHOTS: Workload = Workload {
    name: "snapshots",
    about: "20 snapshots of a subvolume, one after the other; the count is in empty files that it has, 1000 in each directory",
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

fn make_files(site: &Site<'_>) -> Result<Done> {
    let source = site.root.make_subvolume(SOURCE)?;
    for first in (0..site.count).step_by(usize::try_from(DIR_FILES)?) {
        let dir = source.make_dir(&format!("subdir-{first}"))?;
        for number in first..site.count.min(first + DIR_FILES) {
            dir.create(&format!("file-{number:08}"))?;
        }
    }
    Ok(Done::one())
}

fn make_snapshots(site: &Site<'_>) -> Result<Done> {
    let mut done = Done::default();
    for number in 0..SNAPSHOTS_MADE {
        let name = format!("snapshot-{number}");
        done.latencies.time(|| site.root.snapshot(SOURCE, &name))?;
    }
    done.amount = SNAPSHOTS_MADE;
    Ok(done)
}
