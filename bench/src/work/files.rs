//! Names: files made, looked at, opened and removed, as `fs_mark -S 0` does.

use anyhow::{Result, ensure};

use super::{Amount, Done, MAKE_DIRS, Site, USUAL, Unit, Workload, cold, phase, sync};
use crate::place::Mode;
use crate::side::Side;

const SMALL_BYTES: usize = 4096;

pub(crate) const EMPTY: Workload = Workload {
    name: "files",
    about: "empty files in one directory for each thread",
    count: Amount {
        quick: 400,
        full: 10_000,
    },
    threads: &[1, 2],
    rounds_times: 2,
    image_mib: |count| 256 + count / 1000,
    particular: &[Side::Unchecked],
    phases: &[
        MAKE_DIRS,
        phase("create", Unit::Operations, create_empty),
        phase("sync after create", Unit::Once, sync),
        phase("stat", Unit::Operations, stat_empty),
        cold("cold stat", Unit::Operations, stat_empty),
        phase("unlink", Unit::Operations, unlink),
        phase("sync after unlink", Unit::Once, sync),
    ],
    ..USUAL
};

/// Only made, so that a million can be made many times.
pub(crate) const CREATE: Workload = Workload {
    name: "create",
    about: "empty files made in one directory",
    phases: &[MAKE_DIRS, phase("create", Unit::Operations, create_empty)],
    ..EMPTY
};

pub(crate) const SMALL: Workload = Workload {
    name: "small",
    about: "files of 4 KiB in one directory",
    count: Amount {
        quick: 300,
        full: 10_000,
    },
    phases: &[
        MAKE_DIRS,
        phase("create, write, close", Unit::Operations, create_small),
        phase("sync after write", Unit::Once, sync),
        phase("open, read, close", Unit::Operations, read_small),
        cold("cold open, read, close", Unit::Operations, read_small),
        phase("unlink", Unit::Operations, unlink),
        phase("sync after unlink", Unit::Once, sync),
    ],
    ..USUAL
};

/// Nothing but to be mounted; the count is MiB of the image.
pub(crate) const MOUNT: Workload = Workload {
    name: "mount",
    about: "an empty filesystem mounted; the count is MiB of the image",
    count: Amount {
        quick: 64,
        full: 1024,
    },
    image_mib: |count| count,
    phases: &[phase("list", Unit::Once, list_root)],
    ..USUAL
};

fn list_root(site: &Site<'_>) -> Result<Done> {
    let entries = site.root.list()?;
    ensure!(entries.len() == 1, "there is more than lost+found");
    Ok(Done::one())
}

fn name(number: u64) -> String {
    format!("file-{number:08}")
}

fn create_empty(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        for number in 0..site.share() {
            latencies.time(|| dir.create(&name(number)).map(drop))?;
        }
        Ok(site.share())
    })
}

fn stat_empty(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        for number in 0..site.share() {
            let size = latencies.time(|| dir.size_bytes(&name(number)))?;
            ensure!(size == 0, "an empty file has {size} bytes");
        }
        Ok(site.share())
    })
}

fn unlink(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        for number in 0..site.share() {
            latencies.time(|| dir.unlink(&name(number)))?;
        }
        Ok(site.share())
    })
}

/// What a small file holds.
fn contents(number: u64) -> Vec<u8> {
    let byte = u8::try_from(number % 251).unwrap_or(0);
    vec![byte; SMALL_BYTES]
}

fn create_small(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        for number in 0..site.share() {
            let contents = contents(number);
            latencies.time(|| dir.create(&name(number))?.write_at(0, &contents))?;
        }
        Ok(site.share())
    })
}

fn read_small(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, latencies| {
        let mut buffer = vec![0; 2 * SMALL_BYTES];
        for number in 0..site.share() {
            let length = latencies.time(|| {
                let file = dir.open(&name(number), Mode::Read)?;
                file.read_at(0, &mut buffer)
            })?;
            ensure!(
                buffer[..length] == contents(number),
                "file {number} has other contents"
            );
        }
        Ok(site.share())
    })
}
