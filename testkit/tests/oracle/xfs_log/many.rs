//! Many dirty logs: every shape with every workload, cut at records of the log, and at points of what the
//! kernel wrote. `PLATTER_XFS_LOGS` says how many; a run by hand takes 500.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use platter_block::sim::CrashOptions;
use testkit::prng::Prng;

use super::scene::{Scene, Shape, Shutdown, Work};
use super::shapes::{EXCHANGE, SHAPES};
use super::{chains, listing, work};

/// Logs in the normal tests.
const LOGS: usize = 12;
/// Logs that one workload is cut into.
const CUTS: usize = 6;

/// How the logs of a workload are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// The kernel is shut down, and the log ends at a record.
    Cut,
    /// All that the kernel writes is recorded, and ends anywhere.
    Recorded,
}

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    logs: usize,
    /// Open intents by type.
    intents: BTreeMap<String, usize>,
    inodes_freed: u64,
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

fn scenes(shape: &Shape, made: Made, work: Work, seed: u64, most: usize) -> Result<Vec<Scene>> {
    let scene = Scene::make(shape)?;
    if made == Made::Cut {
        scene.work(Shutdown::Flushed, work)?;
        let wraps = shape.external_mib.is_some() || scene.has_wrapped()?;
        if wraps {
            return Ok(vec![scene]);
        }
        return scene.cuts(most);
    }
    let recording = scene.recorded(work)?;
    let options = CrashOptions {
        seed,
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let states: Vec<_> = recording.crash_states(options).collect::<Result<_, _>>()?;
    ensure!(!states.is_empty(), "nothing was recorded");
    let mut numbers = Prng::new(seed);
    let mut scenes = Vec::new();
    for _ in 0..most * 4 {
        let at = usize::try_from(numbers.below(states.len() as u64))?;
        let scene = Scene::of_state(shape, &states[at])?;
        if scene.is_dirty()? {
            scenes.push(scene);
        }
        if scenes.len() == most {
            break;
        }
    }
    Ok(scenes)
}

fn compare(count: usize) -> Result<Tally> {
    let shapes: Vec<&Shape> = SHAPES.iter().chain([&EXCHANGE]).collect();
    let mut tally = Tally::default();
    for round in 0_usize.. {
        // The shapes with the most features come first.
        let shape = shapes[shapes.len() - 1 - round % shapes.len()];
        let works = works(shape);
        let turn = round / shapes.len();
        let work = works[works.len() - 1 - turn % works.len()];
        let made = if turn.is_multiple_of(2) {
            Made::Cut
        } else {
            Made::Recorded
        };
        let most = CUTS.min(count - tally.logs);
        let what = || format!("round {round}, {}, {made:?}", shape.name);
        for scene in scenes(shape, made, work, round as u64, most).with_context(what)? {
            let compared = compare_one(&scene, &mut tally);
            compared.with_context(what)?;
        }
        if tally.logs >= count {
            break;
        }
    }
    Ok(tally)
}

fn compare_one(scene: &Scene, tally: &mut Tally) -> Result<()> {
    let (ours, report) = scene.recovered()?;
    listing::assert_equal(&ours, &scene.recovered_by_the_kernel()?);
    tally.logs += 1;
    tally.inodes_freed += report.inodes_freed;
    for intent in &report.log.open_intents {
        let kind = format!("{:?}", intent.kind());
        *tally.intents.entry(kind).or_default() += 1;
    }
    Ok(())
}

#[test]
fn many_logs_recover_as_in_the_kernel() {
    let count = std::env::var("PLATTER_XFS_LOGS").ok();
    let count = count.map_or(LOGS, |count| count.parse().unwrap());
    let tally = compare(count).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(tally.logs >= count, "{tally:?}");
    assert!(tally.logs < 100 || tally.intents.len() >= 4, "{tally:?}");
    println!("{tally:?}");
}
