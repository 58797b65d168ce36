//! Many dirty logs: every shape with every workload, cut at points of what the kernel wrote.
//! `PLATTER_XFS_LOGS` says how many; a run by hand takes 500.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use platter_block::sim::CrashOptions;
use platter_xfs::ondisk::log::ItemKind;
use testkit::prng::Prng;

use super::scene::{Scene, Shape, Work};
use super::shapes::{EXCHANGE, SHAPES};
use super::{chains, listing, scene, work};

/// Logs in the normal tests.
const LOGS: usize = 12;
/// Logs that one recorded workload is cut into at least.
const CUTS: usize = 4;
/// Recordings of a long run.
const RECORDINGS: usize = 50;

/// States of the device while a mount for writing finishes intents, which are recovered again.
const CUTS_OF_RECOVERY: usize = 2;

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    logs: usize,
    /// Open intents by type.
    intents: BTreeMap<String, usize>,
    inodes_freed: u64,
    /// Logs whose intents a mount for writing finished, and states of the device on the way there.
    finished: usize,
    cuts: usize,
    /// Whether each log is recovered by a mount for writing as well.
    mounts: bool,
    /// Logs that the kernel refuses to recover.
    refused: usize,
    differences: Vec<String>,
}

fn works(shape: &Shape) -> Vec<Work> {
    let mut works: Vec<Work> = vec![
        chains::truncations,
        chains::names,
        chains::unlinked,
        work::rounds,
    ];
    if shape.options.concat().contains("reflink=1") {
        works.extend([chains::clones as Work, work::clones]);
    }
    if shape.exchange {
        works.push(chains::exchanges);
    }
    works
}

/// Points of what the kernel wrote: half of them after a write to the log, with all before it on the disk, and
/// half with some of the writes that no flush followed.
fn scenes(
    shape: &Shape,
    work: Work,
    seed: u64,
    most: usize,
    visit: &mut dyn FnMut(Scene, &str),
) -> Result<()> {
    let made = Scene::make(shape)?;
    let recording = made.recorded(work)?;
    let positions = made.log_writes(&recording)?;
    let options = CrashOptions {
        seed,
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let states: Vec<_> = recording.crash_states(options).collect::<Result<_, _>>()?;
    ensure!(
        !states.is_empty() && !positions.is_empty(),
        "nothing was recorded"
    );
    let mut numbers = Prng::new(seed);
    let mut visited = 0;
    for round in 0..most * 4 {
        let (scene, what) = if round % 2 == 0 {
            // The first writes are those of a filesystem that is filled.
            let first = positions.len() / 3;
            let index = first + usize::try_from(numbers.below((positions.len() - first) as u64))?;
            let at = positions[index];
            let scene = Scene::of_position(shape, &recording, at)?;
            (scene, format!("after write {index} of the log"))
        } else {
            let index = usize::try_from(numbers.below(states.len() as u64))?;
            let scene = Scene::of_state(shape, &states[index])?;
            (scene, format!("state {index}"))
        };
        if scene.is_dirty()? {
            visit(scene, &what);
            visited += 1;
        }
        if visited == most {
            return Ok(());
        }
    }
    Ok(())
}

fn compare(count: usize) -> Result<Tally> {
    let shapes: Vec<&Shape> = SHAPES.iter().chain([&EXCHANGE]).collect();
    let mut tally = Tally {
        mounts: count > LOGS,
        ..Tally::default()
    };
    for round in 0_usize.. {
        // The shapes with the most features come first.
        let shape = shapes[shapes.len() - 1 - round % shapes.len()];
        let works = works(shape);
        let turn = round / shapes.len();
        let work = works[works.len() - 1 - turn % works.len()];
        let most = CUTS.max(count / RECORDINGS).min(count - tally.logs);
        let mut visit = |scene: Scene, what: &str| {
            if let Err(error) = compare_one(&scene, &mut tally) {
                let kept = scene.keep();
                tally.differences.push(format!(
                    "round {round}, {}, {what}: {error:#}; kept in {}",
                    shape.name,
                    kept.display()
                ));
            }
        };
        scenes(shape, work, round as u64, most, &mut visit)
            .with_context(|| format!("round {round}, {}", shape.name))?;
        if tally.logs >= count {
            break;
        }
    }
    Ok(tally)
}

fn compare_one(scene: &Scene, tally: &mut Tally) -> Result<()> {
    tally.logs += 1;
    // A state that the kernel cannot recover either has no reference.
    let Ok(theirs) = scene.recovered_by_the_kernel() else {
        tally.refused += 1;
        return Ok(());
    };
    let (mut ours, report) = scene.recovered()?;
    tally.inodes_freed += report.inodes_freed;
    for intent in &report.log.open_intents {
        let kind = format!("{:?}", intent.kind());
        *tally.intents.entry(kind).or_default() += 1;
    }
    let intents = report.log.open_intents.iter();
    // The last step of an exchange has only changes of mappings left.
    let moves_mappings = intents
        .map(platter_xfs::ondisk::log::Intent::kind)
        .any(|kind| matches!(kind, ItemKind::Exchange | ItemKind::Bmap));
    if moves_mappings {
        ours = ours.with_tree_blocks_of(&theirs);
    }
    listing::compare(&ours, &theirs)?;
    if !tally.mounts {
        return Ok(());
    }
    let (mut mounted, recording) = scene.mounted_by_platter()?;
    if moves_mappings {
        mounted = mounted.with_tree_blocks_of(&theirs);
    }
    listing::compare(&mounted, &theirs).context("mounted for writing")?;
    if report.log.open_intents.is_empty() {
        return Ok(());
    }
    tally.finished += 1;
    for cut in 1..=CUTS_OF_RECOVERY {
        let at = recording.events().len() * cut / (CUTS_OF_RECOVERY + 1);
        let scene = Scene::of_position(&scene.shape(), &recording, at)?;
        let by_the_kernel = scene.recovered_by_the_kernel()?;
        let (by_platter, _) = scene.mounted_by_platter()?;
        for mut found in [by_the_kernel, by_platter] {
            if moves_mappings {
                found = found.with_tree_blocks_of(&theirs);
            }
            let what = || format!("recovery cut at {at}");
            listing::compare(&found, &theirs).with_context(what)?;
        }
        tally.cuts += 1;
    }
    Ok(())
}

/// Logs with open intents of one recorded workload.
const OPEN_LOGS: usize = 1;

/// Recordings of a workload, until a log has open intents: what the log holds at its writes depends on the load.
const RECORDINGS_MAX: usize = 4;

/// Finishes intents by a mount for writing, on the device, where that may be cut as well.
fn finish_in_place(shape: &Shape, work: Work, tally: &mut Tally) -> Result<()> {
    let finished = tally.finished;
    for _ in 0..RECORDINGS_MAX {
        let made = Scene::make(shape)?;
        let recording = made.recorded(work)?;
        let positions = made.log_writes(&recording)?;
        for (index, &at) in positions.iter().enumerate().rev() {
            if scene::has_open_intents(&recording, at)? {
                let scene = Scene::of_position(shape, &recording, at)?;
                compare_one(&scene, tally).with_context(|| format!("write {index} of the log"))?;
            }
            if tally.finished == finished + OPEN_LOGS {
                return Ok(());
            }
        }
    }
    ensure!(tally.finished > finished, "no log had open intents");
    Ok(())
}

#[test]
fn open_intents_are_finished_by_a_mount_for_writing() {
    let mut tally = Tally {
        mounts: true,
        ..Tally::default()
    };
    let rmap = SHAPES.iter().find(|shape| shape.name.starts_with("rmap"));
    for (shape, work) in [
        (&EXCHANGE, chains::exchanges as Work),
        (rmap.unwrap(), chains::clones),
        (rmap.unwrap(), chains::truncations),
    ] {
        finish_in_place(shape, work, &mut tally)
            .unwrap_or_else(|error| panic!("{}: {error:#}", shape.name));
    }
    println!("{tally:?}");
}

#[test]
fn many_logs_recover_as_in_the_kernel() {
    let count = std::env::var("PLATTER_XFS_LOGS").ok();
    let count = count.map_or(LOGS, |count| count.parse().unwrap());
    let tally = compare(count).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(
        tally.differences.is_empty(),
        "{}",
        tally.differences.join("\n")
    );
    assert!(tally.logs >= count, "{tally:?}");
    assert!(tally.refused <= 1 + tally.logs / 100, "{tally:?}");
    assert!(tally.logs < 100 || tally.intents.len() >= 4, "{tally:?}");
    assert!(tally.logs < 100 || tally.cuts > 0, "{tally:?}");
    println!("{tally:?}");
}
