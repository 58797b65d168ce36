//! Setting attributes with blocks that files share, and without: how many blocks there are in the end,
//! what the cache did, and how many sets there are in a second.
//!
//! Each thread has files of its own and sets one attribute of theirs, its value drawn from a pool;
//! values have 64 bytes, and inodes have no room for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use platter::block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_ext4::ondisk::InodeNr;
use platter_ext4::{Ext4, MountOptions, SharingStatistics};
use platter_vfs::{Context, CreateKind, Filesystem, Inode, Name, SystemClock, XattrMode};
use serde::Serialize;
use testkit::oracle::mke2fs;
use testkit::prng::Prng;

use crate::abba::{self, Times};
use crate::record;
use crate::record::Keep;

/// Sets of one thread.
const SETS: u64 = 5000;
/// Runs of each way, times two.
const ROUNDS: usize = 5;
const VALUE_BYTES: usize = 64;
const WAYS: [&str; 2] = ["mbcache", "no_mbcache"];
const CACHE_BYTES: u64 = 256 << 20;
const IMAGE_KIB: u64 = 64 << 10;

/// What is set where.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cell {
    kind: &'static str,
    values: u64,
    files: u64,
    threads: u64,
}

/// What one way of a cell came to.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Outcome {
    blocks: usize,
    hits: u64,
    misses: u64,
    shared: u64,
    inserts: u64,
    deletes: u64,
    reclaimed: u64,
}

#[derive(Serialize)]
struct Row {
    cell: Cell,
    outcomes: [Outcome; 2],
    times: [Times; 2],
    sets_per_second: [f64; 2],
}

pub(crate) fn run(keep: Keep) -> Result<()> {
    let mut rows = Vec::new();
    println!(
        "{SETS} sets a thread on a device in memory, {} runs each, medians with 95 % intervals:",
        2 * ROUNDS
    );
    for kind in ["ext2", "ext4"] {
        let image = image(kind)?;
        for (values, files) in [(10, 10), (10, 100), (1000, 100), (100_000, 100)] {
            for threads in [1, 2] {
                let cell = Cell {
                    kind,
                    values,
                    files,
                    threads,
                };
                rows.push(measure(&image, cell)?);
            }
        }
    }
    record::keep(keep, "m4", &rows)
}

fn measure(image: &[u8], cell: Cell) -> Result<Row> {
    let mut outcomes = [Outcome::default(); 2];
    let times = abba::alternate(WAYS, ROUNDS, |way| {
        let (taken, outcome) = set_all(image, cell, way == 0)?;
        outcomes[way] = outcome;
        Ok(taken)
    })?;
    println!(
        "{}, {} values, {} files a thread, {} threads",
        cell.kind, cell.values, cell.files, cell.threads
    );
    let rate = |seconds: f64| float(SETS * cell.threads) / seconds;
    for (times, outcome) in times.iter().zip(&outcomes) {
        let (low, high) = times.interval();
        println!(
            "{:>10.0} sets/s ({:.0} to {:.0}) {:>5} blocks  {}  {outcome}",
            rate(times.median()),
            rate(high),
            rate(low),
            outcome.blocks,
            times.name,
        );
    }
    let sets_per_second = [rate(times[0].median()), rate(times[1].median())];
    Ok(Row {
        cell,
        outcomes,
        times,
        sets_per_second,
    })
}

/// An empty filesystem whose inodes have no room for attributes.
fn image(kind: &str) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("image");
    let options = ["-t", kind, "-b", "4096", "-I", "128", "-N", "4096"];
    mke2fs::make(&path, IMAGE_KIB, &options, None)?;
    Ok(std::fs::read(path)?)
}

fn set_all(image: &[u8], cell: Cell, mbcache: bool) -> Result<(Duration, Outcome)> {
    let device = Arc::new(MemoryDevice::new("memory", image.to_vec()));
    let options = MountOptions {
        read_only: false,
        mbcache,
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
    let (taken, ()) = abba::time(|| {
        thread::scope(|scope| {
            let mut running = Vec::new();
            for (seed, files) in files.iter().enumerate() {
                let sets = move || set_some(files, cell.values, seed as u64);
                running.push(thread::Builder::new().spawn_scoped(scope, sets)?);
            }
            for thread in running {
                thread.join().map_err(|_| anyhow!("a thread failed"))??;
            }
            Ok(())
        })
    })?;
    let mut blocks = BTreeSet::new();
    for file in files.iter().flatten() {
        let number = u32::try_from(file.id().number).ok().and_then(InodeNr::new);
        let inode = platter_ext4::inode::read(fs.volume(), number.context("an inode's number")?)?;
        blocks.extend(inode.xattr_block.map(|block| block.0));
    }
    let outcome = Outcome::new(blocks.len(), fs.sharing().unwrap_or_default());
    drop(files);
    fs.unmount()?;
    Ok((taken, outcome))
}

fn create(fs: &Ext4, name: &str) -> Result<Arc<dyn Inode>> {
    let root = fs.root()?;
    let name = Name::new(name.as_bytes())?;
    Ok(root.create(&Context::root(), name, CreateKind::Regular, 0o644)?)
}

fn set_some(files: &[Arc<dyn Inode>], values: u64, seed: u64) -> Result<()> {
    let mut random = Prng::new(seed);
    let context = Context::root();
    for _ in 0..SETS {
        let file = &files[usize::try_from(random.below(files.len() as u64))?];
        let value = Prng::new(random.below(values)).bytes(VALUE_BYTES);
        file.set_xattr(&context, b"user.value", &value, XattrMode::Set)?;
    }
    Ok(())
}

impl Outcome {
    fn new(blocks: usize, statistics: SharingStatistics) -> Self {
        let cache = statistics.blocks;
        Self {
            blocks,
            hits: cache.hits,
            misses: cache.misses,
            shared: statistics.shared_blocks,
            inserts: cache.inserts,
            deletes: cache.deletes,
            reclaimed: cache.reclaimed,
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.hits + self.misses == 0 {
            return Ok(());
        }
        write!(
            out,
            "{} hits, {} misses, {} shared, {} inserted, {} deleted, {} reclaimed",
            self.hits, self.misses, self.shared, self.inserts, self.deletes, self.reclaimed
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}
