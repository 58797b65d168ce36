//! `e2fsck -fn` as a judge. Its exit code and its summary must agree before it is believed.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{Verdict, debugfs};
use crate::tool::{self, Finished};

/// Errors were corrected.
const CORRECTED: i32 = 1;
/// Errors were left uncorrected.
const ERRORS_LEFT: i32 = 4;
/// The check itself could not go on.
const OPERATIONAL: i32 = 8;

/// Judges an image without changing it.
pub fn check(image: &Path) -> Result<Verdict> {
    Ok(report(image)?.0)
}

/// Judges an image without changing it, and returns all that was printed.
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

/// Runs `e2fsck` to replay the journal, process the orphans, and then check everything. Returns
/// each line about anything else: a repair, or an error.
///
/// `-p` would not do: it repairs counts and bitmaps silently.
pub fn recover(image: &Path) -> Result<Vec<String>> {
    let finished = tool::finish(tool::command("e2fsck").args(["-f", "-y"]).arg(image))?;
    let lines = other_than_recovery(&finished)?;
    if let Some(freed) = freed_alone(&lines)
        && freed.is_subset(&leaked_ea_blocks(image, &finished.text())?)
    {
        return Ok(Vec::new());
    }
    Ok(lines)
}

/// The attribute blocks of orphans that were cleared and map no blocks: files with inline data, short
/// symbolic links, and special files.
/// `e2fsck` up to 1.47.0 does not free them with the orphan, and finds them in the check.
fn leaked_ea_blocks(image: &Path, text: &str) -> Result<BTreeSet<u64>> {
    const INLINE_DATA: u64 = 0x1000_0000;
    let mut blocks = BTreeSet::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("Clearing orphaned inode ") else {
            continue;
        };
        let number = rest.split_whitespace().next().unwrap_or_default();
        let inode = debugfs::ask(image, &format!("stat <{number}>"))?;
        let inode = String::from_utf8_lossy(&inode).into_owned();
        let word_after = |name: &str| inode.split_once(name)?.1.split_whitespace().next();
        let flags = word_after("Flags: ").and_then(|word| word.strip_prefix("0x"));
        let flags = flags.and_then(|word| u64::from_str_radix(word, 16).ok());
        let flags = flags.with_context(|| format!("flags of inode {number}"))?;
        let has_list = matches!(
            word_after("Type: "),
            Some("regular" | "directory" | "symlink")
        );
        let maps_blocks = has_list && flags & INLINE_DATA == 0 && !inode.contains("Fast link dest");
        let block: Option<u64> = word_after("File ACL: ").and_then(|word| word.parse().ok());
        let block = block.with_context(|| format!("attribute block of inode {number}"))?;
        if block > 0 && !maps_blocks {
            blocks.insert(block);
        }
    }
    Ok(blocks)
}

/// The blocks that are freed, if the lines of [`recover`] are about nothing else, with counts that they explain.
fn freed_alone(lines: &[String]) -> Option<BTreeSet<u64>> {
    let mut freed = BTreeSet::new();
    let (mut of_groups, mut of_all) = (0, None);
    for line in lines {
        if let Some(places) = line.strip_prefix("Block bitmap differences:") {
            for place in places.split_whitespace() {
                let place = place.strip_prefix('-')?;
                let ends = place.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
                let (first, last) = match ends {
                    Some(ends) => ends.split_once("--")?,
                    None => (place, place),
                };
                let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
                freed.extend(first..=last);
            }
        } else if let Some(rest) = line.strip_prefix("Free blocks count wrong") {
            let (place, counts) = rest.split_once('(')?;
            let (stored, counted) = counts.strip_suffix(").")?.split_once(", counted=")?;
            let (stored, counted): (u64, u64) = (stored.parse().ok()?, counted.parse().ok()?);
            let more = counted.checked_sub(stored)?;
            if place.contains("group") {
                of_groups += more;
            } else {
                of_all = Some(more);
            }
        } else if line != "Fix? yes" {
            return None;
        }
    }
    let count = freed.len() as u64;
    (count > 0 && of_groups == count && of_all == Some(count)).then_some(freed)
}

fn other_than_recovery(finished: &Finished) -> Result<Vec<String>> {
    let text = finished.text();
    let code = finished.code()?;
    let has_orphans = text.contains("ing orphaned inode ");
    let mut lines = Vec::new();
    let mut is_about_orphans = false;
    for line in problems(&text) {
        // What it has finished it clears, and the flag that the kernel sets for the time of a mount.
        let is_answer = is_about_orphans && line == "Clear? yes";
        is_about_orphans = line == "Feature orphan_present is set but orphan file is clean."
            || has_orphans && line.starts_with("Orphan file ") && line.ends_with(" is not clean.");
        if !is_answer && !is_about_orphans && !is_of_recovery(&line) {
            lines.push(line);
        }
    }
    if !text.lines().any(is_summary) || !(0..=CORRECTED).contains(&code) {
        lines.push(format!("ended with {code}"));
    }
    Ok(lines)
}

/// Whether the lines of [`recover`] are only about orphans. After an error, neither `e2fsck` nor
/// the kernel trusts the orphan list: they are found in the check, with the blocks they still use.
#[must_use]
pub fn are_of_orphans(lines: &[String]) -> bool {
    let is_of_orphan = |line: &str| {
        line.starts_with("Deleted inode ") && line.contains(" has zero dtime.")
            || line.starts_with("Inode ") && line.contains(" was part of the orphaned inode list.")
            || line.starts_with("Inodes that were part of a corrupted orphan linked list found.")
            || line.starts_with("Orphan file ") && line.ends_with(" is not clean.")
    };
    let is_of_its_space = |line: &str| {
        let freed = ["Inode bitmap differences:", "Block bitmap differences:"];
        let freed = freed.iter().find_map(|words| line.strip_prefix(words));
        let is_freed = |places: &str| {
            let mut places = places.split_whitespace();
            places.all(|place| place.starts_with('-'))
        };
        freed.is_some_and(is_freed)
            || line.starts_with("Free inodes count wrong")
            || line.starts_with("Free blocks count wrong")
            || matches!(line, "Fix? yes" | "Clear? yes")
    };
    lines.iter().any(|line| is_of_orphan(line))
        && lines
            .iter()
            .all(|line| is_of_orphan(line) || is_of_its_space(line))
}

/// Whether what [`recover`] gave begins with word of a commit block of which only a part is there,
/// as a power cut leaves it: the log ends before it, as the kernel says too. That there were errors
/// is recorded then.
#[must_use]
pub fn begins_with_cut_commit(lines: &[String]) -> bool {
    lines.first().is_some_and(|line| {
        line.starts_with("Journal transaction ")
            && line.ends_with(" was corrupt, replay was aborted.")
    })
}

/// Word of a replay, of an orphan, or of a flag for errors; the names of the passes; advice that was followed; that
/// something was written.
fn is_of_recovery(line: &str) -> bool {
    const BEGINNINGS: &[&str] = &["Clearing orphaned inode ", "Truncating orphaned inode "];
    const ENDS: &[&str] = &[
        ": recovering journal",
        " was not cleanly unmounted, check forced.",
        " contains a file system with errors, check forced.",
        ": ***** FILE SYSTEM WAS MODIFIED *****",
    ];
    BEGINNINGS.iter().any(|&words| line.starts_with(words))
        || ENDS.iter().any(|&words| line.ends_with(words))
        || is_advice(line)
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
    line.ends_with("? no") && !is_advice(line) || line.ends_with("trying backup blocks...")
}

/// Word that an extent tree could be shorter or narrower, and of what is done about it: those of the kernel could be, too.
fn is_advice(line: &str) -> bool {
    let ends = [" Optimize? no", " Optimize? yes"];
    ends.iter().any(|words| line.ends_with(words)) || line == "Pass 1E: Optimizing extent trees"
}

fn problems(text: &str) -> Vec<String> {
    text.lines()
        .filter(|line| {
            !line.is_empty()
                && !is_pass(line)
                && !line.starts_with("e2fsck 1.")
                && !is_summary(line)
        })
        .map(str::to_owned)
        .collect()
}

/// The heading of one of the five passes; those in between are only made for repairs.
fn is_pass(line: &str) -> bool {
    let number = line
        .strip_prefix("Pass ")
        .and_then(|rest| rest.split_once(':'));
    number.is_some_and(|(number, _)| number.parse::<u8>().is_ok())
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
    use crate::tool::finished as recorded;

    #[test]
    fn recorded_clean_report_is_clean() {
        let report = recorded(include_str!("reports/clean.txt"));
        assert_eq!(verdict(&report).unwrap(), Verdict::Clean);
    }

    #[test]
    fn recorded_problems_are_reported() {
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
    fn advice_to_optimize_is_no_problem() {
        assert!(is_complaint(
            "Inode 12, i_blocks is 8, should be 16.  Fix? no"
        ));
        let advice = "Inode 12 extent tree (at level 2) could be narrower.  Optimize? no";
        assert!(!is_complaint(advice));
        assert!(is_of_recovery(&advice.replace("no", "yes")));
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
    fn recorded_refusal_is_no_failure() {
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
    fn replay_and_orphans_are_no_repair_and_everything_else_is() {
        const CLEAN: &str = include_str!("reports/recovered.txt");
        const NONE: [&str; 0] = [];
        let lines = |report: &str| other_than_recovery(&recorded(report)).unwrap();
        assert_eq!(lines(CLEAN), NONE);
        let with = |line: &str| CLEAN.replacen("Pass 5", &format!("{line}\nPass 5"), 1);
        let flag = "Feature orphan_present is set but orphan file is clean.\nClear? yes";
        assert_eq!(lines(&with(flag)), NONE);
        let entries = "Orphan file (inode 12) block 13 is not clean.\nClear? yes";
        assert_eq!(lines(&with(entries)), NONE);
        let without_orphans = with(entries).replacen("Clearing orphaned", "Looking at", 1);
        assert_eq!(lines(&without_orphans).len(), 3);
        let salvaged = "Directory inode 2, block #0: salvaged\nClear? yes";
        assert_eq!(lines(&with(salvaged)).len(), 2);
        let counts = ["Free blocks count wrong (9968, counted=9961).", "Fix? yes"];
        assert_eq!(lines(include_str!("reports/repaired.txt")), counts);
        assert!(!are_of_orphans(&lines(include_str!(
            "reports/repaired.txt"
        ))));
        let orphans = lines(include_str!("reports/orphans.txt"));
        assert_eq!(orphans.len(), 9);
        assert!(are_of_orphans(&orphans));
        let cut = CLEAN.replacen(
            "Clearing",
            "Journal transaction 13 was corrupt, replay was aborted.\nClearing",
            1,
        );
        assert!(begins_with_cut_commit(&lines(&cut)) && lines(&cut).len() == 1);
        assert!(!begins_with_cut_commit(&orphans));
        let lost: Vec<String> = orphans
            .iter()
            .map(|line| line.replace(" -15", " +15"))
            .collect();
        assert!(!are_of_orphans(&lost));
        let left = CLEAN.replacen("exit 1", "exit 4", 1);
        assert_eq!(lines(&left), ["ended with 4"]);
        let (without_summary, _) = CLEAN.split_once("image: 13/256").unwrap();
        assert_eq!(lines(without_summary), ["ended with 1"]);
    }

    #[test]
    fn blocks_that_are_freed_explain_the_counts() {
        let lines = |places: &str, group: &str, all: &str| {
            let lines = [
                format!("Block bitmap differences:  {places}"),
                "Fix? yes".to_owned(),
                format!("Free blocks count wrong for group #0 ({group})."),
                format!("Free blocks count wrong ({all})."),
            ];
            freed_alone(&lines)
        };
        let one = lines("-1083", "1985, counted=1986", "1985, counted=1986");
        assert_eq!(one, Some(BTreeSet::from([1083])));
        let three = lines("-(7--8) -12", "5, counted=8", "9, counted=12");
        assert_eq!(three, Some(BTreeSet::from([7, 8, 12])));
        assert_eq!(lines("+1083", "5, counted=6", "5, counted=6"), None);
        assert_eq!(lines("-1083", "5, counted=6", "5, counted=7"), None);
        assert_eq!(lines("-1083", "6, counted=5", "5, counted=6"), None);
        assert_eq!(lines("-(7--8)", "5, counted=6", "5, counted=7"), None);
        let other = "Inode 12, i_blocks is 8, should be 0.".to_owned();
        assert_eq!(freed_alone(&[other]), None);
        assert_eq!(freed_alone(&[]), None);
    }

    #[test]
    fn usage_error_and_missing_device_are_no_verdict() {
        assert!(verdict(&recorded("exit 16\nUsage: e2fsck\n")).is_err());
        assert!(verdict(&recorded(include_str!("reports/no_device.txt"))).is_err());
        assert!(check(Path::new("/nonexistent/image")).is_err());
    }
}
