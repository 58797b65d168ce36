//! Platter and its peers side by side: the same work on the same images, in turns.

mod run;
mod expected;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;

pub(crate) use self::expected::BOUNDS;
pub(crate) use self::run::{Orders, Part, Sample, judge, run};
use crate::child;
use crate::growing::Growing;
use crate::measure::Latencies;
use crate::record::{self, Extent};
use crate::side::Side;
use crate::stage::Stage;
use crate::work::{self, Storage, Workload};

/// Rounds of a measurement: in each, every side has a turn, first in one order, then backwards; fuse2fs in the first ones.
const ROUNDS: usize = 3;
/// Turns of fuse2fs, which takes more time than all other sides, where no number of rounds is asked for.
const FUSE2FS_TURNS_MAX: usize = 3;
/// What the caches of platter may take: space for what is worked on, as the kernel has it. What less
/// costs is measured apart, where caches grow.
pub(crate) const CACHE_BYTES: u64 = 512 << 20;

/// What is compared, and how thoroughly.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) extent: Extent,
    /// All, if empty.
    pub(crate) parts: Vec<String>,
    /// All, if empty.
    pub(crate) sides: Vec<Side>,
    pub(crate) rounds: Option<usize>,
    /// How many small files images hold that are checked.
    pub(crate) files: Option<u64>,
    /// What the images hold, one after the other.
    pub(crate) formats: Vec<FsType>,
    /// What a run of the same source has measured as a whole is left as it is.
    pub(crate) resumes: bool,
}

/// The name of the raw runs of a format.
pub(crate) const fn record_name(format: FsType) -> &'static str {
    match format {
        FsType::Ext4 => "peers",
        FsType::Btrfs => "peers-btrfs",
        FsType::Xfs => "peers-xfs",
    }
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) samples: Vec<Sample>,
    /// Of less work, and for nothing but what was asked of the device, of sides that do not count
    /// that.
    #[serde(default)]
    pub(crate) counted: Vec<Sample>,
    /// By workload and threads, phase, and side.
    pub(crate) latencies: Vec<Sampled>,
    /// What went wrong, and so is not there.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
}

/// Latencies of all runs of a side.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sampled {
    pub(crate) workload: String,
    pub(crate) threads: usize,
    pub(crate) phase: String,
    pub(crate) side: Side,
    pub(crate) latencies: Latencies,
}

impl Choice {
    /// Raw runs that are to be kept under a name; nothing where a run of this source left them, and only the rest is asked
    /// for.
    pub(crate) fn begin<T: Serialize + Default>(
        &self,
        name: &str,
        place: Extent,
    ) -> Result<Option<Growing<T>>> {
        if self.resumes && place == Extent::Full && record::is_measured(name)? {
            println!("{name} is measured");
            return Ok(None);
        }
        Growing::begin(name, place).map(Some)
    }

    /// Whether the part of this name was asked for.
    pub(crate) fn takes(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| part == name)
    }

    fn sides(&self, format: FsType) -> Vec<Side> {
        let mut sides = if self.sides.is_empty() {
            Side::ALL.to_vec()
        } else {
            self.sides.clone()
        };
        sides.retain(|side| side.serves(format));
        sides
    }
}

/// Measures what was chosen, on images of a format. Returns what failed.
pub(crate) fn measure(
    choice: &Choice,
    format: FsType,
    mut growing: Growing<Measured>,
) -> Result<Vec<String>> {
    let is_of_format = |workload: &&&Workload| workload.formats.contains(&format);
    for workload in work::ALL
        .iter()
        .filter(|workload| choice.takes(workload.name))
        .filter(is_of_format)
    {
        for &threads in workload.threads {
            println!(
                "{}, {}, {threads} thread(s): {}",
                format.kernel_name(),
                workload.name,
                workload.about
            );
            growing.add(workload.name, |measured| {
                measured.add(choice, format, (workload, threads))
            });
        }
    }
    let (measured, mut failures) = growing.end()?;
    failures.extend(measured.failures);
    Ok(failures)
}

/// What fuse2fs asks of the device, by a tenth of the work.
fn count(extent: Extent, workload: &Workload, threads: usize) -> Result<Sample> {
    let stage = Stage::new()?;
    let orders = Orders {
        side: Side::Fuse2fs,
        format: FsType::Ext4,
        workload: workload.name.to_owned(),
        count: match extent {
            Extent::Quick => workload.count.quick,
            Extent::Full => (workload.count.full / 10).max(workload.count.quick),
        },
        threads,
        cache_bytes: CACHE_BYTES,
        dir: stage.empty_dir("ground")?,
        is_counted: true,
    };
    let sample = child::run("run", &orders);
    sample.with_context(|| counting(workload.name))
}

/// What a failure to count begins with.
fn counting(workload: &str) -> String {
    format!("requests of fuse2fs in {workload}")
}

/// All sides in turns. One that fails has no more of them, and the others go on.
fn alternate(
    choice: &Choice,
    format: FsType,
    (workload, threads): (&Workload, usize),
    failures: &mut Vec<String>,
) -> Result<Vec<Sample>> {
    let quick = choice.extent == Extent::Quick;
    let count = if quick {
        workload.count.quick
    } else {
        workload.count.full
    };
    let usual = if quick {
        1
    } else {
        ROUNDS * workload.rounds_times
    };
    let rounds = choice.rounds.unwrap_or(usual);
    let stage = match workload.storage {
        Storage::Memory => Stage::new()?,
        Storage::Disk => Stage::on_disk()?,
    };
    let mut sides = choice.sides(format);
    sides.retain(|side| side.takes(workload));
    let mut samples = Vec::new();
    for round in 0..rounds {
        for side in sides.clone() {
            let is_over = choice.rounds.is_none() && round >= FUSE2FS_TURNS_MAX;
            if is_over && side == Side::Fuse2fs {
                continue;
            }
            let orders = Orders {
                side,
                format,
                workload: workload.name.to_owned(),
                count,
                threads,
                cache_bytes: CACHE_BYTES,
                dir: stage.empty_dir("ground")?,
                is_counted: false,
            };
            let turn = child::run("run", &orders)
                .with_context(|| format!("{} by {}", workload.name, side.name(format)));
            let sample: Sample = match turn {
                Ok(sample) => sample,
                Err(error) => {
                    failures.push(failure_text(&error));
                    sides.retain(|&other| other != side);
                    continue;
                }
            };
            show(&sample);
            samples.push(sample);
        }
        sides.reverse();
    }
    Ok(samples)
}

/// Prints a failure, and returns its text for the report.
pub(crate) fn failure_text(error: &anyhow::Error) -> String {
    let failure = format!("{error:#}");
    println!("  {failure}");
    failure
}

fn show(sample: &Sample) {
    print!("  {:<30}", sample.side.name(sample.format));
    for part in &sample.phases {
        print!(" {} {:.3} s", part.name, part.seconds);
        for (kind, &count) in &part.asked.fuse {
            print!(" {:.2} {kind}", part.per(count));
        }
        print!(";");
    }
    println!();
}

impl Measured {
    /// What went wrong in a workload.
    pub(crate) fn failures_in(&self, workload: &str) -> impl Iterator<Item = &String> {
        let starts = [format!("{workload} by "), counting(workload)];
        let is_of = move |failure: &&String| starts.iter().any(|start| failure.starts_with(start));
        self.failures.iter().filter(is_of)
    }

    /// Measures a workload by all sides.
    fn add(
        &mut self,
        choice: &Choice,
        format: FsType,
        (workload, threads): (&Workload, usize),
    ) -> Result<()> {
        let turns = (workload, threads);
        let mut samples = alternate(choice, format, turns, &mut self.failures)?;
        // Bounds are those of ext4.
        if choice.extent == Extent::Quick && format == FsType::Ext4 {
            let exceeded = samples
                .iter()
                .filter_map(|sample| expected::check(sample).err());
            self.failures
                .extend(exceeded.map(|error| failure_text(&error)));
        }
        self.latencies.extend(gathered_latencies(&mut samples));
        self.samples.extend(samples);
        if choice.sides(format).contains(&Side::Fuse2fs) && Side::Fuse2fs.takes(workload) {
            match count(choice.extent, workload, threads) {
                Ok(counted) => self.counted.push(counted),
                Err(error) => self.failures.push(failure_text(&error)),
            }
        }
        Ok(())
    }
}

/// Takes the latencies out of the samples and adds up those of the same kind.
fn gathered_latencies(samples: &mut [Sample]) -> Vec<Sampled> {
    let mut gathered: BTreeMap<(String, usize, String, Side), Latencies> = BTreeMap::new();
    for sample in samples {
        for part in &mut sample.phases {
            if let Some(latencies) = part.latencies.take() {
                let (workload, phase) = (sample.workload.clone(), part.name.clone());
                let key = (workload, sample.threads, phase, sample.side);
                gathered.entry(key).or_default().merge(&latencies);
            }
        }
    }
    let sampled = |((workload, threads, phase, side), latencies)| Sampled {
        workload,
        threads,
        phase,
        side,
        latencies,
    };
    gathered.into_iter().map(sampled).collect()
}
