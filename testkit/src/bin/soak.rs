//! The long runs of power cuts, failing writes and concurrent use:
//! `soak {crash,faults,threads,edits} SEEDS [ext2|ext3|ext4]`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it tells of its progress")]

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use testkit::crash::{Breakage, Faults, Matrix, SCENES, Scene, Threads, run_threads};
use testkit::edits::Session;

/// Operations of one workload that is cut.
const OPERATIONS: usize = 60;
/// Edits of one session with the command line.
const EDITS: u32 = 500;
/// Where images of failures are kept.
const KEPT: &str = "target/soak-failures";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (kind, seeds, generation) = match arguments.as_slice() {
        [kind, seeds] => (kind, seeds, None),
        [kind, seeds, generation] => (kind, seeds, Some(generation)),
        _ => bail!("usage: soak {{crash,faults,threads,edits}} SEEDS [GENERATION or SCENE]"),
    };
    let seeds: u64 = seeds.parse().context("a number of seeds")?;
    let is_wanted = |scene: &&Scene| match generation {
        Some(word) if word.len() == 4 => scene.name.starts_with(&**word),
        Some(word) => scene.name == word,
        None => true,
    };
    for scene in SCENES.iter().filter(is_wanted) {
        match kind.as_str() {
            "crash" => crash(scene, seeds)?,
            "faults" => faults(scene, seeds)?,
            "threads" => threads(scene, seeds)?,
            "edits" => edits(scene, seeds)?,
            _ => bail!("what is {kind}?"),
        }
    }
    Ok(())
}

fn crash(scene: &'static Scene, seeds: u64) -> Result<()> {
    let matrix = Matrix {
        scene,
        seeds: 1000..1000 + seeds,
        operations: OPERATIONS,
        one_in: 1,
        e2fsck_one_in: 1,
        kernel_one_in: 40,
        breakage: Breakage::None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        keep: Some(PathBuf::from(KEPT)),
    };
    let counts = matrix.run()?;
    println!("crash {}, seeds {:?}: {counts}", scene.name, matrix.seeds);
    counts.demand_none()?;
    let broken = Matrix {
        seeds: 1000..1020,
        e2fsck_one_in: 0,
        kernel_one_in: 0,
        breakage: Breakage::DropsFlushes,
        keep: None,
        ..matrix
    };
    let counts = broken.run()?;
    println!("crash {} without flushes: {counts}", scene.name);
    ensure!(!counts.failures.is_empty(), "lost flushes were not noticed");
    Ok(())
}

fn faults(scene: &'static Scene, seeds: u64) -> Result<()> {
    for seed in 2000..2000 + seeds {
        let faults = Faults {
            scene,
            seed,
            operations: OPERATIONS,
            one_in: 1,
        };
        let counts = faults.run()?;
        println!("faults {} seed {seed}: {counts}", scene.name);
        counts.demand_none()?;
    }
    Ok(())
}

fn threads(scene: &'static Scene, seeds: u64) -> Result<()> {
    // A seed takes a fraction of what a workload of cuts does.
    let seeds = 3000..3000 + seeds * 50;
    for seed in seeds.clone() {
        run_threads(&Threads {
            scene,
            seed,
            rounds: 4,
            operations: 150,
            by_e2fsck: true,
        })?;
    }
    println!(
        "threads {}, seeds {seeds:?}: equal after every remount",
        scene.name
    );
    Ok(())
}

fn edits(scene: &'static Scene, seeds: u64) -> Result<()> {
    // A session takes as long as some twenty workloads that are cut.
    for seed in 4000..4000 + seeds.div_ceil(20) {
        let session = Session {
            options: scene.options,
            seed,
            edits: EDITS,
            kill_one_in: 3,
        };
        let counts = session.run()?;
        println!("edits {} seed {seed}: {counts}", scene.name);
    }
    Ok(())
}
