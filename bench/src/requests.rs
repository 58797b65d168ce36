//! How many requests the kernel makes of a mount, and how many reach the device. Counts are exact, the
//! same on any machine, but where two threads meet.

use std::path::Path;

use anyhow::{Context, Result};
use platter::block::{Access, Counts};
use platter::{Image, MountOptions, Volume};
use serde::Serialize;
use testkit::crash::costs;
use testkit::subject::scene;

use crate::measure::float;
use crate::record::Keep;
use crate::{forest, record};

const FILES: u32 = 5000;
/// A file deep in the tree.
const FILE: u32 = 4321;
/// More bytes than any file of the image has.
const FILE_BYTES_MAX: usize = 1 << 20;

#[derive(Serialize)]
struct Row {
    what: &'static str,
    reads: u64,
    bytes: u64,
}

/// What one operation takes at a mount, with others before one sync of all, or with its own.
#[derive(Serialize)]
struct Change {
    filesystem: &'static str,
    what: &'static str,
    requests: f64,
    kinds: Vec<(&'static str, f64)>,
    writes: f64,
    bytes: f64,
    flushes: f64,
    journal_blocks: f64,
    commits: f64,
}

/// Operations of each kind.
const OPERATIONS: u64 = 200;

pub(crate) fn run(keep: Keep) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = forest::plant(dir.path(), FILES)?;
    let rows = [
        count("open", &image, |_| Ok(()))?,
        count("ls -R", &image, list)?,
        count("cat of a file 4 directories deep", &image, |volume| {
            let path = forest::path_of(FILE);
            volume.open(path)?.read_all(FILE_BYTES_MAX)?;
            Ok(())
        })?,
    ];
    println!("an image of {FILES} files in {} directories:", FILES / 50);
    for row in &rows {
        println!(
            "{:>6} reads {:>9} bytes  {}",
            row.reads, row.bytes, row.what
        );
    }
    let mut changes = Vec::new();
    for name in ["ext4_4k", "ext3_4k", "ext2_4k"] {
        println!("{name} at a mount, {OPERATIONS} operations of each kind, per operation:");
        println!("requests  writes   bytes flushes journal blocks commits");
        for cost in costs(scene(name)?, OPERATIONS)? {
            let per = |count: u64| float(count) / float(cost.operations);
            let kinds = cost.kinds.iter().map(|&(kind, count)| (kind, per(count)));
            let change = Change {
                filesystem: name,
                what: cost.what,
                requests: per(cost.requests),
                kinds: kinds.collect(),
                writes: per(cost.writes),
                bytes: per(cost.bytes),
                flushes: per(cost.flushes),
                journal_blocks: per(cost.journal_blocks),
                commits: per(cost.commits),
            };
            let kinds = change.kinds.iter().filter(|(_, count)| *count >= 0.01);
            let kinds: Vec<_> = kinds
                .map(|(kind, count)| format!("{count:.2} {kind}"))
                .collect();
            println!(
                "{:>8.2} {:>7.2} {:>7.0} {:>7.2} {:>14.2} {:>7.2}  {} ({})",
                change.requests,
                change.writes,
                change.bytes,
                change.flushes,
                change.journal_blocks,
                change.commits,
                change.what,
                kinds.join(", ")
            );
            changes.push(change);
        }
    }
    record::keep(keep, "requests", &(rows, changes))
}

/// Counts what a newly opened image is asked for, opening included.
fn count(
    what: &'static str,
    image: &Path,
    action: impl FnOnce(&Volume) -> Result<()>,
) -> Result<Row> {
    let image = Image::open(image, Access::Read)?;
    let volume = MountOptions::new().count_requests().mount(&image)?;
    action(&volume)?;
    let counts: Counts = volume.request_counts().context("requests are counted")?;
    Ok(Row {
        what,
        reads: counts.reads,
        bytes: counts.read_bytes,
    })
}

/// Lists every directory, as `ls -R` does without `-l`.
fn list(volume: &Volume) -> Result<()> {
    let mut pending = vec![std::path::PathBuf::from("/")];
    while let Some(dir) = pending.pop() {
        for entry in volume.read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()? == platter::FileKind::Directory {
                pending.push(entry.path());
            }
        }
    }
    Ok(())
}
