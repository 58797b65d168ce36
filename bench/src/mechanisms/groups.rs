//! Block groups of btrfs whose items need no update at a commit: random writes of four jobs to a file with a commit after every
//! moment, and few writes in a filesystem of many groups; with and without the comparison that skips items.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use platter_btrfs::Btrfs;
use platter_btrfs::block_group::BlockGroupCounters;
use platter_btrfs::txn::{CommitReport, WriteOptions};
use platter_vfs::{Context, CreateKind, FallocateMode, Filesystem, Inode, Name};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use testkit::prng::Prng;
use testkit::tool;

use super::btrfs_image::{BtrfsImage, Speed};
use super::load::Load;
use crate::measure::{float, median, now, ratio};
use crate::place::Directory;
use crate::record::Extent;

/// The file, as that of the published figures, and its jobs with as many writes at a time of each.
const FILE_BYTES: u64 = 512 << 20;
const FILE_BYTES_QUICK: u64 = 8 << 20;
const JOBS: u64 = 4;
const DEPTH: u64 = 64;
/// How long after a commit the next one begins, and how long a run may take to its last one: less than the 300 s with a
/// commit every 30 s that were published.
const INTERVAL: Duration = Duration::from_millis(10);
const SECONDS_MAX: u64 = 120;
const IMAGE_BYTES: usize = 4 << 30;
const IMAGE_BYTES_QUICK: usize = 512 << 20;
const BLOCK_BYTES: u64 = 4096;
const FILE_NAME: &str = "file";
/// Of two pairs each.
const ROUNDS: usize = 3;

/// With many groups: the part of the device that each takes, what is allocated in a second file without being written, and
/// the size of tree blocks.
const GROUP_PARTS: u64 = 256;
const UNWRITTEN_PARTS: usize = 2;
const SMALL_NODE_BYTES: u32 = 4096;
/// Writes of a commit, all in a few blocks of the file.
const FEW_WRITES: u64 = 64;
const HOT_BLOCKS: u64 = 256;

/// Commits of a run.
const COMMITS: u64 = 200;
const COMMITS_QUICK: u64 = 20;

/// What makes the writes, where items of block groups are, and how long writes to the device take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Form {
    pub(crate) load: Load,
    /// In a tree of their own.
    pub(crate) has_group_tree: bool,
    /// A write takes 100 µs more.
    pub(crate) is_disk: bool,
    /// There are so many groups that their items are in several leaves, and a commit has so few writes that it does not copy
    /// all of these anyway.
    #[serde(default)]
    pub(crate) has_many_groups: bool,
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
    pub(crate) const ALL: [Self; 10] = [
        Self::with_many_groups(false),
        Self::with_many_groups(true),
        Self::new(Load::Library, false, false),
        Self::new(Load::Library, true, false),
        Self::new(Load::Library, false, true),
        Self::new(Load::Library, true, true),
        Self::new(Load::Mount, false, false),
        Self::new(Load::Mount, true, false),
        Self::new(Load::Mount, false, true),
        Self::new(Load::Mount, true, true),
    ];
    const QUICK: [Self; 5] = [
        Self::new(Load::Library, false, false),
        Self::new(Load::Library, true, false),
        Self::new(Load::Mount, false, false),
        Self::with_many_groups(false),
        Self::with_many_groups(true),
    ];

    /// Those that are measured.
    pub(super) const fn of(extent: Extent) -> &'static [Self] {
        match extent {
            Extent::Quick => &Self::QUICK,
            Extent::Full => &Self::ALL,
        }
    }

    pub(crate) const fn new(load: Load, has_group_tree: bool, is_disk: bool) -> Self {
        Self {
            load,
            has_group_tree,
            is_disk,
            has_many_groups: false,
        }
    }

    const fn with_many_groups(has_group_tree: bool) -> Self {
        Self {
            has_many_groups: true,
            ..Self::new(Load::Library, has_group_tree, false)
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
        let groups = if self.has_many_groups {
            ", many groups"
        } else {
            ""
        };
        format!("{}, {items}, {device}{groups}", self.load.name())
    }
}

/// Measures a form, with and without, in turns.
pub(super) fn measure(form: Form, extent: Extent, rounds: Option<usize>) -> Result<Vec<Run>> {
    let usual = match extent {
        Extent::Quick => 1,
        Extent::Full => ROUNDS,
    };
    let mut runs = Vec::new();
    let rounds = rounds.unwrap_or(usual);
    for round in 0..rounds {
        for (turn, skips) in [false, true, true, false].into_iter().enumerate() {
            // Each of both at its end.
            let is_last = round + 1 == rounds && turn >= 2;
            runs.push(run(form, skips, extent, is_last)?);
        }
    }
    show(form, &runs);
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

/// One run, which `btrfs check` judges as well if that is wanted.
fn run(form: Form, skips: bool, extent: Extent, is_judged: bool) -> Result<Run> {
    let (file_bytes, image_bytes, wanted) = match extent {
        Extent::Quick => (FILE_BYTES_QUICK, IMAGE_BYTES_QUICK, COMMITS_QUICK),
        Extent::Full => (FILE_BYTES, IMAGE_BYTES, COMMITS),
    };
    let speed = if form.is_disk {
        Speed::Disk
    } else {
        Speed::Memory
    };
    let mut options = WriteOptions {
        skips_unchanged_groups: skips,
        ..WriteOptions::default()
    };
    let mut node_bytes = None;
    if form.has_many_groups {
        options.chunk_parts = GROUP_PARTS;
        node_bytes = Some(SMALL_NODE_BYTES);
    }
    let image = BtrfsImage::with_nodes(image_bytes, form.has_group_tree, speed, node_bytes)?;
    let fs = Arc::new(image.mount(options)?);
    let opened = form.load.open(Arc::clone(&fs) as _)?;
    let root = opened.root()?;
    fill(&*root, file_bytes)?;
    drop(root);
    let file = fs.root()?.lookup(Name::new(FILE_NAME.as_bytes())?)?;
    if form.has_many_groups {
        let unwritten = (image_bytes / UNWRITTEN_PARTS) as u64;
        allocate(&fs, unwritten)?;
    }
    fs.sync()?;
    let reports = match opened.mountpoint() {
        Some(dir) => write_by_fio(&fs, dir, file_bytes, wanted)?,
        None if form.has_many_groups => write_little(&fs, &*file, wanted)?,
        None => write_by_jobs(&fs, &*file, file_bytes, wanted)?,
    };
    let commits = reports.len() as u64;
    ensure!(commits >= wanted, "{commits} commits instead of {wanted}");
    drop(file);
    opened.end()?;
    drop(fs);
    image.check()?;
    if is_judged {
        image.check_by_btrfs()?;
    }
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

/// Takes most of the groups without writing anything.
fn allocate(fs: &Btrfs, bytes: u64) -> Result<()> {
    let name = Name::new(b"unwritten")?;
    let context = Context::root();
    let file = fs.root()?;
    let file = file.create(&context, name, CreateKind::Regular, 0o644)?;
    file.fallocate(0..bytes, FallocateMode::Allocate { keep_size: false })?;
    Ok(())
}

/// Commits again and again, a moment after each, until there are as many as wanted or the writes are over. Returns what
/// each did.
fn commit_by_time(
    fs: &Btrfs,
    wanted: u64,
    mut is_over: impl FnMut() -> Result<bool>,
) -> Result<Vec<CommitReport>> {
    let mut reports = Vec::new();
    let mut last = commit(fs)?.generation;
    while (reports.len() as u64) < wanted && !is_over()? {
        thread::sleep(INTERVAL);
        let report = commit(fs)?;
        // Nothing was written since.
        if report.generation != last {
            last = report.generation;
            reports.push(report);
        }
    }
    Ok(reports)
}

fn commit(fs: &Btrfs) -> Result<CommitReport> {
    fs.sync()?;
    fs.last_commit().ok_or_else(|| anyhow!("a commit"))
}

/// As fio below, by calls of the library: as many threads as writes at a time.
fn write_by_jobs(
    fs: &Btrfs,
    file: &dyn Inode,
    file_bytes: u64,
    wanted: u64,
) -> Result<Vec<CommitReport>> {
    let is_over = AtomicBool::new(false);
    let write = |seed: u64| -> Result<()> {
        let mut random = Prng::new(seed);
        let block = vec![u8::try_from(seed % 250)?; usize::try_from(BLOCK_BYTES)?];
        while !is_over.load(Ordering::Relaxed) {
            let at = random.below(file_bytes / BLOCK_BYTES) * BLOCK_BYTES;
            file.write_through(at, &block)?;
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<Vec<CommitReport>> {
        let write = &write;
        let running: Vec<_> = (0..JOBS * DEPTH)
            .map(|seed| scope.spawn(move || write(seed)))
            .collect();
        let start = now();
        let time = Duration::from_secs(SECONDS_MAX);
        let reports = commit_by_time(fs, wanted, || Ok(start.elapsed() >= time));
        is_over.store(true, Ordering::Relaxed);
        for thread in running {
            thread.join().map_err(|_| anyhow!("a thread failed"))??;
        }
        reports
    })
}

/// The job of the published figures, on a mount.
fn write_by_fio(fs: &Btrfs, dir: &Path, file_bytes: u64, wanted: u64) -> Result<Vec<CommitReport>> {
    /// The exit code where a signal ended it.
    const ENDED: i32 = 128;
    let mut fio = tool::command("fio");
    fio.args(["--name=random_write", "--rw=randwrite", "--direct=1"])
        .args(["--bs=4k", "--ioengine=libaio", "--fallocate=none"])
        .args(["--time_based", "--fsync_on_close=1"])
        .arg(format!("--filename={}", dir.join(FILE_NAME).display()))
        .arg(format!("--size={file_bytes}"))
        .arg(format!("--iodepth={DEPTH}"))
        .arg(format!("--numjobs={JOBS}"))
        .arg(format!("--runtime={SECONDS_MAX}"))
        .stdout(Stdio::null());
    let mut running = fio.spawn().context("fio cannot be run")?;
    let reports = commit_by_time(fs, wanted, || Ok(running.try_wait()?.is_some()));
    if running.try_wait()?.is_none() {
        kill_process(Pid::from_child(&running), Signal::TERM)?;
    }
    let status = running.wait()?;
    let is_ended = status.success() || status.code() == Some(ENDED);
    ensure!(is_ended, "fio: {status}");
    reports
}

/// Writes few blocks between commits, which are replaced again and again.
fn write_little(fs: &Btrfs, file: &dyn Inode, commits: u64) -> Result<Vec<CommitReport>> {
    let mut random = Prng::new(7);
    let mut block = vec![0; usize::try_from(BLOCK_BYTES)?];
    let mut reports = Vec::new();
    for number in 0..commits {
        block.fill(u8::try_from(number % 250)?);
        for _ in 0..FEW_WRITES {
            file.write_through(random.below(HOT_BLOCKS) * BLOCK_BYTES, &block)?;
        }
        reports.push(commit(fs)?);
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_skipped_only_where_that_is_on() {
        for form in Form::QUICK {
            let of = |skips| run(form, skips, Extent::Quick, true).unwrap();
            let [off, on] = [false, true].map(of);
            assert!(off.skipped < 0.1 && on.skipped > 0.1, "{on:?}");
            if form.has_many_groups {
                assert!(on.blocks_copied < off.blocks_copied, "{off:?} {on:?}");
            }
        }
    }
}
