//! One portion by name, for the long run or by hand: a suite on a filesystem, or a build with
//! instruments.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cells::{Cell, cells};
use super::instrumented::{self, Instrumented};
use super::portion::PROGRAM;
use super::stage::Stage;
use super::suites::{Done, Load, SUITES, Suite};
use crate::workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask soak-portion SUITE CELL [--seeds A..B] [--seconds N] [--record FILE]
       cargo xtask soak-portion {asan | tsan | miri | reclamation} [--record FILE]";

/// What was asked for.
#[derive(Debug, Default, PartialEq)]
struct Request {
    names: Vec<String>,
    seeds: Range<u64>,
    time: Option<Duration>,
    record: Option<PathBuf>,
}

impl Request {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut request = Self {
            seeds: 0..20,
            ..Self::default()
        };
        let mut rest = arguments.iter();
        while let Some(word) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{word} takes a value"));
            match word.as_str() {
                "--seeds" => {
                    let range = value()?.split_once("..").context("seeds are A..B")?;
                    request.seeds = range.0.parse()?..range.1.parse()?;
                }
                "--seconds" => request.time = Some(Duration::from_secs(value()?.parse()?)),
                "--record" => request.record = Some(value()?.into()),
                _ if word.starts_with('-') => bail!("what is {word}?\n{USAGE}"),
                _ => request.names.push(word.clone()),
            }
        }
        Ok(request)
    }
}

/// Runs the portion, and records what was done.
pub(crate) fn run_inner(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let request = Request::parse(arguments)?;
    let counts = match request.names.as_slice() {
        [name] => {
            let build = Instrumented::named(name).context(USAGE)?;
            instrumented::install()?;
            let passed = build.run(workspace)?;
            BTreeMap::from([("runs", 1), ("tests", passed)])
        }
        [suite, cell] => {
            let suite = SUITES.iter().find(|known| known.name == suite);
            let cell = cells().find(|known| known.name == cell);
            let (suite, cell) = suite.zip(cell).context(USAGE)?;
            let load = Load {
                seeds: request.seeds,
                time: request.time,
            };
            let program = std::env::var_os(PROGRAM).map(PathBuf::from);
            let program = program.unwrap_or_else(|| workspace.target().join("debug/platter"));
            let done = soak_cell(workspace, cell, suite, &load, &program)?;
            println!("{}", done.text);
            done.counts.into_iter().collect()
        }
        _ => bail!("{USAGE}"),
    };
    if let Some(path) = request.record {
        let record = serde_json::json!({ "counts": counts });
        std::fs::write(path, record.to_string())?;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_is_a_suite_on_a_cell_or_a_build() {
        let words = super::super::words("fsx ext4 --seeds 5..9 --seconds 60");
        let request = Request::parse(&words).unwrap();
        assert_eq!(request.names, ["fsx", "ext4"]);
        assert_eq!(request.seeds, 5..9);
        assert_eq!(request.time, Some(Duration::from_mins(1)));
        for nonsense in ["--seeds", "--what", "--seconds"] {
            assert!(Request::parse(&[nonsense.to_owned()]).is_err());
        }
        assert!(Instrumented::named("miri").is_some() && Instrumented::named("fsx").is_none());
    }
}
