//! The steps of a long run, and how much of each there is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::cells::{Kind, cells_of};
use super::super::instrumented::INSTRUMENTED;
use super::super::record::DISTINCT;
use super::super::suites::SUITES;
use super::super::whole::WHOLE;
use super::{Portion, Program, Scene, Step};

/// Distinct states of power failures that are demanded of each mode of the journal.
pub(super) const STATES: u64 = 20_000;
/// Distinct states of one portion. Portions of the same scene have few in common.
pub(super) const STATES_PER_PORTION: u64 = 700;
/// Portions more than the demanded states would take if they had none in common.
const SPARE_PORTIONS: u64 = 1;
/// Where seeds of power failures begin, and from one portion to the next.
const CRASH_SEED: u64 = 100_000;
const CRASH_SEEDS: u64 = 1000;

/// Workloads of which every request is made to fail, of each filesystem.
const FAULTS: Range<u64> = 2000..2003;
/// Seeds of two threads, over all scenes.
const THREADS: u64 = 2000;
const THREADS_SEED: u64 = 3000;
/// Workloads without space, of each filesystem.
const FULL: Range<u64> = 6000..6010;
/// Sessions of edits, of each filesystem.
const EDITS: Range<u64> = 4000..4001;
/// Seconds of fsx, and of one portion of it.
const FSX_SECONDS: u64 = 3600;
const FSX_PORTION_SECONDS: u64 = 60;
const FSX_SEEDS: u64 = 10_000;
/// Kills of a server with a writer, in each portion of `kill`.
const KILLS: u64 = 20;
/// Unmounts in each portion of `unmount`.
const UNMOUNTS: u64 = 100;

/// All steps. What may not run concurrently with others of its kind comes first.
pub(super) fn all(scenes: &[Scene], filesystem: Kind) -> Vec<Step> {
    let mut steps = vec![fsx(filesystem)];
    if filesystem == Kind::Ext {
        // The caches are shared by all.
        steps.extend(instrumented());
    }
    steps.extend(whole(filesystem));
    steps.extend(suites(filesystem));
    steps.extend(of_scenes(scenes, filesystem));
    steps.extend(mutations(filesystem));
    steps.extend(crashes(scenes));
    steps
}

fn fsx(filesystem: Kind) -> Step {
    let slices = FSX_SECONDS / FSX_PORTION_SECONDS;
    let cells = cells_of(filesystem).cycle();
    let portions = (0..slices).zip(cells).map(|(slice, cell)| {
        let seeds = slice * FSX_SEEDS..(slice + 1) * FSX_SEEDS;
        let options = [
            ("--seeds", format!("{}..{}", seeds.start, seeds.end)),
            ("--seconds", FSX_PORTION_SECONDS.to_string()),
        ];
        Portion::suite("fsx", cell.name, format!("{slice}-{}", cell.name), &options)
    });
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let seconds = FSX_PORTION_SECONDS as f64 + 5.0;
    let title = "random operations on one file, read back all the time, through the mount";
    let step = Step::new("fsx", title, seconds, portions.collect());
    Step {
        group: "fsx",
        at_once: 1,
        ..step.demanding("seconds", FSX_SECONDS)
    }
}

/// Tests that look at every access to memory.
fn instrumented() -> impl Iterator<Item = Step> {
    INSTRUMENTED.iter().map(|tests| {
        let portion = Portion::new(tests.name, Program::Xtask, ["soak-portion", tests.name]);
        let step = Step::new(tests.name, tests.title, tests.build.seconds, vec![portion]);
        Step {
            group: tests.build.group,
            at_once: 1,
            ..step.demanding("runs", 1)
        }
    })
}

/// Tests that have more to do than in a test run.
fn whole(filesystem: Kind) -> impl Iterator<Item = Step> {
    let of_it = WHOLE.iter().filter(move |it| it.filesystem == filesystem);
    of_it.map(|whole| {
        let (name, [variable, value]) = (whole.name, whole.variable);
        let words = [whole.test].into_iter().chain(whole.skip());
        let mut portion = Portion::new(name, Program::Tests(whole.tests), words);
        portion.variables = vec![(variable.to_owned(), value.to_owned())];
        Step::new(name, whole.title, 120.0, vec![portion]).demanding("tests", 1)
    })
}

/// The other suites through the mount.
fn suites(filesystem: Kind) -> Vec<Step> {
    let is_ext = filesystem == Kind::Ext;
    let mut steps = Vec::new();
    for suite in SUITES.iter().filter(|suite| suite.name != "fsx") {
        let (title, seconds, is_on_all) = match suite.name {
            "pjdfstest" => (
                "permissions and errors of POSIX calls, through the mount",
                30.0,
                true,
            ),
            "dbench" => ("the load of a file server through the mount", 20.0, true),
            "fio" => ("data written and verified through the mount", 20.0, true),
            "build" => (
                "a source tree unpacked and compiled through the mount",
                60.0,
                !is_ext,
            ),
            "unmount" => (
                "60 MB written, unmounted, and the image copied at once",
                100.0,
                false,
            ),
            _ => (
                "a server killed while files are synced and removed",
                20.0,
                !is_ext,
            ),
        };
        let cells = cells_of(filesystem)
            .filter(|cell| suite.fits(cell) && (is_on_all || cell.name == cell.generation()));
        let portions = cells.map(|cell| {
            let rounds = rounds(suite.name).map(|(_, rounds)| ("--seeds", format!("0..{rounds}")));
            Portion::suite(
                suite.name,
                cell.name,
                cell.name.to_owned(),
                rounds.as_slice(),
            )
        });
        let portions: Vec<_> = portions.collect();
        let count = portions.len() as u64;
        let mut step = Step::new(suite.name, title, seconds, portions);
        if let Some((name, rounds)) = rounds(suite.name) {
            step = step.demanding(name, count * rounds);
        }
        steps.push(step);
    }
    steps
}

/// What a suite counts, and how much of it there is in a portion.
fn rounds(suite: &str) -> Option<(&'static str, u64)> {
    match suite {
        "kill" => Some(("kills", KILLS)),
        "unmount" => Some(("unmounts", UNMOUNTS)),
        _ => None,
    }
}

/// What is run on every filesystem of the testkit.
fn of_scenes(scenes: &[Scene], filesystem: Kind) -> [Step; 5] {
    let edited: Vec<Scene> = scenes
        .iter()
        .filter(|scene| scene.is_edited)
        .cloned()
        .collect();
    let of = |scenes: &[Scene], kind: &str, seeds: Range<u64>, each: u64| {
        let mut portions = Vec::new();
        let starts = seeds.clone().step_by(usize::try_from(each).unwrap_or(1));
        for start in starts {
            for scene in scenes {
                let range = format!("{start}..{}", (start + each).min(seeds.end));
                let words = [kind, "--seeds", &range, "--threads", "1"];
                let words = words.into_iter().chain(["--scene", &scene.name]);
                let name = format!("{}-{start}", scene.name);
                portions.push(Portion::new(name, Program::Soak, words));
            }
        }
        portions
    };
    let portions = |kind: &str, seeds: Range<u64>, each: u64| of(scenes, kind, seeds, each);
    let (count, edited_count) = (scenes.len() as u64, edited.len() as u64);
    let each = THREADS.div_ceil(count.max(1)).max(1);
    // Each has seeds of its own.
    let of_threads = scenes.iter().zip(0..).flat_map(|(scene, place)| {
        let first = THREADS_SEED + place * each;
        of(
            std::slice::from_ref(scene),
            "threads",
            first..first + each,
            each,
        )
    });
    let mut threads = Step::new(
        "threads",
        "two threads against a model, compared after every remount",
        15.0,
        of_threads.collect(),
    )
    .demanding("seeds", THREADS);
    if filesystem == Kind::Btrfs {
        threads = threads
            .demanding("snapshots", THREADS)
            .demanding("concurrent", THREADS);
    }
    let faults = FAULTS.end - FAULTS.start;
    let edits = EDITS.end - EDITS.start;
    let full = FULL.end - FULL.start;
    [
        Step::new(
            "unflushed",
            "power failures of a device that drops its flushes, which must be noticed",
            2.0,
            portions("unflushed", CRASH_SEED..CRASH_SEED + 20, 20),
        )
        .demanding("noticed", count),
        Step::new(
            "faults",
            "every write and flush of a workload, and of mounts after it, made to fail",
            20.0,
            portions("faults", FAULTS, 1),
        )
        .demanding("faults", count * faults * 100)
        .demanding("mount_faults", count * faults),
        threads,
        Step::new(
            "full",
            "workloads on a filesystem without space: what is accepted is durable after a sync",
            30.0,
            portions("full", FULL, 5),
        )
        .demanding("seeds", count * full)
        .demanding("refused", count * full)
        .demanding("refilled", count * full),
        Step::new(
            "edits",
            "edits by the command line, a third of them killed",
            60.0,
            of(&edited, "edits", EDITS, 1),
        )
        .demanding("sessions", edited_count * edits)
        .demanding("killed", edited_count * edits * 100),
    ]
}

/// States of power failures: a step for each mode of the journal.
fn crashes(scenes: &[Scene]) -> Vec<Step> {
    let modes: BTreeMap<&str, [u64; 3]> = scenes
        .iter()
        .map(|scene| {
            let each = [
                scene.states_one_in,
                scene.kernel_one_in,
                scene.recovery_one_in,
            ];
            (scene.mode.as_str(), each)
        })
        .collect();
    let mut steps = Vec::new();
    for (mode, [one_in, kernel_one_in, recovery_one_in]) in modes {
        let scenes = scenes.iter().filter(|scene| scene.mode == mode);
        let scenes: Vec<_> = scenes.collect();
        let states = STATES / one_in;
        let count = states.div_ceil(STATES_PER_PORTION) + SPARE_PORTIONS;
        let count = count.max(scenes.len() as u64);
        let portions = (0..count)
            .zip(scenes.iter().cycle())
            .map(|(number, scene)| {
                let first = CRASH_SEED + number * CRASH_SEEDS;
                let seeds = format!("{first}..{}", first + CRASH_SEEDS);
                let states = (STATES_PER_PORTION * one_in).to_string();
                let words = ["crash", "--states", &states, "--seeds", &seeds];
                let words = words.into_iter().chain(["--threads", "1"]);
                let words = words.chain(["--scene", &scene.name]);
                Portion::new(format!("{number}-{}", scene.name), Program::Soak, words)
            });
        let title = "states that a power failure leaves: mounted, compared, checked";
        let step = Step::new(format!("crash-{mode}"), title, 8.0, portions.collect());
        let step = step.demanding(DISTINCT, states);
        // Each portion rounds down.
        let by_kernel = states * 4 / (5 * kernel_one_in);
        let mut step = step.demanding("by_kernel", by_kernel);
        if recovery_one_in > 0 {
            step = step.demanding("recoveries", states * 4 / (5 * recovery_one_in));
        }
        let kinds = scenes.iter().flat_map(|scene| &scene.kinds_of_writes);
        for kind in kinds.collect::<BTreeSet<_>>() {
            step = step.demanding(format!("cut_at_{kind}"), 1);
        }
        steps.push(step);
    }
    steps
}

/// Mutated images: read and checked, and of ext4 also changed.
fn mutations(filesystem: Kind) -> Vec<Step> {
    const IMAGES: u64 = 1_000_000;
    const IMAGES_OF_OTHERS: u64 = 100_000;
    const IMAGES_PER_PORTION: u64 = 20_000;
    const SEED: u64 = 1000;
    const CHANGED: u64 = 40_000;
    const CHANGED_PER_PORTION: u64 = 1000;
    const CHANGED_SEED: u64 = 5000;
    let portions = |format: &str, first: u64, count: u64, each: u64, words: [&str; 2]| {
        let numbers = (0..count / each).map(|number| first + number);
        let portions = numbers.map(|seed| {
            let (each, seed) = (each.to_string(), seed.to_string());
            let what = [words[0], &each, words[1], "0"];
            let words = ["--format", format, "--seed", &seed, "--processes", "1"];
            Portion::new(seed.clone(), Program::Fuzz, what.into_iter().chain(words))
        });
        portions.collect::<Vec<_>>()
    };
    let count = match filesystem {
        Kind::Ext => IMAGES,
        Kind::Btrfs | Kind::Xfs => IMAGES_OF_OTHERS,
    };
    let words = ["--images", "--operations"];
    let title = "mutated images opened, read and checked, each in 20 s and 256 MiB";
    let read = portions(filesystem.name(), SEED, count, IMAGES_PER_PORTION, words);
    let read = Step::new("mutations", title, 20.0, read).demanding("images", count);
    if filesystem != Kind::Ext {
        return vec![read];
    }
    let changed = portions(
        "ext4",
        CHANGED_SEED,
        CHANGED,
        CHANGED_PER_PORTION,
        ["--operations", "--images"],
    );
    vec![
        read,
        Step::new(
            "mutated-edits",
            "mutated images edited, grown, mounted and copied out, each in 20 s and 256 MiB",
            30.0,
            changed,
        )
        .demanding("images", CHANGED)
        .demanding("operations", CHANGED),
    ]
}
