//! The mount object of XFS: one thread checks inode numbers by it while another begins and ends transactions, in its
//! three layouts; and trees that are made and removed by two threads, with the events counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use platter_block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Context, CreateKind, Filesystem, Inode, Name, SystemClock};
use platter_xfs::ondisk::{InodeNr, Superblock};
use platter_xfs::xfs_mount::{Counterless, MountLayout, Packed, Separated, XfsMount};
use platter_xfs::{MountOptions, Xfs, superblock};
use serde::{Deserialize, Serialize};
use testkit::oracle::xfs;

use crate::measure::{self, float, median, stay_on_processor};
use crate::record::Extent;

const CHECKS_QUICK: u64 = 10_000;
const CHECKS: u64 = 20_000_000;
const ROUNDS: usize = 10;
/// What the writer does between two transactions: so many turns of nothing.
const PAUSES: [u32; 4] = [0, 16, 128, 1024];
/// Threads that make and remove trees.
pub(crate) const THREADS: usize = 2;
const IMAGE_KIB: u64 = 640 << 10;
const CACHE_BYTES: u64 = 256 << 20;
/// Files that each thread makes and removes, in directories of so many.
const FILES_QUICK: usize = 200;
const FILES: usize = 100_000;
const DIR_FILES: usize = 500;

/// One run of the sweep.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) layout: String,
    pub(crate) pause: u32,
    pub(crate) ns_per_check: f64,
    pub(crate) transactions_per_second: f64,
}

/// Trees made and removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trees {
    /// Of the mount object of the driver.
    pub(crate) layout: String,
    pub(crate) files: usize,
    pub(crate) create_seconds: f64,
    pub(crate) remove_seconds: f64,
    /// Changes that were committed while trees were removed.
    pub(crate) transactions: u64,
    /// Inode numbers that were checked meanwhile.
    pub(crate) checks: u64,
    /// Changes that were begun again since another one had a group.
    pub(crate) conflicts: u64,
}

/// What was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) sweep: Vec<Sweep>,
    pub(crate) trees: Vec<Trees>,
}

/// Runs the sweep of a layout: so many checks, concurrently with transactions with a pause.
type SweepOf = fn(&Superblock, u32, u64) -> Result<Sweep>;

/// The layouts by name, in the order of their tables.
pub(crate) const LAYOUTS: [&str; 3] = [Packed::NAME, Separated::NAME, Counterless::NAME];

/// The pauses that are measured, from the most transactions to the fewest.
pub(crate) const fn pauses() -> [u32; 4] {
    PAUSES
}

/// Measures all layouts, in turns, and trees.
pub(crate) fn measure(extent: Extent, rounds: Option<usize>) -> Result<Measured> {
    let (checks, files, usual) = match extent {
        Extent::Quick => (CHECKS_QUICK, FILES_QUICK, 1),
        Extent::Full => (CHECKS, FILES, ROUNDS),
    };
    let image = make()?;
    let superblock = superblock::read(&MemoryDevice::new("image", image.clone()))?;
    let mut measured = Measured::default();
    let mut layouts: [SweepOf; 3] = [sweep::<Packed>, sweep::<Separated>, sweep::<Counterless>];
    for pause in PAUSES {
        for _ in 0..rounds.unwrap_or(usual) {
            for layout in layouts {
                measured.sweep.push(layout(&superblock, pause, checks)?);
            }
            layouts.reverse();
        }
        show(pause, &measured.sweep);
    }
    for _ in 0..rounds.unwrap_or(usual) {
        let run = trees(image.clone(), files)?;
        println!(
            "  {} files by {THREADS} threads, {}: made in {:.2} s, removed in {:.2} s; {} transactions, {} checks, \
             {} begun again",
            run.files,
            run.layout,
            run.create_seconds,
            run.remove_seconds,
            run.transactions,
            run.checks,
            run.conflicts
        );
        measured.trees.push(run);
    }
    Ok(measured)
}

fn show(pause: u32, runs: &[Sweep]) {
    print!("  {pause:>5} turns between transactions:");
    for layout in LAYOUTS {
        let of_layout = |run: &&Sweep| run.pause == pause && run.layout == layout;
        let taken: Vec<f64> = runs
            .iter()
            .filter(of_layout)
            .map(|run| run.ns_per_check)
            .collect();
        print!(" {layout} {:.2} ns;", median(&taken).value);
    }
    println!();
}

/// The bytes of an image.
fn make() -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    xfs::make(&image, IMAGE_KIB, &[])?;
    Ok(std::fs::read(image)?)
}

/// One thread begins transactions at the mount object, the other checks inode numbers.
fn sweep<L: MountLayout>(superblock: &Superblock, pause: u32, checks: u64) -> Result<Sweep> {
    let mount = Box::new(XfsMount::<L>::new(superblock));
    let first = superblock.root_inode.get();
    let numbers: Vec<_> = (first..first + 64).filter_map(InodeNr::new).collect();
    ensure!(numbers.len() == 64, "inode numbers are not zero");
    let (begun, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (elapsed, transactions) = thread::scope(|scope| {
        let write = || -> Result<()> {
            let is_placed = stay_on_processor(1);
            is_done.fetch_or(is_placed.is_err(), Ordering::Relaxed);
            let mut count = 0_u64;
            while !is_done.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    drop(mount.begin());
                    (0..pause).for_each(|_| std::hint::spin_loop());
                }
                count += 64;
                begun.store(count, Ordering::Relaxed);
            }
            is_placed
        };
        let check = || -> Result<(Duration, u64)> {
            stay_on_processor(0)?;
            while begun.load(Ordering::Relaxed) == 0 && !is_done.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let (before, start) = (begun.load(Ordering::Relaxed), measure::now());
            let mut found = 0_u64;
            for _ in 0..checks / 64 {
                for &number in &numbers {
                    found += u64::from(mount.locate_inode(number).is_some());
                }
            }
            let elapsed = start.elapsed();
            ensure!(found == checks / 64 * 64, "an inode number was refused");
            Ok((elapsed, begun.load(Ordering::Relaxed) - before))
        };
        let writer = thread::Builder::new().spawn_scoped(scope, write)?;
        let checker = thread::Builder::new().spawn_scoped(scope, check)?;
        let taken = checker.join();
        is_done.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow!("a thread failed"))??;
        taken.map_err(|_| anyhow!("a thread failed"))?
    })?;
    let seconds = elapsed.as_secs_f64();
    Ok(Sweep {
        layout: L::NAME.to_owned(),
        pause,
        ns_per_check: seconds * 1e9 / float(checks / 64 * 64),
        transactions_per_second: float(transactions) / seconds,
    })
}

fn name(text: &str) -> Result<Name<'_>> {
    Name::new(text.as_bytes()).map_err(|error| anyhow!("{text}: {error:?}"))
}

/// Each thread makes a tree of empty files; then each removes its own.
fn trees(image: Vec<u8>, files: usize) -> Result<Trees> {
    let device = Arc::new(MemoryDevice::new("disk", image));
    let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
    let (options, clock) = (MountOptions::default(), Arc::new(SystemClock::new()));
    let filesystem = Xfs::mount_writable(device, &options, budget, clock)?;
    let root = filesystem.root()?;
    let context = Context::root();
    let mut tops = Vec::new();
    for thread in 0..THREADS {
        let text = format!("tree-{thread}");
        tops.push(root.create(&context, name(&text)?, CreateKind::Directory, 0o755)?);
    }
    let start = measure::now();
    on_each(&tops, |top| make_tree(top, files))?;
    let create_seconds = start.elapsed().as_secs_f64();
    let log = filesystem.context().log();
    let changes = || log.map_or(0, platter_xfs::txn::Log::changes);
    let (transactions, start) = (changes(), measure::now());
    let checks = on_each(&tops, |top| {
        let before = platter_xfs::xfs_mount::checks_of_thread();
        remove_tree(top, files)?;
        Ok(platter_xfs::xfs_mount::checks_of_thread() - before)
    })?;
    let remove_seconds = start.elapsed().as_secs_f64();
    let run = Trees {
        layout: platter_xfs::xfs_mount::Layout::NAME.to_owned(),
        files: files * THREADS,
        create_seconds,
        remove_seconds,
        transactions: changes().wrapping_sub(transactions).into(),
        checks: checks.iter().sum(),
        conflicts: filesystem.context().space().conflicts(),
    };
    drop((tops, root));
    filesystem.unmount()?;
    Ok(run)
}

fn on_each<R: Send>(
    tops: &[Arc<dyn Inode>],
    work: impl Fn(&dyn Inode) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = tops
            .iter()
            .map(|top| scope.spawn(move || work(&**top)))
            .collect();
        let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
        ended
            .map(|done| done.map_err(|_| anyhow!("a thread failed"))?)
            .collect()
    })
}

fn make_tree(top: &dyn Inode, files: usize) -> Result<()> {
    let context = Context::root();
    for first in (0..files).step_by(DIR_FILES) {
        let text = format!("subdir-{first}");
        let dir = top.create(&context, name(&text)?, CreateKind::Directory, 0o755)?;
        for file in first..files.min(first + DIR_FILES) {
            let text = format!("file-{file:07}");
            dir.create(&context, name(&text)?, CreateKind::Regular, 0o644)?;
        }
    }
    Ok(())
}

fn remove_tree(top: &dyn Inode, files: usize) -> Result<()> {
    let context = Context::root();
    for first in (0..files).step_by(DIR_FILES) {
        let text = format!("subdir-{first}");
        let dir = top.lookup(name(&text)?)?;
        for file in first..files.min(first + DIR_FILES) {
            let text = format!("file-{file:07}");
            dir.unlink(&context, name(&text)?)?;
        }
        top.remove_dir(&context, name(&text)?)?;
    }
    Ok(())
}
