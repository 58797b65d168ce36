//! `mkfs.xfs` and `xfs_repair -n`.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Verdict;
use crate::tool::{self, Finished};

/// The UUID of filesystems made here.
pub const UUID: &str = "6f1c2a70-59d3-4b1e-8f0a-c0ffee000003";

/// Makes a filesystem in a new sparse file of `size_kib`. `mkfs.xfs` makes less than 300 MiB only
/// with an option, which is given.
pub fn make(image: &Path, size_kib: u64, options: &[&str]) -> Result<()> {
    File::create(image)?.set_len(size_kib * 1024)?;
    let mut mkfs = tool::command("mkfs.xfs");
    let uuid = format!("uuid={UUID}");
    mkfs.args(["-q", "-f", "--unsupported", "-m", &uuid]);
    tool::succeed(mkfs.args(options).arg(image))?;
    Ok(())
}

/// The inode number of the root of what [`make`] makes, with blocks of 4 KiB and inodes of 512 bytes.
pub const ROOT: u64 = 128;

/// Has `xfs_db` change a filesystem.
pub fn change(image: &Path, commands: &[String]) -> Result<()> {
    let mut xfs_db = tool::command("xfs_db");
    xfs_db.arg("-x");
    for command in commands {
        xfs_db.args(["-c", command]);
    }
    tool::succeed(xfs_db.arg(image))?;
    Ok(())
}

/// Judges a filesystem without changing it: the data device, then the external log if there is one.
/// The log is not replayed; a dirty one is a refusal, since what it holds is missing in what is
/// checked.
pub fn check(images: &[&Path]) -> Result<Verdict> {
    Ok(report(images)?.0)
}

/// Judges a filesystem without changing it, and returns all that was printed, too.
pub fn report(images: &[&Path]) -> Result<(Verdict, String)> {
    let finished = no_modify(images)?;
    Ok((verdict(&finished)?, finished.text()))
}

/// Judges a filesystem without changing it. `None` if `xfs_repair` died of a signal, or of an assertion, on
/// what it found: it has no verdict then.
pub fn judge_corrupted(images: &[&Path]) -> Result<Option<Verdict>> {
    let finished = no_modify(images)?;
    if finished.status.code().is_none() {
        return Ok(None);
    }
    verdict(&finished).map(Some)
}

/// Judges a filesystem with a realtime device without changing it.
pub fn check_realtime(image: &Path, realtime: &Path) -> Result<Verdict> {
    let mut repair = tool::command("xfs_repair");
    repair.args(["-n", "-f", "-r"]).arg(realtime).arg(image);
    verdict(&tool::finish(&mut repair)?)
}

/// Repairs what `xfs_repair` can of a filesystem with a realtime device.
pub fn repair_realtime(image: &Path, realtime: &Path) -> Result<()> {
    let mut repair = tool::command("xfs_repair");
    tool::succeed(repair.args(["-f", "-r"]).arg(realtime).arg(image))?;
    Ok(())
}

fn no_modify(images: &[&Path]) -> Result<Finished> {
    for image in images {
        File::open(image).with_context(|| image.display().to_string())?;
    }
    let mut repair = tool::command("xfs_repair");
    repair.args(["-n", "-f"]);
    match images {
        [data] => repair.arg(data),
        [data, log] => repair.arg("-l").arg(log).arg(data),
        _ => bail!("xfs_repair takes a data device and a log"),
    };
    tool::finish(&mut repair)
}

/// Judges a filesystem of one group, which has no copy of its superblock to compare with, without changing it.
pub fn check_single_group(image: &Path) -> Result<Verdict> {
    let mut repair = tool::command("xfs_repair");
    repair.args(["-n", "-f", "-o", "force_geometry"]).arg(image);
    verdict(&tool::finish(&mut repair)?)
}

/// Repairs what `xfs_repair` can, and drops a dirty log if `zero_log` says so.
pub fn repair(image: &Path, zero_log: bool) -> Result<()> {
    let mut repair = tool::command("xfs_repair");
    repair.arg("-f");
    if zero_log {
        repair.arg("-L");
    }
    tool::succeed(repair.arg(image))?;
    Ok(())
}

fn verdict(finished: &Finished) -> Result<Verdict> {
    let text = finished.text();
    let lines = || {
        text.lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
    };
    let is_finished =
        lines().any(|line| line.starts_with("No modify flag set, skipping filesystem"));
    if let Some(line) = lines().find(|line| is_refusal(line)) {
        return Ok(Verdict::Refused(line.to_owned()));
    }
    let problems = || {
        lines()
            .filter(|line| !is_progress(line))
            .map(str::to_owned)
            .collect()
    };
    match finished.code()? {
        0 if is_finished => Ok(Verdict::Clean),
        // A version that does not know a feature says so and stops.
        1 if is_finished => Ok(Verdict::NotClean(problems())),
        1 => Ok(Verdict::Refused(
            lines().next_back().unwrap_or_default().to_owned(),
        )),
        code => bail!("xfs_repair ended with {code} and no verdict:\n{text}"),
    }
}

fn is_refusal(line: &str) -> bool {
    line.contains("The filesystem has valuable metadata changes in a log")
        || line.contains("could not find valid secondary superblock")
        || line.starts_with("fatal error")
}

/// The name of a phase or of a step, or advice.
fn is_progress(line: &str) -> bool {
    const BEGINNINGS: &[&str] = &[
        "Phase ",
        "        - ",
        "Cannot get host filesystem geometry.",
        "Repair may fail if there is a sector size mismatch",
        "the image and the host filesystem.",
        "No modify flag set, ",
    ];
    BEGINNINGS.iter().any(|&words| line.starts_with(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::finished;

    const CLEAN: &str = include_str!("reports/xfs_clean.txt");

    #[test]
    fn recorded_reports_are_read() {
        assert_eq!(verdict(&finished(CLEAN)).unwrap(), Verdict::Clean);
        let wrong = include_str!("reports/xfs_wrong_free_count.txt");
        let Verdict::NotClean(lines) = verdict(&finished(wrong)).unwrap() else {
            panic!("not clean");
        };
        assert!(
            lines.iter().any(|line| line.contains("sb_fdblocks")),
            "{lines:?}"
        );
        assert!(
            !lines.iter().any(|line| line.starts_with("Phase")),
            "{lines:?}"
        );
    }

    #[test]
    fn dirty_log_and_lost_superblock_are_refusals() {
        let alert = "ALERT: The filesystem has valuable metadata changes in a log which is being";
        let dirty = CLEAN.replacen("Phase 3", &format!("{alert}\nPhase 3"), 1);
        assert!(matches!(
            verdict(&finished(&dirty)).unwrap(),
            Verdict::Refused(_)
        ));
        let lost = "exit 1\nPhase 1 - find and verify superblock...\n\
                    ....Sorry, could not find valid secondary superblock\nExiting now.\n";
        assert!(matches!(
            verdict(&finished(lost)).unwrap(),
            Verdict::Refused(_)
        ));
        assert!(verdict(&finished("exit 127\n")).is_err());
        assert!(check(&[Path::new("/nonexistent/image")]).is_err());
    }

    #[test]
    fn new_filesystem_is_clean_and_repair_leaves_it_so() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        make(&image, 32 << 10, &["-m", "rmapbt=1"]).unwrap();
        assert_eq!(check(&[&image]).unwrap(), Verdict::Clean);
        repair(&image, false).unwrap();
        assert_eq!(check(&[&image]).unwrap(), Verdict::Clean);
    }
}
