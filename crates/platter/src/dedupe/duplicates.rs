//! Blocks of files that are equal, by their digests.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use sha2::{Digest, Sha256};

/// The most that is passed on at once: what shares it holds both files meanwhile.
const FOUND_BYTES_MAX: u64 = 16 << 20;

/// Where a block was found first.
#[derive(Debug, Clone, Copy)]
struct Origin {
    file: usize,
    offset: u64,
}

/// A run of blocks that another file has, or the same one somewhere else.
#[derive(Debug, Clone)]
struct Run {
    file: usize,
    range: Range<u64>,
    to: u64,
}

/// Blocks of files. What has the same digest is taken for equal: that is to be compared before anything is shared.
#[derive(Debug)]
pub struct Duplicates<F> {
    block_bytes: u64,
    origins: HashMap<[u8; 32], Origin>,
    files: Vec<F>,
}

impl<F> Duplicates<F> {
    /// None yet. Blocks begin at multiples of their size, which is that of blocks of the filesystem, or a multiple of it.
    #[must_use]
    pub fn new(block_bytes: u64) -> Self {
        Self {
            block_bytes: block_bytes.max(1),
            origins: HashMap::new(),
            files: Vec::new(),
        }
    }

    /// Adds a file with data in these ranges, which `read` reads. Passes to `found` what an earlier file has of it, or the
    /// file itself before: that file, the range there, and where it is in the file that is added. Returns how many bytes
    /// were read.
    ///
    /// # Errors
    /// Those of `read` and `found`.
    pub fn add<E>(
        &mut self,
        file: F,
        data: &[Range<u64>],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
        mut found: impl FnMut(&F, Range<u64>, u64) -> Result<(), E>,
    ) -> Result<u64, E> {
        let this = self.files.len();
        self.files.push(file);
        let files = &self.files;
        let mut pass = |run: Option<Run>| {
            let file = run.and_then(|run| Some((files.get(run.file)?, run.range, run.to)));
            file.map_or(Ok(()), |(file, range, to)| found(file, range, to))
        };
        let mut buffer = vec![0; usize::try_from(self.block_bytes).unwrap_or(usize::MAX)];
        let mut run: Option<Run> = None;
        let mut read_bytes = 0;
        for range in data {
            let mut at = range.start;
            while at < range.end {
                let next = at - at % self.block_bytes + self.block_bytes;
                let len = usize::try_from(next.min(range.end) - at).unwrap_or(usize::MAX);
                let place = buffer.get_mut(..len).unwrap_or_default();
                let count = fill(at, place, &mut read)?;
                let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
                    // It became shorter.
                    break;
                };
                read_bytes += count as u64;
                let end = at + count as u64;
                let digest: [u8; 32] = Sha256::digest(bytes).into();
                let origin = match self.origins.entry(digest) {
                    Entry::Occupied(known) => Some(*known.get()),
                    Entry::Vacant(place) => {
                        place.insert(Origin {
                            file: this,
                            offset: at,
                        });
                        None
                    }
                };
                match (&mut run, origin) {
                    (Some(run), Some(origin)) if run.goes_on(origin, at) => {
                        run.range.end += end - at;
                    }
                    _ => {
                        let new = origin.map(|origin| Run {
                            file: origin.file,
                            range: origin.offset..origin.offset + (end - at),
                            to: at,
                        });
                        pass(std::mem::replace(&mut run, new))?;
                    }
                }
                at = end;
            }
        }
        pass(run)?;
        Ok(read_bytes)
    }
}

impl Run {
    /// Whether a block at `at` that is that of an origin follows.
    fn goes_on(&self, origin: Origin, at: u64) -> bool {
        let len_bytes = self.range.end - self.range.start;
        origin.file == self.file
            && origin.offset == self.range.end
            && at == self.to + len_bytes
            && len_bytes < FOUND_BYTES_MAX
    }
}

/// Reads up to the end of the file. Returns how much that is.
fn fill<E>(
    at: u64,
    place: &mut [u8],
    read: &mut impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<usize, E> {
    let mut count = 0;
    while let Some(rest) = place.get_mut(count..).filter(|rest| !rest.is_empty()) {
        let read = read(at + count as u64, rest)?;
        if read == 0 {
            break;
        }
        count += read;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// What is found of files that are added one after the other, with data in these ranges: the file that has it, where,
    /// and where it is in which other file.
    fn found(files: &[(&str, &[(u64, u64)])]) -> Vec<(usize, (u64, u64), usize, u64)> {
        let mut duplicates = Duplicates::new(4);
        let mut all = Vec::new();
        for (number, (contents, data)) in files.iter().enumerate() {
            let read = |at: u64, place: &mut [u8]| {
                let rest = &contents.as_bytes()[usize::try_from(at).unwrap()..];
                // As a read that is interrupted.
                let count = rest.len().min(place.len()).min(3);
                place[..count].copy_from_slice(&rest[..count]);
                Ok::<_, Infallible>(count)
            };
            let data: Vec<_> = data.iter().map(|&(start, end)| start..end).collect();
            let added = duplicates.add(number, &data, read, |file, range, to| {
                all.push((*file, (range.start, range.end), number, to));
                Ok(())
            });
            added.unwrap();
        }
        all
    }

    #[test]
    fn equal_files_are_found_in_one_run() {
        let files = [("aaaabbbbcc", &[(0, 10)][..]), ("aaaabbbbcc", &[(0, 10)])];
        assert_eq!(found(&files), [(0, (0, 10), 1, 0)]);
        // A part of a block is that of its length alone.
        let files = [("aaaabbbbcc", &[(0, 10)][..]), ("aaaabbbbc", &[(0, 9)])];
        assert_eq!(found(&files), [(0, (0, 8), 1, 0)]);
    }

    #[test]
    fn moved_blocks_are_found() {
        let files = [
            ("aaaabbbbcccc", &[(0, 12)][..]),
            ("xxxxbbbbccccaaaa", &[(0, 16)]),
        ];
        assert_eq!(found(&files), [(0, (4, 12), 1, 4), (0, (0, 4), 1, 12)]);
        // In one file, too.
        assert_eq!(found(&[("aaaabbbbaaaa", &[(0, 12)])]), [(0, (0, 4), 0, 8)]);
    }

    #[test]
    fn holes_are_left_out() {
        let data = &[(0, 4), (8, 12)][..];
        let files = [("aaaa....bbbb", data), ("aaaa....bbbb", data)];
        assert_eq!(found(&files), [(0, (0, 4), 1, 0), (0, (8, 12), 1, 8)]);
    }

    #[test]
    fn file_that_becomes_shorter_ends_there() {
        let files = [("aaaa", &[(0, 4)][..]), ("aaaa", &[(0, 400)])];
        assert_eq!(found(&files), [(0, (0, 4), 1, 0)]);
    }
}
