//! Extended attributes out of a set of values, on files of the thread's own: one corner of the grid
//! that mechanism M4 is measured with.

use anyhow::Result;
use testkit::prng::Prng;

use super::{Amount, Done, MAKE_DIRS, Site, USUAL, Unit, Workload, phase, sync};
use crate::place::Mode;

/// Values there are, files each thread has, and bytes of a value: more than an inode of 128 bytes
/// holds.
const VALUES: u64 = 10;
const FILES: u64 = 100;
const VALUE_BYTES: usize = 64;

pub(crate) const XATTR: Workload = Workload {
    name: "xattr",
    about: "an attribute of 64 bytes set to one of 10 values on one of 100 files",
    count: Amount {
        quick: 1000,
        full: 50_000,
    },
    threads: &[1, 2],
    inode_bytes: 128,
    image_mib: |_| 256,
    phases: &[
        MAKE_DIRS,
        phase("make files", Unit::Preparation, make_files),
        phase("setxattr", Unit::Operations, set),
        phase("sync after setxattr", Unit::Once, sync),
    ],
    ..USUAL
};

fn name(number: u64) -> String {
    format!("file-{number:04}")
}

fn make_files(site: &Site<'_>) -> Result<Done> {
    site.in_threads(|_, dir, _| {
        for number in 0..FILES {
            dir.create(&name(number))?;
        }
        Ok(FILES)
    })
}

fn set(site: &Site<'_>) -> Result<Done> {
    let mut prng = Prng::new(4);
    let values: Vec<Vec<u8>> = (0..VALUES).map(|_| prng.bytes(VALUE_BYTES)).collect();
    site.in_threads(|thread, dir, latencies| {
        let files = (0..FILES).map(|number| dir.open(&name(number), Mode::Write));
        let files = files.collect::<Result<Vec<_>>>()?;
        let mut prng = Prng::new(thread);
        for _ in 0..site.share() {
            let file = usize::try_from(prng.below(FILES))?;
            let value = usize::try_from(prng.below(VALUES))?;
            latencies.time(|| files[file].set_xattr("user.value", &values[value]))?;
        }
        Ok(site.share())
    })
}
