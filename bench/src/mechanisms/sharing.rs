//! Attributes whose blocks files share: the grid of values, files and processes that Linux' rewrite of
//! its cache was measured with, by every design of the cache, and without any.
//!
//! Each thread has files of its own and sets one attribute of theirs, its value drawn from a pool;
//! values have 64 bytes, and inodes have no room for them.

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

use crate::measure::{self, median};
use crate::record::Extent;

/// Sets of each thread that the published figures are about.
pub(crate) const SETS: u64 = 50_000;
/// Sets of all threads together, where there are more of them than processors.
const SETS_OVERSUBSCRIBED: u64 = 20_000;
const SETS_QUICK: u64 = 300;
/// Runs of each cell, as many as were published.
const ROUNDS: usize = 5;
const VALUE_BYTES: usize = 64;
const CACHE_BYTES: u64 = 256 << 20;
/// Room for an empty filesystem with its journal, and for each file with a block of its own.
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

/// One run of a cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) filesystem: String,
    pub(crate) cell: Cell,
    pub(crate) variant: Variant,
    pub(crate) seconds: f64,
    /// Of each thread.
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
            Extent::Quick => (&[10, 1000], &[10], &[1, 2]),
            Extent::Full => (
                &[10, 100, 1000, 10_000, 100_000],
                &[10, 100, 1000],
                &[1, 2, 4, 16],
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

    /// How often each thread sets an attribute.
    fn sets(self, extent: Extent) -> Result<u64> {
        let processors = thread::available_parallelism()?.get() as u64;
        Ok(match extent {
            Extent::Quick => SETS_QUICK,
            Extent::Full if self.threads > processors => SETS_OVERSUBSCRIBED / self.threads,
            Extent::Full => SETS,
        })
    }
}

impl Run {
    /// What the number of sets takes that the published figures are about.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn seconds_of_all(&self) -> f64 {
        self.seconds * SETS as f64 / self.sets as f64
    }

    /// Files for each block.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn factor(&self) -> f64 {
        self.users as f64 / self.blocks.max(1) as f64
    }
}

/// Measures all cells of the grid.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Vec<Run>> {
    let rounds = rounds.unwrap_or(match extent {
        Extent::Quick => 1,
        Extent::Full => ROUNDS,
    });
    let mut runs = Vec::new();
    for kind in ["ext4", "ext2"] {
        let mut images: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for cell in Cell::all(extent) {
            let files = cell.files * cell.threads;
            let image = match images.entry(files) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(image(kind, files)?),
            };
            let of_cell = alternate(kind, image, cell, cell.sets(extent)?, rounds)?;
            show(cell, &of_cell);
            check(extent, &of_cell)?;
            runs.extend(of_cell);
        }
    }
    Ok(runs)
}

/// All variants in turns.
fn alternate(kind: &str, image: &[u8], cell: Cell, sets: u64, rounds: usize) -> Result<Vec<Run>> {
    let mut variants = Variant::ALL;
    let mut runs = Vec::new();
    for _ in 0..rounds {
        for variant in variants {
            let mut run = run(image, cell, variant, sets)?;
            kind.clone_into(&mut run.filesystem);
            runs.push(run);
        }
        variants.reverse();
    }
    Ok(runs)
}

/// However busy the machine: as many blocks as there are values, or files, and one for each file
/// where nothing is shared.
fn check(extent: Extent, runs: &[Run]) -> Result<()> {
    if extent == Extent::Full {
        return Ok(());
    }
    for run in runs {
        let holds = if run.variant == Variant::Disabled {
            run.blocks == run.users
        } else {
            run.blocks <= run.users.min(run.cell.values)
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

/// An empty filesystem whose inodes have no room for attributes.
fn image(kind: &str, files: u64) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("image");
    let inodes = (files + 1000).to_string();
    let options = ["-t", kind, "-b", "4096", "-I", "128", "-N", &inodes];
    mke2fs::make(&path, IMAGE_KIB + files * FILE_KIB, &options, None)?;
    Ok(std::fs::read(path)?)
}

fn run(image: &[u8], cell: Cell, variant: Variant, sets: u64) -> Result<Run> {
    let device = Arc::new(MemoryDevice::new("memory", image.to_vec()));
    let options = MountOptions {
        read_only: false,
        mbcache: variant.design(),
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
    let fs = Ext4::mount(device, &options, budget, Arc::new(SystemClock::new()))?;
    let mut files = Vec::new();
    for thread in 0..cell.threads {
        let mine: Result<Vec<_>> = (0..cell.files)
            .map(|file| create(&fs, &format!("{thread}.{file}")))
            .collect();
        files.push(mine?);
    }
    let taken = set_all(&files, cell, sets)?;
    let mut users = 0;
    let mut blocks = BTreeSet::new();
    for file in files.iter().flatten() {
        let number = u32::try_from(file.id().number).ok().and_then(InodeNr::new);
        let inode = platter_ext4::inode::read(fs.volume(), number.context("an inode's number")?)?;
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
        sets,
        users,
        blocks: blocks.len() as u64,
    })
}

/// One corner of the grid, by one thread: for a count of instructions.
pub(crate) fn set_some_alone(variant: Variant, sets: u64) -> Result<()> {
    let cell = Cell {
        values: 10,
        files: 100,
        threads: 1,
    };
    run(&image("ext4", cell.files)?, cell, variant, sets).map(drop)
}

fn create(fs: &Ext4, name: &str) -> Result<Arc<dyn Inode>> {
    let root = fs.root()?;
    let name = Name::new(name.as_bytes())?;
    Ok(root.create(&Context::root(), name, CreateKind::Regular, 0o644)?)
}

fn set_all(files: &[Vec<Arc<dyn Inode>>], cell: Cell, sets: u64) -> Result<Duration> {
    let start = measure::now();
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (seed, files) in files.iter().enumerate() {
            let work = move || set_some(files, cell.values, sets, seed as u64);
            running.push(thread::Builder::new().spawn_scoped(scope, work)?);
        }
        for thread in running {
            thread.join().map_err(|_| anyhow!("a thread failed"))??;
        }
        Ok(start.elapsed())
    })
}

fn set_some(files: &[Arc<dyn Inode>], values: u64, sets: u64, seed: u64) -> Result<()> {
    let mut random = Prng::new(seed);
    let context = Context::root();
    for _ in 0..sets {
        let file = &files[usize::try_from(random.below(files.len() as u64))?];
        let value = Prng::new(random.below(values)).bytes(VALUE_BYTES);
        file.set_xattr(&context, b"user.value", &value, XattrMode::Set)?;
    }
    Ok(())
}
