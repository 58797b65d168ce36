//! Everything that durability rests on, in one run that goes on where it was when it is killed:
//! `cargo xtask soak --nightly`.

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

use crate::command::command;
use crate::workspace::Workspace;
use code::Code;
use lanes::{Lanes, Progress};
use plan::{Portion, Scene, Step};
use record::{Outcome, Records};
use table::Head;

pub(crate) use inner::run_inner;

const USAGE: &str = "\
usage: cargo xtask soak --nightly [--quick] [--retry] [--step NAME] [--lanes N]

  --quick      a twentieth of it, to try the command; docs/SOAK.md stays as it is
  --retry      run again what failed
  --step NAME  only the steps whose names begin so; docs/SOAK.md stays as it is
  --lanes N    so many portions at once; one for each processor without it

It is of the commit that is checked out. What has run is kept in target/soak-nightly and not run
again, also for later commits that change no more than documentation or results.";

/// Where the table is kept.
const PAGE: &str = "docs/SOAK.md";

#[derive(Debug, Clone, Default, PartialEq)]
struct Request {
    is_quick: bool,
    retries: bool,
    step: Option<String>,
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
                "--nightly" => {}
                "--quick" => request.is_quick = true,
                "--retry" => request.retries = true,
                "--step" => request.step = Some(value()?.clone()),
                "--lanes" => request.lanes = value()?.parse()?,
                "--help" | "-h" => request.help = true,
                _ => bail!("what is {word}?\n{USAGE}"),
            }
        }
        ensure!(request.lanes > 0, "no lanes run nothing");
        Ok(request)
    }

    fn wants(&self, step: &Step) -> bool {
        let begins_so = |name: &String| step.name.starts_with(name.as_str());
        self.step.as_ref().is_none_or(begins_so)
    }
}

/// Runs what is left of the long run, prints its table, and keeps that.
pub(super) fn run(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let request = Request::parse(arguments)?;
    if request.help {
        println!("{USAGE}");
        return Ok(());
    }
    super::require_root()?;
    let code = Code::find(workspace)?;
    let target = workspace.target().join("soak-nightly");
    std::fs::create_dir_all(&target)?;
    let _lock = lock(&target.join("lock"))?;
    super::install(workspace)?;
    let quick = if request.is_quick { "-quick" } else { "" };
    let dir = target.join(format!("{}{quick}", code.key));
    let places = prepare::prepare(workspace, &code, &dir)?;
    let scenes = code::text(command(places.programs.join("soak")).arg("scenes"))?;
    let mut plan = plan::steps(&Scene::list(&scenes), request.is_quick);
    plan.retain(|step| request.wants(step));
    ensure!(!plan.is_empty(), "no step is called so");
    let mut records = Records::open(&dir, &plan)?;
    if request.retries {
        records.forget_failures();
    }
    let lanes = Lanes::new(&plan, records);
    println!(
        "\n== {}: {}",
        dir.display(),
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
    let rows = table::rows(&plan, &records)?;
    let page = table::page(&head(&request, &code)?, &rows);
    println!("\n{page}");
    if !request.is_quick && request.step.is_none() {
        std::fs::write(workspace.root.join(PAGE), page)?;
        println!("kept in {PAGE}");
    }
    let failures: usize = rows.iter().map(|row| row.failures.len()).sum();
    ensure!(failures == 0, "{failures} failures");
    Ok(())
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

fn head(request: &Request, code: &Code) -> Result<Head> {
    let kernel = code::text(command("uname").arg("-r"))?;
    let compiler = code::text(command("rustc").arg("--version"))?;
    let e2fsck = code::text(command("sh").args(["-c", "e2fsck -V 2>&1 | head -1"]))?;
    let lanes = request.lanes;
    Ok(Head {
        is_quick: request.is_quick,
        key: code.key.clone(),
        day: code::text(command("date").args(["-u", "+%F"]))?,
        versions: format!("Linux {kernel}, {e2fsck}, {compiler}, {lanes} portions at once"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request> {
        Request::parse(&super::super::words(line))
    }

    #[test]
    fn requests_say_how_much_and_of_what() {
        let request = parse("--nightly --quick --step crash --lanes 3").unwrap();
        assert!(request.is_quick && !request.retries);
        assert_eq!(request.lanes, 3);
        let steps = ["crash-ordered", "fsx"].map(|name| plan::tests::step(name, 1));
        assert_eq!(steps.map(|step| request.wants(&step)), [true, false]);
        assert!(parse("--nightly --retry").unwrap().retries);
        for nonsense in ["--nightly ext4", "--nightly --lanes 0", "--nightly --step"] {
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
