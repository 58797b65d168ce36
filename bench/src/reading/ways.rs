//! Jobs by programs, each with the image cold: nothing of it in the host's caches.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::loopdev::{Access, Mount};
use testkit::{program, tool};

use super::{Kind, Run, show};
use crate::measure::{children_cpu_seconds, now};
use crate::programs::{count_files, read_to_end};

/// A job, and the ways to do it; the first is platter's.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) ways: &'static [Way],
}

/// A way to do a job.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    by: By,
    /// Bytes that it prints at least, for each file.
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum By {
    /// `platter` with these words before the image, or its root.
    Platter(&'static [&'static str]),
    /// A program with these words before the mount, which the kernel makes.
    Kernel(&'static [&'static str]),
    /// `btrfs restore`; there is nothing like it for XFS.
    Restore,
}

const fn way(name: &'static str, by: By, bytes: u64) -> Way {
    Way { name, by, bytes }
}

pub(crate) const JOBS: &[Job] = &[
    Job {
        name: "ls -lR",
        ways: &[
            way("platter ls -lR", By::Platter(&["ls", "-lR"]), 40),
            way("kernel mount, ls -lR", By::Kernel(&["ls", "-lR"]), 40),
        ],
    },
    Job {
        name: "find",
        ways: &[
            way("platter ls -RU", By::Platter(&["ls", "-RU"]), 8),
            way("kernel mount, find", By::Kernel(&["find"]), 8),
        ],
    },
    Job {
        name: "tar",
        ways: &[
            way("platter tar", By::Platter(&["tar"]), 512),
            way("kernel mount, tar", By::Kernel(TAR), 512),
        ],
    },
    Job {
        name: "cp -a",
        ways: &[
            way("platter cp -a", By::Platter(&["cp", "-a"]), 0),
            way("btrfs restore", By::Restore, 0),
            way("kernel mount, cp -a", By::Kernel(&["cp", "-a"]), 0),
        ],
    },
];

const TAR: &[&str] = &["tar", "--create", "--xattrs", "--file", "-", "--directory"];

impl Way {
    /// The times of platter that it is to take at least, if that is an aim.
    pub(crate) fn aim(&self, kind: Kind) -> Option<f64> {
        match (self.by, kind) {
            (By::Restore, _) => Some(3.0),
            (By::Kernel(words), Kind::BtrfsZstd | Kind::BtrfsZlib) if words == TAR => Some(1.0),
            (By::Kernel(_), _) if self.bytes > 0 => Some(1.5),
            (By::Kernel(_) | By::Platter(_), _) => None,
        }
    }
}

/// What jobs work on.
pub(super) struct Bench<'a> {
    pub(super) kind: Kind,
    pub(super) image: &'a Path,
    /// Where what is copied out goes.
    pub(super) made: PathBuf,
    pub(super) files: u64,
}

impl Bench<'_> {
    /// Does a job each way in turns, first in one order, then backwards.
    pub(super) fn alternate(&self, job: &Job, rounds: usize) -> Result<Vec<Run>> {
        let is_there = |way: &&Way| !matches!((way.by, self.kind), (By::Restore, Kind::Xfs));
        let mut ways: Vec<&Way> = job.ways.iter().filter(is_there).collect();
        let mut runs = Vec::new();
        for _ in 0..rounds {
            for way in &ways {
                runs.push(self.run(job, way).context(way.name)?);
            }
            ways.reverse();
        }
        show(job, &runs);
        Ok(runs)
    }

    fn run(&self, job: &Job, way: &Way) -> Result<Run> {
        self.clear()?;
        // A program that is built now is not measured.
        let mut platter = program::platter()?;
        cool()?;
        let (cpu, start) = (children_cpu_seconds()?, now());
        let mut mounted = Duration::ZERO;
        let mut mount = None;
        let mut command = match way.by {
            By::Platter(words) => {
                let mut root = self.image.as_os_str().to_owned();
                if words[0] != "tar" {
                    root.push(":/");
                }
                platter.args(words).arg(root);
                platter
            }
            By::Kernel(words) => {
                let options = "";
                let fs_type = self.kind.fs_type();
                let made = Mount::images(fs_type, &[self.image], options, Access::ReadOnly)?;
                mounted = start.elapsed();
                let mut command = tool::command(words[0]);
                command.args(&words[1..]).arg(made.root().join("."));
                mount = Some(made);
                command
            }
            By::Restore => {
                std::fs::create_dir(&self.made)?;
                let mut command = tool::command("btrfs");
                command.args(["restore", "-mSx"]).arg(self.image);
                command
            }
        };
        match job.name {
            "cp -a" => drop(tool::succeed(command.arg(&self.made))?),
            "tar" if mount.is_some() => read_to_end(command.arg("."), self.files * way.bytes)?,
            _ => read_to_end(&mut command, self.files * way.bytes)?,
        }
        let seconds = start.elapsed().as_secs_f64();
        let cpu_seconds = children_cpu_seconds()? - cpu;
        drop(mount);
        if self.made.exists() {
            let files = count_files(&self.made)?;
            ensure!(files == self.files, "{} made {files} files", way.name);
        }
        Ok(Run {
            image: self.kind,
            job: job.name.to_owned(),
            way: way.name.to_owned(),
            files: self.files,
            seconds,
            mount_seconds: mounted.as_secs_f64(),
            cpu_seconds,
        })
    }

    fn clear(&self) -> Result<()> {
        if self.made.exists() {
            std::fs::remove_dir_all(&self.made)?;
        }
        Ok(())
    }
}

/// Empties the host's caches, of the image and of all that was mounted.
pub(super) fn cool() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cold caches take root")
}
