//! What commits of btrfs queue and run while files are made and removed as `fs_mark` does it, and while a file of many extents
//! is written and removed, with each index of delayed references.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use anyhow::{Result, anyhow};
use platter_btrfs::Btrfs;
use platter_btrfs::delayed_refs::{DelayedRefCounters, IndexKind};
use platter_btrfs::txn::{WriteContext, WriteOptions};
use platter_vfs::{Context, CreateKind, Filesystem, Name};
use serde::{Deserialize, Serialize};

use super::btrfs_image::{BtrfsImage, Speed};
use super::load::Load;
use crate::measure::{float, now};
use crate::place::Directory;
use crate::record::Extent;

/// Each has several loops.
const ROUNDS: usize = 4;
/// A mount takes so much longer that it has fewer, whatever is asked for.
const ROUNDS_MOUNT: usize = 3;
const LOOPS: u64 = 5;
/// Files of a loop, of all threads: by calls of the library as many as were published of each thread, fewer in a mount.
const FILES: u64 = 100_000;
const FILES_MOUNT: u64 = 20_000;
const FILES_QUICK: u64 = 300;
/// Extents of a file, and those of a quick run.
const EXTENTS: u64 = 50_000;
const EXTENTS_QUICK: u64 = 500;
const EXTENT_BYTES: u64 = 4096;
const IMAGE_BYTES: usize = 6 << 30;
/// The heads of all shards are counted at one operation of so many.
const SAMPLED_ONE_IN: u64 = 64;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Empty files are made.
    #[default]
    Create,
    /// They are removed.
    Unlink,
    /// Extents of one block are written to a file, each apart from the others.
    Write,
    /// That file is removed, most of whose extents no commit has yet.
    Remove,
}

/// What was done with an index, and what it queued.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Queued {
    pub(crate) index: String,
    pub(crate) load: Load,
    pub(crate) threads: u64,
    #[serde(default)]
    pub(crate) work: Work,
    /// Files or extents in a second, of each loop.
    pub(crate) rates: Vec<f64>,
    /// Commits that ended meanwhile, with one after it.
    pub(crate) commits: u64,
    /// Files or extents of all loops.
    pub(crate) files: u64,
    /// Sums of all commits.
    pub(crate) heads: u64,
    pub(crate) refs: u64,
    pub(crate) cancelled: u64,
    pub(crate) searches: u64,
    /// Heads that were in the index of a shard when one was inserted in it: median, and 99 %.
    pub(crate) present: [u64; 2],
    /// Heads that were in all shards at some time of the work: median, 99 %, and most.
    #[serde(default)]
    pub(crate) waiting: [u64; 3],
}

impl Work {
    pub(crate) const ALL: [Self; 4] = [Self::Create, Self::Unlink, Self::Write, Self::Remove];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Create => "files made",
            Self::Unlink => "files removed",
            Self::Write => "extents written",
            Self::Remove => "extents removed",
        }
    }
}

/// What does it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Doer {
    /// Calls write extents to a file, which is removed.
    Writer,
    /// Threads make and remove files.
    Threads(Load, u64),
}

impl Doer {
    pub(super) const ALL: [Self; 5] = [
        Self::Writer,
        Self::Threads(Load::Library, 1),
        Self::Threads(Load::Library, 2),
        Self::Threads(Load::Mount, 1),
        Self::Threads(Load::Mount, 2),
    ];

    pub(super) fn name(self) -> String {
        match self {
            Self::Writer => "extents of a file".to_owned(),
            Self::Threads(load, threads) => format!("{}, {threads} thread(s)", load.name()),
        }
    }

    fn rounds(self, extent: Extent, asked: Option<usize>) -> usize {
        let usual = match extent {
            Extent::Quick => 1,
            Extent::Full => ROUNDS,
        };
        let rounds = asked.unwrap_or(usual);
        match self {
            Self::Threads(Load::Mount, _) => rounds.min(ROUNDS_MOUNT),
            Self::Writer | Self::Threads(Load::Library, _) => rounds,
        }
    }

    /// Does it once.
    fn run(self, kind: IndexKind, extent: Extent) -> Result<[Queued; 2]> {
        let (files, files_mount, extents) = match extent {
            Extent::Quick => (FILES_QUICK, FILES_QUICK, EXTENTS_QUICK),
            Extent::Full => (FILES, FILES_MOUNT, EXTENTS),
        };
        match self {
            Self::Writer => write_and_remove(kind, extents),
            Self::Threads(load, threads) => {
                let files = match load {
                    Load::Library => files,
                    Load::Mount => files_mount,
                };
                make_and_unlink(kind, load, threads, files / threads)
            }
        }
    }
}

/// Measures all indexes, in turns.
pub(super) fn measure(doer: Doer, extent: Extent, rounds: Option<usize>) -> Result<Vec<Queued>> {
    let mut all = Vec::new();
    let mut kinds = IndexKind::ALL.to_vec();
    for _ in 0..doer.rounds(extent, rounds) {
        for &kind in &kinds {
            let [first, second] = doer.run(kind, extent)?;
            println!("  {first:?}\n  {second:?}");
            all.extend([first, second]);
        }
        kinds.reverse();
    }
    Ok(all)
}

/// A new filesystem with an index.
struct Ground {
    image: BtrfsImage,
    fs: Arc<Btrfs>,
    index: IndexKind,
}

/// What was counted up to a moment.
struct Before {
    commits: u64,
    searches: u64,
    references: DelayedRefCounters,
}

impl Ground {
    fn new(index: IndexKind) -> Result<Self> {
        let image = BtrfsImage::new(IMAGE_BYTES, false, Speed::Memory)?;
        let fs = Arc::new(image.mount(WriteOptions {
            index,
            ..WriteOptions::default()
        })?);
        Ok(Self { image, fs, index })
    }

    fn writing(&self) -> Result<&WriteContext> {
        let writing = self.fs.super_block().writing();
        writing.ok_or_else(|| anyhow!("a mount for writing"))
    }

    fn look(&self) -> Result<Before> {
        let writing = self.writing()?;
        Ok(Before {
            commits: writing.committed().0,
            searches: writing.extent_searches(),
            references: writing.delayed_refs().counters(),
        })
    }

    /// Runs the loops of some work. Returns what was counted since `before`.
    fn run(
        &self,
        (load, threads, work): (Load, u64, Work),
        each: u64,
        before: &Before,
        one_loop: impl Fn(u64) -> Result<Vec<usize>>,
    ) -> Result<Queued> {
        let loops = match work {
            Work::Create | Work::Unlink => LOOPS,
            Work::Write | Work::Remove => 1,
        };
        let (mut rates, mut waiting) = (Vec::new(), Vec::new());
        for number in 0..loops {
            let start = now();
            waiting.extend(one_loop(number)?);
            rates.push(float(each * threads) / start.elapsed().as_secs_f64());
        }
        // What was written without a commit is removed without one.
        if work != Work::Write {
            self.fs.sync()?;
        }
        let after = self.look()?;
        let counted = after.references.since(&before.references);
        Ok(Queued {
            index: self.index.name().to_owned(),
            load,
            threads,
            work,
            rates,
            commits: after.commits - before.commits,
            files: each * threads * loops,
            heads: counted.heads,
            refs: counted.refs + counted.merged_refs,
            cancelled: counted.cancelled,
            searches: after.searches - before.searches,
            present: [50, 99].map(|percent| counted.present_at(percent)),
            waiting: quantiles(waiting),
        })
    }

    /// Demands that what is left is in order.
    fn end(self) -> Result<()> {
        drop(self.fs);
        self.image.check()
    }
}

/// Median, 99 %, and the most.
fn quantiles(mut numbers: Vec<usize>) -> [u64; 3] {
    numbers.sort_unstable();
    [50, 99, 100].map(|percent| {
        let at = (numbers.len() * percent / 100).min(numbers.len().saturating_sub(1));
        numbers.get(at).map_or(0, |&number| number as u64)
    })
}

/// A change of a directory by a name.
type Change = dyn Fn(&dyn Directory, &str) -> Result<()> + Sync;

/// Makes changes of each directory by a thread of its own. Returns how many heads there were meanwhile.
fn in_each(
    writing: &WriteContext,
    tops: &[Box<dyn Directory>],
    change: &Change,
    files: Range<u64>,
) -> Result<Vec<usize>> {
    let each = |top: &dyn Directory| -> Result<Vec<usize>> {
        let mut waiting = Vec::new();
        for file in files.clone() {
            let name = file.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            change(top, &format!("{name:016x}"))?;
            if file.is_multiple_of(SAMPLED_ONE_IN) {
                waiting.push(writing.delayed_refs().len());
            }
        }
        Ok(waiting)
    };
    thread::scope(|scope| -> Result<Vec<usize>> {
        let each = &each;
        let running: Vec<_> = tops
            .iter()
            .map(|top| scope.spawn(move || each(&**top)))
            .collect();
        let mut waiting = Vec::new();
        for thread in running {
            waiting.extend(thread.join().map_err(|_| anyhow!("a thread failed"))??);
        }
        Ok(waiting)
    })
}

/// Makes empty files, and removes them in the same order.
fn make_and_unlink(kind: IndexKind, load: Load, threads: u64, files: u64) -> Result<[Queued; 2]> {
    let ground = Ground::new(kind)?;
    let opened = load.open(Arc::clone(&ground.fs) as _)?;
    let root = opened.root()?;
    let tops = (0..threads).map(|thread| root.make_dir(&format!("d{thread}")));
    let tops = tops.collect::<Result<Vec<_>>>()?;
    let writing = ground.writing()?;
    let create = |top: &dyn Directory, name: &str| top.create(name).map(drop);
    let unlink = |top: &dyn Directory, name: &str| top.unlink(name);
    let before = ground.look()?;
    let made = ground.run((load, threads, Work::Create), files, &before, |number| {
        in_each(
            writing,
            &tops,
            &create,
            number * files..(number + 1) * files,
        )
    })?;
    let before = ground.look()?;
    let removed = ground.run((load, threads, Work::Unlink), files, &before, |number| {
        in_each(
            writing,
            &tops,
            &unlink,
            number * files..(number + 1) * files,
        )
    })?;
    drop((tops, root));
    opened.end()?;
    ground.end()?;
    Ok([made, removed])
}

/// Writes every other block of a file, each as an extent, and removes the file.
fn write_and_remove(kind: IndexKind, extents: u64) -> Result<[Queued; 2]> {
    let ground = Ground::new(kind)?;
    let writing = ground.writing()?;
    let (root, context, name) = (ground.fs.root()?, Context::root(), Name::new(b"file")?);
    let file = root.create(&context, name, CreateKind::Regular, 0o644)?;
    ground.fs.sync()?;
    let block = vec![7; usize::try_from(EXTENT_BYTES)?];
    let before = ground.look()?;
    let written = ground.run((Load::Library, 1, Work::Write), extents, &before, |_| {
        let mut waiting = Vec::new();
        for number in 0..extents {
            file.write_through(2 * number * EXTENT_BYTES, &block)?;
            if number.is_multiple_of(SAMPLED_ONE_IN) {
                waiting.push(writing.delayed_refs().len());
            }
        }
        Ok(waiting)
    })?;
    drop(file);
    let before = ground.look()?;
    let removed = ground.run((Load::Library, 1, Work::Remove), extents, &before, |_| {
        root.unlink(&context, name)?;
        Ok(vec![writing.delayed_refs().len()])
    })?;
    drop(root);
    ground.fs.unmount()?;
    ground.end()?;
    Ok([written, removed])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_queues_the_same_of_one_thread() {
        let counts = |all: [Queued; 2]| {
            all.map(|it| [it.heads, it.refs, it.cancelled, it.searches, it.present[1]])
        };
        let of = |kind: IndexKind| {
            let made = make_and_unlink(kind, Load::Library, 1, 400).unwrap();
            assert!(made.iter().all(|it| it.rates.len() == 5 && it.commits > 0));
            [counts(made), counts(write_and_remove(kind, 1000).unwrap())]
        };
        let first = of(IndexKind::ALL[0]);
        let [[_, unlinked], [written, removed]] = first;
        assert!(unlinked[2] > 0 && removed[2] > 0, "pairs cancel: {first:?}");
        assert!(written[0] > 1000 && written[4] >= 512, "{first:?}");
        for &kind in &IndexKind::ALL[1..] {
            assert_eq!(of(kind), first, "{}", kind.name());
        }
    }

    #[test]
    fn threads_make_and_remove_files_in_a_mount() {
        for queued in make_and_unlink(IndexKind::Line, Load::Mount, 2, 50).unwrap() {
            assert!(queued.heads > 0 && queued.refs >= queued.cancelled);
            assert_eq!((queued.files, queued.rates.len()), (500, 5));
            assert!(queued.waiting[2] > 0);
        }
    }
}
