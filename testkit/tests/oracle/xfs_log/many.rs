//! Many dirty logs: every shape with every workload, cut at points of what the kernel wrote.
//! `PLATTER_XFS_LOGS` says how many: 500 in `cargo xtask soak xfs --only xfs-logs`. `PLATTER_XFS_LOGS_OF` is a part of the names of shapes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use platter_xfs::ondisk::features::Incompat;
use platter_xfs::ondisk::log::intent::ExchangeFlags;
use platter_xfs::ondisk::log::{Intent, ItemKind};

use super::cut::{Cut, cuts};
use super::listing::{self, Listing};
use super::scene::{Scene, Shape, Work};
use super::shapes::{EXCHANGE, PARENTS, SHAPES};
use super::{chains, scene, work};

/// Logs in the normal tests.
const LOGS: usize = 12;
/// Logs that one recorded workload is cut into at least.
const CUTS: usize = 4;
/// Recordings of a long run.
const RECORDINGS: usize = 50;

/// States of the device while a mount for writing recovers a log, which are recovered again, in addition to that after
/// the first block that it wrote back.
const CUTS_OF_RECOVERY: usize = 2;

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    logs: usize,
    /// Open intents by type.
    intents: BTreeMap<String, usize>,
    inodes_freed: u64,
    /// Logs whose intents a mount for writing finished or whose unlinked inodes it freed, and states of the device on
    /// the way there.
    finished: usize,
    cuts: usize,
    /// Whether each log is recovered by a mount for writing as well.
    mounts: bool,
    /// Logs that are refused for a torn write.
    refused: usize,
    differences: Vec<String>,
}

impl Tally {
    /// Of logs each of which is recovered by a mount for writing as well.
    fn with_mounts() -> Self {
        Self {
            mounts: true,
            ..Self::default()
        }
    }
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
    if shape.incompat.contains(Incompat::EXCHRANGE) {
        works.push(chains::exchanges);
    }
    if shape.incompat.contains(Incompat::PARENT) {
        works.push(chains::links);
    }
    works
}

/// The shapes, those with the most features first.
fn shapes() -> Vec<&'static Shape> {
    let wanted = std::env::var("PLATTER_XFS_LOGS_OF").unwrap_or_default();
    let shapes = SHAPES.iter().chain([&PARENTS, &EXCHANGE]).rev();
    shapes
        .filter(|shape| shape.name.contains(&wanted))
        .collect()
}

fn compare(count: usize) -> Result<Tally> {
    let shapes = shapes();
    ensure!(!shapes.is_empty(), "there is no such shape");
    let mut tally = Tally {
        mounts: count > LOGS,
        ..Tally::default()
    };
    for round in 0_usize.. {
        let shape = shapes[round % shapes.len()];
        let works = works(shape);
        let turn = round / shapes.len();
        let work = works[works.len() - 1 - turn % works.len()];
        let most = CUTS.max(count / RECORDINGS).min(count - tally.logs);
        let mut visit = |cut: &Cut<'_>, scene: Scene| {
            if let Err(error) = compare_cut(cut, &scene, &mut tally) {
                let kept = scene.keep();
                tally.differences.push(format!(
                    "round {round}, {}, {}: {error:#}; kept in {}",
                    shape.name,
                    cut.name,
                    kept.display()
                ));
            }
        };
        cuts(shape, work, round as u64, most, &mut visit)
            .with_context(|| format!("round {round}, {}", shape.name))?;
        if tally.logs >= count {
            break;
        }
    }
    Ok(tally)
}

/// Compares one log. Of a block of several sectors a part may be newer than the log, and the rest older than that: then
/// neither the block nor the log has its contents. Such a state the kernel refuses as well as platter, and both
/// recover the state in which the torn writes are whole.
fn compare_cut(cut: &Cut<'_>, scene: &Scene, tally: &mut Tally) -> Result<()> {
    tally.logs += 1;
    let refusal = match scene.recovered_by_the_kernel() {
        Ok(theirs) => return compare_with(&theirs, scene, tally),
        Err(refusal) => refusal,
    };
    ensure!(
        scene.recovered().is_err(),
        "what the kernel refuses was recovered: {refusal:#}"
    );
    let whole = cut.without_torn_writes();
    let whole = whole.with_context(|| format!("refused without a torn write: {refusal:#}"))?;
    tally.refused += 1;
    let scene = whole.scene()?;
    let theirs = scene.recovered_by_the_kernel();
    compare_with(&theirs.with_context(|| whole.name.clone())?, &scene, tally)
}

/// The files of unfinished exchanges.
fn exchanged(intents: &[Intent]) -> Vec<u64> {
    let mut inodes = Vec::new();
    for intent in intents {
        if let Intent::Exchange(exchange) = intent {
            inodes.extend(exchange.inodes);
        }
    }
    inodes
}

/// The files of unfinished exchanges that set sizes, each with the smaller of the two sizes.
fn exchanged_to_the_end(intents: &[Intent]) -> Vec<(u64, u64)> {
    let mut inodes = Vec::new();
    for intent in intents {
        if let Intent::Exchange(exchange) = intent
            && exchange.flags.contains(ExchangeFlags::SET_SIZES)
        {
            let end = exchange.sizes[0].min(exchange.sizes[1]);
            inodes.extend(exchange.inodes.map(|inode| (inode, end)));
        }
    }
    inodes
}

/// The files of unfinished changes of attributes.
fn of_attributes(intents: &[Intent]) -> Vec<u64> {
    let mut inodes = Vec::new();
    for intent in intents {
        if let Intent::Attr(intent) = intent {
            inodes.push(intent.inode);
        }
    }
    inodes
}

fn compare_with(theirs: &Listing, scene: &Scene, tally: &mut Tally) -> Result<()> {
    let (ours, report) = scene.recovered()?;
    tally.inodes_freed += report.inodes_freed;
    for intent in &report.log.open_intents {
        let kind = format!("{:?}", intent.kind());
        *tally.intents.entry(kind).or_default() += 1;
    }
    let to_the_end = exchanged_to_the_end(&report.log.open_intents);
    let changed = of_attributes(&report.log.open_intents);
    let as_in = |theirs: &Listing, found: Listing| {
        let found = found.with_lost_ends_of(theirs, &to_the_end);
        let found = found.with_change_times_of(theirs, &changed);
        // The kernel moves the start of the attribute fork, if so the attributes fit in the inode.
        found.with_leaves_of(theirs, &changed)
    };
    let ours = as_in(theirs, ours);
    listing::compare(&ours, theirs)?;
    if !tally.mounts {
        return Ok(());
    }
    let (mounted, recording) = scene.mounted_by_platter()?;
    let mounted = as_in(theirs, mounted);
    listing::compare(&mounted, theirs).context("mounted for writing")?;
    if report.log.open_intents.is_empty() && report.inodes_freed == 0 {
        return Ok(());
    }
    tally.finished += 1;
    let events = recording.events().len();
    let cuts = (1..=CUTS_OF_RECOVERY).map(|cut| events * cut / (CUTS_OF_RECOVERY + 1));
    for at in cuts.chain(scene.first_written_back(&recording)?) {
        let scene = Scene::of_position(&scene.shape(), &recording, at)?;
        let by_the_kernel = scene.recovered_by_the_kernel()?;
        let (by_platter, _) = scene.mounted_by_platter()?;
        // Of recoveries of one log by the kernel some lose the ends, and some do not.
        let without_ends = theirs
            .clone()
            .with_lost_ends_of(&by_the_kernel, &to_the_end);
        for (by, found, expected) in [
            ("the kernel", by_the_kernel, &without_ends),
            ("platter", by_platter, theirs),
        ] {
            let found = as_in(expected, found);
            // Each recovery does its first step of an exchange last, so that leaves are split at other places.
            let found = found.with_leaves_of(expected, &exchanged(&report.log.open_intents));
            let what = || format!("recovery cut at {at}, ended by {by}");
            listing::compare(&found, expected).with_context(what)?;
        }
        tally.cuts += 1;
    }
    Ok(())
}

/// Recordings of a workload, until a log has open intents: what the log holds at its writes depends on the load.
const RECORDINGS_MAX: usize = 16;

/// Finishes intents, one of which is `wanted`, by a mount for writing, on the device, where that may be cut as well.
fn finish_in_place(shape: &Shape, work: Work, wanted: ItemKind, tally: &mut Tally) -> Result<()> {
    let mut refusal = None;
    for _ in 0..RECORDINGS_MAX {
        let made = Scene::make(shape)?;
        let recording = made.recorded(work)?;
        let positions = made.log_writes(&recording)?;
        for (index, &at) in positions.iter().enumerate().rev() {
            let intents = scene::open_intents(&recording, at)?;
            if !intents.iter().any(|intent| intent.kind() == wanted) {
                continue;
            }
            let what = || format!("write {index} of the log");
            let scene = Scene::of_position(shape, &recording, at)?;
            // The kernel refuses some of its own logs: the recovery of exchanges can end with an internal error.
            match scene.recovered_by_the_kernel() {
                Ok(theirs) => return compare_with(&theirs, &scene, tally).with_context(what),
                Err(refused) if wanted == ItemKind::Exchange => {
                    refusal = Some(refused.context(what()));
                }
                Err(refused) => return Err(refused.context(what())),
            }
        }
    }
    match refusal {
        Some(refused) => Err(refused.context(format!("the kernel refused every open {wanted:?}"))),
        None => bail!("no log had an open {wanted:?}"),
    }
}

/// Finishes intents of each kind.
fn finish_all_kinds(tally: &mut Tally) {
    let rmap = SHAPES.iter().find(|shape| shape.name.starts_with("rmap"));
    let rmap = rmap.unwrap();
    for (shape, work, wanted) in [
        (&EXCHANGE, chains::exchanges as Work, ItemKind::Exchange),
        (rmap, chains::clones, ItemKind::Refcount),
        (rmap, chains::truncations, ItemKind::ExtentFree),
        (&PARENTS, chains::links, ItemKind::Attr),
    ] {
        finish_in_place(shape, work, wanted, tally)
            .unwrap_or_else(|error| panic!("{}: {error:#}", shape.name));
        let kind = format!("{wanted:?}");
        assert!(tally.intents.contains_key(&kind), "{kind}: {tally:?}");
    }
}

#[test]
fn open_intents_are_finished_by_a_mount_for_writing() {
    let mut tally = Tally::with_mounts();
    finish_all_kinds(&mut tally);
    println!("{tally:?}");
}

#[test]
fn many_logs_recover_as_in_the_kernel() {
    let count = std::env::var("PLATTER_XFS_LOGS").ok();
    let count = count.map_or(LOGS, |count| count.parse().unwrap());
    let mut tally = compare(count).unwrap_or_else(|error| panic!("{error:#}"));
    // What the random logs have of each kind depends on the load of the machine.
    if tally.mounts {
        finish_all_kinds(&mut tally);
    }
    assert!(
        tally.differences.is_empty(),
        "{}",
        tally.differences.join("\n")
    );
    assert!(tally.logs >= count, "{tally:?}");
    assert!(tally.refused <= 1 + tally.logs / 50, "{tally:?}");
    assert!(!tally.mounts || tally.intents.len() >= 4, "{tally:?}");
    assert!(!tally.mounts || tally.cuts > 0, "{tally:?}");
    println!("{tally:?}");
}
