//! The contents of one file compared with a vector of bytes.

use std::ops::{ControlFlow, Range};

use anyhow::{Context as _, Result, ensure};
use platter_vfs::{Condition, Context, Error, FallocateMode, Inode, SeekTarget, SetAttr};

use super::Candidate;
use crate::prng::Prng;
use crate::workload::Abilities;

/// The longest file.
const SIZE_MAX: u64 = 600_000;
/// Steps between which the filesystem is mounted anew.
const STEPS: usize = 40;
const NAME: &str = "file";

/// Changes a file at random, and compares what is read of it, where it has holes, and its size with a
/// vector of bytes.
pub fn contents_equal_a_model(candidate: Candidate, seed: u64, rounds: usize) -> Result<()> {
    run(candidate, seed, rounds).with_context(|| format!("{} seed {seed}", candidate.name()))
}

fn run(candidate: Candidate, seed: u64, rounds: usize) -> Result<()> {
    let mut mounted = candidate.mount(seed)?;
    let mut test = Test {
        last: String::new(),
        bytes: Vec::new(),
        random: Prng::new(seed),
        abilities: candidate.abilities(),
    };
    drop(mounted.file(NAME)?);
    for round in 0..rounds {
        let file = mounted.lookup(NAME)?;
        test.compare(&*file).context("mounted anew")?;
        for step in 0..STEPS {
            let done = test.step(&*file).and_then(|()| test.compare_part(&*file));
            let last = &test.last;
            done.with_context(|| format!("round {round}, step {step}: {last}"))?;
        }
        test.compare(&*file).context("at the end")?;
        drop(file);
        mounted.remount()?;
    }
    test.compare(&*mounted.lookup(NAME)?)?;
    mounted.finish()
}

/// Truncates a file that the cache does not have, writes beyond its end, and demands zeros between: whatever the device
/// holds past the end is no part of the file.
pub fn truncated_bytes_come_back_as_zeros(candidate: Candidate) -> Result<()> {
    truncate_and_lengthen(candidate).with_context(|| candidate.name())
}

fn truncate_and_lengthen(candidate: Candidate) -> Result<()> {
    let mut mounted = candidate.mount(4)?;
    let old = Prng::new(4).bytes(10_000);
    // In the first block and in a later one, and by a write and by a change of the size.
    let cases = [(3621, true), (5000, true), (3621, false), (5000, false)];
    for (number, (size, by_write)) in cases.into_iter().enumerate() {
        let name = format!("{NAME}{number}");
        mounted.file(&name)?.write_at(0, &old)?;
        mounted.remount()?;
        let file = mounted.lookup(&name)?;
        resize(&*file, size)?;
        let mut expected = vec![0; 9_003];
        let kept = usize::try_from(size)?;
        expected[..kept].copy_from_slice(&old[..kept]);
        if by_write {
            expected[9_000..].copy_from_slice(b"new");
            file.write_at(9_000, b"new")?;
        } else {
            resize(&*file, 9_003)?;
        }
        demand(&*file, &expected).with_context(|| format!("{name}, in memory"))?;
        drop(file);
        mounted.remount()?;
        demand(&*mounted.lookup(&name)?, &expected).with_context(|| name)?;
    }
    mounted.finish()
}

fn resize(file: &dyn Inode, size_bytes: u64) -> Result<()> {
    let changes = SetAttr {
        size_bytes: Some(size_bytes),
        ..SetAttr::default()
    };
    Ok(file.set_attr(&Context::root(), &changes).map(drop)?)
}

fn demand(file: &dyn Inode, expected: &[u8]) -> Result<()> {
    let mut found = vec![0xEE; expected.len() + 1];
    let len = file.read_at(0, &mut found)?;
    ensure!(len == expected.len(), "{len} bytes");
    let differing = found.iter().zip(expected).position(|(a, b)| a != b);
    ensure!(differing.is_none(), "byte {differing:?} differs");
    Ok(())
}

struct Test {
    /// What is done now.
    last: String,
    bytes: Vec<u8>,
    random: Prng,
    abilities: Abilities,
}

impl Test {
    /// Makes a random change.
    fn step(&mut self, file: &dyn Inode) -> Result<()> {
        let range = self.range();
        let (start, end) = (range.start, range.end);
        let shift = self.abilities.shift_bytes;
        match self.random.below(12) {
            0..4 => {
                self.last = format!("write {range:?}");
                let bytes = self.random.bytes(usize::try_from(end - start)?);
                file.write_at(start, &bytes)?;
                self.grow(end);
                self.part(&range).copy_from_slice(&bytes);
                Ok(())
            }
            4 => {
                self.last = format!("truncate {start}");
                resize(file, start)?;
                self.bytes.resize(usize::try_from(start)?, 0);
                Ok(())
            }
            5 if self.abilities.fallocate => {
                self.last = format!("punch {range:?}");
                file.fallocate(range.clone(), FallocateMode::PunchHole)?;
                self.clear(&range);
                Ok(())
            }
            6 if self.abilities.fallocate => {
                self.last = format!("zero {range:?}");
                file.fallocate(range.clone(), FallocateMode::ZeroRange { keep_size: false })?;
                self.grow(end);
                self.clear(&range);
                Ok(())
            }
            7 if self.abilities.fallocate => {
                let keep_size = self.random.below(2) == 0;
                self.last = format!("allocate {range:?}, keep size: {keep_size}");
                file.fallocate(range.clone(), FallocateMode::Allocate { keep_size })?;
                if !keep_size {
                    self.grow(end);
                }
                Ok(())
            }
            8 if shift != 0 && self.bytes.len() as u64 > 2 * shift => {
                let at = start / shift * shift;
                let at = at.min(self.bytes.len() as u64 / shift * shift - shift);
                let moved = at..at + shift;
                if moved.end == self.bytes.len() as u64 {
                    // That is a truncation, and refused.
                    return Ok(());
                }
                self.last = format!("collapse {moved:?}");
                file.fallocate(moved.clone(), FallocateMode::CollapseRange)?;
                self.bytes.drain(indices(&moved));
                Ok(())
            }
            9 if shift != 0 && self.bytes.len() as u64 > shift => {
                let at = (start / shift * shift).min((self.bytes.len() as u64 - 1) / shift * shift);
                let moved = at..at + shift;
                self.last = format!("insert {moved:?}");
                file.fallocate(moved.clone(), FallocateMode::InsertRange)?;
                let zeros = vec![0; usize::try_from(shift)?];
                let index = usize::try_from(at)?;
                self.bytes.splice(index..index, zeros);
                Ok(())
            }
            10 => {
                self.last = String::from("sync");
                file.sync(self.random.below(2) == 0)?;
                Ok(())
            }
            _ => {
                self.last = format!("seek {start}");
                self.seek(file, start)
            }
        }
    }

    fn range(&mut self) -> Range<u64> {
        let mut ends = [self.random.below(SIZE_MAX), self.random.below(SIZE_MAX)];
        if self.random.below(2) == 0 {
            // Short ones, and blocks.
            ends[1] = ends[0] + self.random.below(10_000) + 1;
        }
        if self.random.below(3) == 0 {
            ends = ends.map(|end| end / 4096 * 4096);
        }
        ends.sort_unstable();
        ends[0]..ends[1].max(ends[0] + 1)
    }

    fn grow(&mut self, end: u64) {
        let end = usize::try_from(end).unwrap_or(usize::MAX);
        self.bytes.resize(self.bytes.len().max(end), 0);
    }

    fn part(&mut self, range: &Range<u64>) -> &mut [u8] {
        let range = indices(range);
        let len = self.bytes.len();
        &mut self.bytes[range.start.min(len)..range.end.min(len)]
    }

    fn clear(&mut self, range: &Range<u64>) {
        self.part(range).fill(0);
    }

    /// Demands that no data is taken for a hole.
    fn seek(&self, file: &dyn Inode, start: u64) -> Result<()> {
        let len = self.bytes.len() as u64;
        let found = match file.seek(start, SeekTarget::Data) {
            Err(Error::Condition(Condition::NoSuchAddress)) => None,
            found => Some(found?),
        };
        let end = found.unwrap_or(len);
        ensure!(
            start >= len || (start..=len).contains(&end),
            "data at {end}"
        );
        let skipped = self.bytes.get(indices(&(start..end))).unwrap_or_default();
        ensure!(skipped.iter().all(|&byte| byte == 0), "data before {end}");
        if let Some(data) = found {
            let hole = file.seek(data, SeekTarget::Hole)?;
            ensure!(hole > data && hole <= len, "a hole at {hole} after {data}");
        }
        Ok(())
    }

    fn compare_part(&mut self, file: &dyn Inode) -> Result<()> {
        let range = self.range();
        let mut buf = vec![1; usize::try_from(range.end - range.start)?];
        let count = file.read_at(range.start, &mut buf)?;
        let expected = self.part(&range);
        ensure!(count == expected.len(), "{count} bytes of {range:?}");
        let differs = buf
            .iter()
            .zip(&*expected)
            .position(|(left, right)| left != right);
        ensure!(
            differs.is_none(),
            "{range:?} differs {differs:?} bytes after its start"
        );
        Ok(())
    }

    fn compare(&self, file: &dyn Inode) -> Result<()> {
        let size = file.attr()?.size_bytes;
        ensure!(
            size == self.bytes.len() as u64,
            "{size} bytes, not {}",
            self.bytes.len()
        );
        let mut buf = vec![1; self.bytes.len() + 1];
        let count = file.read_at(0, &mut buf)?;
        ensure!(count == self.bytes.len(), "{count} bytes were read");
        let differs = buf
            .iter()
            .zip(&self.bytes)
            .position(|(left, right)| left != right);
        ensure!(differs.is_none(), "differs at {differs:?}");
        // What no extent has is a hole.
        let mut at = 0;
        let mut holes = Vec::new();
        file.extents(0..size, &mut |extent| {
            holes.push(at..extent.file.start.max(at));
            at = at.max(extent.file.end);
            ControlFlow::Continue(())
        })?;
        holes.push(at..size.max(at));
        for hole in holes {
            let zeros = self.bytes.get(indices(&hole)).unwrap_or_default();
            ensure!(
                zeros.iter().all(|&byte| byte == 0),
                "data in the hole {hole:?}"
            );
        }
        Ok(())
    }
}

fn indices(range: &Range<u64>) -> Range<usize> {
    let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    index(range.start)..index(range.end)
}
