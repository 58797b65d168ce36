//! Two threads on one filesystem, each with its own names, in directories of their own and in one
//! that they share; against a model, after every remount.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use platter_block::{BlockDevice, MemoryDevice};
use platter_vfs::memory::MemFs;
use platter_vfs::{CreateKind, Error, Filesystem};

use super::Scene;
use super::image::ImageFile;
use super::record::model;
use crate::workload::{Generator, Mix, Operation, Tree};

/// Room for what two threads keep.
const SIZE_KIB: u64 = 24 << 10;
/// Directories: one for each thread, and one for both.
const FOLDERS: [&str; 3] = ["first", "second", "shared"];

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
    /// Whether `e2fsck` judges each unmounted image, besides the check.
    pub by_e2fsck: bool,
}

/// One thread's side.
struct Lane {
    model: MemFs,
    generator: Generator,
    now: Tree,
}

/// Runs the rounds, and demands that the filesystem is what the model is after each.
pub fn run_threads(threads: &Threads) -> Result<()> {
    let label = format!("{} seed {}", threads.scene.name, threads.seed);
    rounds(threads).with_context(|| label)
}

fn rounds(threads: &Threads) -> Result<()> {
    let scene = threads.scene;
    let image = scene.image_of(SIZE_KIB)?;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("image", image));
    let mut lanes = [("first", "f"), ("second", "s")].map(|(home, prefix)| {
        let mix = Mix {
            one_sync_in: 25,
            shift_bytes: if scene.takes_space() { 4096 } else { 0 },
            one_refused_in: 12,
            fallocate: scene.takes_space(),
            names: true,
        };
        let seed = threads.seed.wrapping_mul(2) + u64::from(prefix == "s");
        Lane {
            model: model(),
            generator: Generator::new(seed, mix, &[home, "shared"], prefix),
            now: Tree::default(),
        }
    });
    let fs = scene.mount(Arc::clone(&device), threads.seed)?;
    for folder in FOLDERS {
        let create = Operation::Create(folder.to_owned(), CreateKind::Directory, 0o755);
        create.apply(&*fs)?;
        for lane in &mut lanes {
            create.apply(&lane.model)?;
            lane.now = Tree::read(&lane.model, None)?;
        }
    }
    fs.unmount()?;
    for round in 0..threads.rounds {
        let fs = scene.mount(Arc::clone(&device), threads.seed)?;
        std::thread::scope(|scope| -> Result<()> {
            let run = |lane| scope.spawn(|| run_lane(lane, &*fs, threads.operations));
            let running: Vec<_> = lanes.iter_mut().map(run).collect();
            for lane in running {
                lane.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            Ok(())
        })?;
        let [first, second] = &lanes;
        let expected = first.now.clone().joined(second.now.clone());
        demand_equal(&*fs, &expected).with_context(|| format!("round {round}, mounted"))?;
        fs.unmount()?;
        drop(fs);
        judge(threads, &device, &expected).with_context(|| format!("round {round}, after"))?;
    }
    Ok(())
}

fn judge(threads: &Threads, device: &Arc<dyn BlockDevice>, expected: &Tree) -> Result<()> {
    let found = threads.scene.check(Arc::clone(device))?;
    ensure!(found.is_empty(), "our check: {}", found.join("\n"));
    if threads.by_e2fsck {
        let found = ImageFile::of(&**device)?.complaints()?;
        ensure!(found.is_empty(), "e2fsck: {}", found.join("\n"));
    }
    let fs = threads.scene.mount(Arc::clone(device), threads.seed)?;
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
    for number in 0..count {
        let operation = lane.generator.next(&lane.now);
        let ours = operation.apply(fs);
        let expected = operation.apply(&lane.model);
        let is_same = match (&ours, &expected) {
            (Ok(()), Ok(())) => true,
            (Err(Error::Condition(ours)), Err(Error::Condition(expected))) => ours == expected,
            _ => false,
        };
        ensure!(
            is_same,
            "{number}: {operation:?}: {ours:?}, and the model {expected:?}"
        );
        lane.now = Tree::read(&lane.model, Some(&lane.now))?;
    }
    Ok(())
}
