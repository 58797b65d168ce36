//! The long runs of power cuts, failing requests and concurrent use; see [`USAGE`].
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "it tells of its progress")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use testkit::crash::{
    Breakage, Counts, FaultCounts, Faults, Matrix, Mode, SCENES, Scene, Threads, run_threads,
};
use testkit::edits::Session;

const USAGE: &str = "\
usage: soak crash {SEEDS | --states N | --seed SEED} [WHAT]...
       soak {faults | threads | edits} {SEEDS | --seed SEED} [WHAT]...

  crash       cut the power of random workloads, and judge every state that this can leave
  faults      fail each request of a workload, and of mounts after a cut
  threads     run two threads against a model, with remounts
  edits       edit images with the command line, and kill every third command
  SEEDS       so many workloads of each scene; of threads fifty times as many, of edits one
              session for twenty
  --states N  workloads until there are N distinct states of each mode, spread over its scenes
  --seed SEED the one workload of that seed; every state of it is shown to everyone
  WHAT        a mode (ordered, journal, writeback, ext3, unjournaled), a generation (ext2, ext3,
              ext4) or a scene; everything without it";

/// Operations of one workload.
const OPERATIONS: usize = 100;
/// Edits of one session with the command line.
const EDITS: u32 = 500;
/// Where images of failures are kept.
const KEPT: &str = "target/soak-failures";
/// The kernel mounts one of so many states: of 20,000 more than 600.
const KERNEL_ONE_IN: usize = 32;
/// Where seeds of each kind begin; those of cuts at another place for each scene.
const CRASH_SEED: u64 = 1000;
const FAULTS_SEED: u64 = 2000;
const THREADS_SEED: u64 = 3000;
const EDITS_SEED: u64 = 4000;
/// Seeds among which the loss of flushes must show.
const BROKEN_SEEDS: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Crash,
    Faults,
    Threads,
    Edits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amount {
    Seeds(u64),
    States(usize),
    Seed(u64),
}

/// What was asked for.
#[derive(Debug)]
struct Request {
    kind: Kind,
    amount: Amount,
    scenes: Vec<&'static Scene>,
}

impl Request {
    fn parse(words: &[String]) -> Result<Self> {
        let mut words = words.iter();
        let mut word = || words.next().map(String::as_str);
        let kind = match word().context("what?")? {
            "crash" => Kind::Crash,
            "faults" => Kind::Faults,
            "threads" => Kind::Threads,
            "edits" => Kind::Edits,
            other => bail!("what is {other}?"),
        };
        let number = |text: Option<&str>| -> Result<u64> {
            let text = text.context("how many?")?;
            text.parse().with_context(|| format!("how many is {text}?"))
        };
        let amount = match word() {
            Some("--states") => Amount::States(usize::try_from(number(word())?)?),
            Some("--seed") => Amount::Seed(number(word())?),
            seeds => Amount::Seeds(number(seeds)?),
        };
        ensure!(
            !matches!(amount, Amount::Seeds(0) | Amount::States(0)),
            "nothing to do"
        );
        ensure!(
            kind == Kind::Crash || !matches!(amount, Amount::States(_)),
            "only cuts have states"
        );
        let mut scenes: Vec<&Scene> = Vec::new();
        let mut is_named = false;
        while let Some(word) = word() {
            is_named = true;
            let found = SCENES.iter().filter(|scene| is_meant(scene, word));
            let before = scenes.len();
            for scene in found.clone() {
                if !scenes.iter().any(|known| known.name == scene.name) {
                    scenes.push(scene);
                }
            }
            ensure!(
                found.count() > 0 || scenes.len() > before,
                "no mode, generation or scene is called {word}"
            );
        }
        if !is_named {
            scenes.extend(SCENES);
        }
        Ok(Self {
            kind,
            amount,
            scenes,
        })
    }
}

fn is_meant(scene: &Scene, word: &str) -> bool {
    let generation = scene.name.split('_').next();
    scene.name == word || scene.mode.name() == word || generation == Some(word)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let request = match Request::parse(&words) {
        Ok(request) => request,
        Err(error) => {
            println!("{error:#}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut failures = 0;
    if request.kind == Kind::Crash {
        failures += crash_all(&request);
    } else {
        for scene in &request.scenes {
            let done = match request.kind {
                Kind::Threads => threads(scene, request.amount),
                Kind::Edits => edits(scene, request.amount),
                Kind::Faults | Kind::Crash => faults(scene, request.amount),
            };
            failures += usize::from(tell(scene, done).is_none());
        }
    }
    println!("{failures} scenes failed, of {}", request.scenes.len());
    ExitCode::from(u8::from(failures > 0))
}

/// Gives what was done, or prints why it was not.
fn tell<T>(scene: &Scene, done: Result<T>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(error) => {
            println!("FAILED {}: {error:#}", scene.name);
            None
        }
    }
}

/// Cuts every scene, and adds up by modes. Gives how many scenes failed.
fn crash_all(request: &Request) -> usize {
    let mut totals = Vec::new();
    let mut failures = 0;
    for mode in Mode::ALL {
        let scenes = request.scenes.iter().filter(|scene| scene.mode == mode);
        let count = scenes.clone().count();
        if count == 0 {
            continue;
        }
        let mut total = Counts::default();
        for scene in scenes {
            let amount = match request.amount {
                Amount::States(states) => Amount::States(states.div_ceil(count)),
                Amount::Seeds(_) | Amount::Seed(_) => request.amount,
            };
            match tell(scene, crash(scene, amount, &mut total)) {
                Some(()) => {}
                None => failures += 1,
            }
        }
        totals.push((mode, count, total));
    }
    println!();
    for (mode, count, total) in totals {
        println!("{}, {count} scenes: {total}", mode.name());
    }
    failures
}

fn crash(scene: &'static Scene, amount: Amount, total: &mut Counts) -> Result<()> {
    let place = SCENES.iter().take_while(|other| other.name != scene.name);
    let first = CRASH_SEED * (1 + place.count() as u64);
    let (seeds, states_max) = match amount {
        Amount::Seeds(seeds) => (first..first.saturating_add(seeds), usize::MAX),
        // Every workload has states of its own.
        Amount::States(states) => (first..first.saturating_add(states as u64), states),
        Amount::Seed(seed) => (seed..seed.saturating_add(1), usize::MAX),
    };
    let is_one = matches!(amount, Amount::Seed(_));
    let matrix = Matrix {
        scene,
        seeds,
        states_max,
        operations: OPERATIONS,
        one_in: 1,
        e2fsck_one_in: 1,
        kernel_one_in: if is_one { 1 } else { KERNEL_ONE_IN },
        breakage: Breakage::None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        keep: Some(PathBuf::from(KEPT)),
    };
    let begin = now();
    let counts = matrix.run()?;
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = (counts.states + counts.again) as f64 / seconds.max(0.001);
    let begin = matrix.seeds.start;
    let end = begin + counts.workloads as u64;
    println!(
        "crash {}, seeds {begin}..{end}: {counts}; {seconds:.0} s, {rate:.1} states/s",
        scene.name
    );
    let demanded = counts.demand_none();
    let states = counts.states;
    *total += counts;
    demanded?;
    if let Amount::States(wanted) = amount {
        ensure!(states >= wanted, "only {states} distinct states");
    }
    if is_one {
        return Ok(());
    }
    let broken = Matrix {
        seeds: first..first + BROKEN_SEEDS,
        states_max: usize::MAX,
        e2fsck_one_in: 0,
        kernel_one_in: 0,
        breakage: Breakage::DropsFlushes,
        keep: None,
        ..matrix
    };
    let counts = broken.run()?;
    let found = counts.failures.len();
    println!(
        "crash {}, with its flushes dropped: {found} failures in {} states",
        scene.name, counts.states
    );
    ensure!(found > 0, "lost flushes were not noticed");
    Ok(())
}

fn faults(scene: &'static Scene, amount: Amount) -> Result<()> {
    for seed in seeds(amount, FAULTS_SEED, 1) {
        let faults = Faults {
            scene,
            seed,
            operations: OPERATIONS,
            one_in: 1,
            keep: Some(PathBuf::from(KEPT)),
        };
        let show = |what: &str, counts: FaultCounts| -> Result<()> {
            println!("faults {} of {what}, seed {seed}: {counts}", scene.name);
            counts.demand_none()
        };
        show("operations", faults.run()?)?;
        show("mounts", faults.run_mounts()?)?;
    }
    Ok(())
}

fn threads(scene: &'static Scene, amount: Amount) -> Result<()> {
    // A seed takes a fraction of what a workload of cuts does.
    let seeds = seeds(amount, THREADS_SEED, 50);
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

fn edits(scene: &'static Scene, amount: Amount) -> Result<()> {
    // A session takes as long as some twenty workloads that are cut.
    let amount = match amount {
        Amount::Seeds(seeds) => Amount::Seeds(seeds.div_ceil(20)),
        Amount::Seed(_) | Amount::States(_) => amount,
    };
    for seed in seeds(amount, EDITS_SEED, 1) {
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

fn seeds(amount: Amount, first: u64, each: u64) -> std::ops::Range<u64> {
    match amount {
        Amount::Seed(seed) => seed..seed.saturating_add(1),
        Amount::Seeds(seeds) => first..first.saturating_add(seeds.saturating_mul(each)),
        Amount::States(_) => first..first,
    }
}

#[expect(clippy::disallowed_methods, reason = "a rate for people is measured")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Request::parse(&words)
    }

    #[test]
    fn scenes_are_meant_by_mode_generation_and_name() {
        assert_eq!(parse("crash 3").unwrap().scenes.len(), SCENES.len());
        for mode in Mode::ALL {
            let scenes = parse(&format!("crash 3 {}", mode.name())).unwrap().scenes;
            assert!(scenes.len() >= 3, "{mode:?}");
            assert!(scenes.iter().all(|scene| scene.mode == mode));
        }
        let request = parse("crash --states 20000 ext4_4k journal ext4_4k").unwrap();
        assert_eq!(request.scenes.len(), 1 + Mode::Journal.scenes().count());
        assert_eq!(request.amount, Amount::States(20_000));
        assert_eq!(
            parse("threads --seed 7 ext2").unwrap().amount,
            Amount::Seed(7)
        );
    }

    #[test]
    fn what_asks_for_nothing_is_refused() {
        for line in [
            "",
            "crash",
            "cuts 3",
            "crash 0",
            "crash --states 0",
            "crash --states",
            "crash many",
            "crash -1",
            "faults --states 5",
            "crash 3 ext5",
            "crash 3 ext4 ext5",
            "threads ext4",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
