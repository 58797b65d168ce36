//! pjdfstest: permissions and errors of POSIX calls, compared with the kernel's mount.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::super::stage::Stage;
use super::{Done, Load};
use crate::command::{self, command};

/// What the filesystem offers, and two users to act as.
const PJDFSTEST_TOML: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;
/// The kernel passes more than so many of the tests for Linux with these settings, whatever the filesystem.
const PASSES_MIN: usize = 380;
/// What the kernel passes, and we skip: the C library knows no limit of links for FUSE.
const SKIPPED_ON_FUSE: &[&str] = &["link::link_count_max"];

/// The names of tests, by their outcomes.
#[derive(Debug, Default)]
struct Outcomes {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

impl Outcomes {
    /// Reads what pjdfstest printed.
    fn read(report: &str) -> Result<Self> {
        let mut outcomes = Self::default();
        for line in report.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [name, "ok"] => outcomes.passed.insert((*name).to_owned()),
                [name, "FAILED"] => outcomes.failed.insert((*name).to_owned()),
                _ => continue,
            };
        }
        let summary = report.lines().find(|line| line.starts_with("Summary:"));
        let summary = summary.context("pjdfstest gave no summary")?;
        let (passed, failed) = (outcomes.passed.len(), outcomes.failed.len());
        let is_all = summary.contains(&format!(" {passed} passed"))
            && summary.contains(&format!(" {failed} failed"));
        ensure!(is_all, "of {passed} passed and {failed} failed: {summary}");
        Ok(outcomes)
    }

    /// What these lack, or fail, compared with what the kernel's mount passes.
    fn worse_than<'o>(&'o self, kernel: &'o Self) -> Vec<&'o str> {
        let is_skipped = |name: &&String| SKIPPED_ON_FUSE.contains(&&***name);
        let lacking = kernel.passed.difference(&self.passed);
        let lacking = lacking.filter(|name| !is_skipped(name));
        let failed = self.failed.difference(&kernel.failed);
        let all: BTreeSet<&str> = lacking.chain(failed).map(String::as_str).collect();
        all.into_iter().collect()
    }
}

/// Runs pjdfstest as root, since most of it tests permissions.
pub(super) fn pjdfstest(stage: &Stage, _: &Load) -> Result<Done> {
    let kernel = of_kernel(stage)?;
    stage.mount()?;
    let ours = run(stage, &stage.mounted());
    stage.unmount()?;
    let ours = ours?;
    let worse = ours.worse_than(&kernel);
    ensure!(worse.is_empty(), "the kernel passes {}", worse.join(", "));
    let passed = ours.passed.len();
    let text = format!(
        "{passed} tests passed, {} by the kernel",
        kernel.passed.len()
    );
    Ok(Done::new(text).count("tests", passed as u64))
}

/// What the kernel's mount of a filesystem of the same generation comes to, run once.
fn of_kernel(stage: &Stage) -> Result<Arc<Outcomes>> {
    static KNOWN: Mutex<BTreeMap<&str, Arc<Outcomes>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(outcomes) = known.get(stage.cell.generation()) {
        return Ok(Arc::clone(outcomes));
    }
    let outcomes = stage.on_kernel(|mounted| run(stage, mounted))?;
    let passed = outcomes.passed.len();
    ensure!(passed > PASSES_MIN, "the kernel passes {passed} tests only");
    let outcomes = Arc::new(outcomes);
    known.insert(stage.cell.generation(), Arc::clone(&outcomes));
    Ok(outcomes)
}

fn run(stage: &Stage, mounted: &Path) -> Result<Outcomes> {
    let settings = stage.path("pjdfstest.toml");
    std::fs::write(&settings, PJDFSTEST_TOML)?;
    let mut suite = command("sh");
    suite
        .args([
            "-c",
            r#"chmod 777 "$1" && cd "$1" && umask 0 && "$2" -c "$3" -p "$1"; true"#,
            "sh",
        ])
        .arg(mounted)
        .arg(stage.pjdfstest().get_program())
        .arg(settings);
    Outcomes::read(&String::from_utf8_lossy(&command::output(&mut suite)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(lines: &str, passed: usize, failed: usize) -> Outcomes {
        let summary = format!("Summary: {failed} failed, 3 skipped, {passed} passed, 9 total");
        Outcomes::read(&format!("{lines}\n{summary}")).unwrap()
    }

    #[test]
    fn only_what_the_kernel_fails_is_excused() {
        let kernel = outcomes(
            "a::one ok\na::two FAILED\na::three ok\na::four skipped",
            2,
            1,
        );
        let same = outcomes("a::one ok\na::two FAILED\n\tassertion\na::three ok", 2, 1);
        assert!(same.worse_than(&kernel).is_empty());
        let skips = outcomes("a::one ok\na::two ok\na::three skipped", 2, 0);
        assert_eq!(skips.worse_than(&kernel), ["a::three"]);
        let fails = outcomes(
            "a::one FAILED\na::two ok\na::three ok\na::four FAILED",
            2,
            2,
        );
        assert_eq!(fails.worse_than(&kernel), ["a::four", "a::one"]);
        assert!(Outcomes::read("a::one ok\nSummary: 0 failed, 2 passed").is_err());
        assert!(Outcomes::read("a::one ok").is_err());
    }
}
