//! Reading btrfs and XFS: images of many files that the kernel made, listed, archived and copied out
//! with nothing of them in memory, by platter's program, the kernel and `btrfs restore`; and what
//! that takes of the device, counted.

mod images;
mod ways;
mod counts;

use anyhow::Result;
use serde::{Deserialize, Serialize};

pub(crate) use self::counts::{Counted, PART, part};
pub(crate) use self::images::{Kind, text, words};
pub(crate) use self::ways::{JOBS, Job, Way};
use crate::growing::Growing;
use crate::measure::median;
use crate::peers::Choice;
use crate::record::Extent;
use crate::stage::Stage;

const ROUNDS: usize = 3;

/// What was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) runs: Vec<Run>,
    pub(crate) counted: Vec<Counted>,
}

/// One job, done once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) image: Kind,
    pub(crate) job: String,
    pub(crate) way: String,
    pub(crate) files: u64,
    /// From the image that nothing has opened to the end.
    pub(crate) seconds: f64,
    /// Of that, the kernel's mount; platter opens in the same program.
    pub(crate) mount_seconds: f64,
    pub(crate) cpu_seconds: f64,
}

/// How many there are of everything.
#[derive(Debug, Clone, Copy)]
struct Amounts {
    files: u64,
    names: u64,
    large_mib: u64,
    rounds: usize,
}

impl Amounts {
    fn of(extent: Extent, rounds: Option<usize>) -> Self {
        let (files, names, large_mib, usual) = match extent {
            Extent::Quick => (500, 2000, 1 << 14, 1),
            Extent::Full => (50_000, 1_000_000, 1 << 24, ROUNDS),
        };
        Self {
            files,
            names,
            large_mib,
            rounds: rounds.unwrap_or(usual),
        }
    }
}

/// Measures all of it. Returns what failed.
pub(crate) fn measure(choice: &Choice, mut growing: Growing<Measured>) -> Result<Vec<String>> {
    let amounts = Amounts::of(choice.extent, choice.rounds);
    for kind in Kind::ALL {
        growing.add(kind.name(), |measured| of_kind(kind, amounts, measured));
    }
    growing.add("counts", |measured| {
        let (disk, memory) = (Stage::on_disk()?, Stage::new()?);
        let image = disk.path().join("image");
        images::plant_names(&image, amounts.names)?;
        measured
            .counted
            .extend(counts::of_names(&image, amounts.names)?);
        let image = memory.path().join("image");
        images::make_large(&image, amounts.large_mib)?;
        measured
            .counted
            .push(counts::of_mount(&image, amounts.large_mib)?);
        Ok(())
    });
    let (measured, failures) = growing.end()?;
    measured.counted.iter().for_each(Counted::show);
    Ok(failures)
}

/// Measures all jobs on an image.
fn of_kind(kind: Kind, amounts: Amounts, measured: &mut Measured) -> Result<()> {
    // The image leaves the host's caches only where it lies on a disk; what is made stays in memory.
    let (disk, memory) = (Stage::on_disk()?, Stage::new()?);
    let image = disk.path().join("image");
    images::plant(kind, &image, amounts.files)?;
    println!("{}: {} files", kind.name(), amounts.files);
    let bench = ways::Bench {
        kind,
        image: &image,
        made: memory.path().join("made"),
        files: amounts.files,
    };
    for job in JOBS {
        measured.runs.extend(bench.alternate(job, amounts.rounds)?);
    }
    measured.counted.extend(counts::of_tree(&image, kind)?);
    Ok(())
}

fn show(job: &Job, runs: &[Run]) {
    for way in job.ways {
        let of_way = runs.iter().filter(|run| run.way == way.name);
        let seconds: Vec<f64> = of_way.map(|run| run.seconds).collect();
        if !seconds.is_empty() {
            let seconds = median(&seconds).value;
            println!("  {:<10}{:<26}{seconds:>9.3} s", job.name, way.name);
        }
    }
}
