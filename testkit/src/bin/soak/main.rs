//! The long runs of power failures, failing requests and concurrent use; see [`USAGE`].
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it prints its progress")]

mod request;
mod record;
mod crash;

use std::ops::Range;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Result, ensure};
use testkit::crash::{FaultCounts, Faults, Full, Snapshots, Threads, run_threads};
use testkit::edits::Session;
use testkit::subject::{Scene, scenes};
use testkit::workload::Durability;

use crash::RECOVERY_ONE_IN;
use record::Record;
use request::{Amount, Kind, Request, USAGE};

/// Operations of one workload.
const OPERATIONS: usize = 100;
/// Those of one on a full filesystem.
const FULL_OPERATIONS: usize = 400;
/// Edits of one session with the command line.
const EDITS: u32 = 500;
/// Where images of failures are kept.
const KEPT: &str = "target/soak-failures";
/// Where seeds of each kind begin.
const FAULTS_SEED: u64 = 2000;
const THREADS_SEED: u64 = 3000;
const EDITS_SEED: u64 = 4000;
const FULL_SEED: u64 = 6000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if words == ["scenes"] {
        for scene in scenes() {
            let edited = scene.subject.edit_maker(scene).map_or("", |_| " edited");
            let mode = scene.mode;
            let (one_in, kernel_one_in) = (mode.states_one_in(), mode.kernel_one_in());
            let is_recovered = scene.durability() != Durability::Synced;
            let recovery_one_in = if is_recovered { RECOVERY_ONE_IN } else { 0 };
            let name = scene.name;
            let kinds = scene.subject.kinds_of_writes(scene).join(",");
            let kinds = kinds.replace(' ', "_");
            println!(
                "{} {one_in} {kernel_one_in} {recovery_one_in} {name} {kinds}{edited}",
                mode.name()
            );
        }
        return ExitCode::SUCCESS;
    }
    let request = match Request::parse(&words) {
        Ok(request) => request,
        Err(error) => {
            println!("{error:#}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut record = Record::default();
    let failures = run(&request, &mut record);
    println!("{failures} scenes failed, of {}", request.scenes.len());
    if let Some(path) = &request.record
        && let Err(error) = record.write(path)
    {
        println!("{error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::from(failures > 0))
}

/// Runs everything that is asked for. Returns how many scenes failed.
fn run(request: &Request, record: &mut Record) -> usize {
    if request.kind == Kind::Crash {
        return crash::all(request, record);
    }
    // The states of one scene are judged by all threads.
    let threads = if request.kind == Kind::Unflushed {
        1
    } else {
        request.threads.min(request.scenes.len())
    };
    let scenes = Mutex::new(request.scenes.iter());
    let run_next = || {
        let mut record = Record::default();
        let mut failures = 0;
        loop {
            let next = scenes.lock().map_or(None, |mut scenes| scenes.next());
            let Some(scene) = next else {
                return (failures, record);
            };
            let done = run_scene(scene, request, &mut record);
            failures += usize::from(note(scene, done, &mut record).is_none());
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run_next)).collect();
        let mut failures = 0;
        for thread in running {
            let (failed, done) = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            failures += failed;
            record.merge(done);
        }
        failures
    })
}

fn run_scene(scene: &'static Scene, request: &Request, record: &mut Record) -> Result<()> {
    match request.kind {
        Kind::Threads => threads(scene, request, record),
        Kind::Full => full(scene, request, record),
        Kind::Edits => edits(scene, request, record),
        Kind::Unflushed => crash::unflushed(scene, request, record),
        Kind::Faults | Kind::Crash => faults(scene, request, record),
    }
}

/// Returns the result, or prints and records the error.
fn note<T>(scene: &Scene, done: Result<T>, record: &mut Record) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(error) => {
            println!("FAILED {}: {error:#}", scene.name);
            record.add_failure(format!("{}: {error:#}", scene.name));
            None
        }
    }
}

/// Requests that are made to fail, each in a run of its own.
type Run = fn(&Faults) -> Result<FaultCounts>;

fn faults(scene: &'static Scene, request: &Request, record: &mut Record) -> Result<()> {
    let mut failures = Vec::new();
    let mut runs_of_mounts = 0;
    for seed in seeds(request, FAULTS_SEED, 1) {
        let faults = Faults {
            scene,
            seed,
            operations: OPERATIONS,
            one_in: 1,
            keep: Some(PathBuf::from(KEPT)),
        };
        // Faults during mounts are a run of their own, whatever the result of the other one.
        let runs: [(&str, Run); 2] = [("operations", Faults::run), ("mounts", Faults::run_mounts)];
        for (what, run) in runs {
            let done = run(&faults).and_then(|counts| {
                println!("faults {} of {what}, seed {seed}: {counts}", scene.name);
                record.add_faults(&counts);
                if what == "mounts" {
                    runs_of_mounts += counts.runs;
                    record.add("mount_faults", counts.runs as u64);
                } else {
                    ensure!(counts.runs > 0, "no operation had a fault");
                }
                counts.demand_none()
            });
            if let Err(error) = done {
                failures.push(format!("seed {seed}, {what}: {error:#}"));
            }
        }
    }
    // Not after each workload is there something that a mount writes.
    if runs_of_mounts == 0 && matches!(request.amount, Amount::Seeds(_)) {
        failures.push("no mount had a fault".to_owned());
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn threads(scene: &'static Scene, request: &Request, record: &mut Record) -> Result<()> {
    // A seed takes a fraction of what a workload of power failures does.
    let seeds = seeds(request, THREADS_SEED, 50);
    for seed in seeds.clone() {
        run_threads(&Threads {
            scene,
            seed,
            rounds: 4,
            operations: 150,
            by_fsck: true,
        })?;
        if scene.abilities().subvolumes {
            let snapshots = Snapshots {
                scene,
                seed,
                operations: 300,
                snapshots: 8,
                of_top_level: seed % 2 == 1,
            };
            let counts = snapshots.run()?;
            record.add("snapshots", counts.snapshots as u64);
            record.add("concurrent", counts.concurrent as u64);
        }
        record.add("seeds", 1);
    }
    println!(
        "threads {}, seeds {seeds:?}: equal after every remount",
        scene.name
    );
    Ok(())
}

fn full(scene: &'static Scene, request: &Request, record: &mut Record) -> Result<()> {
    let mut failures = Vec::new();
    for seed in seeds(request, FULL_SEED, 1) {
        let full = Full {
            scene,
            seed,
            operations: FULL_OPERATIONS,
            keep: Some(PathBuf::from(KEPT)),
        };
        match full.run() {
            Ok(counts) => {
                println!("full {} seed {seed}: {counts}", scene.name);
                record.add("seeds", 1);
                record.add("refused", counts.refused as u64);
                record.add("refilled", counts.refilled as u64);
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn edits(scene: &'static Scene, request: &Request, record: &mut Record) -> Result<()> {
    // A session takes as long as some twenty workloads that are cut.
    let seeds = match request.amount {
        Amount::Seeds(seeds) => EDITS_SEED..EDITS_SEED.saturating_add(seeds.div_ceil(20)),
        Amount::Seed(_) | Amount::States(_) | Amount::Range => seeds(request, EDITS_SEED, 1),
    };
    let Some(maker) = scene.subject.edit_maker(scene) else {
        println!(
            "edits {}: left out, the filesystem has several devices",
            scene.name
        );
        return Ok(());
    };
    for seed in seeds {
        let session = Session {
            maker,
            seed,
            edits: EDITS,
            kill_one_in: 3,
        };
        let counts = session.run()?;
        record.add("sessions", 1);
        record.add_edits(&counts);
        println!("edits {} seed {seed}: {counts}", scene.name);
    }
    Ok(())
}

/// The seeds that are asked for, from `first` on where they are not named.
fn seeds(request: &Request, first: u64, each: u64) -> Range<u64> {
    match (request.amount, &request.seeds) {
        (_, Some(seeds)) => seeds.clone(),
        (Amount::Seed(seed), None) => seed..seed.saturating_add(1),
        (Amount::Seeds(seeds), None) => first..first.saturating_add(seeds.saturating_mul(each)),
        (Amount::States(_) | Amount::Range, None) => first..first,
    }
}
