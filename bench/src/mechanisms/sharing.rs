//! Attributes whose blocks files share: the grid of values, files and processes that Linux' rewrite of
//! its cache was measured with, by every design of the cache, and without any.
//!
//! Each thread has files of its own and sets one attribute of theirs, its value drawn from a pool;
//! values have 64 bytes, and inodes have no space for them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use platter::block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_cache::mbcache::Design;
use platter_ext4::ondisk::InodeNr;
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::{Context, CreateKind, Filesystem, Inode, Name, SystemClock, XattrMode};
use serde::{Deserialize, Serialize};
use testkit::oracle::mke2fs;
use testkit::prng::Prng;

use crate::measure::{self, float, median, stay_on_processor};
use crate::record::Extent;

/// Sets of each thread that the published figures are about.
pub(crate) const SETS: u64 = 50_000;
/// Sets of each thread, where there are more of them than processors: they take a thread longer than
/// it has a processor for at a time, so that locks are lost with it. All files have attributes before.
const SETS_OVERSUBSCRIBED: u64 = 2000;
const SETS_QUICK: u64 = 300;
/// Runs of each cell, as many as were published; where threads wait for a processor, times say little.
const ROUNDS: usize = 5;
const ROUNDS_OVERSUBSCRIBED: usize = 1;
const VALUE_BYTES: usize = 64;
/// Space for all that is set, as the machine of the published figures had.
const CACHE_BYTES: u64 = 1 << 30;
/// Space for an empty filesystem with its journal, and for each file with a block of its own.
const IMAGE_KIB: u64 = 24 << 10;
const FILE_KIB: u64 = 5;

/// A design of the cache, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Variant {
    GlobalLock,
    LruList,
    ShardedLru,
    RefBit,
    Disabled,
    ShardedClock,
}

/// What is set where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) values: u64,
    /// Of each thread.
    pub(crate) files: u64,
    pub(crate) threads: u64,
}

/// How much is done in a cell.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// Of each thread.
    sets: u64,
    /// So few sets are done that those which give a file its first attribute would be too many of
    /// them: every file gets one before.
    is_oversubscribed: bool,
    rounds: usize,
}

/// One run of a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) filesystem: String,
    pub(crate) cell: Cell,
    pub(crate) variant: Variant,
    pub(crate) seconds: f64,
    /// Of each thread, in that time.
    pub(crate) sets: u64,
    /// Files that have attributes in the end, and blocks that hold them.
    pub(crate) users: u64,
    pub(crate) blocks: u64,
}

impl Variant {
    pub(crate) const ALL: [Self; 6] = [
        Self::GlobalLock,
        Self::LruList,
        Self::ShardedLru,
        Self::RefBit,
        Self::Disabled,
        Self::ShardedClock,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::GlobalLock => "one lock",
            Self::LruList => "one LRU list",
            Self::ShardedLru => "LRU per shard",
            Self::RefBit => "referenced bit",
            Self::Disabled => "disabled",
            Self::ShardedClock => "clock per shard",
        }
    }

    const fn design(self) -> Option<Design> {
        match self {
            Self::GlobalLock => Some(Design::GlobalLock),
            Self::LruList => Some(Design::LruList),
            Self::ShardedLru => Some(Design::ShardedLru),
            Self::RefBit => Some(Design::RefBit),
            Self::Disabled => None,
            Self::ShardedClock => Some(Design::ShardedClock),
        }
    }
}

impl Cell {
    fn all(extent: Extent) -> Vec<Self> {
        let (values, files, threads): (&[u64], &[u64], &[u64]) = match extent {
            Extent::Quick => (&[10, 1000], &[10], &[1, 2, 4]),
            Extent::Full => (
                &[10, 100, 1000, 10_000, 100_000],
                &[10, 100, 1000],
                &[1, 2, 4, 8, 16, 32, 64],
            ),
        };
        let mut cells = Vec::new();
        for &values in values {
            for &files in files {
                cells.extend(threads.iter().map(|&threads| Self {
                    values,
                    files,
                    threads,
                }));
            }
        }
        cells
    }

    fn all_files(self) -> u64 {
        self.files * self.threads
    }

    /// What is done in it.
    fn work(self, extent: Extent, rounds: Option<usize>) -> Result<Work> {
        let processors = thread::available_parallelism()?.get() as u64;
        let is_oversubscribed = self.threads > processors;
        let (sets, usual) = match extent {
            Extent::Quick => (SETS_QUICK, 1),
            Extent::Full if is_oversubscribed => (SETS_OVERSUBSCRIBED, ROUNDS_OVERSUBSCRIBED),
            Extent::Full => (SETS, ROUNDS),
        };
        let rounds = rounds.unwrap_or(usual);
        Ok(Work {
            sets,
            is_oversubscribed,
            rounds: if is_oversubscribed {
                rounds.min(usual)
            } else {
                rounds
            },
        })
    }
}

impl Run {
    /// What the number of sets takes that the published figures are about.
    pub(crate) fn seconds_of_all(&self) -> f64 {
        self.seconds * float(SETS) / float(self.sets)
    }

    /// Files for each block.
    pub(crate) fn factor(&self) -> f64 {
        float(self.users) / float(self.blocks.max(1))
    }
}

/// Measures all cells of the grid.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for kind in ["ext4", "ext2"] {
        let mut images: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for cell in Cell::all(extent) {
            let image = match images.entry(cell.all_files()) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(image(kind, cell.all_files())?),
            };
            let of_cell = alternate(kind, image, cell, cell.work(extent, rounds)?)?;
            show(cell, &of_cell);
            check(extent, &of_cell)?;
            runs.extend(of_cell);
        }
    }
    Ok(runs)
}

/// All variants in turns.
fn alternate(kind: &str, image: &[u8], cell: Cell, work: Work) -> Result<Vec<Run>> {
    let mut variants = Variant::ALL;
    let mut runs = Vec::new();
    for _ in 0..work.rounds {
        for variant in variants {
            let mut run = run(image, cell, variant, work)?;
            kind.clone_into(&mut run.filesystem);
            runs.push(run);
        }
        variants.reverse();
    }
    Ok(runs)
}

/// However busy the machine: a block for each value, or file, and one more for each thread that makes
/// one while another does; one for each file where nothing is shared.
fn check(extent: Extent, runs: &[Run]) -> Result<()> {
    if extent == Extent::Full {
        return Ok(());
    }
    for run in runs {
        let holds = if run.variant == Variant::Disabled {
            run.blocks == run.users
        } else {
            run.blocks <= run.users.min(run.cell.values * run.cell.threads)
        };
        ensure!(
            holds,
            "{:?} of {:?}: {} blocks for {} files",
            run.variant,
            run.cell,
            run.blocks,
            run.users
        );
    }
    Ok(())
}

fn show(cell: Cell, runs: &[Run]) {
    let Cell {
        values,
        files,
        threads,
    } = cell;
    let filesystem = runs.first().map_or("", |run| &run.filesystem);
    print!("  {filesystem} V={values} F={files} P={threads}:");
    for variant in Variant::ALL {
        let of_variant = runs.iter().filter(|run| run.variant == variant);
        let seconds: Vec<f64> = of_variant.map(Run::seconds_of_all).collect();
        print!(" {:.3}", median(&seconds).value);
    }
    println!(" s");
}

/// A filesystem whose inodes have no space for attributes, with so many empty files.
fn image(kind: &str, files: u64) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    let inodes = (files + 1000).to_string();
    let options = ["-t", kind, "-b", "4096", "-I", "128", "-N", &inodes];
    mke2fs::make(&path, IMAGE_KIB + files * FILE_KIB, &options, None)?;
    let device = Arc::new(MemoryDevice::new("memory", std::fs::read(path)?));
    let fs = mount(&device, None)?;
    let root = fs.root()?;
    for number in 0..files {
        let name = name_of(number);
        let name = Name::new(name.as_bytes())?;
        root.create(&Context::root(), name, CreateKind::Regular, 0o644)?;
    }
    drop(root);
    fs.unmount()?;
    Ok(device.snapshot())
}

fn name_of(number: u64) -> String {
    format!("file-{number:06}")
}

fn mount(device: &Arc<MemoryDevice>, mbcache: Option<Design>) -> Result<Ext4> {
    let options = MountOptions {
        read_only: false,
        mbcache,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
    let device = Arc::clone(device);
    Ok(Ext4::mount(
        device,
        &options,
        budget,
        Arc::new(SystemClock::new()),
    )?)
}

fn run(image: &[u8], cell: Cell, variant: Variant, work: Work) -> Result<Run> {
    let device = Arc::new(MemoryDevice::new("memory", image.to_vec()));
    let fs = mount(&device, variant.design())?;
    let files = open_all(&fs, cell)?;
    if work.is_oversubscribed {
        set_all(&files, |random, files| set_each(random, files, cell.values))?;
    }
    let taken = set_all(&files, |random, files| {
        set_some(random, files, cell.values, work.sets)
    })?;
    let mut users = 0;
    let mut blocks = BTreeSet::new();
    for file in files.iter().flatten() {
        let number = u32::try_from(file.id().number).ok().and_then(InodeNr::new);
        let inode = platter_ext4::inode::read(fs.fs(), number.context("an inode's number")?)?;
        users += u64::from(inode.xattr_block.is_some());
        blocks.extend(inode.xattr_block.map(|block| block.0));
    }
    drop(files);
    fs.unmount()?;
    Ok(Run {
        filesystem: String::new(),
        cell,
        variant,
        seconds: taken.as_secs_f64(),
        sets: work.sets,
        users,
        blocks: blocks.len() as u64,
    })
}

/// The files of each thread.
fn open_all(fs: &Ext4, cell: Cell) -> Result<Vec<Vec<Arc<dyn Inode>>>> {
    let root = fs.root()?;
    let open = |number: u64| -> Result<Arc<dyn Inode>> {
        let name = name_of(number);
        Ok(root.lookup(Name::new(name.as_bytes())?)?)
    };
    let of_thread = |thread: u64| {
        (thread * cell.files..(thread + 1) * cell.files)
            .map(open)
            .collect()
    };
    (0..cell.threads).map(of_thread).collect()
}

/// One corner of the grid, by one thread: for a count of instructions.
pub(crate) fn set_some_alone(variant: Variant, sets: u64) -> Result<()> {
    let cell = Cell {
        values: 10,
        files: 100,
        threads: 1,
    };
    let work = Work {
        sets,
        is_oversubscribed: false,
        rounds: 1,
    };
    run(&image("ext4", cell.all_files())?, cell, variant, work).map(drop)
}

/// Has each thread set attributes of its files, and gives how long all take.
fn set_all(
    files: &[Vec<Arc<dyn Inode>>],
    set: impl Fn(&mut Prng, &[Arc<dyn Inode>]) -> Result<()> + Sync,
) -> Result<Duration> {
    let set = &set;
    let start = measure::now();
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (seed, files) in files.iter().enumerate() {
            let work = move || {
                stay_on_processor(seed)?;
                set(&mut Prng::new(seed as u64), files)
            };
            running.push(thread::Builder::new().spawn_scoped(scope, work)?);
        }
        for thread in running {
            thread.join().map_err(|_| anyhow!("a thread failed"))??;
        }
        Ok(start.elapsed())
    })
}

/// Sets an attribute of each file.
fn set_each(random: &mut Prng, files: &[Arc<dyn Inode>], values: u64) -> Result<()> {
    files
        .iter()
        .try_for_each(|file| set_one(random, &**file, values))
}

/// Sets attributes of any files, so many times.
fn set_some(random: &mut Prng, files: &[Arc<dyn Inode>], values: u64, sets: u64) -> Result<()> {
    for _ in 0..sets {
        let file = &files[usize::try_from(random.below(files.len() as u64))?];
        set_one(random, &**file, values)?;
    }
    Ok(())
}

/// Sets the attribute of a file to any of the values.
fn set_one(random: &mut Prng, file: &dyn Inode, values: u64) -> Result<()> {
    let value = Prng::new(random.below(values)).bytes(VALUE_BYTES);
    Ok(file.set_xattr(&Context::root(), b"user.value", &value, XattrMode::Set)?)
}
