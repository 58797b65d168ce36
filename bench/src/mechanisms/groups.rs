//! Block groups of btrfs whose items need no update at a commit: random writes to a file with a commit after every few,
//! with and without the comparison that skips them.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use platter_btrfs::block_group::BlockGroupCounters;
use platter_btrfs::txn::{CommitReport, WriteOptions};
use platter_vfs::{Filesystem, Inode, Name};
use serde::{Deserialize, Serialize};
use testkit::prng::Prng;

use super::btrfs_image::{BtrfsImage, Speed};
use super::load::Load;
use crate::measure::{float, median, ratio};
use crate::place::{Aligned, Directory, Document, Mode};
use crate::record::Extent;

/// The file, as that of the published figures.
const FILE_BYTES: u64 = 512 << 20;
const FILE_BYTES_QUICK: u64 = 8 << 20;
const IMAGE_BYTES: usize = 4 << 30;
const IMAGE_BYTES_QUICK: usize = 512 << 20;
const BLOCK_BYTES: u64 = 4096;
const FILE_NAME: &str = "file";
/// Writes of a commit, and commits.
const WRITES: u64 = 256;
const COMMITS: u64 = 200;
const COMMITS_QUICK: u64 = 4;
const ROUNDS: usize = 5;

/// What makes the writes, where items of block groups are, and how long writes to the device take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Form {
    pub(crate) load: Load,
    /// In a tree of their own.
    pub(crate) has_group_tree: bool,
    /// A write takes 100 µs more.
    pub(crate) is_disk: bool,
}

/// One run, with means of its commits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) form: Form,
    pub(crate) skips: bool,
    pub(crate) commits: u64,
    pub(crate) dirty: f64,
    pub(crate) skipped: f64,
    pub(crate) written: f64,
    pub(crate) inserted: f64,
    /// Tree blocks that updates of items copied, and references that these queued.
    pub(crate) blocks_copied: f64,
    pub(crate) refs_created: f64,
    /// Tree blocks that were written.
    pub(crate) blocks_written: f64,
    pub(crate) loop_nanoseconds: f64,
    pub(crate) critical_nanoseconds: f64,
}

impl Form {
    pub(crate) const ALL: [Self; 6] = [
        Self::new(Load::Library, false, false),
        Self::new(Load::Library, true, false),
        Self::new(Load::Library, false, true),
        Self::new(Load::Library, true, true),
        Self::new(Load::Mount, false, true),
        Self::new(Load::Mount, true, true),
    ];
    /// Those of a quick run.
    const QUICK: [Self; 3] = [
        Self::new(Load::Library, false, false),
        Self::new(Load::Library, true, false),
        Self::new(Load::Mount, false, false),
    ];

    const fn new(load: Load, has_group_tree: bool, is_disk: bool) -> Self {
        Self {
            load,
            has_group_tree,
            is_disk,
        }
    }

    pub(crate) fn name(self) -> String {
        let items = if self.has_group_tree {
            "block group tree"
        } else {
            "extent tree"
        };
        let device = if self.is_disk {
            "100 µs a write"
        } else {
            "memory"
        };
        format!("{}, {items}, {device}", self.load.name())
    }
}

/// Measures all forms, with and without, in turns.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Vec<Run>> {
    let (forms, usual) = match extent {
        Extent::Quick => (&Form::QUICK[..], 1),
        Extent::Full => (&Form::ALL[..], ROUNDS),
    };
    let mut runs = Vec::new();
    for &form in forms {
        for _ in 0..rounds.unwrap_or(usual) {
            for skips in [false, true, true, false] {
                runs.push(run(form, skips, extent)?);
            }
        }
        show(form, &runs);
    }
    Ok(runs)
}

fn show(form: Form, runs: &[Run]) {
    let of = |skips: bool, figure: fn(&Run) -> f64| -> Vec<f64> {
        let is_of = |run: &&Run| (run.form, run.skips) == (form, skips);
        runs.iter().filter(is_of).map(figure).collect()
    };
    println!("  {}:", form.name());
    for skips in [false, true] {
        let middle = |figure| median(&of(skips, figure)).value;
        println!(
            "    skips {skips}: a commit has {:.2} groups dirty, {:.2} skipped, {:.2} written, {:.2} inserted; {:.2} blocks \
             copied, {:.2} references, loop {:.0} ns, critical {:.0} ns",
            middle(|run| run.dirty),
            middle(|run| run.skipped),
            middle(|run| run.written),
            middle(|run| run.inserted),
            middle(|run| run.blocks_copied),
            middle(|run| run.refs_created),
            middle(|run| run.loop_nanoseconds),
            middle(|run| run.critical_nanoseconds),
        );
    }
    let change = |figure| ratio(&of(true, figure), &of(false, figure));
    println!(
        "    on over off: loop {:?}, critical {:?}",
        change(|run| run.loop_nanoseconds),
        change(|run| run.critical_nanoseconds)
    );
}

fn run(form: Form, skips: bool, extent: Extent) -> Result<Run> {
    let (file_bytes, image_bytes, commits) = match extent {
        Extent::Quick => (FILE_BYTES_QUICK, IMAGE_BYTES_QUICK, COMMITS_QUICK),
        Extent::Full => (FILE_BYTES, IMAGE_BYTES, COMMITS),
    };
    let speed = if form.is_disk {
        Speed::Disk
    } else {
        Speed::Memory
    };
    let image = BtrfsImage::new(image_bytes, form.has_group_tree, speed)?;
    let fs = Arc::new(image.mount(WriteOptions {
        skips_unchanged_groups: skips,
        ..WriteOptions::default()
    })?);
    let opened = form.load.open(Arc::clone(&fs) as _)?;
    let root = opened.root()?;
    fill(&*root, file_bytes)?;
    fs.sync()?;
    let file = Direct::open(form.load, &*fs, &*root)?;
    let mut random = Prng::new(7);
    let mut block = Aligned::zeroed(usize::try_from(BLOCK_BYTES)?);
    let mut reports = Vec::new();
    for commit in 0..commits {
        block.bytes_mut().fill(u8::try_from(commit % 250)?);
        for _ in 0..WRITES {
            let at = random.below(file_bytes / BLOCK_BYTES) * BLOCK_BYTES;
            file.write_at(at, block.bytes())?;
        }
        fs.sync()?;
        reports.push(fs.last_commit().ok_or_else(|| anyhow!("a commit"))?);
    }
    drop((file, root));
    opened.end()?;
    drop(fs);
    image.check()?;
    let mean = |part: &dyn Fn(&CommitReport) -> u64| {
        float(reports.iter().map(part).sum::<u64>()) / float(commits)
    };
    let both = |part: fn(&BlockGroupCounters) -> u64| {
        mean(&move |report| part(&report.groups_before) + part(&report.groups))
    };
    Ok(Run {
        form,
        skips,
        commits,
        dirty: both(|it| it.dirty),
        skipped: both(|it| it.skipped),
        written: both(|it| it.written),
        inserted: both(|it| it.inserted),
        blocks_copied: both(|it| it.blocks_copied),
        refs_created: both(|it| it.refs_created),
        blocks_written: mean(&|report| report.blocks_written),
        // As published: the loop within the critical section.
        loop_nanoseconds: mean(&|report| report.groups.nanoseconds),
        critical_nanoseconds: mean(&|report| report.critical_nanoseconds),
    })
}

fn fill(root: &dyn Directory, file_bytes: u64) -> Result<()> {
    let file = root.create(FILE_NAME)?;
    let piece = vec![1; 1 << 20];
    for at in (0..file_bytes).step_by(piece.len()) {
        file.write_at(at, &piece)?;
    }
    Ok(())
}

/// A file that is written past the page cache.
enum Direct {
    Library(Arc<dyn Inode>),
    Mount(Box<dyn Document>),
}

impl Direct {
    fn open(load: Load, fs: &dyn Filesystem, root: &dyn Directory) -> Result<Self> {
        Ok(match load {
            Load::Library => Self::Library(fs.root()?.lookup(Name::new(FILE_NAME.as_bytes())?)?),
            Load::Mount => Self::Mount(root.open(FILE_NAME, Mode::WriteDirect)?),
        })
    }

    fn write_at(&self, offset: u64, block: &[u8]) -> Result<()> {
        match self {
            Self::Library(inode) => Ok(inode.write_through(offset, block)?),
            Self::Mount(file) => file.write_at(offset, block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_skipped_only_where_that_is_on() {
        for form in Form::QUICK {
            let [off, on] = [false, true].map(|skips| run(form, skips, Extent::Quick).unwrap());
            assert!(off.skipped < 0.1 && on.skipped > 0.1, "{on:?}");
            assert!(on.blocks_copied <= off.blocks_copied, "{off:?} {on:?}");
        }
    }
}
