//! Block groups of btrfs whose items need no update at a commit: random writes to a file with a commit after every few,
//! with and without the comparison that skips them.

use anyhow::{Result, anyhow};
use platter_btrfs::block_group::BlockGroupCounters;
use platter_btrfs::txn::{CommitReport, WriteOptions};
use platter_vfs::{Context, CreateKind, Filesystem, Name};
use serde::{Deserialize, Serialize};
use testkit::prng::Prng;

use super::btrfs_image::{BtrfsImage, Speed};
use crate::measure::{float, median, ratio};
use crate::record::Extent;

/// The file, as that of the published figures.
const FILE_BYTES: u64 = 512 << 20;
const FILE_BYTES_QUICK: u64 = 8 << 20;
const IMAGE_BYTES: usize = 4 << 30;
const IMAGE_BYTES_QUICK: usize = 512 << 20;
const BLOCK_BYTES: u64 = 4096;
/// Writes of a commit, and commits.
const WRITES: u64 = 256;
const COMMITS: u64 = 200;
const COMMITS_QUICK: u64 = 4;
const ROUNDS: usize = 5;

/// Where items of block groups are, and how long writes take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Form {
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
    pub(crate) const ALL: [Self; 4] = [
        Self::new(false, false),
        Self::new(true, false),
        Self::new(false, true),
        Self::new(true, true),
    ];

    const fn new(has_group_tree: bool, is_disk: bool) -> Self {
        Self {
            has_group_tree,
            is_disk,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match (self.has_group_tree, self.is_disk) {
            (false, false) => "extent tree, memory",
            (true, false) => "block group tree, memory",
            (false, true) => "extent tree, 100 µs a write",
            (true, true) => "block group tree, 100 µs a write",
        }
    }
}

/// Measures all forms, with and without, in turns.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Vec<Run>> {
    let (forms, usual) = match extent {
        Extent::Quick => (&Form::ALL[..2], 1),
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
    let fs = image.mount(WriteOptions {
        skips_unchanged_groups: skips,
        ..WriteOptions::default()
    })?;
    let root = fs.root()?;
    let context = Context::root();
    let name = Name::new(b"file")?;
    let file = root.create(&context, name, CreateKind::Regular, 0o644)?;
    let piece = vec![1; 1 << 20];
    for at in (0..file_bytes).step_by(piece.len()) {
        file.write_at(at, &piece)?;
    }
    fs.sync()?;
    let mut random = Prng::new(7);
    let mut reports = Vec::new();
    for commit in 0..commits {
        let fill = u8::try_from(commit % 250)?;
        for _ in 0..WRITES {
            let at = random.below(file_bytes / BLOCK_BYTES) * BLOCK_BYTES;
            file.write_through(at, &[fill; 4096])?;
        }
        fs.sync()?;
        reports.push(fs.last_commit().ok_or_else(|| anyhow!("a commit"))?);
    }
    drop((file, root));
    fs.unmount()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_skipped_only_where_that_is_on() {
        for &form in &Form::ALL[..2] {
            let [off, on] = [false, true].map(|skips| run(form, skips, Extent::Quick).unwrap());
            assert!(off.skipped < 0.1 && on.skipped > 0.1, "{on:?}");
            assert!(on.blocks_copied <= off.blocks_copied, "{off:?} {on:?}");
        }
    }
}
