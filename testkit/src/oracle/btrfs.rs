//! `mkfs.btrfs` and `btrfs check --readonly`.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Verdict;
use crate::loopdev::{Access, LoopDevice};
use crate::tool::{self, Finished};

/// Runs the checker in a mount namespace whose `/dev` holds nothing but the devices that are named
/// with their numbers: it scans `/dev` for the other members, and copies of the same filesystem that
/// are attached elsewhere must not be taken for them.
const CHECK_ALONE: &str = r#"
set -e
mount -t tmpfs none /dev
first=/dev/$1
while [ $# -gt 0 ]; do
    mknod "/dev/$1" b "$2" "$3"
    shift 3
done
exec btrfs check --readonly "$first"
"#;

/// The statuses of a shell whose command cannot be run.
const NOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Makes a filesystem over new sparse files of `size_kib` each. Its UUIDs are random: `mkfs.btrfs`
/// refuses one that another attached device has.
pub fn make(images: &[&Path], size_kib: u64, options: &[&str]) -> Result<()> {
    make_filled(images, size_kib, options, None)
}

/// Makes a filesystem over new sparse files, filled from a directory when one is given.
pub fn make_filled(
    images: &[&Path],
    size_kib: u64,
    options: &[&str],
    from: Option<&Path>,
) -> Result<()> {
    for image in images {
        File::create(image)?.set_len(size_kib * 1024)?;
    }
    let mut mkfs = tool::command("mkfs.btrfs");
    mkfs.args(["-q", "-f"]).args(options);
    if let Some(from) = from {
        mkfs.arg("--rootdir").arg(from);
    }
    tool::succeed(mkfs.args(images))?;
    Ok(())
}

/// The checker ended without a verdict: by a signal, or with a status that it does not document.
#[derive(Debug)]
pub struct Crash(String);

impl fmt::Display for Crash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "btrfs check {}", self.0)
    }
}

impl Error for Crash {}

/// Judges a filesystem by all its members, without changing them.
///
/// # Errors
/// [`Crash`], and those of running it.
pub fn check(images: &[&Path]) -> Result<Verdict> {
    Ok(report(images)?.0)
}

/// Judges a filesystem by all its members, and returns all that was printed, too.
///
/// # Errors
/// As of [`check`].
pub fn report(images: &[&Path]) -> Result<(Verdict, String)> {
    for image in images {
        File::open(image).with_context(|| image.display().to_string())?;
    }
    let finished = match images {
        [] => bail!("no image to check"),
        [image] => tool::finish(
            tool::command("btrfs")
                .args(["check", "--readonly"])
                .arg(image),
        )?,
        members => check_members(members)?,
    };
    Ok((verdict(&finished)?, finished.text()))
}

fn check_members(images: &[&Path]) -> Result<Finished> {
    let attach = |image: &&Path| LoopDevice::attach(image, Access::ReadOnly);
    let devices = images.iter().map(attach).collect::<Result<Vec<_>>>()?;
    let mut unshare = tool::command("unshare");
    unshare.args(["--mount", "sh", "-c", CHECK_ALONE, "sh"]);
    for device in &devices {
        let (major, minor) = device.number()?;
        let name = device.path().file_name().context("a device's name")?;
        unshare
            .arg(name)
            .args([major.to_string(), minor.to_string()]);
    }
    // Without a cache of devices found before.
    let finished = tool::finish(unshare.env("BLKID_FILE", "/dev/null"));
    for (device, image) in devices.into_iter().zip(images) {
        device.detach(image)?;
    }
    finished
}

fn verdict(finished: &Finished) -> Result<Verdict> {
    let text = finished.text();
    let lines = || {
        text.lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
    };
    let is_finished = lines().any(|line| line.ends_with("no error found"));
    let errors = || lines().filter(|line| is_complaint(line)).map(str::to_owned);
    let code = finished
        .code()
        .map_err(|error| Crash(format!("{error}:\n{text}")))?;
    match code {
        0 if is_finished && errors().next().is_none() => Ok(Verdict::Clean),
        0 if is_finished => Ok(Verdict::NotClean(errors().collect())),
        1 => match lines().find(|line| is_refusal(line)) {
            Some(line) => Ok(Verdict::Refused(line.to_owned())),
            None => Ok(Verdict::NotClean(
                lines()
                    .filter(|line| !is_progress(line))
                    .map(str::to_owned)
                    .collect(),
            )),
        },
        0 | NOT_RUN..=NOT_FOUND => bail!("btrfs check ended with {code} and no verdict:\n{text}"),
        _ => bail!(Crash(format!("ended with {code}:\n{text}"))),
    }
}

/// An error that leaves the exit code alone.
fn is_complaint(line: &str) -> bool {
    line.starts_with("ERROR:") || line.contains("error(s) found")
}

fn is_refusal(line: &str) -> bool {
    line.contains("cannot open file system") || line.contains("Couldn't open file system")
}

/// A heading, or a figure of the summary.
fn is_progress(line: &str) -> bool {
    const BEGINNINGS: &[&str] = &[
        "[",
        "Opening filesystem to check...",
        "Checking filesystem on ",
        "UUID: ",
        "total ",
        "btree space waste bytes: ",
        "file data blocks allocated: ",
        " referenced ",
    ];
    BEGINNINGS.iter().any(|&words| line.starts_with(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::finished;

    const CLEAN: &str = include_str!("reports/btrfs_clean.txt");

    #[test]
    fn recorded_reports_are_read() {
        assert_eq!(verdict(&finished(CLEAN)).unwrap(), Verdict::Clean);
        let wrong = include_str!("reports/btrfs_wrong_link_count.txt");
        let Verdict::NotClean(lines) = verdict(&finished(wrong)).unwrap() else {
            panic!("not clean");
        };
        assert!(
            lines.iter().any(|line| line.contains("link count wrong")),
            "{lines:?}"
        );
        assert!(!lines.iter().any(|line| line.starts_with('[')), "{lines:?}");
        let refused = "exit 1\nOpening filesystem to check...\nNo valid Btrfs found on b\n\
                       ERROR: cannot open file system\n";
        assert!(matches!(
            verdict(&finished(refused)).unwrap(),
            Verdict::Refused(_)
        ));
    }

    #[test]
    fn clean_exit_without_summary_is_no_verdict() {
        let crashed = |finished: &Finished| verdict(finished).unwrap_err().is::<Crash>();
        assert!(!crashed(&finished("exit 0\n")));
        assert!(!crashed(&finished("exit 127\nnot found\n")));
        assert!(crashed(&finished("exit 134\n")));
        let killed = tool::command("sh").args(["-c", "kill -6 $$"]).output();
        let killed = killed.unwrap();
        assert!(crashed(&Finished {
            status: killed.status,
            stdout: killed.stdout,
            stderr: killed.stderr,
        }));
        assert!(check(&[Path::new("/nonexistent/image")]).is_err());
        let error = CLEAN.replacen("[7/7]", "ERROR: a line\n[7/7]", 1);
        assert!(matches!(
            verdict(&finished(&error)).unwrap(),
            Verdict::NotClean(_)
        ));
    }

    #[test]
    fn members_are_checked_together() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let members = [&*one, &*two];
        make(&members, 160 << 10, &["-d", "raid1", "-m", "raid1"]).unwrap();
        let (verdict, text) = report(&members).unwrap();
        assert_eq!(verdict, Verdict::Clean, "{text}");
        assert!(!text.contains("missing"), "{text}");
        // A copy that is attached at the same time belongs to another filesystem.
        let copy = dir.path().join("copy");
        std::fs::copy(&one, &copy).unwrap();
        let _other = LoopDevice::attach(&copy, Access::ReadOnly).unwrap();
        assert!(check(&members).unwrap().is_clean());
    }
}
