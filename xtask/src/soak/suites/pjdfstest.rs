//! pjdfstest: permissions and errors of POSIX calls.

use anyhow::{Context, Result, ensure};

use super::super::cells::Kind;
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
/// Of the tests for Linux, so many pass on ext4 with these settings: one less than on the kernel's own,
/// since the C library knows no limit of links for FUSE, and that test is left out.
const PJDFSTEST_PASSES: u64 = 382;
/// What fails on the kernel's btrfs, too: its directories have one link whatever is in them.
const FAILS_ON_BTRFS: &[&str] = &["rename::updates_link_parent"];

/// Runs pjdfstest as root, since most of it tests permissions.
pub(super) fn pjdfstest(stage: &Stage, _: &Load) -> Result<Done> {
    let settings = stage.path("pjdfstest.toml");
    std::fs::write(&settings, PJDFSTEST_TOML)?;
    stage.mount()?;
    let mut suite = command("sh");
    suite
        .args([
            "-c",
            r#"chmod 777 "$1" && cd "$1" && umask 0 && "$2" -c "$3" -p "$1"; true"#,
            "sh",
        ])
        .arg(stage.mounted())
        .arg(stage.pjdfstest().get_program())
        .arg(settings);
    let report = command::output(&mut suite)?;
    stage.unmount()?;
    let report = String::from_utf8_lossy(&report);
    let excused: &[&str] = match stage.cell.kind {
        Kind::Btrfs => FAILS_ON_BTRFS,
        Kind::Ext | Kind::Xfs => &[],
    };
    let is_excused = |line: &str| excused.iter().any(|name| line.starts_with(name));
    let failed: Vec<&str> = report
        .lines()
        .filter(|line| line.contains("FAILED") && !is_excused(line))
        .collect();
    let summary = report.lines().find(|line| line.starts_with("Summary:"));
    let summary = summary.context("pjdfstest gave no summary")?;
    ensure!(failed.is_empty(), "{}\n{summary}", failed.join("\n"));
    let passed = summary
        .split(", ")
        .find_map(|part| part.strip_suffix(" passed"));
    let passed: u64 = passed.context("a number of tests")?.parse()?;
    let known = PJDFSTEST_PASSES - excused.len() as u64;
    ensure!(passed >= known, "{summary}; {known} are known to pass");
    Ok(Done::new(format!("{passed} tests passed")).count("tests", passed))
}
