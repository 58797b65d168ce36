//! Checking images, and copying out all they hold: platter's command and the tool of each format on the same
//! images, with time, memory, and what is read of the image.

mod image;
mod tools;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, LoopDevice};
use testkit::tool;

pub(crate) use self::image::{Content, Image};
pub(crate) use self::tools::{Tool, pairs};
use crate::growing::Growing;
use crate::measure::{children_cpu_seconds, median, now};
use crate::peers::Choice;
use crate::programs::count_files;
use crate::record::Extent;
use crate::side::{Asked, device_asked};
use crate::stage::Stage;

const ROUNDS: usize = 3;
/// Copying out takes long, and has no aim.
const ROUNDS_OUT_MAX: usize = 1;
const SMALL_FILES: u64 = 1_000_000;
const SMALL_FILES_QUICK: u64 = 2000;

/// What was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) images: Vec<Image>,
    pub(crate) runs: Vec<Run>,
    pub(crate) counted: Vec<Counted>,
}

/// One run of a tool on the image in a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) format: FsType,
    pub(crate) content: Content,
    pub(crate) tool: Tool,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// The largest resident set, as the kernel reports it to the parent (`ru_maxrss`).
    pub(crate) peak_bytes: u64,
}

/// What a tool reads of a loop device over the image of which nothing is cached, the kernel's reads ahead included.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) format: FsType,
    pub(crate) content: Content,
    pub(crate) tool: Tool,
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
}

/// Where tools work.
struct Bench<'a> {
    stage: &'a Stage,
    image: Image,
}

/// Measures an image of each format and content. Returns what failed.
pub(crate) fn measure(choice: &Choice, mut growing: Growing<Measured>) -> Result<Vec<String>> {
    for &format in &choice.formats {
        for content in Content::ALL {
            growing.add(&image::title(format, content), |measured| {
                of_image(choice, (format, content), measured)
            });
        }
    }
    Ok(growing.end()?.1)
}

fn of_image(
    choice: &Choice,
    (format, content): (FsType, Content),
    measured: &mut Measured,
) -> Result<()> {
    let (usual_files, usual_rounds) = match choice.extent {
        Extent::Quick => (SMALL_FILES_QUICK, 1),
        Extent::Full => (SMALL_FILES, ROUNDS),
    };
    let stage = Stage::new()?;
    let files = choice.files.unwrap_or(usual_files);
    let image = image::make(format, content, (choice.extent, files), &stage)?;
    println!("{}: {} files", image.title(), image.files);
    let bench = Bench {
        stage: &stage,
        image,
    };
    let rounds = choice.rounds.unwrap_or(usual_rounds);
    bench.compare(pairs(format), rounds, measured)
}

impl Bench<'_> {
    /// Measures tools pair by pair. What was measured before one failed is kept.
    fn compare(&self, pairs: &[[Tool; 2]], rounds: usize, measured: &mut Measured) -> Result<()> {
        measured.images.push(self.image.clone());
        for tools in pairs {
            let is_out = tools.iter().any(|tool| tool.copies_out());
            let rounds = if is_out {
                rounds.min(ROUNDS_OUT_MAX)
            } else {
                rounds
            };
            let runs = self.alternate(tools, rounds)?;
            show(tools, &runs);
            measured.runs.extend(runs);
            for &tool in tools {
                measured.counted.push(self.count(tool)?);
            }
        }
        Ok(())
    }

    /// Runs the tools in turns, first in one order, then backwards.
    fn alternate(&self, tools: &[Tool], rounds: usize) -> Result<Vec<Run>> {
        let mut tools = tools.to_vec();
        let mut runs = Vec::new();
        let image = image::path(self.stage);
        for _ in 0..rounds {
            for &tool in &tools {
                runs.push(self.run(tool, &image)?);
            }
            tools.reverse();
        }
        Ok(runs)
    }

    /// Runs a tool on an image, or on a device with it.
    fn run(&self, tool: Tool, image: &Path) -> Result<Run> {
        let made = self.stage.empty_dir("made")?;
        let report = self.stage.path().join("report");
        let mut timed = tool::command("time");
        // A program that is started by a large process begins with that one's peak; the one between is small.
        timed.args(["--quiet", "--format", "%M", "--output"]);
        timed.arg(&report);
        tool.add_to(&mut timed, image, &made)?;
        let (cpu, start) = (children_cpu_seconds()?, now());
        let about = || format!("{} of {}", tool.name(), self.image.title());
        tool::succeed(&mut timed).with_context(about)?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu_seconds = children_cpu_seconds()? - cpu;
        if tool.copies_out() {
            let files = count_files(&made)?;
            ensure!(files == self.image.files, "{} made {files} files", about());
        }
        std::fs::remove_dir_all(&made)?;
        let report = std::fs::read_to_string(&report)?;
        let peak_kib: u64 = report.trim().parse().with_context(|| report.clone())?;
        Ok(Run {
            format: self.image.format,
            content: self.image.content,
            tool,
            seconds,
            cpu_seconds,
            peak_bytes: peak_kib << 10,
        })
    }

    fn count(&self, tool: Tool) -> Result<Counted> {
        let device = LoopDevice::attach(&image::path(self.stage), Access::ReadOnly)?;
        let asked = || {
            Ok::<_, anyhow::Error>(Asked {
                device: Some(device_asked(device.path())?),
                ..Asked::default()
            })
        };
        let before = asked()?;
        self.run(tool, device.path())?;
        let asked = asked()?.since(&before).device.unwrap_or_default();
        Ok(Counted {
            format: self.image.format,
            content: self.image.content,
            tool,
            reads: asked.reads,
            read_bytes: asked.read_bytes.unwrap_or(0),
        })
    }
}

impl Measured {
    /// A figure of each run of a tool.
    pub(crate) fn figures(
        &self,
        (format, content, tool): (FsType, Content, Tool),
        figure: fn(&Run) -> f64,
    ) -> Vec<f64> {
        let is_of = |run: &&Run| run.format == format && run.content == content && run.tool == tool;
        self.runs.iter().filter(is_of).map(figure).collect()
    }
}

fn show(tools: &[Tool], runs: &[Run]) {
    for &tool in tools {
        let of_tool = || runs.iter().filter(|run| run.tool == tool);
        let seconds: Vec<f64> = of_tool().map(|run| run.seconds).collect();
        let peak = of_tool().map(|run| run.peak_bytes).max().unwrap_or(0) >> 20;
        let seconds = median(&seconds).value;
        println!("  {:<24}{seconds:>9.3} s {peak:>6} MiB", tool.name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ext4 that holds nothing.
    fn made(stage: &Stage) -> Bench<'_> {
        let size_kib = 8 << 10;
        let path = image::path(stage);
        testkit::oracle::mke2fs::make(&path, size_kib, &["-t", "ext4"], None).unwrap();
        Bench {
            stage,
            image: Image {
                format: FsType::Ext4,
                content: Content::Small,
                files: 0,
                bytes: size_kib << 10,
            },
        }
    }

    #[test]
    fn peak_is_that_of_the_tool_alone() {
        let stage = Stage::new().unwrap();
        let bench = made(&stage);
        let held = vec![1_u8; 256 << 20];
        let run = bench.run(Tool::E2fsck, &image::path(&stage)).unwrap();
        assert!(
            (1 << 20..64 << 20).contains(&run.peak_bytes),
            "{} bytes",
            run.peak_bytes
        );
        assert_eq!(std::hint::black_box(&held)[1], 1);
        let counted = bench.count(Tool::E2fsck).unwrap();
        assert!(counted.reads > 0 && counted.read_bytes < bench.image.bytes);
    }

    #[test]
    fn pairs_before_one_that_fails_are_kept() {
        let stage = Stage::new().unwrap();
        let mut measured = Measured::default();
        let pairs = [[Tool::E2fsck; 2], [Tool::E2fsck, Tool::XfsRepair]];
        let failed = made(&stage).compare(&pairs, 1, &mut measured);
        assert!(failed.unwrap_err().to_string().contains("xfs_repair"));
        let Measured {
            images,
            runs,
            counted,
        } = measured;
        assert_eq!((images.len(), runs.len(), counted.len()), (1, 2, 2));
    }
}
