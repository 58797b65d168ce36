//! Benchmarks: mechanisms on and off, platter compared with its peers, costs as things grow. Each keeps its
//! raw runs, from which `report` makes `docs/PERFORMANCE.md` and the pages in `docs/performance/`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

mod abba;
mod measure;
mod record;
mod stage;
mod child;
mod place;
mod side;
mod work;
mod peers;
mod programs;
mod scale;
mod forest;
mod reading;
mod report;
mod mechanisms;
mod requests;
mod instructions;

use anyhow::{Context, Result, bail};
use measure::Quiet;
use mechanisms::Mechanism;
use peers::Choice;
use record::{Extent, Keep, Record};
use report::Act;
use side::Side;
use testkit::fs_type::FsType;

/// What the `platter` command has.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
usage: cargo xtask bench COMMAND [OPTIONS]

  mechanisms   the mechanisms on and off: page cache insertion, shared attributes, delayed references
               and block groups of btrfs, the mount object of XFS
  peers        platter, the kernel, fuse2fs, bindfs and a null server; and whole jobs of the command
  scale        costs as files, extents, images, caches and threads grow
  reading      btrfs and XFS, cold, and the kernel and btrfs restore
  all          all of these, and the report; peers of one format
  report       make docs/PERFORMANCE.md and docs/performance/ of what is kept; with --check, compare them

  --quick      so little that only counts mean anything
  --only LIST  of workloads, jobs, what grows, or mechanisms, separated by commas
  --sides LIST of library, kernel, fuse, device, fuse2fs, bindfs, bindfs-long, null, null-device,
               tmpfs
  --format F   what the images of peers hold: ext4, btrfs or xfs; ext4 without it. Each has raw runs
               of its own
  --rounds N   turns of each side; of what grows, no more than usual

Raw runs go to bench/results/, the report to docs/; of a quick run, and where something was left out,
both go to target/bench/.

Single benchmarks, kept with --keep:";

/// The word for jobs by programs, which have raw runs of their own.
const JOBS: &str = "jobs";

/// A benchmark by name.
struct Benchmark {
    name: &'static str,
    about: &'static str,
    run: fn(Keep) -> Result<()>,
}

const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "requests",
        about: "requests that reading and changing files issue to the device",
        run: requests::run,
    },
    Benchmark {
        name: "instructions",
        about: "instructions of single operations of the library, counted by callgrind",
        run: instructions::run,
    },
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        // Parts of this program that run as processes of their own.
        ["serve", orders] => side::serve(orders),
        ["run", orders] => peers::run(orders),
        ["perform", orders] => mechanisms::perform(orders),
        [mechanisms::HEADS_PART, orders] => mechanisms::perform_heads(orders),
        [instructions::PART, orders] => instructions::operate(orders),
        [reading::PART, orders] => reading::part(orders),
        ["peers", options @ ..] => measure(&choice(options)?, &[peers, programs]),
        ["scale", options @ ..] => measure(&choice(options)?, &[scale]),
        ["mechanisms", options @ ..] => measure(&choice(options)?, &[mechanism]),
        ["reading", options @ ..] => measure(&choice(options)?, &[reading]),
        ["all", options @ ..] => measure(
            &choice(options)?,
            &[mechanism, peers, programs, scale, reading],
        ),
        ["report"] => report::run(Extent::Full, Act::Write),
        ["report", "--check"] => report::run(Extent::Full, Act::Check),
        [name] => single(name, Keep::No),
        [name, "--keep"] => single(name, Keep::Yes),
        _ => list(),
    }
}

/// Measures, and makes the report. What fails does not keep the other parts from being measured.
fn measure(choice: &Choice, parts: &[fn(&Choice) -> Result<()>]) -> Result<()> {
    let place = place(choice);
    match place {
        Extent::Quick => record::forget_tried()?,
        Extent::Full => Quiet::wait()?,
    }
    let mut failed = Ok(());
    for part in parts {
        if let Err(error) = part(choice) {
            println!("{error:#}");
            failed = Err(error);
        }
    }
    report::run(place, Act::Write)?;
    failed
}

/// Where results go: to those that count, if nothing was left out of any raw runs.
fn place(choice: &Choice) -> Extent {
    let mut parts = choice.parts.iter();
    let are_whole = parts.all(|part| part == JOBS || Mechanism::of_word(part).is_some());
    if are_whole && choice.sides.is_empty() {
        choice.extent
    } else {
        Extent::Quick
    }
}

fn peers(choice: &Choice) -> Result<()> {
    if !work::ALL.iter().any(|workload| choice.takes(workload.name)) {
        return Ok(());
    }
    let record = Record::of(command(), || peers::measure(choice))?;
    record.keep(peers::record_name(choice.format), place(choice))
}

fn mechanism(choice: &Choice) -> Result<()> {
    let chosen = |mechanism: &Mechanism| choice.takes(mechanism.word());
    for mechanism in Mechanism::ALL.into_iter().filter(chosen) {
        let record = Record::of(command(), || mechanism.measure(choice))?;
        record.keep(&mechanism.record_name(), place(choice))?;
    }
    Ok(())
}

/// Jobs by programs.
fn programs(choice: &Choice) -> Result<()> {
    if !choice.takes(JOBS) {
        return Ok(());
    }
    let record = Record::of(command(), || {
        programs::measure(choice.format, choice.extent, choice.rounds)
    })?;
    record.keep(programs::record_name(choice.format), place(choice))
}

fn scale(choice: &Choice) -> Result<()> {
    if !scale::takes_any(choice) {
        return Ok(());
    }
    let measure = || scale::measure(choice);
    let record = Record::of(command(), measure)?;
    record.keep("scale", place(choice))
}

fn reading(choice: &Choice) -> Result<()> {
    if !choice.takes("reading") {
        return Ok(());
    }
    let measure = || reading::measure(choice.extent, choice.rounds);
    let record = Record::of(command(), measure)?;
    record.keep("reading", place(choice))
}

/// What this program was called by.
fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    format!("cargo xtask bench {}", words.join(" "))
}

fn choice(options: &[&str]) -> Result<Choice> {
    let mut choice = Choice {
        extent: Extent::Full,
        parts: Vec::new(),
        sides: Vec::new(),
        rounds: None,
        format: FsType::Ext4,
    };
    let mut options = options.iter();
    while let Some(&option) = options.next() {
        let mut value = || {
            let value = options.next();
            value.with_context(|| format!("{option} takes a value"))
        };
        match option {
            "--quick" => choice.extent = Extent::Quick,
            "--only" => choice.parts.extend(value()?.split(',').map(str::to_owned)),
            "--sides" => {
                for word in value()?.split(',') {
                    let side = Side::of_word(word);
                    choice
                        .sides
                        .push(side.with_context(|| format!("no side is called {word}"))?);
                }
            }
            "--format" => {
                let name = value()?;
                let format = FsType::named(name);
                choice.format = format.with_context(|| format!("no format is called {name}"))?;
            }
            "--rounds" => choice.rounds = Some(value()?.parse()?),
            _ => bail!("no option is called {option}"),
        }
    }
    Ok(choice)
}

fn single(name: &str, keep: Keep) -> Result<()> {
    match BENCHMARKS.iter().find(|benchmark| benchmark.name == name) {
        Some(benchmark) => (benchmark.run)(keep),
        None => bail!("no benchmark is called {name}"),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a list is one of main's ways out")]
fn list() -> Result<()> {
    println!("{USAGE}");
    for benchmark in BENCHMARKS {
        println!("  {:<11}{}", benchmark.name, benchmark.about);
    }
    Ok(())
}
