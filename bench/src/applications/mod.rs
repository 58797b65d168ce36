//! Programs that people run on a filesystem: on a mount of platter over the device with its default options, on the
//! kernel's own filesystem, and on fuse2fs where the format is ext4.

mod supplies;
mod suites;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::oracle::{btrfs, mke2fs, xfs};

pub(crate) use self::suites::{SUITES, Suite};
use self::supplies::{Amounts, Supplies};
use crate::growing::Growing;
use crate::measure::{children_cpu_seconds, cpu_seconds, median, now};
use crate::peers::{Choice, failure_text, judge};
use crate::record::Extent;
use crate::side::{Asked, Ground, Live, Side, start_for_programs};
use crate::stage::Stage;

/// What is compared; the first is ours.
pub(crate) const SIDES: [Side; 3] = [Side::Device, Side::Kernel, Side::Fuse2fs];
/// The times of the kernel that platter is to take at most.
pub(crate) const TIMES_OF_KERNEL_MAX: f64 = 2.0;

const ROUNDS: usize = 3;
const IMAGE_KIB: u64 = 2 << 20;

/// What one program does.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) state: State,
    /// Returns how much it printed, which is the same on all sides.
    run: fn(&Scene<'_>) -> Result<u64>,
    /// Looks at what was done, and counts it, which is the same on all sides, too.
    check: fn(&Scene<'_>) -> Result<u64>,
}

/// What is in the caches when a program starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing but what the program writes itself, or what was put there for it.
    New,
    /// Nothing: the image was mounted for it, with all that it looks at.
    Cold,
    /// What the step before has left there.
    Warm,
}

/// Where a program works.
struct Scene<'a> {
    supplies: &'a Supplies,
    /// The root of the filesystem.
    root: PathBuf,
    /// A directory besides, on tmpfs, for another mount.
    merged: PathBuf,
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) files: u64,
    pub(crate) transactions: u64,
    pub(crate) sources: u64,
    pub(crate) runs: Vec<Run>,
    /// What went wrong, and so is not there.
    pub(crate) failures: Vec<String>,
}

/// One run of a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) side: Side,
    pub(crate) format: FsType,
    pub(crate) step: String,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) server_cpu_seconds: Option<f64>,
    pub(crate) asked: Asked,
}

/// Measures what was chosen. Returns what failed but of fuse2fs, which cannot do all of it.
pub(crate) fn measure(choice: &Choice, mut growing: Growing<Measured>) -> Result<Vec<String>> {
    let (amounts, usual) = match choice.extent {
        Extent::Quick => (Amounts::QUICK, 1),
        Extent::Full => (Amounts::FULL, ROUNDS),
    };
    // One for what is given to programs, one for images.
    let (given, stage) = (Stage::new()?, Stage::new()?);
    let mut bench = Bench {
        supplies: Supplies::make(given.path(), amounts)?,
        stage,
        counts: Counts::default(),
    };
    let rounds = choice.rounds.unwrap_or(usual);
    for &format in &choice.formats {
        for suite in SUITES.iter().filter(|suite| is_chosen(choice, suite)) {
            growing.add(&title(format, suite), |measured| {
                measured.files = amounts.files;
                measured.transactions = amounts.transactions;
                measured.sources = amounts.sources;
                bench.alternate((format, suite), rounds, measured);
                Ok(())
            });
        }
    }
    let (measured, mut failures) = growing.end()?;
    failures.extend(unexpected(measured.failures));
    Ok(failures)
}

fn title(format: FsType, suite: &Suite) -> String {
    format!("{}: {}", format.kernel_name(), suite.name)
}

/// What a failure of a side begins with.
fn turn_title(format: FsType, suite: &Suite, side: Side) -> String {
    format!("{} by {}", title(format, suite), side.name(format))
}

/// Failures but those of fuse2fs.
fn unexpected(failures: Vec<String>) -> impl Iterator<Item = String> {
    let of_fuse2fs = |suite| turn_title(FsType::Ext4, suite, Side::Fuse2fs);
    let known: Vec<String> = SUITES.iter().map(of_fuse2fs).collect();
    let is_known = move |failure: &str| known.iter().any(|start| failure.starts_with(start));
    failures
        .into_iter()
        .filter(move |failure| !is_known(failure))
}

/// The word for all applications, of which some can be chosen by their own.
pub(crate) const ALL: &str = "applications";

fn is_chosen(choice: &Choice, suite: &Suite) -> bool {
    choice.takes(ALL) || choice.takes(suite.name)
}

/// Whether any application was asked for.
pub(crate) fn takes_any(choice: &Choice) -> bool {
    SUITES.iter().any(|suite| is_chosen(choice, suite))
}

struct Bench {
    supplies: Supplies,
    stage: Stage,
    counts: Counts,
}

impl Bench {
    /// All sides in turns, first in one order, then backwards. One that fails has no more of them, and the others
    /// go on.
    fn alternate(
        &mut self,
        (format, suite): (FsType, &Suite),
        rounds: usize,
        measured: &mut Measured,
    ) {
        println!("{}", title(format, suite));
        let mut sides: Vec<Side> = SIDES
            .into_iter()
            .filter(|side| side.serves(format))
            .collect();
        for _ in 0..rounds {
            for side in sides.clone() {
                let turn = self.turn(format, suite, side);
                match turn.with_context(|| turn_title(format, suite, side)) {
                    Ok(runs) => measured.runs.extend(runs),
                    Err(error) => {
                        measured.failures.push(failure_text(&error));
                        sides.retain(|&other| other != side);
                    }
                }
            }
            sides.reverse();
        }
        for step in suite.steps {
            print!("  {:<20}", step.name);
            for side in SIDES {
                let seconds = measured.figures((format, side, step.name), |run| run.seconds);
                if !seconds.is_empty() {
                    let seconds = median(&seconds).value;
                    print!("  {} {seconds:.3} s", side.name(format));
                }
            }
            println!();
        }
    }

    /// All steps on a new image.
    fn turn(&mut self, format: FsType, suite: &Suite, side: Side) -> Result<Vec<Run>> {
        let dir = self.stage.empty_dir("ground")?;
        let ground = Ground {
            image: dir.join("image"),
            format,
            mount: None,
            cache_bytes: platter::open::CACHE_BYTES_DEFAULT,
            dir,
        };
        make_image(format, &ground.image)?;
        let mut live = start_for_programs(side, &ground)?;
        let scene = |live: &dyn Live| {
            let merged = ground.dir.join(suites::MERGED);
            Ok::<_, anyhow::Error>(Scene {
                supplies: &self.supplies,
                root: live.path().context("programs need a path")?,
                merged,
            })
        };
        (suite.prepare)(&scene(&*live)?)?;
        let mut runs = Vec::new();
        let mut counts = Vec::new();
        for step in suite.steps {
            if step.state == State::Cold {
                live.end()?;
                live = start_for_programs(side, &ground)?;
            }
            let scene = scene(&*live)?;
            let (run, printed) = measure_step(step, &scene, &mut *live).context(step.name)?;
            runs.push(Run {
                side,
                format,
                ..run
            });
            let checked = (step.check)(&scene).context(step.name)?;
            counts.push((step.name, [printed, checked]));
        }
        (suite.finish)(&scene(&*live)?)?;
        live.end()?;
        judge(&ground)?;
        for (name, count) in counts {
            self.counts.agree(name, count)?;
        }
        Ok(runs)
    }
}

/// How much the steps have printed and made, which is the same on all sides.
#[derive(Debug, Default)]
struct Counts(BTreeMap<&'static str, [u64; 2]>);

impl Counts {
    fn agree(&mut self, step: &'static str, count: [u64; 2]) -> Result<()> {
        let first = *self.0.entry(step).or_insert(count);
        ensure!(
            first == count,
            "{step} printed and made {count:?}, before {first:?}"
        );
        Ok(())
    }
}

fn measure_step(step: &Step, scene: &Scene<'_>, live: &mut dyn Live) -> Result<(Run, u64)> {
    let server_cpu = |live: &dyn Live| live.server().map(cpu_seconds).transpose();
    let asked = live.asked()?;
    let (server_before, cpu_before) = (server_cpu(live)?, children_cpu_seconds()?);
    let start = now();
    let printed = (step.run)(scene)?;
    let seconds = start.elapsed().as_secs_f64();
    let server_cpu_seconds = server_cpu(live)?.zip(server_before);
    let run = Run {
        side: Side::Device,
        format: FsType::default(),
        step: step.name.to_owned(),
        seconds,
        cpu_seconds: children_cpu_seconds()? - cpu_before,
        server_cpu_seconds: server_cpu_seconds.map(|(after, before)| after - before),
        asked: live.asked()?.since(&asked),
    };
    Ok((run, printed))
}

/// A filesystem as the tools of the format make it by default.
fn make_image(format: FsType, image: &Path) -> Result<()> {
    match format {
        FsType::Ext4 => mke2fs::make(image, IMAGE_KIB, &["-t", "ext4"], None),
        FsType::Btrfs => btrfs::make(&[image], IMAGE_KIB, &[]),
        FsType::Xfs => xfs::make(image, IMAGE_KIB, &[]),
    }
}

impl Measured {
    fn of(&self, (format, side, step): (FsType, Side, &str)) -> impl Iterator<Item = &Run> {
        let is_of = move |run: &&Run| run.format == format && run.side == side && run.step == step;
        self.runs.iter().filter(is_of)
    }

    /// A figure of each run of a step by a side.
    pub(crate) fn figures(&self, place: (FsType, Side, &str), figure: fn(&Run) -> f64) -> Vec<f64> {
        self.of(place).map(figure).collect()
    }

    /// The run with the most requests to the server.
    pub(crate) fn most_asked(&self, place: (FsType, Side, &str)) -> Option<&Asked> {
        let asked = self.of(place).map(|run| &run.asked);
        asked.max_by_key(|asked| asked.requests())
    }
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_prints_or_makes_less_is_refused() {
        let mut counts = Counts::default();
        counts.agree("find", [200, 0]).unwrap();
        counts.agree("unpack", [0, 10]).unwrap();
        counts.agree("find", [200, 0]).unwrap();
        assert!(counts.agree("find", [199, 0]).is_err());
        assert!(counts.agree("unpack", [0, 9]).is_err());
    }

    #[test]
    fn only_fuse2fs_may_fail() {
        let failure = |side| format!("{}: broke down", turn_title(FsType::Ext4, &SUITES[0], side));
        let failures = SIDES.map(failure).to_vec();
        let left: Vec<String> = unexpected(failures).collect();
        assert_eq!(left, [Side::Device, Side::Kernel].map(failure));
    }

    #[test]
    fn suites_and_steps_have_names_of_their_own() {
        let mut names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        let steps = SUITES.iter().flat_map(|suite| suite.steps);
        names.extend(steps.map(|step| step.name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
