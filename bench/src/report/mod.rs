//! The report: `docs/PERFORMANCE.md` and its pictures, made of the raw runs and of nothing else.

mod svg;
mod number;
mod charts;
mod aims;
mod requests;
mod mechanisms;
mod peers;
mod programs;
mod scale;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use self::aims::Evidence;
use crate::record::{self, Extent, Record};

/// Pictures lie beside the page, in a folder.
const PICTURES: &str = "performance";
const PAGE: &str = "PERFORMANCE.md";

const HEAD: &str = "\
# Performance

This page and its pictures are made by `cargo xtask bench report` out of the raw runs in
`bench/results/`, and never written by hand. Each section names the command that measured it.

How it is measured: the sides take turns in one run, first in one order, then backwards. Each turn has
a process, a server, an image and a mount of its own. Images lie on tmpfs, so that no medium but memory
takes part, and are judged by `e2fsck` after each turn. The caches of platter may take 512 MiB, the
kernel's what they like; what less memory costs is told below. The work is written once, and done through the
library or by system calls on whatever is mounted. Figures are medians, with the range that holds the
true one with 95 % confidence (bootstrap). *Cold* means mounted anew, with nothing of the filesystem in
memory. Counts of requests are exact on any machine; ratios hold for machines like this one; times are
only context.

Our own servers take requests over `io_uring(7)`, which the kernel offers since Linux 6.14 where the
superuser has set `fuse.enable_uring`: the benchmark sets it while it mounts. *platter, device* is the
same server without. The servers of others know the device only.
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
        if !record.quiet.iter().all(|quiet| quiet.is_quiet()) {
            let [before, after] = record.quiet;
            let _ = write!(
                text,
                " **The machine was not quiet** (load {:.2} before and {:.2} after; {:.0} % and \
                 {:.0} % busy): only counts mean anything.",
                before.load,
                after.load,
                before.busy_share * 100.0,
                after.busy_share * 100.0
            );
        }
        self.paragraph(&text);
    }
}

/// Whether the report is written, or compared with what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Write,
    Check,
}

/// Makes the report of what is kept.
pub(crate) fn run(extent: Extent, act: Act) -> Result<()> {
    let mut page = Page::default();
    page.text.push_str(HEAD);
    page.text.push('\n');
    let before = page.text.len();
    let peers = Record::load("peers", extent)?;
    let jobs = Record::load("jobs", extent)?;
    let scale = Record::load("scale", extent)?;
    let mechanisms = Record::load("mechanisms", extent)?;
    if peers.is_some() || jobs.is_some() || scale.is_some() {
        let evidence = Evidence {
            peers: peers.as_ref().map(|record| &record.result),
            jobs: jobs.as_ref().map(|record: &Record<Vec<_>>| &*record.result),
            scale: scale
                .as_ref()
                .map(|record: &Record<Vec<_>>| &*record.result),
        };
        aims::tell(&mut page, evidence);
    }
    if let Some(record) = &peers {
        peers::tell(&mut page, record);
    }
    if let Some(record) = &jobs {
        programs::tell(&mut page, record);
    }
    if let Some(record) = &scale {
        scale::tell(&mut page, record);
    }
    if let Some(record) = &mechanisms {
        mechanisms::tell(&mut page, record);
    }
    if page.text.len() == before {
        // Nothing was measured, so there is nothing to tell.
        return Ok(());
    }
    let text = format!("{}\n", page.text.trim_end());
    let folder = folder(extent);
    let mut files = BTreeMap::from([(folder.join(PAGE), text)]);
    for (name, svg) in page.pictures {
        files.insert(folder.join(PICTURES).join(name), svg);
    }
    for (path, text) in files {
        if act == Act::Check {
            let found = fs::read_to_string(&path).unwrap_or_default();
            ensure!(
                found == text,
                "{} is not what the raw runs say: cargo xtask bench report",
                path.display()
            );
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text)?;
    }
    if act == Act::Write {
        println!("report: {}", folder.join(PAGE).display());
    }
    Ok(())
}

fn folder(extent: Extent) -> PathBuf {
    match extent {
        Extent::Full => record::root().join("docs"),
        Extent::Quick => record::tried(),
    }
}
