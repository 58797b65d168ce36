//! Files that are durable one by one: made, written, and synced.

use anyhow::Result;

use super::{Amount, Done, MAKE_DIRS, Site, Storage, USUAL, Unit, Workload, phase};

const BYTES: usize = 4096;

pub(crate) const FSYNC: Workload = Workload {
    name: "fsync",
    about: "files of 4 KiB, each made durable before the next",
    count: Amount {
        quick: 50,
        full: 2000,
    },
    threads: &[1, 2],
    phases: &[
        MAKE_DIRS,
        phase("create, write, fsync", Unit::Operations, create_durably),
    ],
    ..USUAL
};

pub(crate) const DURABLE: Workload = Workload {
    name: "durable",
    about: "the same on an image on the machine's disk, whose flushes reach it",
    count: Amount {
        quick: 20,
        full: 500,
    },
    storage: Storage::Disk,
    is_pinned: false,
    ..FSYNC
};

pub(crate) const APPEND: Workload = Workload {
    name: "append",
    about: "4 KiB appended to one file, durable before the next",
    count: Amount {
        quick: 50,
        full: 2000,
    },
    phases: &[
        MAKE_DIRS,
        phase("append, fsync", Unit::Operations, append_durably),
    ],
    ..USUAL
};

fn create_durably(site: &Site<'_>) -> Result<Done> {
    let contents = [7; BYTES];
    site.in_threads(|_, dir, latencies| {
        for number in 0..site.share() {
            latencies.time(|| {
                let file = dir.create(&format!("file-{number:08}"))?;
                file.write_at(0, &contents)?;
                file.sync()
            })?;
        }
        Ok(site.share())
    })
}

fn append_durably(site: &Site<'_>) -> Result<Done> {
    let contents = [7; BYTES];
    site.in_threads(|_, dir, latencies| {
        let file = dir.create("log")?;
        for number in 0..site.share() {
            latencies.time(|| {
                file.write_at(number * BYTES as u64, &contents)?;
                file.sync()
            })?;
        }
        Ok(site.share())
    })
}
