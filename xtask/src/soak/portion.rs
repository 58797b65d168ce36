//! Running one portion: in namespaces that end with it, with a log, until its time is over.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::plan::{Portion, Program, Step};
use super::record::{Counts, Outcome};
use crate::clock;
use crate::command::command;

/// Between two looks whether a program has ended.
const WAIT: Duration = Duration::from_millis(50);
/// Bytes from the end of a log that are kept of a failure that has no record.
const TAIL_BYTES: usize = 3000;
/// A portion may take so many times what it is expected to, and a while besides.
const SECONDS_TIMES: f64 = 10.0;
const SECONDS_SPARE: f64 = 600.0;
/// Names the program to test, for this program and for the testkit.
pub(super) const PROGRAM: &str = "PLATTER_PROGRAM";

/// Where everything of a run lies.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// Programs as they were built from the commit.
    pub(super) programs: PathBuf,
    /// The source tree of the commit.
    pub(super) source: PathBuf,
    /// Where cargo puts what it builds.
    pub(super) target: PathBuf,
    /// What portions came to, and their logs.
    pub(super) records: PathBuf,
    /// The working tree, where failures leave their images.
    pub(super) root: PathBuf,
}

/// What a program leaves that knows of records.
#[derive(Debug, Default, Deserialize)]
struct Record {
    #[serde(default)]
    counts: Counts,
    #[serde(default)]
    failures: Vec<String>,
}

impl Places {
    /// The same, with the records of one run in a directory of their own.
    pub(super) fn of(&self, run: &str) -> Self {
        Self {
            records: self.records.join(run),
            ..self.clone()
        }
    }

    /// Runs a portion, and returns what it came to: that it could not be run is a failure, too.
    pub(super) fn run(
        &self,
        step: &Step,
        portion: &Portion,
        record: &Path,
        commit: &str,
    ) -> Outcome {
        let begin = clock::now();
        let ran = self.try_run(step, portion, record);
        let Record { counts, failures } = ran.unwrap_or_else(|error| Record {
            failures: vec![format!("{error:#}")],
            ..Record::default()
        });
        Outcome {
            commit: commit.to_owned(),
            seconds: begin.elapsed().as_secs_f64(),
            counts,
            failures,
            reproduce: portion.reproduce(),
        }
    }

    fn try_run(&self, step: &Step, portion: &Portion, path: &Path) -> Result<Record> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        for old in [path.to_owned(), path.with_extension("states")] {
            if old.exists() {
                std::fs::remove_file(old)?;
            }
        }
        let logs = self.records.join("logs");
        std::fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{}-{}.log", step.name, portion.name));
        let output = File::create(&log)?;
        let mut command = self.command(portion, path);
        command.stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().context("unshare did not start")?;
        let limit = Duration::from_secs_f64(SECONDS_SPARE + SECONDS_TIMES * step.seconds);
        let status = wait(child, limit);
        let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        let mut record = match portion.program {
            Program::Soak | Program::Xtask if path.exists() => {
                serde_json::from_str(&std::fs::read_to_string(path)?)?
            }
            Program::Soak | Program::Xtask => Record::default(),
            Program::Tests(_) => counted([("tests", tests_passed(&text))]),
            Program::Fuzz => {
                counted([("images", images(&text)), ("operations", operations(&text))])
            }
        };
        let failure = match status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failure) = failure
            && record.failures.is_empty()
        {
            record.failures.push(format!("{failure}\n{}", tail(&text)));
        }
        if record.failures.is_empty() && record.counts.values().all(|&count| count == 0) {
            record.failures.push("nothing was run".to_owned());
        }
        Ok(record)
    }

    /// The portion's program as the first of a process namespace. All processes of that end with
    /// it, it ends with `unshare`, and that ends with this program, however this ends.
    fn command(&self, portion: &Portion, record: &Path) -> Command {
        // A shell is a first process that waits for those which lose their parents.
        const SCRIPT: &str = r#""$@"; exit $?"#;
        let name = match portion.program {
            Program::Soak => "soak",
            Program::Xtask => "xtask",
            Program::Tests(tests) => tests.program(),
            Program::Fuzz => "platter-fuzz",
        };
        let mut outer = command("setpriv");
        outer
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(["--mount", "--propagation", "private"])
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
            .args(["sh", "-c", SCRIPT, "sh"])
            .arg(self.programs.join(name))
            .args(&portion.words);
        if matches!(portion.program, Program::Soak | Program::Xtask) {
            outer.arg("--record").arg(record);
        }
        outer
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .env(PROGRAM, self.programs.join("platter"))
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_MANIFEST_DIR", self.source.join("xtask"))
            .env("CARGO_BUILD_JOBS", "1")
            .envs(portion.variables.iter().map(|(name, value)| (name, value)));
        outer
    }
}

/// Waits for the end of a program; kills it when its time is over.
fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus> {
    let begin = clock::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("killed after {} s", limit.as_secs());
        }
        std::thread::sleep(WAIT);
    }
}

fn counted<const N: usize>(counts: [(&str, Option<u64>); N]) -> Record {
    let counts = counts
        .into_iter()
        .filter_map(|(name, count)| Some((name.to_owned(), count?)));
    Record {
        counts: counts.collect(),
        failures: Vec::new(),
    }
}

/// The tests that passed, if there were any.
pub(super) fn tests_passed(text: &str) -> Option<u64> {
    let results = text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "));
    let passed = results
        .filter_map(|result| result.split_once(" passed"))
        .filter_map(|(count, _)| count.parse::<u64>().ok());
    Some(passed.sum()).filter(|&passed| passed > 0)
}

/// Whether tests were begun: the build succeeded.
pub(super) fn tests_ran(text: &str) -> bool {
    text.lines().any(|line| {
        line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test"))
    })
}

/// The images that the mutation runner set out to examine.
fn images(text: &str) -> Option<u64> {
    let counts = text.lines().filter_map(|line| {
        let (before, _) = line.split_once(" images from ")?;
        before.split_whitespace().next_back()?.parse::<u64>().ok()
    });
    Some(counts.sum()).filter(|&images| images > 0)
}

/// The operations that the mutation runner did.
fn operations(text: &str) -> Option<u64> {
    let counts = text.lines().filter_map(|line| {
        let (_, count) = line.strip_suffix(" operations")?.rsplit_once(' ')?;
        count.parse::<u64>().ok()
    });
    Some(counts.sum()).filter(|&operations| operations > 0)
}

/// The last lines of a log.
fn tail(text: &str) -> &str {
    let text = text.trim_end();
    let start = text.len().saturating_sub(TAIL_BYTES);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at));
    start.map_or(text, |start| &text[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted_over_all_results() {
        let text = "running 3 tests\ntest result: ok. 3 passed; 0 failed; 0 ignored\n\
                    test result: ok. 0 passed; 0 failed\ntest result: ok. 4 passed; 0 failed";
        assert_eq!(tests_passed(text), Some(7));
        assert_eq!(tests_passed("test result: ok. 0 passed; 0 failed"), None);
        assert_eq!(
            tests_passed("test result: FAILED. 3 passed; 1 failed"),
            None
        );
        assert!(tests_ran(text) && !tests_ran("error: could not compile"));
    }

    #[test]
    fn images_are_counted_over_all_parts() {
        let text = "read: 200 images from 5 seeds, numbers from 0\nedit: 30 images from 5 seeds";
        assert_eq!(images(text), Some(230));
        assert_eq!(
            images("20000 images from 57 seeds, numbers from 4"),
            Some(20_000)
        );
        assert_eq!(images("no such line"), None);
        let done = "30 images, 9 with checksums put right: 300 operations\nslowest: 5 ms";
        assert_eq!(operations(done), Some(300));
        assert_eq!(
            operations("30 images, 9 with checksums put right: 3 opened"),
            None
        );
    }

    #[test]
    fn the_tail_of_a_log_begins_at_a_character() {
        let text = "ä".repeat(TAIL_BYTES);
        assert!(tail(&text).len() <= TAIL_BYTES && tail(&text).starts_with('ä'));
        assert_eq!(tail("short\n"), "short");
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let child = command("sleep").arg("60").spawn().unwrap();
        let error = wait(child, Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("killed"));
        let child = command("true").spawn().unwrap();
        assert!(wait(child, Duration::from_mins(1)).unwrap().success());
    }
}
