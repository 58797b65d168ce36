//! Trees that two threads make and remove on the driver of XFS, built with each layout of its mount object, with the events
//! counted.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use platter_block::MemoryDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Context, CreateKind, Filesystem, Inode, Name, SystemClock};
use platter_xfs::xfs_mount::{Layout, MountLayout};
use platter_xfs::{MountOptions, Xfs};
use serde::{Deserialize, Serialize};
use testkit::oracle::xfs;

use super::mount::LAYOUTS;
use crate::child;
use crate::measure::now;
use crate::record::Extent;

/// The word that a process begins with which is for one run.
pub(crate) const PART: &str = "removal";
/// Threads that make and remove trees.
pub(crate) const THREADS: usize = 2;
const IMAGE_KIB: u64 = 1536 << 10;
const IMAGE_KIB_QUICK: u64 = 320 << 10;
const CACHE_BYTES: u64 = 256 << 20;
/// Files that each thread makes and removes, in directories of so many.
const FILES_QUICK: usize = 200;
const FILES: usize = 250_000;
const DIR_FILES: usize = 500;

/// Trees made and removed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trees {
    /// That the driver's mount object has.
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

/// A program with a driver of one layout.
struct Built {
    layout: &'static str,
    /// This one, where there is none.
    path: Option<PathBuf>,
}

/// Measures all layouts that there is a program of, in turns; of a quick run, its own.
pub(super) fn measure(extent: Extent, rounds: usize) -> Result<Vec<Trees>> {
    let mut all = Vec::new();
    let mut programs = programs(extent)?;
    for _ in 0..rounds {
        for program in &programs {
            let run = program.run(extent)?;
            show(&run);
            all.push(run);
        }
        programs.reverse();
    }
    Ok(all)
}

/// Demands a program of each layout.
pub(super) fn demand_programs(extent: Extent) -> Result<()> {
    programs(extent).map(drop)
}

/// Programs are built next to each other, with the name of the layout at the end where it is not the product's.
fn programs(extent: Extent) -> Result<Vec<Built>> {
    let own = std::env::current_exe()?;
    let name = own.file_name().and_then(|name| name.to_str());
    let name = name.context("the program has a name")?;
    let built = |layout: &'static str| Built {
        layout,
        path: (layout != Layout::NAME).then(|| own.with_file_name(format!("{name}-{layout}"))),
    };
    let mut all: Vec<Built> = LAYOUTS.map(built).into();
    match extent {
        Extent::Quick => all.retain(|program| program.path.is_none()),
        Extent::Full => {
            for path in all.iter().filter_map(|program| program.path.as_ref()) {
                ensure!(
                    path.exists(),
                    "{} is not built: cargo xtask bench does",
                    path.display()
                );
            }
        }
    }
    Ok(all)
}

impl Built {
    fn run(&self, extent: Extent) -> Result<Trees> {
        let run: Trees = child::run_by(self.path.as_deref(), PART, &extent)?;
        ensure!(
            run.layout == self.layout,
            "a driver has the layout {}",
            run.layout
        );
        Ok(run)
    }
}

fn show(run: &Trees) {
    println!(
        "  {} files by {THREADS} threads, {}: made in {:.2} s, removed in {:.2} s; {} transactions, {} checks, {} begun \
         again",
        run.files,
        run.layout,
        run.create_seconds,
        run.remove_seconds,
        run.transactions,
        run.checks,
        run.conflicts
    );
}

/// The process' part.
pub(crate) fn run(extent: &str) -> Result<()> {
    let extent: Extent = serde_json::from_str(extent)?;
    let files = match extent {
        Extent::Quick => FILES_QUICK,
        Extent::Full => FILES,
    };
    println!("{}", serde_json::to_string(&trees(make(extent)?, files)?)?);
    Ok(())
}

/// The bytes of an image.
pub(super) fn make(extent: Extent) -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    let kib = match extent {
        Extent::Quick => IMAGE_KIB_QUICK,
        Extent::Full => IMAGE_KIB,
    };
    xfs::make(&image, kib, &[])?;
    Ok(std::fs::read(image)?)
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
    let start = now();
    on_each(&tops, |top| make_tree(top, files))?;
    let create_seconds = start.elapsed().as_secs_f64();
    let log = filesystem.context().log();
    let changes = || log.map_or(0, platter_xfs::txn::Log::changes);
    let (transactions, start) = (changes(), now());
    let checks = on_each(&tops, |top| {
        let before = platter_xfs::xfs_mount::checks_of_thread();
        remove_tree(top, files)?;
        Ok(platter_xfs::xfs_mount::checks_of_thread() - before)
    })?;
    let remove_seconds = start.elapsed().as_secs_f64();
    let run = Trees {
        layout: Layout::NAME.to_owned(),
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
