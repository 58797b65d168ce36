//! The bytes of two files, and the map of their holes.

use std::fs::File;
use std::ops::Range;

use anyhow::{Result, bail};
use platter_vfs::{Condition, Error, Inode, SeekTarget};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::host;
use super::report::Outcome;
use crate::prng::Prng;

/// How much is read at once.
const PIECE_BYTES: usize = 1 << 18;
/// Of a hole, this much is read at each end.
const HOLE_SAMPLE_BYTES: u64 = 1 << 17;
/// Short reads at odd places, for each file.
const ODD_READS: usize = 4;
/// More runs of data than this in one file and the map is not compared further.
const RUNS_MAX: usize = 100_000;

/// Compares the contents of a regular file of `size` bytes.
pub(super) fn compare(
    inode: &dyn Inode,
    file: &File,
    size: u64,
    holes: bool,
    outcome: &mut Outcome,
) -> Result<()> {
    let host_runs = host_runs(file, size)?;
    if holes {
        let platter_runs = platter_runs(inode, size)?;
        if platter_runs != host_runs {
            outcome.differ(format_args!(
                "data lies at {:?} for platter, at {:?} for the host",
                shortened(&platter_runs),
                shortened(&host_runs)
            ));
        }
    }
    for range in ranges_to_read(&host_runs, size) {
        if !compare_range(inode, file, range, outcome)? {
            return Ok(());
        }
    }
    let mut prng = Prng::named(outcome.path());
    for _ in 0..ODD_READS {
        let start = prng.below(size + 1);
        let length = prng.below(9000).min(size - start);
        compare_range(inode, file, start..start + length, outcome)?;
    }
    let mut beyond = [0; 16];
    outcome.same(
        "bytes read at the end",
        inode.read_at(size, &mut beyond)?,
        0,
    );
    Ok(())
}

/// All data, and the ends of each hole.
fn ranges_to_read(runs: &[Range<u64>], size: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut end = 0;
    let end_of_file = std::iter::once(size..size);
    for run in runs.iter().cloned().chain(end_of_file) {
        if run.start > end {
            let head = (end + HOLE_SAMPLE_BYTES).min(run.start);
            ranges.push(end..head);
            ranges.push(run.start.saturating_sub(HOLE_SAMPLE_BYTES).max(head)..run.start);
        }
        end = run.end;
        ranges.push(run);
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// Whether the range is the same in both; a difference is recorded once.
fn compare_range(
    inode: &dyn Inode,
    file: &File,
    range: Range<u64>,
    outcome: &mut Outcome,
) -> Result<bool> {
    let mut ours = vec![0xaa; PIECE_BYTES];
    let mut theirs = vec![0x55; PIECE_BYTES];
    let mut offset = range.start;
    while offset < range.end {
        let left = usize::try_from(range.end - offset).unwrap_or(PIECE_BYTES);
        let length = left.min(PIECE_BYTES);
        let (ours, theirs) = (&mut ours[..length], &mut theirs[..length]);
        let read = inode.read_at(offset, ours)?;
        host::read_exact_at(file, offset, theirs)?;
        if read != length {
            outcome.differ(format_args!("{read} of {length} bytes read at {offset}"));
            return Ok(false);
        }
        if let Some(at) = ours.iter().zip(theirs.iter()).position(|(a, b)| a != b) {
            outcome.differ(format_args!(
                "byte {}: platter reads {:#04x}, the host {:#04x}",
                offset + at as u64,
                ours[at],
                theirs[at]
            ));
            return Ok(false);
        }
        outcome.bytes += length as u64;
        offset += length as u64;
    }
    Ok(true)
}

fn host_runs(file: &File, size: u64) -> Result<Vec<Range<u64>>> {
    runs(size, |target, offset| {
        let from = match target {
            SeekTarget::Data => SeekFrom::Data(offset),
            SeekTarget::Hole => SeekFrom::Hole(offset),
        };
        match rustix::fs::seek(file, from) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => bail!("host seek from {offset}: {error}"),
        }
    })
}

fn platter_runs(inode: &dyn Inode, size: u64) -> Result<Vec<Range<u64>>> {
    runs(size, |target, offset| match inode.seek(offset, target) {
        Ok(found) => Ok(Some(found)),
        Err(Error::Condition(Condition::NoSuchAddress)) => Ok(None),
        Err(error) => bail!("seek from {offset}: {error}"),
    })
}

fn runs(
    size: u64,
    seek: impl Fn(SeekTarget, u64) -> Result<Option<u64>>,
) -> Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size && runs.len() < RUNS_MAX {
        let Some(start) = seek(SeekTarget::Data, at)? else {
            break;
        };
        let Some(end) = seek(SeekTarget::Hole, start)? else {
            bail!("no hole after the data at {start}");
        };
        if end <= start {
            bail!("the hole after the data at {start} lies at {end}");
        }
        runs.push(start..end);
        at = end;
    }
    Ok(runs)
}

fn shortened(runs: &[Range<u64>]) -> &[Range<u64>] {
    &runs[..runs.len().min(8)]
}
