//! How costs grow: the same work on more of something, by the library and the kernel.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;

use crate::child;
use crate::growing::Growing;
use crate::measure::median;
use crate::peers::{Choice, Orders, Sample, failure_text};
use crate::record::Extent;
use crate::side::Side;
use crate::stage::Stage;
use crate::work::Workload;

const CACHE_BYTES: u64 = platter::open::CACHE_BYTES_DEFAULT;
/// What a process takes besides the caches, at most.
const BESIDES_CACHES_BYTES: u64 = 64 << 20;

/// Something that grows.
#[derive(Debug)]
pub(crate) struct Growth {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What there is more and more of.
    pub(crate) unit: &'static str,
    workload: &'static str,
    what: What,
    sides: &'static [Every],
    /// Turns of each side at each size.
    rounds: usize,
    quick: &'static [u64],
    full: &'static [u64],
}

/// Which of the orders grows.
#[derive(Debug, Clone, Copy)]
enum What {
    Count,
    Threads,
    /// MiB, while the count stays.
    Cache,
}

/// A side, which is measured at every size, or at every second one, and so on.
type Every = (Side, usize);

const LIBRARY: &[Every] = &[(Side::Library, 1)];
const BOTH: &[Every] = &[(Side::Library, 1), (Side::Kernel, 1)];
const OURS: &[Every] = &[(Side::Library, 1), (Side::Fuse, 1)];
const MOUNTED: &[Every] = &[(Side::Library, 1), (Side::Kernel, 1), (Side::Fuse, 1)];

/// Empty files in one directory. A server takes minutes for a million.
const FILES: Growth = Growth {
    name: "files",
    about: "empty files in one directory",
    unit: "files",
    workload: "files",
    what: What::Count,
    sides: &[(Side::Library, 1), (Side::Kernel, 1), (Side::Fuse, 2)],
    rounds: 1,
    quick: &[100, 400],
    full: &[10_000, 30_000, 100_000, 300_000, 1_000_000],
};

pub(crate) const ALL: &[Growth] = &[
    Growth {
        name: "create",
        about: "empty files made in one directory",
        workload: "create",
        sides: LIBRARY,
        rounds: 3,
        full: &[10_000, 1_000_000],
        ..FILES
    },
    FILES,
    Growth {
        name: "tree",
        about: "small files in many directories",
        workload: "tree",
        ..FILES
    },
    Growth {
        name: "extents",
        about: "pieces of 4 KiB with holes between them, in one file",
        unit: "extents",
        workload: "extents",
        what: What::Count,
        sides: BOTH,
        rounds: 2,
        quick: &[10, 1000],
        full: &[1, 100, 10_000, 100_000, 1_000_000],
    },
    Growth {
        name: "image",
        about: "an image that is mounted",
        unit: "MiB",
        workload: "mount",
        what: What::Count,
        sides: BOTH,
        rounds: 5,
        quick: &[64, 1 << 14],
        full: &[1 << 10, 1 << 14, 1 << 18, 1 << 21, 1 << 24],
    },
    Growth {
        name: "cache",
        about: "memory for caches, with random accesses of 4 KiB in a file of 256 MiB",
        unit: "MiB of cache",
        workload: "random",
        what: What::Cache,
        sides: OURS,
        rounds: 2,
        quick: &[8, 32],
        full: &[32, 64, 128, 256, 512, 1024],
    },
    Growth {
        name: "threads",
        about: "threads that make, look at and remove files, each in a directory of its own",
        unit: "threads",
        workload: "files",
        what: What::Threads,
        sides: MOUNTED,
        rounds: 3,
        quick: &[1, 4],
        full: &[1, 2, 4, 8, 16],
    },
];

/// So many times the files of other runs are those of threads: with fewer, much of the time is that
/// until all of them run.
const THREADED_TIMES: u64 = 10;

/// What was measured of one that grows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Grown {
    pub(crate) name: String,
    pub(crate) samples: Vec<At>,
    /// What went wrong, and so is not there.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
}

/// A sample, at a size.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct At {
    pub(crate) size: u64,
    pub(crate) sample: Sample,
}

/// The least and the most of what grows; zeros of what does not.
pub(crate) fn ends(name: &str, extent: Extent) -> [u64; 2] {
    let growth = ALL.iter().find(|growth| growth.name == name);
    let sizes = growth.map_or(&[][..], |growth| growth.sizes(extent));
    [sizes.first(), sizes.last()].map(|size| size.copied().unwrap_or(0))
}

/// Whether any of them was asked for.
pub(crate) fn takes_any(choice: &Choice) -> bool {
    ALL.iter().any(|growth| choice.takes(growth.name))
}

/// Measures those whose names are given, or all. Returns what failed.
pub(crate) fn measure(choice: &Choice, mut growing: Growing<Vec<Grown>>) -> Result<Vec<String>> {
    for growth in ALL.iter().filter(|growth| choice.takes(growth.name)) {
        println!("{}: {}", growth.name, growth.about);
        growing.add(growth.name, |measured| {
            measured.push(growth.measure(choice)?);
            Ok(())
        });
    }
    let (measured, mut failures) = growing.end()?;
    failures.extend(measured.into_iter().flat_map(|grown| grown.failures));
    Ok(failures)
}

impl Growth {
    const fn sizes(&self, extent: Extent) -> &'static [u64] {
        match extent {
            Extent::Quick => self.quick,
            Extent::Full => self.full,
        }
    }

    fn measure(&self, choice: &Choice) -> Result<Grown> {
        let stage = Stage::new()?;
        let extent = choice.extent;
        let rounds = match extent {
            Extent::Quick => 1,
            Extent::Full => self.rounds,
        };
        let rounds = choice.rounds.unwrap_or(rounds).min(rounds);
        let mut samples = Vec::new();
        let mut failures = Vec::new();
        // Sizes take turns as sides do: what makes a machine slower for minutes is no growth.
        let mut turns: Vec<(u64, Side)> = self.turns(extent).collect();
        for _ in 0..rounds {
            for &(size, side) in &turns {
                let mut orders = self.orders(side, size, extent)?;
                orders.dir = stage.empty_dir("ground")?;
                let turn = child::run("run", &orders).with_context(|| {
                    format!("{} at {size} by {}", self.name, side.name(FsType::Ext4))
                });
                let sample: Sample = match turn {
                    Ok(sample) => sample,
                    Err(error) => {
                        failures.push(failure_text(&error));
                        continue;
                    }
                };
                if let (Extent::Quick, Err(error)) = (extent, check_memory(&sample)) {
                    failures.push(failure_text(&error));
                }
                samples.push(At { size, sample });
            }
            turns.reverse();
        }
        samples.sort_by_key(|at: &At| at.size);
        for &size in self.sizes(extent) {
            show(self.unit, size, &samples);
        }
        for at in &mut samples {
            for part in &mut at.sample.phases {
                part.latencies = None;
            }
        }
        Ok(Grown {
            name: self.name.to_owned(),
            samples,
            failures,
        })
    }

    /// What a round measures: each side, at every size that it is measured at, one after the other,
    /// since sizes are what is compared.
    fn turns(&self, extent: Extent) -> impl Iterator<Item = (u64, Side)> {
        let sizes = self.sizes(extent);
        self.sides.iter().flat_map(|&(side, every)| {
            let sizes = sizes.iter().step_by(every);
            sizes.map(move |&size| (size, side))
        })
    }

    fn orders(&self, side: Side, size: u64, extent: Extent) -> Result<Orders> {
        let count = Workload::named(self.workload)?.count;
        let mut orders = Orders {
            side,
            format: FsType::Ext4,
            workload: self.workload.to_owned(),
            count: match extent {
                Extent::Quick => count.quick,
                Extent::Full => count.full,
            },
            threads: 1,
            cache_bytes: CACHE_BYTES,
            dir: std::path::PathBuf::new(),
            is_counted: false,
        };
        match self.what {
            What::Count => orders.count = size,
            What::Threads => {
                orders.threads = usize::try_from(size)?;
                orders.count *= THREADED_TIMES;
            }
            What::Cache => orders.cache_bytes = size << 20,
        }
        Ok(orders)
    }
}

fn show(unit: &str, size: u64, samples: &[At]) {
    let at_size = || samples.iter().filter(move |at| at.size == size);
    let sides: BTreeSet<Side> = at_size().map(|at| at.sample.side).collect();
    for side in sides {
        let of_side = at_size().filter(|at| at.sample.side == side);
        let seconds: Vec<f64> = of_side
            .map(|at| at.sample.phases.iter().map(|part| part.seconds).sum())
            .collect();
        let seconds = median(&seconds).value;
        println!(
            "  {:<20}{size:>10} {unit} {seconds:>9.3} s",
            side.name(FsType::Ext4)
        );
    }
}

/// Caches keep to their budget, on every machine.
fn check_memory(sample: &Sample) -> Result<()> {
    let above = sample.above_budget_bytes().unwrap_or(0);
    ensure!(
        above <= BESIDES_CACHES_BYTES,
        "{} of {} took {} MiB beyond its budget",
        sample.side.name(FsType::Ext4),
        sample.workload,
        above >> 20
    );
    Ok(())
}
