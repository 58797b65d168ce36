//! A filesystem that is full: what it accepts is durable after the next sync, what it refuses for want of space leaves
//! everything as it was, but for a part of contents, and everything can be deleted.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use platter_block::Access;
use platter_memfs::MemFs;
use platter_vfs::{Condition, CreateKind, Error, FileKind, Filesystem};

use super::image::ImageFiles;
use super::record::{is_same, mix, model};
use crate::prng::Prng;
use crate::subject::{Devices, Scene, overlays};
use crate::workload::{
    Abilities, Durability, Fill, Generator, LOST_AND_FOUND, Mix, Operation, Session, Tree,
};

/// Lengths of the files that take all space, one after the other.
const LONG_BYTES: [usize; 3] = [256 << 10, 64 << 10, 16 << 10];
/// The length of those that take the space of some of them, block by block.
const BLOCK_BYTES: usize = 4 << 10;
/// The length of the names of empty files that take metadata.
const NAME_BYTES: usize = 200;
/// Files of the ballast that are made between two syncs.
const FILES_PER_SYNC: usize = 16;
/// So many long files give their space to those of a block, of which every other is deleted then: the workload has their
/// space.
const LONG_DELETED: usize = 2;
/// At most so many empty files are deleted.
const EMPTY_DELETED_MAX: u64 = 64;
/// In one workload of so many, all space that the last operation gave back is taken before the next.
const REFILLED_ONE_IN: u64 = 5;
/// Syncs after one, two, four or eight operations, by the seed.
const SYNC_STEPS: u64 = 4;
/// Operations between two power cuts, whose outcomes are judged.
const CUT_STEP: usize = 50;
/// Operations that are listed before one that failed.
const LISTED_MAX: usize = 20;

/// A workload on a filesystem without space.
#[derive(Debug, Clone)]
pub struct Full {
    /// The filesystem.
    pub scene: &'static Scene,
    /// What is drawn.
    pub seed: u64,
    /// The workload's length.
    pub operations: usize,
    /// Where images of failures are kept.
    pub keep: Option<PathBuf>,
}

/// What a run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FullCounts {
    /// Files that took the space.
    pub ballast: usize,
    /// Operations of the workload.
    pub operations: usize,
    /// Those that were refused for want of space.
    pub refused: usize,
    /// Those before which all space that there was again was taken.
    pub refilled: usize,
    /// Syncs of everything.
    pub syncs: usize,
    /// Power cuts that were judged.
    pub cuts: usize,
}

impl fmt::Display for FullCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} files of ballast, {} operations, {} of them refused, {} with all space taken before, {} syncs, {} power cuts",
            self.ballast, self.operations, self.refused, self.refilled, self.syncs, self.cuts
        )
    }
}

impl Full {
    /// Fills the filesystem, runs the workload, and deletes everything.
    ///
    /// # Errors
    /// What was wrong, with the last operations.
    pub fn run(&self) -> Result<FullCounts> {
        let devices = self.scene.devices_of(self.scene.size_kib)?;
        let ran = self.run_on(&devices);
        ran.or_else(|error| {
            let mut text = format!("{} seed {}: {error:#}", self.scene.name, self.seed);
            if let Some(dir) = &self.keep {
                let name = format!("{}-full", self.scene.name);
                let kept = ImageFiles::of(&devices)?.keep_numbered(dir, &name)?;
                text = format!("{text}\nkept in {kept}");
            }
            Err(anyhow!(text))
        })
    }

    fn run_on(&self, devices: &Devices) -> Result<FullCounts> {
        let (fs, model) = (self.scene.mount(devices, self.seed)?, model());
        let counts = {
            let mut run = Run::new(self, devices, &*fs, &model)?;
            run.fill()
                .and_then(|()| run.work())
                .and_then(|()| run.empty())
                .with_context(|| run.listing.join("\n"))?;
            run.counts
        };
        fs.unmount().context("unmount")?;
        drop(fs);
        self.judge(devices, &Tree::read(&model, None)?)
            .context("after the unmount")?;
        Ok(counts)
    }

    /// Demands that devices hold `expected`, and that no check finds anything.
    fn judge(&self, devices: &Devices, expected: &Tree) -> Result<()> {
        let image;
        let devices = match self.scene.durability() {
            Durability::Journaled | Durability::Logged => devices,
            Durability::Synced => {
                image = ImageFiles::of(devices)?;
                image.repair(self.scene)?;
                &image.devices(Access::Write)?
            }
        };
        let fs = self.scene.mount(devices, self.seed).context("mounted")?;
        demand_equal(&Tree::read(&*fs, Some(expected))?, expected)?;
        fs.unmount()?;
        drop(fs);
        let found = self.scene.check(devices)?;
        ensure!(found.is_empty(), "our check: {}", found.join("\n"));
        let found = ImageFiles::of(devices)?.complaints(self.scene)?;
        ensure!(found.is_empty(), "fsck: {}", found.join("\n"));
        Ok(())
    }
}

/// A file that takes space, outside of what trees are read of.
struct Ballast {
    path: String,
    fill: Fill,
    /// All of it was written.
    is_whole: bool,
}

/// A filesystem and its model.
struct Run<'a> {
    full: &'a Full,
    devices: &'a Devices,
    fs: &'a dyn Filesystem,
    ours: Session<'a>,
    theirs: Session<'a>,
    now: Tree,
    prng: Prng,
    generator: Generator,
    ballast: Vec<Ballast>,
    /// Files of the ballast that were tried to be made.
    made: usize,
    counts: FullCounts,
    /// The last operations.
    listing: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(
        full: &'a Full,
        devices: &'a Devices,
        fs: &'a dyn Filesystem,
        model: &'a MemFs,
    ) -> Result<Self> {
        let mix = mix(full.scene, 12);
        let mix = Mix {
            abilities: Abilities {
                subvolumes: fs.subvolumes().is_some(),
                ..mix.abilities
            },
            ..mix
        };
        Ok(Self {
            full,
            devices,
            fs,
            ours: Session::new(fs),
            theirs: Session::new(model),
            now: Tree::read(model, None)?,
            prng: Prng::new(full.seed),
            generator: Generator::new(full.seed, mix, &[""], "n"),
            ballast: Vec::new(),
            made: 0,
            counts: FullCounts::default(),
            listing: Vec::new(),
        })
    }

    /// Takes all space, by contents, of every other seed by names as well, and returns a little here and there.
    fn fill(&mut self) -> Result<()> {
        let dir = Operation::Create(LOST_AND_FOUND.to_owned(), CreateKind::Directory, 0o700);
        match self.ours.apply(&dir) {
            Ok(()) | Err(Error::Condition(Condition::Exists)) => {}
            refused => refused?,
        }
        for len in LONG_BYTES {
            self.load(len)?;
        }
        // The first are the longest.
        self.unload(0..LONG_DELETED)?;
        self.sync()?;
        let first = self.ballast.len();
        self.load(BLOCK_BYTES)?;
        self.sync()?;
        for at in (first..self.ballast.len()).step_by(2).rev() {
            self.unload(at..at + 1)?;
        }
        if self.full.seed % 2 == 1 {
            let first = self.ballast.len();
            self.load(0)?;
            let deleted = usize::try_from(self.prng.below(EMPTY_DELETED_MAX + 1))?;
            self.unload(first..first + deleted)?;
        }
        self.counts.ballast = self.ballast.len();
        self.sync()
    }

    /// Makes files of that length until there is no space. Those that are empty have long names.
    fn load(&mut self, len: usize) -> Result<()> {
        let width = if len == 0 { NAME_BYTES } else { 1 };
        loop {
            let number = self.made;
            self.made += 1;
            let path = format!("{LOST_AND_FOUND}/{len}-{number:0width$}");
            let create = Operation::Create(path.clone(), CreateKind::Regular, 0o600);
            if self.is_refused(&create)? {
                return Ok(());
            }
            // Of an even seed, whose bytes take the space that they say.
            let seed = self.prng.next_u64() & !1;
            let fill = Fill {
                offset: 0,
                len,
                seed,
            };
            let write = Operation::Write(path.clone(), fill.clone());
            let is_refused = len > 0 && self.is_refused(&write)?;
            if is_refused && self.ours.contents(&path)?.is_empty() {
                // It would take an inode for nothing.
                return Ok(Operation::Unlink(path).apply(self.fs)?);
            }
            self.ballast.push(Ballast {
                path,
                fill,
                is_whole: !is_refused,
            });
            if is_refused {
                return Ok(());
            }
            if self.ballast.len().is_multiple_of(FILES_PER_SYNC) {
                self.sync()?;
            }
        }
    }

    /// Deletes a part of the ballast, as far as there is one.
    fn unload(&mut self, part: Range<usize>) -> Result<()> {
        let part = part.start..part.end.min(self.ballast.len());
        for file in self.ballast.drain(part) {
            let path = &file.path;
            Operation::Unlink(path.clone())
                .apply(self.fs)
                .with_context(|| format!("deletion of {path}"))?;
        }
        Ok(())
    }

    /// Whether an operation of ours alone was refused for want of space.
    fn is_refused(&mut self, operation: &Operation) -> Result<bool> {
        self.list(operation);
        match self.ours.apply(operation) {
            Err(error) if is_no_space(&error) => Ok(true),
            done => Ok(done.map(|()| false)?),
        }
    }

    /// Runs the workload.
    fn work(&mut self) -> Result<()> {
        let step = 1 << (self.full.seed / 2 % SYNC_STEPS);
        for number in 1..=self.full.operations {
            if self.full.seed.is_multiple_of(REFILLED_ONE_IN) {
                self.load(BLOCK_BYTES)?;
                self.counts.refilled += 1;
            }
            let operation = self.generator.next(&self.now);
            self.counts.operations += 1;
            self.step(&operation)?;
            if number % step == 0 {
                self.sync()?;
            }
            if number % CUT_STEP == 0 {
                self.cut()?;
            }
        }
        self.sync()?;
        self.demand_ballast()
    }

    /// Does an operation on both sides, or compares what is left where ours has no space for it.
    fn step(&mut self, operation: &Operation) -> Result<()> {
        self.list(operation);
        let done = self.ours.apply(operation);
        match &done {
            Err(error) if is_no_space(error) => {
                self.counts.refused += 1;
                ensure!(may_be_refused(operation), "{operation:?}: {error}");
                self.take_part(operation)?;
                self.now = Tree::of_session(&self.theirs, Some(&self.now))?;
                let compared = self.compare();
                compared.with_context(|| format!("{operation:?} was refused"))
            }
            _ => {
                let expected = self.theirs.apply(operation);
                ensure!(
                    is_same(&done, &expected),
                    "{operation:?}: {done:?}, and the model {expected:?}"
                );
                self.now = Tree::of_session(&self.theirs, Some(&self.now))?;
                Ok(())
            }
        }
    }

    /// Takes over into the model what was done of a change of contents that was refused: each byte is as before, or
    /// as it would be after all of it.
    fn take_part(&mut self, operation: &Operation) -> Result<()> {
        let paths = written_paths(operation);
        if paths.is_empty() {
            return Ok(());
        }
        let content = |tree: &Tree, path: &str| {
            let content = tree.get(path).and_then(|entry| entry.content.clone());
            content.with_context(|| format!("contents of {path}"))
        };
        self.theirs.apply(operation)?;
        let after = Tree::of_session(&self.theirs, Some(&self.now))?;
        let left = Tree::of_session(&self.ours, Some(&self.now))?;
        for path in paths {
            let (before, after) = (content(&self.now, path)?, content(&after, path)?);
            let left = content(&left, path)?;
            if let Some(wrong) = wrong_part(&before, &after, &left) {
                bail!("{operation:?} was refused, and of {path} {wrong}");
            }
            self.theirs.replace(path, &left)?;
        }
        Ok(())
    }

    /// Syncs, which no lack of space keeps it from, and compares.
    fn sync(&mut self) -> Result<()> {
        self.counts.syncs += 1;
        self.step(&Operation::Sync)?;
        self.compare().context("after a sync")
    }

    fn compare(&self) -> Result<()> {
        let left = Tree::of_session(&self.ours, Some(&self.now))?;
        demand_equal(&left, &self.now)
    }

    /// Judges what a power cut leaves of what was just synced.
    fn cut(&mut self) -> Result<()> {
        self.sync()?;
        self.counts.cuts += 1;
        let left = overlays(self.devices);
        self.full
            .judge(&left, &self.now)
            .context("after a power cut")
    }

    /// Demands that files of the ballast hold what was written to them.
    fn demand_ballast(&self) -> Result<()> {
        for Ballast {
            path,
            fill,
            is_whole,
        } in &self.ballast
        {
            let held = self.ours.contents(path)?;
            let written = fill.bytes();
            let is_right = written.starts_with(&held) && (!is_whole || held.len() == fill.len);
            ensure!(is_right, "{path} holds something else than was written");
        }
        Ok(())
    }

    /// Deletes everything, which takes no space that is not there; then there is some again.
    fn empty(&mut self) -> Result<()> {
        let mut operations = self.generator.close_all();
        operations.extend(self.generator.delete_subvolumes());
        for operation in operations {
            self.step(&operation)?;
        }
        let paths = self.now.entries.iter().rev();
        let paths = paths.filter(|(path, _)| !path.is_empty());
        let removal = |(path, kind): (&String, FileKind)| {
            if kind == FileKind::Directory {
                Operation::RemoveDir(path.clone())
            } else {
                Operation::Unlink(path.clone())
            }
        };
        let removals: Vec<_> = paths
            .map(|(path, entry)| removal((path, entry.kind)))
            .collect();
        for removal in removals {
            self.step(&removal)?;
        }
        self.sync()?;
        while !self.ballast.is_empty() {
            self.unload(0..FILES_PER_SYNC)?;
            self.sync()?;
        }
        let [len, ..] = LONG_BYTES;
        let path = format!("{LOST_AND_FOUND}/last");
        let fill = Fill {
            offset: 0,
            len,
            seed: 0,
        };
        for operation in [
            Operation::Create(path.clone(), CreateKind::Regular, 0o600),
            Operation::Write(path.clone(), fill),
            Operation::Unlink(path),
        ] {
            ensure!(
                !self.is_refused(&operation)?,
                "{operation:?} is refused, and nothing is there"
            );
        }
        Ok(())
    }

    fn list(&mut self, operation: &Operation) {
        if self.listing.len() == LISTED_MAX {
            self.listing.remove(0);
        }
        self.listing.push(format!("{operation:?}"));
    }
}

fn is_no_space(error: &Error) -> bool {
    matches!(error, Error::Condition(Condition::NoSpace))
}

/// Whether an operation takes space, so that there may be none for it.
fn may_be_refused(operation: &Operation) -> bool {
    let takes_none = matches!(
        operation,
        Operation::Truncate(_, 0)
            | Operation::Open(..)
            | Operation::Close(_)
            | Operation::DeleteSubvolume(_)
            | Operation::Unlink(_)
            | Operation::RemoveDir(_)
            | Operation::Fsync(..)
            | Operation::Sync
    );
    !takes_none
}

/// The files whose contents it changes.
fn written_paths(operation: &Operation) -> Vec<&str> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the others change no contents"
    )]
    match operation {
        Operation::Write(path, _)
        | Operation::Truncate(path, _)
        | Operation::Fallocate(path, ..) => {
            vec![path]
        }
        Operation::CopyRange(span) | Operation::CloneRange(span) => vec![&span.to],
        Operation::Exchange(one, other) => vec![one, other],
        _ => Vec::new(),
    }
}

/// What is wrong with what is left of contents that were to become others.
fn wrong_part(before: &[u8], after: &[u8], left: &[u8]) -> Option<String> {
    let (least, most) = (before.len().min(after.len()), before.len().max(after.len()));
    if !(least..=most).contains(&left.len()) {
        let len = left.len();
        return Some(format!("{len} bytes are left, of {least} to {most}"));
    }
    let held = |version: &[u8], at: usize| version.get(at).copied().unwrap_or(0);
    let is_other = |(at, byte): (usize, &u8)| *byte != held(before, at) && *byte != held(after, at);
    let first = left.iter().enumerate().position(is_other)?;
    Some(format!("byte {first} is neither old nor new"))
}

fn demand_equal(left: &Tree, expected: &Tree) -> Result<()> {
    let mut lines = left.differences(expected);
    for (number, entry) in &left.open {
        let known = expected.open.get(number);
        if known.is_none_or(|known| known.content != entry.content) {
            lines.push(format!("open file {number} has other contents"));
        }
    }
    ensure!(lines.is_empty(), "{}", lines.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_write_is_old_or_new() {
        assert_eq!(wrong_part(b"aaaa", b"aabbbb", b"aaba"), None);
        assert_eq!(wrong_part(b"aa", b"aa\0\0bb", b"aa\0"), None);
        assert!(wrong_part(b"aaaa", b"aabbbb", b"aac").is_some());
        assert!(wrong_part(b"aaaa", b"aabbbb", b"aacc").is_some());
        assert!(wrong_part(b"aaaa", b"bb", b"a").is_some());
    }
}
