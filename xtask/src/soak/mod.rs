//! The long runs: power failures, failing writes and full filesystems without end, sessions of edits, images of
//! large trees, and the conformance suites through the mount, over every kind of ext2, ext3 and ext4, of btrfs and
//! of XFS. A run goes on where it was when it is killed.

mod cells;
mod tools;
mod stage;
mod suites;
mod whole;
mod code;
mod record;
mod plan;
mod lanes;
mod portion;
mod instrumented;
mod prepare;
mod table;
mod inner;

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{self, command};
use crate::packages;
use crate::workspace::Workspace;
use cells::Kind;
use code::Code;
use lanes::{Lanes, Progress};
use plan::{Portion, Scene, Step};
use portion::Places;
use record::{Outcome, Records};
use table::Head;

pub(crate) use inner::run_inner as run_portion;

pub(crate) const USAGE: &str = "\
usage: cargo xtask soak [ext4|btrfs|xfs]... [--quick] [--retry] [--only STEP] [--lanes N]

  ext4, btrfs, xfs  the filesystems that are soaked, one after the other; ext4 has ext2 and ext3 with it; without one,
                    all three
  --quick           a twentieth of it, to try the command; the pages in docs/soak stay as they are
  --retry           run again what failed
  --only STEP       only the steps whose names begin so, as in docs/design/testing.md; the pages stay as they are
  --lanes N         so many portions at once; one for each processor without it

It is of the commit that is checked out. What has run is kept in target/soak and not run again, also for
later commits that change no more than documentation or results.";

/// The name under which a long run calls this program for one portion.
pub(crate) const PORTION: &str = "soak-portion";

/// Where the tables are kept.
const PAGES: &str = "docs/soak";

#[derive(Debug, Clone, Default, PartialEq)]
struct Request {
    filesystems: Vec<Kind>,
    is_quick: bool,
    retries: bool,
    only: Option<String>,
    lanes: usize,
    help: bool,
}

impl Request {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut request = Self {
            lanes: std::thread::available_parallelism().map_or(1, usize::from),
            ..Self::default()
        };
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{word} takes a value"));
            match word.as_str() {
                "--quick" => request.is_quick = true,
                "--retry" => request.retries = true,
                "--only" => request.only = Some(value()?.clone()),
                "--lanes" => {
                    let lanes = value()?.parse().ok().filter(|&lanes| lanes > 0);
                    request.lanes = lanes.context("--lanes takes a number from 1 on")?;
                }
                "--help" | "-h" => request.help = true,
                _ => {
                    let known = Kind::ALL.iter().find(|kind| kind.name() == word);
                    let known = known.with_context(|| format!("what is {word}?\n{USAGE}"))?;
                    request.filesystems.push(*known);
                }
            }
        }
        if request.filesystems.is_empty() {
            request.filesystems.extend(Kind::ALL);
        }
        Ok(request)
    }

    fn wants(&self, step: &Step) -> bool {
        let begins_so = |name: &String| step.name.starts_with(name.as_str());
        self.only.as_ref().is_none_or(begins_so)
    }
}

/// Runs what is left of the long run of each filesystem, prints its table, and keeps that.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let request = Request::parse(arguments)?;
    if request.help {
        println!("{USAGE}");
        return Ok(());
    }
    ensure!(
        packages::is_root()?,
        "the kernel's mounts, and file owners, take root"
    );
    let code = Code::find(workspace)?;
    let target = workspace.target().join("soak");
    std::fs::create_dir_all(&target)?;
    let _lock = lock(&target.join("lock"))?;
    packages::require()?;
    packages::require_for_soak()?;
    tools::install(workspace)?;
    stage::clear_old()?;
    let dir = target.join(&code.key);
    let places = prepare::prepare(workspace, &code, &dir)?;
    let scenes = Scene::list(&command::text(
        command(places.programs.join("soak")).arg("scenes"),
    )?);
    let plans = request.filesystems.iter().map(|filesystem| {
        let mut plan = plan::steps(&scenes, *filesystem, request.is_quick);
        plan.retain(|step| request.wants(step));
        (*filesystem, plan)
    });
    let plans: Vec<_> = plans.filter(|(_, plan)| !plan.is_empty()).collect();
    ensure!(!plans.is_empty(), "no step is called so");
    let steps = plans.iter().flat_map(|(_, plan)| plan);
    if steps.into_iter().any(Step::is_instrumented) {
        instrumented::install()?;
    }
    let mut failures = 0;
    for (filesystem, plan) in &plans {
        failures += soak(workspace, &request, &code, &places, (*filesystem, plan))?;
    }
    ensure!(failures == 0, "{failures} failures");
    Ok(())
}

/// Runs what is left of the long run of a filesystem. Returns the number of failures.
fn soak(
    workspace: &Workspace,
    request: &Request,
    code: &Code,
    places: &Places,
    (filesystem, plan): (Kind, &[Step]),
) -> Result<usize> {
    let name = filesystem.name();
    let quick = if request.is_quick { "-quick" } else { "" };
    let places = places.of(&format!("{name}{quick}"));
    let mut records = Records::open(&places.records, plan)?;
    if request.retries {
        records.forget_failures();
    }
    let lanes = Lanes::new(plan, records);
    println!(
        "\n== {}: {}",
        places.records.display(),
        progress_line(lanes.progress(request.lanes))
    );
    lanes.run(
        request.lanes,
        |step, portion, record| places.run(step, portion, record, &code.commit),
        |step, portion, outcome, progress| {
            println!(
                "[{}] {}",
                progress_line(progress),
                line(step, portion, outcome)
            );
        },
    )?;
    let records = lanes.into_records();
    let rows = table::rows(plan, &records)?;
    let page = table::page(&head(request, filesystem, code)?, &rows);
    println!("\n{page}");
    if !request.is_quick && request.only.is_none() {
        let path = format!("{PAGES}/{name}.md");
        std::fs::write(workspace.root.join(&path), page)?;
        println!("kept in {path}");
    }
    Ok(rows.iter().map(|row| row.failures.len()).sum())
}

/// Two runs at once would spoil each other's times and directories.
fn lock(path: &Path) -> Result<File> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("another long run is under way"),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

fn progress_line(progress: Progress) -> String {
    let Progress {
        done,
        portions,
        failed,
        seconds_left,
    } = progress;
    let left = table::minutes(seconds_left);
    format!("{done} of {portions} portions done, {failed} failed, about {left} min left")
}

fn line(step: &Step, portion: &Portion, outcome: &Outcome) -> String {
    let name = format!("{} {}", step.name, portion.name);
    let seconds = outcome.seconds;
    if let Some(failure) = outcome.failures.first() {
        return format!("FAILED {name}: {failure}\n{}", outcome.reproduce);
    }
    let counts = outcome.counts.iter();
    let counts = counts.map(|(name, count)| format!("{count} {}", name.replace('_', " ")));
    let counts = counts.collect::<Vec<_>>().join(", ");
    format!("{name}: {counts}, {seconds:.0} s")
}

fn head(request: &Request, filesystem: Kind, code: &Code) -> Result<Head> {
    let kernel = command::text(command("uname").arg("-r"))?;
    let compiler = command::text(command("rustc").arg("--version"))?;
    let checker = command::text(command("sh").args(["-c", filesystem.version_of_judge()]))?;
    let lanes = request.lanes;
    Ok(Head {
        filesystem: filesystem.name(),
        is_quick: request.is_quick,
        key: code.key.clone(),
        day: command::text(command("date").args(["-u", "+%F"]))?,
        versions: format!("Linux {kernel}, {checker}, {compiler}, {lanes} portions at once"),
    })
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
    fn requests_say_how_much_and_of_what() {
        let request = parse("btrfs --quick --only crash --lanes 3").unwrap();
        assert!(request.is_quick && !request.retries);
        assert_eq!(request.filesystems, [Kind::Btrfs]);
        assert_eq!(request.lanes, 3);
        let steps = ["crash-ordered", "fsx"].map(|name| plan::tests::step(name, 1));
        assert_eq!(steps.map(|step| request.wants(&step)), [true, false]);
        let request = parse("--retry").unwrap();
        assert!(request.retries);
        assert_eq!(request.filesystems, Kind::ALL);
        assert!(parse("--help").unwrap().help);
        for nonsense in ["zfs", "--lanes 0", "--only", "--seeds 3"] {
            assert!(parse(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn one_long_run_keeps_another_out() {
        let path = std::env::temp_dir().join(format!("xtask-lock-{}", std::process::id()));
        let first = lock(&path).unwrap();
        assert!(lock(&path).is_err());
        drop(first);
        assert!(lock(&path).is_ok());
        std::fs::remove_file(path).unwrap();
    }
}
