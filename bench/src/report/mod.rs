//! The report: `docs/PERFORMANCE.md`, the pages in `docs/performance/` and their pictures, made from the
//! raw runs and, where an aim is missed, from what was written about that.

mod svg;
mod number;
mod charts;
mod links;
mod page;
mod pages;
mod peers;
mod missed;
mod aims;
mod raw;
mod requests;
mod method;
mod fuse;
mod library;
mod mechanisms;
mod programs;
mod scale;
mod reading;
mod checks;
mod applications;
mod summary;

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};

use self::aims::{Aim, Verdict};
use self::missed::Explanations;
use self::page::{PAGES, SUMMARY};
use self::pages::Pages;
use self::raw::Raw;
use crate::record::{self, Extent};

/// In the directory of pages, why aims are missed.
const MISSED: &str = "missed";

/// Whether the report is written, or compared with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Write,
    Check,
}

/// Makes the report of what is kept. A check fails where the pages, their pictures, the raw runs and
/// what is said of missed aims do not belong together. It only says what was never measured: a new workload or
/// format takes hours on a quiet machine, and its table says that it is not measured.
pub(crate) fn run(extent: Extent, act: Act) -> Result<()> {
    let raw = Raw::load(extent)?;
    let dir = dir(extent);
    if raw.is_empty() {
        let page = dir.join(SUMMARY);
        ensure!(!page.exists(), "{} has no raw runs", page.display());
        println!("nothing was measured yet: there is nothing to report");
        return Ok(());
    }
    let aims = raw.aims(extent);
    // Of times that mean nothing, nothing has to be explained.
    let explanations = match extent {
        Extent::Full => Some(Explanations::load(&dir.join(PAGES).join(MISSED))?),
        Extent::Quick => None,
    };
    let pages = pages(&raw, &aims, explanations.as_ref());
    let mut complaints = Vec::new();
    if let Some(explanations) = &explanations {
        for missing in unmeasured(&raw, &aims) {
            println!("report: never measured: {missing}");
        }
        complaints.extend(explanations.complaints(&aims));
        complaints.extend(pages.broken_links(&dir));
    }
    match act {
        Act::Write => pages.write(&dir)?,
        Act::Check => complaints.extend(pages.differences(&dir)?),
    }
    for complaint in &complaints {
        println!("report: {complaint}");
    }
    if act == Act::Check && !complaints.is_empty() {
        bail!("the report and what it is made of do not belong together: cargo xtask bench report");
    }
    Ok(())
}

/// What was never measured: raw runs that are not there, and aims that are not judged for that.
fn unmeasured(raw: &Raw, aims: &[Aim]) -> Vec<String> {
    let mut missing = raw.missing();
    let is_open = |aim: &&Aim| {
        let verdicts = [aim.verdict(), aim.default_verdict()];
        verdicts.contains(&Some(Verdict::NotMeasured))
    };
    let open: Vec<&str> = aims
        .iter()
        .filter(is_open)
        .map(|aim| aim.key.as_str())
        .collect();
    if !open.is_empty() {
        missing.push(format!("{} aims: {}", open.len(), open.join(", ")));
    }
    missing
}

/// All pages of what is kept.
fn pages(raw: &Raw, aims: &[Aim], explanations: Option<&Explanations>) -> Pages {
    let mut made = vec![
        summary::page(raw, aims),
        method::page(),
        fuse::page(raw, aims, explanations),
        requests::page(raw),
        library::page(raw, aims, explanations),
        programs::page(raw, aims, explanations),
        scale::page(raw, aims, explanations),
        reading::page(raw),
        checks::page(raw, aims, explanations),
        applications::page(raw, aims, explanations),
    ];
    made.extend(mechanisms::pages(&raw.mechanisms));
    for (&format, record) in &raw.peers {
        made.extend(peers::pages(format, record));
    }
    Pages::new(made)
}

fn dir(extent: Extent) -> PathBuf {
    match extent {
        Extent::Full => record::root().join("docs"),
        Extent::Quick => record::tried(),
    }
}

#[cfg(test)]
mod tests {
    use testkit::fs_type::FsType;

    use super::*;
    use crate::record::Record;
    use crate::side::Side;

    #[test]
    fn the_committed_pages_are_what_the_report_makes() {
        run(Extent::Full, Act::Check).unwrap();
    }

    #[test]
    fn pages_of_nothing_link_to_pages_there_are() {
        let raw = Raw::default();
        let pages = pages(&raw, &raw.aims(Extent::Full), None);
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(pages.broken_links(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn what_was_never_measured_is_named_and_no_complaint() {
        let raw = Raw::default();
        let aims = raw.aims(Extent::Full);
        let unmeasured = unmeasured(&raw, &aims);
        let all = |text: &str| unmeasured.iter().any(|line| line.contains(text));
        assert!(
            all("peers-btrfs: cargo xtask bench peers --format btrfs"),
            "{unmeasured:?}"
        );
        assert!(all("mechanisms-m1: cargo xtask bench mechanisms --only m1"));
        assert!(all("btrfs-stock-null-device-files-create-2") && all("xfs-stock-idle"));
        assert!(Explanations::default().complaints(&aims).is_empty());
    }

    /// Runs of one format, as if they were of another, without the peer that has only the first.
    #[test]
    fn a_format_that_is_measured_has_pages_and_a_table() {
        let mut raw = Raw::load(Extent::Full).unwrap();
        let record: Option<Record<crate::peers::Measured>> =
            Record::load("peers", Extent::Full).unwrap();
        let mut record = record.unwrap();
        let samples = &mut record.result.samples;
        samples.retain(|sample| sample.side != Side::Fuse2fs);
        for sample in samples {
            sample.format = FsType::Btrfs;
        }
        raw.peers.insert(FsType::Btrfs, record);
        let aims = raw.aims(Extent::Full);
        let summary = summary::page(&raw, &aims);
        assert!(summary.text().lines().count() <= summary::LINES_MAX);
        let text = summary.text().split("### btrfs").nth(1).unwrap();
        let text = text.split("### XFS").next().unwrap();
        assert!(text.contains("kernel btrfs") && text.contains("summary-btrfs.svg"));
        assert!(text.contains("performance/btrfs-metadata.md"));
        assert!(!text.contains("not measured") && !text.contains("fuse2fs"));
        let dir = dir(Extent::Full);
        let pages = pages(&raw, &aims, None);
        assert_eq!(pages.broken_links(&dir), Vec::<String>::new());
    }
}
