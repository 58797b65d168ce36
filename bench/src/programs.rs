//! Whole jobs by programs: an image of a directory, a directory of an image, an archive of an image.
//! Platter's program compared with those of the filesystem, and with the kernel and the tools of every system.

use std::fmt::Write;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{self, btrfs, xfs};
use testkit::{program, tool};

use crate::growing::Growing;
use crate::measure::{children_cpu_seconds, median, now};
use crate::peers::Choice;
use crate::place::HostDir;
use crate::record::Extent;
use crate::stage::Stage;
use crate::work;

const ROUNDS: usize = 3;
const PIECE_BYTES: usize = 1 << 20;
/// Each file in an archive has a header of its own.
const HEADER_BYTES: u64 = 512;

/// A job, and the ways to do it; the first is platter's.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// What the image holds.
    pub(crate) format: FsType,
    pub(crate) about: &'static str,
    pub(crate) ways: &'static [Way],
}

/// A way to do a job.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    run: fn(&Bench<'_>) -> Result<()>,
}

/// What a job works on.
struct Bench<'a> {
    stage: &'a Stage,
    /// A tree of files on tmpfs.
    tree: PathBuf,
    /// What images hold.
    format: FsType,
    /// An image of that tree.
    image: PathBuf,
    /// A description of that tree for `mkfs.xfs -p`.
    prototype: PathBuf,
    files: u64,
}

/// A run of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) job: String,
    pub(crate) way: String,
    pub(crate) files: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// Identifies an image that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made: Option<String>,
}

pub(crate) const JOBS: &[Job] = &[
    Job {
        name: "image of a directory",
        format: FsType::Ext4,
        about: "a new ext4 image with all that a directory on tmpfs holds",
        ways: &[
            Way {
                name: "platter mkfs --from",
                run: |bench| bench.make_from_tree(&bench.made()),
            },
            Way {
                name: "mke2fs -d",
                run: |bench| {
                    let size = format!("{}k", bench.image_kib());
                    let inodes = (bench.files + bench.files / 10 + 1000).to_string();
                    let mut mke2fs = tool::command("mke2fs");
                    mke2fs.args(["-q", "-F", "-t", "ext4", "-N", &inodes, "-d"]);
                    finish(mke2fs.arg(&bench.tree).arg(bench.made()).arg(size))
                },
            },
            Way {
                name: "cp -r to tmpfs",
                run: |bench| {
                    let mut cp = tool::command("cp");
                    finish(cp.arg("-r").arg(&bench.tree).arg(bench.made()))
                },
            },
        ],
    },
    Job {
        name: "directory of an image",
        format: FsType::Ext4,
        about: "all that an image holds, copied out to tmpfs",
        ways: &[
            Way {
                name: "platter cp -r",
                run: |bench| {
                    let mut from = bench.image.clone().into_os_string();
                    from.push(":/");
                    let mut platter = program::platter()?;
                    finish(platter.args(["cp", "-r"]).arg(from).arg(bench.made()))
                },
            },
            Way {
                name: "debugfs rdump",
                run: |bench| {
                    let target = bench.made();
                    std::fs::create_dir(&target)?;
                    let request = format!("rdump / {}", target.display());
                    let mut debugfs = tool::command("debugfs");
                    finish(debugfs.arg("-R").arg(request).arg(&bench.image))
                },
            },
            Way {
                name: "kernel mount and cp -r",
                run: |bench| {
                    let mount = Mount::image(&bench.image, "", Access::ReadOnly)?;
                    let mut cp = tool::command("cp");
                    finish(cp.arg("-r").arg(mount.root().join(".")).arg(bench.made()))
                },
            },
        ],
    },
    Job {
        name: "archive of an image",
        format: FsType::Ext4,
        about: "all that an image holds, as tar into a pipe",
        ways: &[
            Way {
                name: "platter tar",
                run: |bench| {
                    let mut platter = program::platter()?;
                    read_to_end(
                        platter.arg("tar").arg(&bench.image),
                        bench.files * HEADER_BYTES,
                    )
                },
            },
            Way {
                name: "kernel mount and tar",
                run: |bench| {
                    let mount = Mount::image(&bench.image, "", Access::ReadOnly)?;
                    let mut tar = tool::command("tar");
                    tar.args(["--create", "--file", "-", "--directory"]);
                    read_to_end(tar.arg(mount.root()).arg("."), bench.files * HEADER_BYTES)
                },
            },
        ],
    },
    Job {
        name: "btrfs image of a directory",
        format: FsType::Btrfs,
        about: "a new btrfs image with all that a directory on tmpfs holds",
        ways: &[
            Way {
                name: "platter mkfs btrfs --from",
                run: |bench| bench.make_from_tree(&bench.made()),
            },
            Way {
                name: "mkfs.btrfs --rootdir",
                run: |bench| {
                    let made = bench.made();
                    btrfs::make_filled(&[&made], bench.image_kib(), &[], Some(&bench.tree))
                },
            },
            Way {
                name: "mkfs.btrfs, kernel mount and cp -a",
                run: |bench| {
                    btrfs::make(&[&bench.made()], bench.image_kib(), &[])?;
                    bench.fill_by_kernel()
                },
            },
        ],
    },
    Job {
        name: "XFS image of a directory",
        format: FsType::Xfs,
        about: "a new XFS image with all that a directory on tmpfs holds",
        ways: &[
            Way {
                name: "platter mkfs xfs --from",
                run: |bench| bench.make_from_tree(&bench.made()),
            },
            Way {
                name: "mkfs.xfs -p",
                run: |bench| {
                    let prototype = bench.prototype.to_str().context("a path of UTF-8")?;
                    xfs::make(&bench.made(), bench.image_kib(), &["-p", prototype])
                },
            },
            Way {
                name: "mkfs.xfs, kernel mount and cp -a",
                run: |bench| {
                    xfs::make(&bench.made(), bench.image_kib(), &[])?;
                    bench.fill_by_kernel()
                },
            },
        ],
    },
];

/// The name of platter's way to do a job.
pub(crate) fn ours(job: &str) -> Option<&'static str> {
    let job = JOBS.iter().find(|known| known.name == job)?;
    job.ways.first().map(|way| way.name)
}

impl Bench<'_> {
    /// Where a run puts what it makes.
    fn made(&self) -> PathBuf {
        self.stage.path().join("made")
    }

    /// Space for the tree, whatever the format.
    fn image_kib(&self) -> u64 {
        match self.format {
            FsType::Ext4 => self.files * 12 + (64 << 10),
            FsType::Btrfs | FsType::Xfs => self.files * 24 + (512 << 10),
        }
    }

    /// Has platter make an image of the tree.
    fn make_from_tree(&self, image: &Path) -> Result<()> {
        let mut platter = program::platter()?;
        let format = self.format.kernel_name();
        platter.args(["mkfs", format]).arg(image);
        finish(platter.arg("--from").arg(&self.tree))
    }

    /// Copies the tree into an empty filesystem.
    fn fill_by_kernel(&self) -> Result<()> {
        let made = self.made();
        let mount = Mount::images(self.format, &[&made], "", Access::ReadWrite)?;
        let mut cp = tool::command("cp");
        finish(cp.arg("-a").arg(self.tree.join(".")).arg(mount.root()))?;
        mount.unmount(&made)
    }

    /// Removes what a run made.
    fn clear(&self) -> Result<()> {
        let made = self.made();
        if made.is_dir() {
            std::fs::remove_dir_all(made)?;
        } else if made.exists() {
            std::fs::remove_file(made)?;
        }
        Ok(())
    }

    /// What a run made holds all files. Returns what identifies an image.
    fn check(&self, way: &Way) -> Result<Option<String>> {
        let made = self.made();
        if made.is_file() {
            let verdict = oracle::fsck(self.format, &[&made])?;
            let name = way.name;
            ensure!(verdict.is_clean(), "{name}: the checker says {verdict:?}");
            return fingerprint(&made).map(Some);
        }
        if made.is_dir() {
            let files = count_files(&made)?;
            ensure!(files == self.files, "{} made {files} files", way.name);
        }
        Ok(None)
    }
}

/// The name of the raw runs of a format.
pub(crate) const fn record_name(format: FsType) -> &'static str {
    match format {
        FsType::Ext4 => "jobs",
        FsType::Btrfs => "jobs-btrfs",
        FsType::Xfs => "jobs-xfs",
    }
}

/// Measures all jobs of a format. Returns what failed.
pub(crate) fn measure(
    format: FsType,
    choice: &Choice,
    mut growing: Growing<Vec<Run>>,
) -> Result<Vec<String>> {
    let (files, usual) = match choice.extent {
        Extent::Quick => (300, 1),
        Extent::Full => (100_000, ROUNDS),
    };
    let stage = Stage::new()?;
    let bench = Bench {
        stage: &stage,
        tree: stage.empty_dir("tree")?,
        format,
        image: stage.path().join("image"),
        prototype: stage.path().join("prototype"),
        files,
    };
    let root = HostDir::open(&bench.tree)?;
    work::plant(&root, files, |write| write())?;
    bench.make_from_tree(&bench.image)?;
    std::fs::write(&bench.prototype, prototype(&bench.tree)?)?;
    for job in JOBS.iter().filter(|job| job.format == format) {
        println!("{}: {}", job.name, job.about);
        let rounds = choice.rounds.unwrap_or(usual);
        growing.add(job.name, |runs| bench.alternate(job, rounds, runs));
    }
    Ok(growing.end()?.1)
}

impl Bench<'_> {
    /// Does a job in all ways, in turns.
    fn alternate(&self, job: &Job, rounds: usize, runs: &mut Vec<Run>) -> Result<()> {
        let mut ways: Vec<&Way> = job.ways.iter().collect();
        for _ in 0..rounds {
            for way in &ways {
                self.clear()?;
                let (cpu, start) = (children_cpu_seconds()?, now());
                (way.run)(self).context(way.name)?;
                let seconds = start.elapsed().as_secs_f64();
                let cpu_seconds = children_cpu_seconds()? - cpu;
                runs.push(Run {
                    job: job.name.to_owned(),
                    way: way.name.to_owned(),
                    files: self.files,
                    seconds,
                    cpu_seconds,
                    made: self.check(way)?,
                });
            }
            ways.reverse();
        }
        self.clear()?;
        for way in job.ways {
            let of_way = runs
                .iter()
                .filter(|run| run.job == job.name && run.way == way.name);
            let seconds: Vec<f64> = of_way.map(|run| run.seconds).collect();
            println!("  {:<24}{:>9.3} s", way.name, median(&seconds).value);
        }
        Ok(())
    }
}

/// What `mkfs.xfs -p` takes of a tree of directories and regular files: a line for each, and the end of each directory.
fn prototype(tree: &Path) -> Result<String> {
    let mut text = "-\n0 0\nd--755 0 0\n".to_owned();
    describe(tree, &mut text)?;
    Ok(text)
}

fn describe(dir: &Path, text: &mut String) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_str().context("a name of UTF-8")?;
        if entry.file_type()?.is_dir() {
            writeln!(text, "{name} d--755 0 0")?;
            describe(&path, text)?;
        } else {
            writeln!(text, "{name} ---644 0 0 {}", path.display())?;
        }
    }
    text.push_str("$\n");
    Ok(())
}

fn finish(command: &mut Command) -> Result<()> {
    tool::succeed(command).map(drop)
}

/// Reads all that a program writes, which are so many bytes at least. A pipe, because GNU tar reads no files for
/// `/dev/null`.
pub(crate) fn read_to_end(command: &mut Command, least: u64) -> Result<()> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut output = child.stdout.take().context("a pipe")?;
    let bytes = std::io::copy(&mut output, &mut std::io::sink())?;
    ensure!(child.wait()?.success(), "{command:?} failed");
    ensure!(bytes >= least, "{command:?} printed only {bytes} bytes");
    Ok(())
}

/// The hash of all bytes of a file.
fn fingerprint(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = DefaultHasher::new();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{:016x}", hasher.finish())),
            length => hasher.write(&piece[..length]),
        }
    }
}

/// How many files that are no directories there are below a directory.
pub(crate) fn count_files(directory: &Path) -> Result<u64> {
    let mut files = 0;
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            } else {
                files += 1;
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prototype_ends_each_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("subdir")).unwrap();
        std::fs::write(dir.path().join("subdir/file"), "text").unwrap();
        let path = dir.path().join("subdir/file");
        let expected = format!(
            "-\n0 0\nd--755 0 0\nsubdir d--755 0 0\nfile ---644 0 0 {}\n$\n$\n",
            path.display()
        );
        assert_eq!(prototype(dir.path()).unwrap(), expected);
    }
}
