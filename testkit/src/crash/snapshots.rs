//! Snapshots that are made while two threads write: each has, of each thread, what there was at one moment between its
//! begin and its end.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use platter_memfs::MemFs;
use platter_vfs::{Context as Caller, CreateKind, Filesystem, Name, PathWalk};

use super::image::ImageFiles;
use super::record::{is_same, mix, model};
use crate::subject::{Devices, Scene};
use crate::workload::{Abilities, Generator, History, Mix, Operation, Pace, Session, Tree};

/// Where both threads write.
const BASE: &str = "base";
/// Where snapshots are made, a subvolume, so that snapshots of the top level have an empty directory there.
const SNAPSHOTS: &str = "snapshots";
/// What the names of each thread begin with.
const PREFIXES: [&str; 2] = ["f", "s"];

/// What is written, and of what snapshots are made.
#[derive(Debug, Clone, Copy)]
pub struct Snapshots {
    /// The filesystem, which has subvolumes.
    pub scene: &'static Scene,
    /// What is drawn.
    pub seed: u64,
    /// Operations of each thread.
    pub operations: usize,
    /// Snapshots, of which every other one is read-only.
    pub snapshots: usize,
    /// Whether they are made of the top-level subvolume, in a directory of which both threads write, or of another
    /// one.
    pub of_top_level: bool,
}

/// What a run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotCounts {
    /// Snapshots that were judged.
    pub snapshots: usize,
    /// Those during which both threads had an operation under way or began one.
    pub concurrent: usize,
}

impl fmt::Display for SnapshotCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            snapshots,
            concurrent,
        } = self;
        write!(
            out,
            "{snapshots} snapshots, {concurrent} concurrent with both"
        )
    }
}

/// How far a thread is.
#[derive(Debug, Default)]
struct Progress {
    begun: AtomicUsize,
    returned: AtomicUsize,
}

/// Lets no snapshot wait for a thread that has ended, however it did.
struct End<'p>(&'p Progress, usize);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.begun.store(self.1, Ordering::SeqCst);
    }
}

/// One thread's side.
struct Lane {
    model: MemFs,
    generator: Generator,
}

/// A snapshot that was made.
struct Made {
    path: String,
    is_read_only: bool,
    /// Operations of each thread that had returned when it was begun, and had begun when it returned.
    moments: [RangeInclusive<usize>; 2],
}

impl Snapshots {
    /// Runs the threads, and judges the snapshots: mounted, and mounted again.
    pub fn run(&self) -> Result<SnapshotCounts> {
        let label = format!("{} seed {}", self.scene.name, self.seed);
        self.run_both().with_context(|| label)
    }

    fn run_both(&self) -> Result<SnapshotCounts> {
        let devices = self.scene.devices_of(self.scene.size_kib)?;
        let fs = self.scene.mount(&devices, self.seed)?;
        let mut lanes = PREFIXES.map(|prefix| self.lane(prefix));
        let base = if self.of_top_level {
            Operation::Create(BASE.to_owned(), CreateKind::Directory, 0o755)
        } else {
            Operation::CreateSubvolume(BASE.to_owned())
        };
        base.apply(&*fs)?;
        for lane in &lanes {
            base.apply(&lane.model)?;
        }
        Operation::CreateSubvolume(SNAPSHOTS.to_owned()).apply(&*fs)?;
        let progress: [Progress; 2] = Default::default();
        let (histories, made) = std::thread::scope(|scope| -> Result<_> {
            let fs = &*fs;
            let run = |(lane, progress)| scope.spawn(move || self.write(lane, progress, fs));
            let writing: Vec<_> = lanes.iter_mut().zip(&progress).map(run).collect();
            let made = self.snapshot_all(fs, &progress);
            let mut histories = Vec::new();
            for thread in writing {
                histories.push(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
            }
            Ok((histories, made?))
        })?;
        self.judge(&*fs, &histories, &made)?;
        fs.unmount()?;
        drop(fs);
        self.judge_unmounted(&devices, &histories, &made)?;
        let is_concurrent = |made: &&Made| made.moments.iter().all(|it| it.start() < it.end());
        Ok(SnapshotCounts {
            snapshots: made.len(),
            concurrent: made.iter().filter(is_concurrent).count(),
        })
    }

    fn lane(&self, prefix: &'static str) -> Lane {
        let mix = mix(self.scene, 40);
        let mix = Mix {
            // A snapshot has an empty directory in the place of a subvolume.
            abilities: Abilities {
                subvolumes: false,
                ..mix.abilities
            },
            ..mix
        };
        let seed = self.seed.wrapping_mul(2) + u64::from(prefix == PREFIXES[1]);
        Lane {
            model: model(),
            generator: Generator::new(seed, mix, &[BASE], prefix),
        }
    }

    /// Writes as one thread, in step with its model.
    fn write(&self, lane: &mut Lane, progress: &Progress, fs: &dyn Filesystem) -> Result<History> {
        let _end = End(progress, self.operations);
        let mut history = History::new(Tree::read(&lane.model, None)?);
        let (mut ours, mut theirs) = (Session::new(fs), Session::new(&lane.model));
        for number in 0..self.operations {
            let operation = lane.generator.next(history.now());
            progress.begun.store(number + 1, Ordering::SeqCst);
            let done = ours.apply(&operation);
            progress.returned.store(number + 1, Ordering::SeqCst);
            let expected = theirs.apply(&operation);
            ensure!(
                is_same(&done, &expected),
                "{number}: {operation:?}: {done:?}, and the model {expected:?}"
            );
            let pace = Pace {
                begin: number,
                end: Some(number + 1),
            };
            history.add(operation, pace, done.is_ok(), &theirs)?;
        }
        Ok(history)
    }

    /// Makes snapshots while the threads write, spread over what they write.
    fn snapshot_all(&self, fs: &dyn Filesystem, progress: &[Progress; 2]) -> Result<Vec<Made>> {
        let caller = Caller::root();
        let subvolumes = fs.subvolumes().context("subvolumes")?;
        let walk = |path: &str| PathWalk::new(fs).resolve(path.as_bytes());
        let source = if self.of_top_level {
            fs.root()?
        } else {
            walk(BASE)?
        };
        let (source, dir) = (source.id().tree, walk(SNAPSHOTS)?.id());
        let mut all = Vec::new();
        for number in 0..self.snapshots {
            let due = number * self.operations / self.snapshots;
            let is_due = |lane: &Progress| lane.begun.load(Ordering::SeqCst) >= due;
            while !progress.iter().any(is_due) {
                std::thread::yield_now();
            }
            let is_read_only = number % 2 == 1;
            let name = format!("snapshot{number}");
            let first = [0, 1].map(|at: usize| progress[at].returned.load(Ordering::SeqCst));
            let new = Name::new(name.as_bytes())?;
            subvolumes.snapshot(&caller, source, dir, new, is_read_only)?;
            let last = [0, 1].map(|at: usize| progress[at].begun.load(Ordering::SeqCst));
            all.push(Made {
                path: format!("{SNAPSHOTS}/{name}"),
                is_read_only,
                moments: [0, 1].map(|at: usize| first[at]..=last[at]),
            });
        }
        Ok(all)
    }

    fn judge(&self, fs: &dyn Filesystem, histories: &[History], made: &[Made]) -> Result<()> {
        let subvolumes = fs.subvolumes().context("subvolumes")?;
        let all = Tree::read(fs, None)?;
        for made in made {
            let id = PathWalk::new(fs).resolve(made.path.as_bytes())?.id().tree;
            let is_read_only = subvolumes.get(id)?.read_only;
            ensure!(
                is_read_only == made.is_read_only,
                "{} is writable or not",
                made.path
            );
            let lanes = histories.iter().zip(PREFIXES).zip(&made.moments);
            for ((history, prefix), moments) in lanes {
                let left = self.part(&all, &made.path, prefix)?;
                let lines = history.judge_between(moments.clone(), &left);
                ensure!(
                    lines.is_empty(),
                    "{}, of operations {moments:?} of {prefix}: {}\n{}",
                    made.path,
                    lines.join("\n"),
                    history.listing()[..*moments.end()].join("\n")
                );
            }
        }
        Ok(())
    }

    /// What of a snapshot is a thread's, by the paths that it wrote to.
    fn part(&self, all: &Tree, snapshot: &str, prefix: &str) -> Result<Tree> {
        let base = if self.of_top_level {
            format!("{snapshot}/{BASE}")
        } else {
            snapshot.to_owned()
        };
        let entry = |path: &str| {
            all.entries
                .get(path)
                .with_context(|| path.to_owned())
                .cloned()
        };
        let mut entries = BTreeMap::new();
        entries.insert(String::new(), entry("")?);
        entries.insert(BASE.to_owned(), entry(&base)?);
        for (path, entry) in &all.entries {
            let below = path
                .strip_prefix(&base)
                .and_then(|rest| rest.strip_prefix('/'));
            if let Some(below) = below.filter(|below| below.starts_with(prefix)) {
                entries.insert(format!("{BASE}/{below}"), entry.clone());
            }
        }
        Ok(Tree {
            entries,
            open: BTreeMap::new(),
        })
    }

    fn judge_unmounted(
        &self,
        devices: &Devices,
        histories: &[History],
        made: &[Made],
    ) -> Result<()> {
        let found = self.scene.check(devices)?;
        ensure!(found.is_empty(), "our check: {}", found.join("\n"));
        let found = ImageFiles::of(devices)?.complaints(self.scene)?;
        ensure!(found.is_empty(), "fsck: {}", found.join("\n"));
        let fs = self.scene.mount(devices, self.seed)?;
        self.judge(&*fs, histories, made).context("mounted again")?;
        fs.unmount()?;
        Ok(())
    }
}
