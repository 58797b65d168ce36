//! Sessions of random edits with the command line: each one as the host's own commands do it on a
//! directory, some of them killed, and all of them leaving an image that its checker finds clean.

mod listing;
mod command;

use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use platter_block::{FileDevice, OpenError, OpenOptions, Refusal};
use platter_vfs::clock::{Clock, SystemClock};

use crate::fs_type::FsType;
use crate::loopdev::{Access, Mount};
use crate::oracle::mke2fs;
use crate::oracle::{Verdict, btrfs, e2fsck, xfs};
use crate::prng::Prng;
use crate::{program, tool};
use command::Edit;

/// The size of the images.
const SIZE_KIB: u64 = 24 << 10;
const XFS_SIZE_KIB: u64 = 64 << 10;
const BTRFS_SIZE_KIB: u64 = 110 << 10;
/// A command that takes longer did not end.
const LONGEST: Duration = Duration::from_mins(1);

/// How often a lock is asked for, which takes a while each time.
const WRITER_WAITS_MAX: u32 = 50;

/// What makes an image, and judges it.
#[derive(Debug, Clone, Copy)]
pub enum Maker {
    /// `mke2fs` with these options, and `e2fsck`.
    Ext(&'static [&'static str]),
    /// `mkfs.xfs` with these options, and `xfs_repair`.
    Xfs(&'static [&'static str]),
    /// `mkfs.btrfs` with these options, and `btrfs check`.
    Btrfs(&'static [&'static str]),
}

impl Maker {
    fn make(self, image: &Path) -> Result<()> {
        match self {
            Self::Ext(options) => mke2fs::make(image, SIZE_KIB, options, None),
            Self::Xfs(options) => xfs::make(image, XFS_SIZE_KIB, options),
            Self::Btrfs(options) => btrfs::make(&[image], BTRFS_SIZE_KIB, options),
        }
    }

    /// What stays the same to the byte when an edit is refused: edits of btrfs write to free space before they are
    /// committed.
    fn kept(self, image: &Path) -> Result<Vec<u8>> {
        match self {
            Self::Ext(_) | Self::Xfs(_) => Ok(std::fs::read(image)?),
            Self::Btrfs(_) => {
                let mut superblock = vec![0; 4096];
                std::fs::File::open(image)?.read_exact_at(&mut superblock, 64 << 10)?;
                Ok(superblock)
            }
        }
    }

    fn report(self, image: &Path) -> Result<(Verdict, String)> {
        match self {
            Self::Ext(_) => e2fsck::report(image),
            Self::Xfs(_) => match xfs::report(&[image])? {
                // A kill between two writes leaves a log to replay.
                (Verdict::Refused(_), _) => report_replayed(image),
                report => Ok(report),
            },
            Self::Btrfs(_) => btrfs::report(&[image]),
        }
    }
}

/// Judges a copy whose log the kernel has replayed.
fn report_replayed(image: &Path) -> Result<(Verdict, String)> {
    let copy = image.with_extension("replayed");
    std::fs::copy(image, &copy)?;
    let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite)?;
    mount.unmount_all(&[&copy])?;
    let report = xfs::report(&[&copy]);
    std::fs::remove_file(&copy)?;
    report
}

/// A session.
#[derive(Debug, Clone, Copy)]
pub struct Session {
    /// What makes the image.
    pub maker: Maker,
    /// What chooses the edits.
    pub seed: u64,
    /// How many there are.
    pub edits: u32,
    /// One in so many is killed; none with 0.
    pub kill_one_in: u64,
}

/// What a session did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Edits that were made.
    pub made: u32,
    /// Edits that were refused, by both sides.
    pub refused: u32,
    /// Edits that were killed before they happened.
    pub killed_before: u32,
    /// Edits that were killed and had happened.
    pub killed_after: u32,
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            made,
            refused,
            killed_before,
            killed_after,
        } = self;
        write!(
            out,
            "{made} edits made, {refused} refused, {killed_before} killed before and \
             {killed_after} after they happened"
        )
    }
}

impl Session {
    /// Runs it, and demands that the image and the directory hold the same and that the checker of the format
    /// finds the image clean, after every edit.
    pub fn run(&self) -> Result<Counts> {
        // A program that is built first would make the time that an edit takes too long.
        drop(program::platter()?);
        let dir = tempfile::tempdir()?;
        let mut stage = Stage {
            maker: self.maker,
            dir: dir.path().to_owned(),
            clock: SystemClock::new(),
            usual: Duration::from_millis(50),
            dice: Prng::new(self.seed),
        };
        self.maker.make(&stage.image())?;
        std::fs::create_dir(stage.mirror())?;
        command::make_sources(&stage.dir, &mut stage.dice)?;
        let mut counts = Counts::default();
        for number in 0..self.edits {
            let edit = Edit::choose(&stage.mirror(), &mut stage.dice)?;
            let is_killed = self.kill_one_in > 0 && stage.dice.below(self.kill_one_in) == 0;
            let done = if is_killed {
                stage.kill(&edit, &mut counts)
            } else {
                stage.make(&edit, &mut counts)
            };
            done.and_then(|()| stage.judge())
                .with_context(|| format!("seed {}, edit {number}: {edit}", self.seed))?;
        }
        Ok(counts)
    }
}

/// An image, a directory that holds the same, and what is copied to both.
struct Stage {
    maker: Maker,
    dir: PathBuf,
    clock: SystemClock,
    /// How long an edit takes.
    usual: Duration,
    dice: Prng,
}

impl Stage {
    fn image(&self) -> PathBuf {
        self.dir.join("disk.img")
    }

    fn mirror(&self) -> PathBuf {
        self.dir.join("mirror")
    }

    fn start(&self, edit: &Edit) -> Result<Child> {
        let mut command = program::platter()?;
        command
            .args(edit.for_platter())
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    /// Has both sides make an edit.
    fn make(&mut self, edit: &Edit, counts: &mut Counts) -> Result<()> {
        let before = self.maker.kept(&self.image())?;
        let started = self.clock.monotonic();
        let output = self.start(edit)?.wait_with_output()?;
        let took = self.clock.monotonic().saturating_sub(started);
        self.usual = ((self.usual * 7 + took) / 8).min(LONGEST);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        let by_host = edit.make_on_host(&self.mirror(), &self.dir)?;
        if output.status.success() {
            ensure!(message.is_empty(), "all is well, but: {message}");
            by_host.map_err(|message| anyhow::anyhow!("the host refuses: {message}"))?;
            counts.made += 1;
            return Ok(());
        }
        ensure!(
            output.status.code() == Some(1),
            "{}: {message}",
            output.status
        );
        ensure!(message.lines().count() == 1, "not one line: {message}");
        ensure!(by_host.is_err(), "the host does it, but: {message}");
        ensure!(
            self.maker.kept(&self.image())? == before,
            "the image changed, but: {message}"
        );
        counts.refused += 1;
        Ok(())
    }

    /// Kills an edit at some moment, and finds out whether it happened.
    fn kill(&mut self, edit: &Edit, counts: &mut Counts) -> Result<()> {
        let nanoseconds = u64::try_from(self.usual.as_nanos()).unwrap_or(u64::MAX) / 4 * 5;
        let delay = Duration::from_nanos(self.dice.below(nanoseconds.max(1)));
        let mut child = self.start(edit)?;
        std::thread::sleep(delay);
        child.kill()?;
        child.wait()?;
        self.wait_for_writer()?;
        self.demand_clean()?;
        let kept = self.dir.join("kept");
        copy(&self.mirror(), &kept)?;
        let before = listing::of_dir(&kept)?;
        // What the host refuses has happened on neither side.
        let _ = edit.make_on_host(&self.mirror(), &self.dir)?;
        let after = listing::of_dir(&self.mirror())?;
        let found = listing::of_image(&self.image())?;
        if found == after {
            counts.killed_after += 1;
            std::fs::remove_dir_all(&kept)?;
            return Ok(());
        }
        ensure!(
            found == before,
            "neither before nor after: {}",
            differences(&before, &found)
        );
        counts.killed_before += 1;
        std::fs::remove_dir_all(self.mirror())?;
        std::fs::rename(&kept, self.mirror())?;
        Ok(())
    }

    /// Waits until no process writes the image. After a kill during the checkpoint, another process
    /// completes it, with the image locked, and `e2fsck` does not wait for the lock.
    fn wait_for_writer(&self) -> Result<()> {
        for _ in 0..WRITER_WAITS_MAX {
            match FileDevice::open(&self.image(), OpenOptions::default()) {
                Err(OpenError::Refused {
                    refusal: Refusal::InUse(_),
                    ..
                }) => {}
                opened => return Ok(opened.map(drop)?),
            }
        }
        bail!("the image is written without end")
    }

    fn judge(&self) -> Result<()> {
        self.demand_clean()?;
        let image = listing::of_image(&self.image())?;
        let dir = listing::of_dir(&self.mirror())?;
        ensure!(image == dir, "{}", differences(&dir, &image));
        Ok(())
    }

    fn demand_clean(&self) -> Result<()> {
        match self.maker.report(&self.image())? {
            (Verdict::Clean, _) => Ok(()),
            (verdict, text) => bail!("{verdict:?}\n{text}"),
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    tool::succeed(tool::command("cp").arg("-a").arg(from).arg(to))?;
    Ok(())
}

/// The lines that only one of two listings has.
fn differences(host: &[String], image: &[String]) -> String {
    let missing = host.iter().filter(|line| !image.contains(line));
    let missing = missing.map(|line| format!("\n  host:  {line}"));
    let extra = image.iter().filter(|line| !host.contains(line));
    let extra = extra.map(|line| format!("\n  image: {line}"));
    missing.chain(extra).collect()
}
