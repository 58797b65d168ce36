//! `e2fsck -fn` as a judge. Its exit code and its summary must agree before it is believed.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tool::{self, Finished};

/// What `e2fsck` found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to mend.
    Clean,
    /// Errors are left; the lines that name them.
    NotClean(Vec<String>),
    /// What is there gives nothing to check: `e2fsck` would not begin, or gave up.
    Refused(String),
}

impl Verdict {
    /// Whether there is nothing to mend.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self::Clean
    }
}

/// Errors were left uncorrected.
const ERRORS_LEFT: i32 = 4;
/// The check itself could not go on.
const OPERATIONAL: i32 = 8;

/// Judges an image without changing it.
pub fn check(image: &Path) -> Result<Verdict> {
    Ok(report(image)?.0)
}

/// Judges an image without changing it, and gives all that was printed.
pub fn report(image: &Path) -> Result<(Verdict, String)> {
    File::open(image).with_context(|| image.display().to_string())?;
    let finished = tool::finish(tool::command("e2fsck").args(["-f", "-n"]).arg(image))?;
    Ok((verdict(&finished)?, finished.text()))
}

/// Mends an image, for fixtures that `e2fsck` brings into shape.
pub fn repair(image: &Path, options: &[&str]) -> Result<()> {
    let finished = tool::finish(tool::command("e2fsck").args(options).arg(image))?;
    match finished.code()? {
        0..=3 => Ok(()),
        code => bail!("e2fsck {options:?}: exit code {code}\n{}", finished.text()),
    }
}

fn verdict(finished: &Finished) -> Result<Verdict> {
    let text = finished.text();
    let code = finished.code()?;
    let has_summary = text.lines().any(is_summary);
    match code {
        // It exits with 0 when all that is wrong is the size, or descriptors with a good backup.
        0 if has_summary && text.lines().any(is_complaint) => {
            Ok(Verdict::NotClean(problems(&text)))
        }
        0 if has_summary => Ok(Verdict::Clean),
        _ if code & ERRORS_LEFT != 0 => Ok(Verdict::NotClean(problems(&text))),
        _ if code & OPERATIONAL != 0 => match refusal(&text) {
            Some(line) => Ok(Verdict::Refused(line)),
            None => bail!("e2fsck could not check:\n{text}"),
        },
        _ => bail!("e2fsck ended with {code} and no verdict:\n{text}"),
    }
}

/// The last line of a finished check: `name: 11/64 files (0.0% non-contiguous), 20/512 blocks`.
fn is_summary(line: &str) -> bool {
    line.contains(" files (") && line.contains("% non-contiguous), ") && line.ends_with(" blocks")
}

/// A question answered with no, or word of a structure that was not usable.
fn is_complaint(line: &str) -> bool {
    line.ends_with("? no") || line.ends_with("trying backup blocks...")
}

fn problems(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| {
            !line.is_empty()
                && !line.starts_with("Pass ")
                && !line.starts_with("e2fsck 1.")
                && !is_summary(line)
        })
        .map(str::to_owned)
        .collect()
}

/// The line in which `e2fsck` refuses an image for what its superblock says.
fn refusal(text: &str) -> Option<String> {
    const REASONS: &[&str] = &[
        "The superblock could not be read",
        "Bad magic number in super-block",
        "has unsupported feature",
        "unsupported feature(s)",
        "The filesystem size (according to the superblock)",
        "Corrupt group descriptor",
        "is corrupt",
        "Filesystem revision too high",
        "Attempt to read block from filesystem resulted in short read",
        "Superblock checksum does not match",
        "Invalid argument while",
        "MMP",
        "e2fsck: aborted",
    ];
    text.lines()
        .find(|line| REASONS.iter().any(|reason| line.contains(reason)))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    /// A recorded run: the code in the first line, the outputs after it.
    fn recorded(report: &str) -> Finished {
        let (code, text) = report.split_once('\n').unwrap();
        let code: i32 = code.strip_prefix("exit ").unwrap().parse().unwrap();
        Finished {
            status: ExitStatus::from_raw(code << 8),
            stdout: text.as_bytes().to_vec(),
            stderr: Vec::new(),
        }
    }

    #[test]
    fn recorded_clean_report_is_clean() {
        let report = recorded(include_str!("reports/clean.txt"));
        assert_eq!(verdict(&report).unwrap(), Verdict::Clean);
    }

    #[test]
    fn recorded_problems_are_told() {
        let report = recorded(include_str!("reports/wrong_count.txt"));
        let Verdict::NotClean(problems) = verdict(&report).unwrap() else {
            panic!("not clean");
        };
        assert!(
            problems.iter().any(|line| line.contains("ref count is 9")),
            "{problems:?}"
        );
    }

    #[test]
    fn problem_that_leaves_the_exit_code_alone_is_one() {
        for report in [
            include_str!("reports/short_device.txt"),
            include_str!("reports/backup_descriptors.txt"),
        ] {
            let verdict = verdict(&recorded(report)).unwrap();
            assert!(matches!(verdict, Verdict::NotClean(_)), "{verdict:?}");
        }
    }

    #[test]
    fn recorded_refusal_is_told_from_failure() {
        let report = recorded(include_str!("reports/no_superblock.txt"));
        assert!(matches!(verdict(&report).unwrap(), Verdict::Refused(_)));
    }

    #[test]
    fn check_that_gives_up_midway_is_a_refusal() {
        let report = recorded("exit 9\nPass 1: Checking inodes\ne2fsck: aborted\n");
        assert!(matches!(verdict(&report).unwrap(), Verdict::Refused(_)));
        assert!(verdict(&recorded("exit 9\nPass 1: Checking inodes\n")).is_err());
    }

    #[test]
    fn clean_exit_without_summary_is_no_verdict() {
        assert!(verdict(&recorded("exit 0\n")).is_err());
        assert!(verdict(&recorded("exit 0\ne2fsck 1.47.0 (5-Feb-2023)\n")).is_err());
    }

    #[test]
    fn usage_error_and_missing_device_are_no_verdict() {
        assert!(verdict(&recorded("exit 16\nUsage: e2fsck\n")).is_err());
        assert!(verdict(&recorded(include_str!("reports/no_device.txt"))).is_err());
        assert!(check(Path::new("/nonexistent/image")).is_err());
    }
}
