//! Two threads on one filesystem, each with its own names, in directories of their own and in one
//! that they share; against a model, after every remount.

use anyhow::{Context, Result, anyhow, ensure};
use platter_memfs::MemFs;
use platter_vfs::{CreateKind, Filesystem};

use super::image::ImageFiles;
use super::record::{is_same, mix, model};
use crate::subject::{Devices, Scene};
use crate::workload::{Generator, Mix, Operation, Session, Tree};

/// Space for what two threads keep.
const SIZE_KIB: u64 = 24 << 10;
/// Directories: one for each thread, and one for both.
const DIRS: [&str; 3] = ["first", "second", "shared"];

/// What the threads do.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// The filesystem.
    pub scene: &'static Scene,
    /// What is drawn.
    pub seed: u64,
    /// Mounts.
    pub rounds: usize,
    /// Operations of each thread in each mount.
    pub operations: usize,
    /// Whether the checker of Linux judges each unmounted image, besides ours.
    pub by_fsck: bool,
}

/// One thread's side.
struct Lane {
    model: MemFs,
    generator: Generator,
    now: Tree,
    /// What it did in this mount.
    listing: Vec<String>,
}

/// Runs the rounds, and demands that the filesystem is what the model is after each.
pub fn run_threads(threads: &Threads) -> Result<()> {
    let label = format!("{} seed {}", threads.scene.name, threads.seed);
    rounds(threads).with_context(|| label)
}

fn rounds(threads: &Threads) -> Result<()> {
    let scene = threads.scene;
    let devices = scene.devices_of(SIZE_KIB.max(scene.size_kib))?;
    let mut lanes = [("first", "f"), ("second", "s")].map(|(base, prefix)| {
        let mix = Mix {
            one_refused_in: 12,
            ..mix(scene, 25)
        };
        let seed = threads.seed.wrapping_mul(2) + u64::from(prefix == "s");
        Lane {
            model: model(),
            generator: Generator::new(seed, mix, &[base, "shared"], prefix),
            now: Tree::default(),
            listing: Vec::new(),
        }
    });
    let fs = scene.mount(&devices, threads.seed)?;
    for dir in DIRS {
        let create = Operation::Create(dir.to_owned(), CreateKind::Directory, 0o755);
        create.apply(&*fs)?;
        for lane in &mut lanes {
            create.apply(&lane.model)?;
            lane.now = Tree::read(&lane.model, None)?;
        }
    }
    fs.unmount()?;
    for round in 0..threads.rounds {
        let fs = scene.mount(&devices, threads.seed)?;
        for lane in &mut lanes {
            lane.listing.clear();
        }
        let ran = std::thread::scope(|scope| -> Result<()> {
            let run = |lane| scope.spawn(|| run_lane(lane, &*fs, threads.operations));
            let running: Vec<_> = lanes.iter_mut().map(run).collect();
            for lane in running {
                lane.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            Ok(())
        });
        let listing = || {
            let [first, second] = &lanes;
            [&first.listing[..], &second.listing].concat().join("\n")
        };
        ran.with_context(listing)?;
        let [first, second] = &lanes;
        let expected = first.now.clone().joined(second.now.clone());
        let equal =
            demand_equal(&*fs, &expected).with_context(|| format!("round {round}, mounted"));
        equal.with_context(listing)?;
        fs.unmount()?;
        drop(fs);
        judge(threads, &devices, &expected).with_context(|| format!("round {round}, after"))?;
    }
    Ok(())
}

fn judge(threads: &Threads, devices: &Devices, expected: &Tree) -> Result<()> {
    let found = threads.scene.check(devices)?;
    ensure!(found.is_empty(), "our check: {}", found.join("\n"));
    if threads.by_fsck {
        let found = ImageFiles::of(devices)?.complaints(threads.scene)?;
        ensure!(found.is_empty(), "fsck: {}", found.join("\n"));
    }
    let fs = threads.scene.mount(devices, threads.seed)?;
    demand_equal(&*fs, expected)?;
    fs.unmount()?;
    Ok(())
}

fn demand_equal(fs: &dyn Filesystem, expected: &Tree) -> Result<()> {
    let lines = Tree::read(fs, None)?.differences(expected);
    ensure!(lines.is_empty(), "{}", lines.join("\n"));
    Ok(())
}

fn run_lane(lane: &mut Lane, fs: &dyn Filesystem, count: usize) -> Result<()> {
    let (mut ours, mut theirs) = (Session::new(fs), Session::new(&lane.model));
    let mut closing = Vec::new().into_iter();
    for number in 0.. {
        if number == count {
            closing = lane.generator.close_all().into_iter();
        }
        let operation = if number < count {
            lane.generator.next(&lane.now)
        } else if let Some(operation) = closing.next() {
            operation
        } else {
            break;
        };
        let (done, expected) = (ours.apply(&operation), theirs.apply(&operation));
        lane.listing
            .push(format!("{number}: {operation:?}: {done:?}"));
        ensure!(
            is_same(&done, &expected),
            "{number}: {operation:?}: {done:?}, and the model {expected:?}"
        );
        lane.now = Tree::of_session(&theirs, Some(&lane.now))?;
    }
    Ok(())
}
