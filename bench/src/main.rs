//! Benchmarks: mechanisms on and off, platter compared with its peers, costs as things grow. Each keeps its
//! raw runs, from which `report` makes `docs/PERFORMANCE.md` and the pages in `docs/performance/`.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "this is a program for a terminal")]

mod abba;
mod measure;
mod record;
mod growing;
mod stage;
mod child;
mod place;
mod side;
mod work;
mod peers;
mod programs;
mod scale;
mod forest;
mod archive;
mod checks;
mod applications;
mod reading;
mod report;
mod mechanisms;
mod requests;
mod instructions;

use anyhow::{Context, Result, bail, ensure};
use measure::Quiet;
use mechanisms::Mechanism;
use peers::Choice;
use record::{Extent, Keep};
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
  checks       platter check, e2fsck, btrfs check and xfs_repair on /usr and on 1,000,000 files, with
               the memory they take and what they read; and copying all that out
  applications tar, ripgrep, find, rm, overlayfs, rsync, SQLite, dpkg, git and make on mounts by
               platter over the device, by the kernel, and by fuse2fs
  all          all of these, peers of every format, and the report
  report       make docs/PERFORMANCE.md and docs/performance/ of what is kept; with --check, compare them

  --quick      so little that only counts mean anything
  --resume     leave out what a run of the same source has measured as a whole: after one that was killed
  --only LIST  of workloads, jobs, what grows, applications, or mechanisms, separated by commas
  --sides LIST of library, kernel, fuse, device, fuse2fs, bindfs, bindfs-long, null, null-device,
               tmpfs
  --format LIST
               what images hold: ext4, btrfs, xfs; without it, all, and ext4 for 'peers', which has raw
               runs of its own for each
  --rounds N   turns of each side; of what grows or takes long, no more than usual
  --files N    small files of checks, instead of 1,000,000

Raw runs go to bench/results/, the report to docs/; of a quick run, and where something was left out,
both go to target/bench/. They are kept after each workload, job, image, application and mechanism.
What fails is left out and listed at the end.

Single benchmarks, kept with --keep:";

/// Words for what has raw runs of its own: jobs by programs, reading, and checks.
const JOBS: &str = "jobs";
const READING: &str = "reading";
const CHECKS: &str = "checks";

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
        [mechanisms::REMOVAL_PART, orders] => mechanisms::remove(orders),
        [instructions::PART, orders] => instructions::operate(orders),
        [reading::PART, orders] => reading::part(orders),
        ["peers", options @ ..] => measure(&choice(options, EXT4)?, &[peers, programs]),
        ["scale", options @ ..] => measure(&choice(options, EXT4)?, &[scale]),
        ["mechanisms", options @ ..] => measure(&choice(options, EXT4)?, &[mechanisms]),
        ["reading", options @ ..] => measure(&choice(options, EXT4)?, &[reading]),
        ["checks", options @ ..] => measure_jointly(&choice(options, &FsType::ALL)?, &[checks]),
        ["applications", options @ ..] => {
            measure_jointly(&choice(options, &FsType::ALL)?, &[applications])
        }
        ["all", options @ ..] => measure_all(&choice(options, &FsType::ALL)?),
        ["report"] => report::run(Extent::Full, Act::Write),
        ["report", "--check"] => report::run(Extent::Full, Act::Check),
        [name] => single(name, Keep::No),
        [name, "--keep"] => single(name, Keep::Yes),
        _ => list(),
    }
}

/// A part of what is measured, with raw runs of its own. Returns what failed in it.
type Part = fn(&Choice) -> Vec<String>;

const PARTS: &[Part] = &[mechanisms, peers, programs, scale, reading];
/// The same of those whose raw runs have all formats.
const JOINT_PARTS: &[Part] = &[checks, applications];

/// What peers are measured on where nothing is said.
const EXT4: &[FsType] = &[FsType::Ext4];

/// Measures, and makes the report. What fails does not keep the other parts from being measured.
fn measure(choice: &Choice, parts: &[Part]) -> Result<()> {
    measure_to(place(choice), choice, parts)
}

/// The same of all parts.
fn measure_all(choice: &Choice) -> Result<()> {
    measure(choice, &all_parts(choice))
}

/// All parts whose raw runs go to the same place.
fn all_parts(choice: &Choice) -> Vec<Part> {
    if joint_place(choice) == place(choice) {
        return [PARTS, JOINT_PARTS].concat();
    }
    println!("checks and applications are measured of all formats only: they are left out");
    PARTS.to_vec()
}

/// The same of parts whose raw runs have all formats.
fn measure_jointly(choice: &Choice, parts: &[Part]) -> Result<()> {
    measure_to(joint_place(choice), choice, parts)
}

fn measure_to(place: Extent, choice: &Choice, parts: &[Part]) -> Result<()> {
    match place {
        Extent::Quick => record::forget_tried()?,
        Extent::Full => Quiet::wait()?,
    }
    let mut failed: Vec<String> = parts.iter().flat_map(|part| part(choice)).collect();
    if let Err(error) = report::run(place, Act::Write) {
        failed.push(format!("report: {error:#}"));
    }
    all_measured(&failed)
}

/// Fails with a list of all that failed.
fn all_measured(failed: &[String]) -> Result<()> {
    ensure!(
        failed.is_empty(),
        "{} failed, the rest was measured:\n  {}",
        failed.len(),
        failed.join("\n  ")
    );
    Ok(())
}

/// Where results go: to those that count, if nothing was left out of any raw runs.
fn place(choice: &Choice) -> Extent {
    let with_runs_of_their_own = [JOBS, READING, CHECKS, applications::ALL];
    let mut parts = choice.parts.iter().map(String::as_str);
    let are_whole = parts
        .all(|part| with_runs_of_their_own.contains(&part) || Mechanism::of_word(part).is_some());
    if are_whole && choice.sides.is_empty() && choice.files.is_none() {
        choice.extent
    } else {
        Extent::Quick
    }
}

/// The same for raw runs that have all formats.
fn joint_place(choice: &Choice) -> Extent {
    let are_all = FsType::ALL
        .iter()
        .all(|format| choice.formats.contains(format));
    if are_all {
        place(choice)
    } else {
        Extent::Quick
    }
}

/// Of what is measured already.
const NOTHING_FAILED: Result<Vec<String>> = Ok(Vec::new());

/// What failed of a measurement, or that all of it did.
fn failures(measured: Result<Vec<String>>) -> Vec<String> {
    measured.unwrap_or_else(|error| vec![format!("{error:#}")])
}

/// Measures each of a list, which have raw runs of their own. Returns what failed.
fn each<T>(
    all: impl IntoIterator<Item = T>,
    what: impl Fn(&T) -> String,
    measure: impl Fn(T) -> Result<Vec<String>>,
) -> Vec<String> {
    let mut failed = Vec::new();
    for one in all {
        let what = what(&one);
        let of_one = failures(measure(one)).into_iter();
        failed.extend(of_one.map(|failure| format!("{what}: {failure}")));
    }
    failed
}

fn peers(choice: &Choice) -> Vec<String> {
    if !work::ALL.iter().any(|workload| choice.takes(workload.name)) {
        return Vec::new();
    }
    let measure = |format| {
        let growing = choice.begin(peers::record_name(format), place(choice))?;
        growing.map_or(NOTHING_FAILED, |growing| {
            peers::measure(choice, format, growing)
        })
    };
    let name = |&format: &FsType| peers::record_name(format).to_owned();
    each(choice.formats.iter().copied(), name, measure)
}

fn mechanisms(choice: &Choice) -> Vec<String> {
    let chosen = |mechanism: &Mechanism| choice.takes(mechanism.word());
    let measure = |mechanism: Mechanism| {
        let growing = choice.begin(&mechanism.record_name(), place(choice))?;
        growing.map_or(NOTHING_FAILED, |growing| mechanism.measure(choice, growing))
    };
    let mechanisms = Mechanism::ALL.into_iter().filter(chosen);
    each(mechanisms, |mechanism| mechanism.record_name(), measure)
}

/// Jobs by programs.
fn programs(choice: &Choice) -> Vec<String> {
    if !choice.takes(JOBS) {
        return Vec::new();
    }
    let measure = |format| {
        let growing = choice.begin(programs::record_name(format), place(choice))?;
        growing.map_or(NOTHING_FAILED, |growing| {
            programs::measure(format, choice, growing)
        })
    };
    let name = |&format: &FsType| programs::record_name(format).to_owned();
    each(choice.formats.iter().copied(), name, measure)
}

fn scale(choice: &Choice) -> Vec<String> {
    if !scale::takes_any(choice) {
        return Vec::new();
    }
    let growing = choice.begin("scale", place(choice));
    failures(growing.and_then(|growing| match growing {
        Some(growing) => scale::measure(choice, growing),
        None => NOTHING_FAILED,
    }))
}

fn reading(choice: &Choice) -> Vec<String> {
    if !choice.takes(READING) {
        return Vec::new();
    }
    let growing = choice.begin("reading", place(choice));
    failures(growing.and_then(|growing| match growing {
        Some(growing) => reading::measure(choice, growing),
        None => NOTHING_FAILED,
    }))
}

fn checks(choice: &Choice) -> Vec<String> {
    if !choice.takes(CHECKS) {
        return Vec::new();
    }
    let growing = choice.begin("checks", joint_place(choice));
    failures(growing.and_then(|growing| match growing {
        Some(growing) => checks::measure(choice, growing),
        None => NOTHING_FAILED,
    }))
}

fn applications(choice: &Choice) -> Vec<String> {
    if !applications::takes_any(choice) {
        return Vec::new();
    }
    let growing = choice.begin("applications", joint_place(choice));
    failures(growing.and_then(|growing| match growing {
        Some(growing) => applications::measure(choice, growing),
        None => NOTHING_FAILED,
    }))
}

/// What is chosen; `formats` where none is named.
fn choice(options: &[&str], formats: &[FsType]) -> Result<Choice> {
    let mut choice = Choice {
        extent: Extent::Full,
        parts: Vec::new(),
        sides: Vec::new(),
        rounds: None,
        files: None,
        formats: Vec::new(),
        resumes: false,
    };
    let mut options = options.iter();
    while let Some(&option) = options.next() {
        let mut value = || {
            let value = options.next();
            value.with_context(|| format!("{option} takes a value"))
        };
        match option {
            "--quick" => choice.extent = Extent::Quick,
            "--resume" => choice.resumes = true,
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
                for name in value()?.split(',') {
                    let format = FsType::named(name);
                    let format = format.with_context(|| format!("no format is called {name}"))?;
                    choice.formats.push(format);
                }
            }
            "--rounds" => choice.rounds = Some(value()?.parse()?),
            "--files" => choice.files = Some(value()?.parse()?),
            _ => bail!("no option is called {option}"),
        }
    }
    if choice.formats.is_empty() {
        choice.formats = formats.to_vec();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_measures_every_format_unless_some_are_named() {
        let formats = |options: &[&str], usual: &[FsType]| choice(options, usual).unwrap().formats;
        assert_eq!(formats(&["--quick"], &FsType::ALL), FsType::ALL);
        assert_eq!(formats(&[], EXT4), EXT4);
        let named = ["--format", "xfs,btrfs"];
        assert_eq!(formats(&named, &FsType::ALL), [FsType::Xfs, FsType::Btrfs]);
        assert!(choice(&["--format", "vfat"], EXT4).is_err());
    }

    #[test]
    fn raw_runs_count_where_nothing_of_them_is_left_out() {
        let of = |options: &[&str]| choice(options, &FsType::ALL).unwrap();
        let ends = |options: &[&str]| [place(&of(options)), joint_place(&of(options))];
        let whole = [Extent::Full; 2];
        for parts in [
            "checks",
            "reading",
            "applications",
            "jobs",
            "m2",
            "jobs,m0,checks",
        ] {
            assert_eq!(ends(&["--only", parts]), whole, "{parts}");
        }
        for options in [["--only", "dpkg"], ["--sides", "kernel"], ["--files", "9"]] {
            assert_eq!(ends(&options), [Extent::Quick; 2], "{options:?}");
        }
        let one_format = ["--format", "ext4"];
        assert_eq!(ends(&one_format), [Extent::Full, Extent::Quick]);
        assert_eq!(all_parts(&of(&one_format)).len(), PARTS.len());
        let count = PARTS.len() + JOINT_PARTS.len();
        assert_eq!(all_parts(&of(&[])).len(), count);
        assert_eq!(
            all_parts(&of(&["--quick", "--format", "ext4"])).len(),
            count
        );
    }

    #[test]
    fn failures_are_listed_and_stop_no_other_measurement() {
        let measure = |number: u64| {
            ensure!(number != 2, "broke down");
            Ok(vec![format!("{number} lacks a side")])
        };
        let failed = each([1, 2, 3], |number| format!("run {number}"), measure);
        let expected = [
            "run 1: 1 lacks a side",
            "run 2: broke down",
            "run 3: 3 lacks a side",
        ];
        assert_eq!(failed, expected);
        let error = all_measured(&failed).unwrap_err().to_string();
        assert!(
            expected.iter().all(|failure| error.contains(failure)),
            "{error}"
        );
        assert!(all_measured(&[]).is_ok());
    }
}
