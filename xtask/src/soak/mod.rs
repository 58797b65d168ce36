//! The long runs: power cuts, failing writes and full filesystems without end, sessions of edits, images of large
//! trees, and the conformance suites through the mount, over every kind of ext2, ext3 and ext4, and of btrfs and
//! XFS where they are named.

mod cells;
mod tools;
mod stage;
mod suites;
mod nightly;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::clock;
use crate::command::{self, command};
use crate::packages;
use crate::workspace::Workspace;
use cells::{Cell, Kind, cells};
use stage::Stage;
use suites::{Done, Load, SUITES, Suite};

pub(crate) const USAGE: &str = "\
usage: cargo xtask soak [ext2|ext3|ext4|btrfs|xfs] [--states N] [--seeds N] [--only NAME]
       cargo xtask soak --nightly [OPTION]...

  --nightly         everything at once, in a run that can be resumed; with --help, its options
  ext2, ext3, ext4  what to soak; without it all three, and the tests of btrfs and XFS below
  btrfs, xfs        the same, of another filesystem
  --states N        distinct states of power cuts for each mode of the journal, and for btrfs on one device
                    and for XFS by shapes of the log; a fourth of them for other profiles, for log trees, and
                    for XFS by features; 20000 without it
  --seeds N         workloads of each other kind of run, and seeds of each suite; 20 without it
  --only NAME       only the suite of that name, or `crash`, `unflushed`, `faults`, `threads`,
                    `full`, `edits`, or `many` (200,000 files) or `usr` (all of /usr) made into an ext4 image,
                    or `layouts` (each combination of options made, written and checked), or, of
                    btrfs, `combinations` (60 of its features), `verdicts` (2,000 corruptions, compared
                    with btrfs check), `logs` (200 log trees, compared with the kernel),
                    `streams` (50 random trees, sent and received), `refs` (10^6 changes of references),
                    `groups` and `groups-mounted` (200 commits, each checked by btrfs check, with items of
                    block groups compared and not), `btrfs-usr`, or, of XFS, `xfs-usr`, `xfs-shapes`, `xfs-verdicts` (630 corruptions,
                    compared with xfs_repair), `xfs-logs` (500 logs, compared with the kernel),
                    `xfs-exchanges` (40 logs, whose recovery is cut, and cut again);
                    the suites: pjdfstest, fsx, dbench, fio, build, unmount, kill";

/// The name under which this program calls itself in a mount namespace of its own.
pub(crate) const INNER: &str = "soak-in-namespace";

/// The name under which a long run calls this program for one portion.
pub(crate) const PORTION: &str = "soak-portion";

pub(crate) use nightly::run_inner as run_portion;

/// What was asked for.
#[derive(Debug, Clone, Default)]
struct Request {
    generation: Option<String>,
    states: u64,
    seeds: u64,
    only: Option<String>,
    help: bool,
}

/// What runs without a mount, in a program of the testkit.
const CUTS: [&str; 6] = ["crash", "unflushed", "faults", "threads", "full", "edits"];

/// Tests that run in full here.
struct Whole {
    name: &'static str,
    /// What they do.
    title: &'static str,
    filesystem: &'static str,
    tests: Tests,
    /// The filter of the tests.
    test: &'static str,
    /// The variable that makes them whole, and its value.
    variable: [&'static str; 2],
}

/// Where tests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tests {
    /// With the oracles, in the testkit.
    Oracle,
    /// In the driver of btrfs.
    Btrfs,
}

impl Tests {
    /// The package, and what cargo builds of it.
    const fn target(self) -> &'static [&'static str] {
        match self {
            Self::Oracle => &["testkit", "--test", "oracle"],
            Self::Btrfs => &["platter-btrfs", "--lib"],
        }
    }

    /// What the program is called that cargo builds.
    const fn program(self) -> &'static str {
        match self {
            Self::Oracle => "oracle",
            Self::Btrfs => "platter_btrfs",
        }
    }
}

impl Whole {
    /// Words that leave the tests of other filesystems out: a filter is any part of a name.
    fn skip(&self) -> impl Iterator<Item = &'static str> {
        let others: &[_] = match self.filesystem {
            "ext4" => &["--skip", "btrfs::", "--skip", "xfs::"],
            _ => &[],
        };
        others.iter().copied()
    }
}

const WHOLE: [Whole; 16] = [
    Whole {
        name: "many",
        title: "200,000 files made into an image, compared and checked",
        filesystem: "ext4",
        tests: Tests::Oracle,
        test: "trees::many_files_become_an_image",
        variable: ["PLATTER_TEST_MANY_FILES", "200000"],
    },
    Whole {
        name: "usr",
        title: "all of /usr made into an image, compared and checked",
        filesystem: "ext4",
        tests: Tests::Oracle,
        test: "usr::",
        variable: ["PLATTER_TEST_WHOLE_USR", "1"],
    },
    Whole {
        name: "layouts",
        title: "every layout: mkfs, check, resize and mount, judged by e2fsprogs and the kernel",
        filesystem: "ext4",
        tests: Tests::Oracle,
        test: "layouts::",
        variable: ["PLATTER_TEST_ALL_LAYOUTS", "1"],
    },
    Whole {
        name: "combinations",
        title: "features of btrfs, combined at random, compared with the kernel",
        filesystem: "btrfs",
        tests: Tests::Oracle,
        test: "btrfs::layouts::combinations",
        variable: ["PLATTER_BTRFS_LAYOUTS", "0..60"],
    },
    Whole {
        name: "verdicts",
        title: "corruptions of btrfs, compared with btrfs check",
        filesystem: "btrfs",
        tests: Tests::Oracle,
        test: "btrfs::check::verdicts",
        variable: ["PLATTER_BTRFS_VERDICTS", "0..1000"],
    },
    Whole {
        name: "logs",
        title: "log trees of btrfs, compared with the kernel's replay",
        filesystem: "btrfs",
        tests: Tests::Oracle,
        test: "btrfs::log_cuts",
        variable: ["PLATTER_TEST_LOGS", "200"],
    },
    Whole {
        name: "streams",
        title: "random trees sent and received, by platter and by btrfs-progs",
        filesystem: "btrfs",
        tests: Tests::Oracle,
        test: "random_trees_are_sent_and_received",
        variable: ["PLATTER_STREAM_TREES", "50"],
    },
    Whole {
        name: "refs",
        title: "1,000,000 random changes of references, in each index of delayed references",
        filesystem: "btrfs",
        tests: Tests::Btrfs,
        test: "indexes_agree_on_random_changes",
        variable: ["PLATTER_BTRFS_REFS", "1000000"],
    },
    Whole {
        name: "groups",
        title: "200 commits of random writes by the library, each judged by btrfs check",
        filesystem: "btrfs",
        tests: Tests::Btrfs,
        test: "unchanged_groups_are_skipped_under_random_writes",
        variable: ["PLATTER_BTRFS_COMMITS", "200"],
    },
    Whole {
        name: "groups-mounted",
        title: "200 commits of random writes through a mount, each judged by btrfs check",
        filesystem: "btrfs",
        tests: Tests::Oracle,
        test: "btrfs::groups::",
        variable: ["PLATTER_BTRFS_COMMITS", "200"],
    },
    Whole {
        name: "btrfs-usr",
        title: "all of /usr in btrfs, with each compression, compared with the kernel",
        filesystem: "btrfs",
        tests: Tests::Oracle,
        test: "btrfs::usr::",
        variable: ["PLATTER_TEST_WHOLE_USR", "1"],
    },
    Whole {
        name: "xfs-usr",
        title: "all of /usr in XFS, compared with the kernel",
        filesystem: "xfs",
        tests: Tests::Oracle,
        test: "xfs::usr::",
        variable: ["PLATTER_TEST_WHOLE_USR", "1"],
    },
    Whole {
        name: "xfs-shapes",
        title: "sizes of XFS, combined, compared with the kernel",
        filesystem: "xfs",
        tests: Tests::Oracle,
        test: "xfs::matrix::",
        variable: ["PLATTER_XFS_ALL_SHAPES", "1"],
    },
    Whole {
        name: "xfs-verdicts",
        title: "corruptions of XFS, compared with xfs_repair",
        filesystem: "xfs",
        tests: Tests::Oracle,
        test: "xfs::check::xfs_check_agrees",
        variable: ["PLATTER_XFS_VERDICTS", "70"],
    },
    Whole {
        name: "xfs-logs",
        title: "logs of XFS, compared with the kernel's recovery",
        filesystem: "xfs",
        tests: Tests::Oracle,
        test: "xfs_log::many::many_logs",
        variable: ["PLATTER_XFS_LOGS", "500"],
    },
    Whole {
        name: "xfs-exchanges",
        title: "recoveries of exchanges of XFS, cut, and cut again",
        filesystem: "xfs",
        tests: Tests::Oracle,
        test: "xfs_log::recut::",
        variable: ["PLATTER_XFS_EXCHANGES", "40"],
    },
];

impl Request {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut request = Self {
            states: 20_000,
            seeds: 20,
            ..Self::default()
        };
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{word} takes a value"));
            match word.as_str() {
                "--help" | "-h" => request.help = true,
                "ext2" | "ext3" | "ext4" | "btrfs" | "xfs" => {
                    request.generation = Some(word.clone());
                }
                "--states" => request.states = value()?.parse()?,
                "--seeds" => request.seeds = value()?.parse()?,
                "--only" => request.only = Some(value()?.clone()),
                _ => bail!("what is {word}?\n{USAGE}"),
            }
        }
        let is_something = request.seeds > 0 && request.states > 0;
        ensure!(is_something, "no seeds or states are nothing to run");
        if let Some(only) = &request.only {
            let mut known = CUTS
                .iter()
                .copied()
                .chain(WHOLE.iter().map(|whole| whole.name))
                .chain(SUITES.iter().map(|suite| suite.name));
            ensure!(
                known.any(|known| known == only),
                "there is no suite {only}\n{USAGE}"
            );
        }
        Ok(request)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == name)
    }
}

/// Runs everything that was asked for, and stops at the first failure.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|word| word == "--nightly") {
        return nightly::run(workspace, arguments);
    }
    let request = Request::parse(arguments)?;
    if request.help {
        println!("{USAGE}");
        return Ok(());
    }
    require_root()?;
    let wants_suites = SUITES.iter().any(|suite| request.wants(suite.name));
    if wants_suites {
        install(workspace)?;
    } else {
        packages::require()?;
    }
    let mut build = command::cargo(&workspace.root);
    command::run(build.args(["build", "--locked", "--package", "platter-cli"]))?;
    let mut has_run = false;
    for name in CUTS {
        if request.wants(name) {
            let mut soak = command::cargo(&workspace.root);
            soak.args(["run", "--quiet", "--locked", "--package", "testkit"])
                .args(["--bin", "soak", "--", name]);
            match name {
                "crash" => soak.args(["--states", &request.states.to_string()]),
                _ => soak.arg(request.seeds.to_string()),
            };
            match &request.generation {
                Some(generation) => soak.arg(generation),
                None => soak.args(["ext2", "ext3", "ext4"]),
            };
            command::run(&mut soak)?;
            has_run = true;
        }
    }
    let filesystem = request.generation.as_deref();
    for whole in WHOLE.iter().filter(|it| request.wants(it.name)) {
        if filesystem.is_none_or(|name| name == whole.filesystem) {
            let [variable, value] = whole.variable;
            let tests = |options: &[&str]| {
                let mut soak = command::cargo(&workspace.root);
                let target = whole.tests.target();
                soak.args(["test", "--quiet", "--locked", "--package"])
                    .args(target)
                    .args([whole.test, "--"])
                    .args(options)
                    .args(whole.skip())
                    .env(variable, value);
                soak
            };
            let listed = command::output(&mut tests(&["--list"]))?;
            ensure!(
                String::from_utf8_lossy(&listed).contains(": test"),
                "{}: no test has {} in its name",
                whole.name,
                whole.test
            );
            command::run(&mut tests(&[]))?;
            has_run = true;
        }
    }
    if !wants_suites {
        ensure!(
            has_run,
            "that suite is not for that filesystem: nothing was run"
        );
        return Ok(());
    }
    // Whatever a killed run leaves mounted goes with the namespace.
    let mut inner = command("unshare");
    inner
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe()?)
        .arg(INNER)
        .args(arguments);
    command::run(&mut inner)
}

fn require_root() -> Result<()> {
    ensure!(
        packages::is_root()?,
        "the kernel's mounts, and file owners, take root"
    );
    Ok(())
}

/// Installs what the suites need and is missing.
fn install(workspace: &Workspace) -> Result<()> {
    packages::require()?;
    packages::require_for_soak()?;
    tools::install(workspace)
}

/// The suites, inside the namespace.
pub(crate) fn run_inner(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let request = Request::parse(arguments)?;
    let is_wanted = |cell: &&Cell| match request.generation.as_deref() {
        Some(generation) => cell.generation() == generation,
        None => cell.kind == Kind::Ext,
    };
    let load = Load {
        seeds: 1..request.seeds.saturating_add(1),
        time: None,
    };
    let program = workspace.target().join("debug/platter");
    let mut counts = Vec::new();
    for cell in cells().filter(is_wanted) {
        for suite in SUITES.iter().filter(|suite| request.wants(suite.name)) {
            if !suite.fits(cell) {
                continue;
            }
            println!("\n== {}: {}", cell.name, suite.name);
            let start = clock::now();
            let done = soak_cell(workspace, cell, suite, &load, &program)?.text;
            println!(
                "{}: {}: {done}; its own checker and the kernel agree",
                cell.name, suite.name
            );
            counts.push((cell.name, suite.name, done, start.elapsed()));
        }
    }
    ensure!(
        !counts.is_empty(),
        "that suite is not for that filesystem: nothing was run"
    );
    println!("\n== {} runs, all clean", counts.len());
    for (cell, suite, done, time) in &counts {
        println!("{cell:>16} {suite:>10}  {:>5} s  {done}", time.as_secs());
    }
    let total: Duration = counts.iter().map(|&(.., time)| time).sum();
    println!("{:>34} s  in all", total.as_secs());
    Ok(())
}

/// Runs a suite on a new filesystem, which `program` mounts, and judges what it leaves.
fn soak_cell(
    workspace: &Workspace,
    cell: &'static Cell,
    suite: &Suite,
    load: &Load,
    program: &Path,
) -> Result<Done> {
    let stage = Stage::set(workspace, cell, program)?;
    (suite.run)(&stage, load)
        .and_then(|done| stage.judge().map(|()| done))
        .with_context(|| format!("{} on {}", suite.name, cell.name))
}

/// A command line, for tests.
#[cfg(test)]
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request> {
        Request::parse(&words(line))
    }

    #[test]
    fn requests_name_a_generation_and_a_suite() {
        let request = parse("ext3 --seeds 7 --states 9 --only fsx").unwrap();
        assert_eq!(request.generation.as_deref(), Some("ext3"));
        assert_eq!((request.seeds, request.states), (7, 9));
        assert!(request.wants("fsx") && !request.wants("dbench"));
        assert!(parse("").unwrap().wants("dbench"));
        assert_eq!(parse("xfs").unwrap().generation.as_deref(), Some("xfs"));
        assert!(parse("zfs").is_err());
        for nothing in ["--seeds", "--seeds 0", "--states 0", "--only fxs"] {
            assert!(parse(nothing).is_err(), "{nothing}");
        }
        assert!(parse("--help").unwrap().help);
    }
}
