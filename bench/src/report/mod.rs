//! The report: `docs/PERFORMANCE.md` and its pictures, made of the raw runs and, where an aim is
//! missed, of what was written about that.

mod svg;
mod number;
mod charts;
mod missed;
mod aims;
mod requests;
mod mechanisms;
mod peers;
mod programs;
mod scale;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use self::aims::{Aim, Evidence};
use self::missed::Explanations;
use crate::record::{self, Extent, Record};

/// Pictures are next to the page, in a directory.
const PICTURES: &str = "performance";
/// In that directory, why aims are missed.
const MISSED: &str = "missed";
const PAGE: &str = "PERFORMANCE.md";

const HEAD: &str = "\
# Performance

This page and its pictures are made by `cargo xtask bench report` out of the raw runs in
`bench/results/`, and never written by hand, but for what is said of missed aims, which lies in
`docs/performance/missed/`. Each section names the command that measured it.

How it is measured: the sides take turns in one run, first in one order, then backwards. Each turn has
a process, a server, an image and a mount of its own. Threads that work stay on one processor each, and
servers may use all of them. Images lie on tmpfs, so that no device but memory takes part, and are judged
by `e2fsck` after each turn. The caches of platter may take 512 MiB, the kernel's what they like; what less
memory costs is shown below. The work is written once, and done through the library or by system calls on
whatever is mounted. Figures are medians, with the range that holds the true one with 95 % confidence
(bootstrap). *Cold* means mounted anew, with nothing of the filesystem in memory. Counts of requests are
exact on any machine; ratios hold for machines like this one; times are only context.

Our own servers take requests over `io_uring(7)`, which the kernel offers since Linux 6.14 where the
superuser has set `fuse.enable_uring`: the benchmark sets it while it mounts. *platter, device* is the
same server without. The servers of others know the device only.
bindfs is run as it is by default; where the FUSE library then hands long writes on in pieces of 4 KiB,
*bindfs, big_writes* shows it without that limit.

Writes and flushes are requests to the image: of platter as it makes them, of the kernel as its block
layer counts them, after merging. fuse2fs has no such counter, so its counts are of one more turn, of a tenth
of the work, on an image in a filesystem of ours that does. The others have no image.
";

/// A page with its pictures.
#[derive(Debug, Default)]
struct Page {
    text: String,
    pictures: BTreeMap<String, String>,
}

impl Page {
    fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.text, "{text}\n");
    }

    fn picture(&mut self, name: &str, about: &str, svg: String) {
        let file = format!("{name}.svg");
        let _ = writeln!(self.text, "![{about}]({PICTURES}/{file})\n");
        self.pictures.insert(file, svg);
    }

    fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let mut row = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<&str> = cells.collect();
            let _ = writeln!(self.text, "| {} |", cells.join(" | "));
        };
        row(&mut head.iter().copied());
        let ruler = head.iter().enumerate();
        row(&mut ruler.map(|(column, _)| if column == 0 { "---" } else { "---:" }));
        for cells in rows {
            row(&mut cells.iter().map(String::as_str));
        }
        self.text.push('\n');
    }

    /// What was measured, on what, and whether that was quiet.
    fn provenance<T>(&mut self, record: &Record<T>) {
        let machine = &record.machine;
        let mut text = format!(
            "Measured by `{}` at `{}` on {} processors ({}), {} MiB of memory, Linux {}.",
            record.command,
            record.commit,
            machine.processors,
            machine.model,
            machine.memory_mib,
            machine.kernel
        );
        let [before, after] = record.quiet.map(|quiet| quiet.busy_share * 100.0);
        let _ = if record.quiet.iter().all(|quiet| quiet.is_quiet()) {
            write!(
                text,
                " The machine was quiet ({before:.0} % busy before, {after:.0} % after)."
            )
        } else {
            write!(
                text,
                " **The machine was not quiet** ({before:.0} % busy before, {after:.0} % after): only \
                 counts mean anything."
            )
        };
        self.paragraph(&text);
    }
}

/// Whether the report is written, or compared with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Write,
    Check,
}

/// All raw runs that are kept.
struct Raw {
    peers: Option<Record<crate::peers::Measured>>,
    jobs: Option<Record<Vec<crate::programs::Run>>>,
    scale: Option<Record<Vec<crate::scale::Grown>>>,
    mechanisms: Option<Record<crate::mechanisms::Measured>>,
    reading: Option<Record<crate::reading::Measured>>,
}

impl Raw {
    fn load(extent: Extent) -> Result<Self> {
        Ok(Self {
            peers: Record::load("peers", extent)?,
            jobs: Record::load("jobs", extent)?,
            scale: Record::load("scale", extent)?,
            mechanisms: Record::load("mechanisms", extent)?,
            reading: Record::load("reading", extent)?,
        })
    }

    /// Their names, and whether they are there.
    fn parts(&self) -> [(&'static str, bool); 4] {
        [
            ("peers", self.peers.is_some()),
            ("jobs", self.jobs.is_some()),
            ("scale", self.scale.is_some()),
            ("mechanisms", self.mechanisms.is_some()),
        ]
    }

    fn aims(&self, extent: Extent) -> Vec<Aim> {
        aims::all(Evidence {
            extent,
            peers: self.peers.as_ref().map(|record| &record.result),
            jobs: self.jobs.as_ref().map(|record| &*record.result),
            scale: self.scale.as_ref().map(|record| &*record.result),
        })
    }

    fn page(&self, aims: &[Aim], explanations: Option<&Explanations>) -> Page {
        let mut page = Page::default();
        page.text.push_str(HEAD);
        page.text.push('\n');
        aims::write(&mut page, aims, explanations);
        if let Some(record) = &self.peers {
            peers::write(&mut page, record);
        }
        if let Some(record) = &self.jobs {
            programs::write(&mut page, record);
        }
        if let Some(record) = &self.scale {
            scale::write(&mut page, record);
        }
        if let Some(record) = &self.mechanisms {
            mechanisms::write(&mut page, record);
        }
        if let Some(record) = &self.reading {
            reading::write(&mut page, record);
        }
        page
    }
}

/// Makes the report of what is kept. A check fails where the page, its pictures, the raw runs and
/// what is said of missed aims do not belong together.
pub(crate) fn run(extent: Extent, act: Act) -> Result<()> {
    let raw = Raw::load(extent)?;
    let dir = dir(extent);
    let has_parts = raw.parts().iter().any(|(_, is_there)| *is_there);
    if !has_parts && raw.reading.is_none() {
        let page = dir.join(PAGE);
        ensure!(!page.exists(), "{} has no raw runs", page.display());
        println!("nothing was measured yet: there is nothing to report");
        return Ok(());
    }
    let aims = raw.aims(extent);
    let missed = dir.join(PICTURES).join(MISSED);
    // Of times that mean nothing, nothing has to be explained.
    let explanations = match extent {
        Extent::Full => Some(Explanations::load(&missed)?),
        Extent::Quick => None,
    };
    let page = raw.page(&aims, explanations.as_ref());
    let mut complaints = Vec::new();
    if extent == Extent::Full {
        let missing = raw.parts().into_iter().filter(|(_, is_there)| !is_there);
        complaints.extend(missing.map(|(name, _)| format!("{name}.json is missing")));
    }
    complaints.extend(
        explanations
            .iter()
            .flat_map(|texts| texts.complaints(&aims)),
    );
    let files = page.files(&dir);
    match act {
        Act::Write => write(&dir, &files)?,
        Act::Check => complaints.extend(differences(&dir, &files)?),
    }
    for complaint in &complaints {
        println!("report: {complaint}");
    }
    if act == Act::Check && !complaints.is_empty() {
        bail!("the report and what it is made of do not belong together: cargo xtask bench report");
    }
    Ok(())
}

impl Page {
    /// What is to be written where.
    fn files(self, dir: &Path) -> BTreeMap<PathBuf, String> {
        let text = format!("{}\n", self.text.trim_end());
        let pictures = self.pictures.into_iter();
        let pictures = pictures.map(|(name, svg)| (dir.join(PICTURES).join(name), svg));
        pictures.chain([(dir.join(PAGE), text)]).collect()
    }
}

fn write(dir: &Path, files: &BTreeMap<PathBuf, String>) -> Result<()> {
    for picture in pictures(dir)? {
        if !files.contains_key(&picture) {
            fs::remove_file(picture)?;
        }
    }
    fs::create_dir_all(dir.join(PICTURES))?;
    for (path, text) in files {
        fs::write(path, text)?;
    }
    println!("report: {}", dir.join(PAGE).display());
    Ok(())
}

/// What is there and should not be, or not as it should be.
fn differences(dir: &Path, files: &BTreeMap<PathBuf, String>) -> Result<Vec<String>> {
    let is_stale = |picture: &PathBuf| !files.contains_key(picture);
    let stale = pictures(dir)?.into_iter().filter(is_stale);
    let stale = stale.map(|picture| format!("{} is of no report", picture.display()));
    let is_as_reported =
        |path: &Path, text: &str| fs::read_to_string(path).is_ok_and(|found| found == text);
    let other = files
        .iter()
        .filter(|(path, text)| !is_as_reported(path, text));
    let other = other.map(|(path, _)| format!("{} is not what the raw runs say", path.display()));
    Ok(stale.chain(other).collect())
}

/// The pictures that lie there.
fn pictures(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let dir = dir.join(PICTURES);
    if !dir.exists() {
        return Ok(BTreeSet::new());
    }
    let paths: std::io::Result<Vec<PathBuf>> = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let is_picture = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "svg");
    Ok(paths?.into_iter().filter(is_picture).collect())
}

fn dir(extent: Extent) -> PathBuf {
    match extent {
        Extent::Full => record::root().join("docs"),
        Extent::Quick => record::tried(),
    }
}
