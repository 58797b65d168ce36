//! The contents of a file on its way into an image. Blocks of zeros become holes, so that it does
//! not matter which holes the source knows of.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::{Cause, Result};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Zeros of this length at a multiple of it are not written.
pub(super) const HOLE_BYTES: usize = 4096;

/// Takes bytes of a file with their offset.
pub(crate) type PieceSink<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Cause> + 'a;

/// Where the contents of a file are.
#[derive(Debug)]
pub(crate) enum Contents {
    /// A file of the host, and its size when it was looked at.
    Host { path: PathBuf, size_bytes: u64 },
    /// In an archive: each piece of the file with its place there.
    Tape {
        archive: Arc<File>,
        pieces: Vec<(Range<u64>, u64)>,
        size_bytes: u64,
    },
}

impl Contents {
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Host { size_bytes, .. } | Self::Tape { size_bytes, .. } => *size_bytes,
        }
    }

    /// Bytes of the blocks that [`copy`](Self::copy) gives.
    pub(super) fn data_bytes(&self) -> Result<u64, Cause> {
        let mut all = 0;
        self.copy(&mut |_, bytes| {
            all += bytes.len().next_multiple_of(HOLE_BYTES) as u64;
            Ok(())
        })?;
        Ok(all)
    }

    /// Gives the data to `write`, in ascending order: blocks of [`HOLE_BYTES`] in which any byte is
    /// not zero, whatever holes the source knows of.
    ///
    /// # Errors
    /// When a file of the host is shorter than it was.
    pub(crate) fn copy(&self, write: &mut PieceSink<'_>) -> Result<(), Cause> {
        match self {
            Self::Host { path, size_bytes } => {
                let file = File::open(path)?;
                let ranges = data_ranges(&file, *size_bytes)?.into_iter();
                let pieces: Vec<_> = ranges.map(|range| (range.clone(), range.start)).collect();
                copy_pieces(&file, &pieces, *size_bytes, write)?;
                // What is missing looks like a hole.
                if file.metadata()?.len() < *size_bytes {
                    let text = "became shorter while it was read";
                    return Err(Error::new(ErrorKind::UnexpectedEof, text).into());
                }
                Ok(())
            }
            Self::Tape {
                archive,
                pieces,
                size_bytes,
            } => copy_pieces(archive, pieces, *size_bytes, write),
        }
    }
}

/// Copies pieces of a file, each with its place in `source`, in ascending order.
fn copy_pieces(
    source: &File,
    pieces: &[(Range<u64>, u64)],
    size_bytes: u64,
    write: &mut PieceSink<'_>,
) -> Result<(), Cause> {
    const HOLE: u64 = HOLE_BYTES as u64;
    let mut buffer = Vec::new();
    let (mut rest, mut at) = (pieces, 0);
    while let Some((first, _)) = rest.first() {
        // Chunks end at multiples of their length, so that blocks are whole.
        let start = first.start.max(at) / HOLE * HOLE;
        let chunk_end = (start + 1).next_multiple_of(CHUNK_BYTES as u64);
        let chunk_end = chunk_end.min(size_bytes);
        let inside = rest.partition_point(|(range, _)| range.start < chunk_end);
        let Some((last, _)) = rest[..inside].last() else {
            break;
        };
        let end = last.end.next_multiple_of(HOLE).min(chunk_end);
        let len = usize::try_from(end - start).unwrap_or(CHUNK_BYTES);
        buffer.clear();
        buffer.resize(len, 0);
        for (range, place) in &rest[..inside] {
            let (from, to) = (range.start.max(start), range.end.min(end));
            let bytes = [from, to].map(|offset| usize::try_from(offset - start).unwrap_or(len));
            source.read_exact_at(
                &mut buffer[bytes[0]..bytes[1]],
                place + (from - range.start),
            )?;
        }
        write_data(start, &buffer, write)?;
        let done = rest[..inside].partition_point(|(range, _)| range.end <= end);
        (rest, at) = (&rest[done..], end);
    }
    Ok(())
}

/// Gives what is not zeros to `write`, neighbours together. The offset is that of a block.
fn write_data(offset: u64, bytes: &[u8], write: &mut PieceSink<'_>) -> Result<(), Cause> {
    let (mut at, mut start) = (0, None);
    while at < bytes.len() {
        let end = (at + HOLE_BYTES).min(bytes.len());
        let is_zero = bytes[at..end].iter().all(|&byte| byte == 0);
        match (is_zero, start) {
            (true, Some(from)) => {
                write(offset + from as u64, &bytes[from..at])?;
                start = None;
            }
            (false, None) => start = Some(at),
            (true, None) | (false, Some(_)) => {}
        }
        at = end;
    }
    match start {
        Some(from) => write(offset + from as u64, &bytes[from..]),
        None => Ok(()),
    }
}

/// Where a file of the host has data.
fn data_ranges(file: &File, size_bytes: u64) -> Result<Vec<Range<u64>>, Cause> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // It does not know of holes.
            Err(Errno::INVAL | Errno::NOTSUP) => at,
            Err(error) => return Err(Error::from(error).into()),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size_bytes),
            Err(Errno::INVAL | Errno::NOTSUP | Errno::NXIO) => size_bytes,
            Err(error) => return Err(Error::from(error).into()),
        };
        if start >= size_bytes || end <= start {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(contents: &Contents) -> Vec<(u64, Vec<u8>)> {
        let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut keep = |offset, bytes: &[u8]| {
            match all.last_mut() {
                Some((start, kept)) if *start + kept.len() as u64 == offset => {
                    kept.extend_from_slice(bytes);
                }
                _ => all.push((offset, bytes.to_vec())),
            }
            Ok(())
        };
        contents.copy(&mut keep).unwrap();
        all
    }

    #[test]
    fn blocks_are_written_whole_however_they_are_pieced_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let size = (3 << 20) + 100;
        let mut bytes = vec![0; size];
        for at in [
            10,
            600,
            5000,
            (1 << 20) - 1,
            1 << 20,
            (2 << 20) + 77,
            size - 1,
        ] {
            bytes[at] = 7;
        }
        std::fs::write(&path, &bytes).unwrap();
        let host = Contents::Host {
            path: path.clone(),
            size_bytes: size as u64,
        };
        let blocks = bytes.chunks(512).enumerate();
        let pieces = blocks
            .filter(|(_, block)| block.contains(&7))
            .map(|(at, block)| {
                let start = at as u64 * 512;
                (start..start + block.len() as u64, start)
            });
        let tape = Contents::Tape {
            archive: Arc::new(File::open(&path).unwrap()),
            pieces: pieces.collect(),
            size_bytes: size as u64,
        };
        let expected = written(&host);
        assert_eq!(written(&tape), expected);
        let starts: Vec<_> = expected
            .iter()
            .map(|(at, bytes)| (*at, bytes.len()))
            .collect();
        let tail = (size as u64 - 100, 100);
        let inner = (1 << 20, (2 << 20) & !4095);
        assert_eq!(
            starts,
            [(0, 8192), (inner.0 - 4096, 8192), (inner.1, 4096), tail]
        );
        let mut whole = vec![0; size];
        for (at, bytes) in expected {
            let at = usize::try_from(at).unwrap();
            whole[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert!(whole == bytes);
    }

    #[test]
    fn file_that_became_shorter_is_no_hole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 5000]).unwrap();
        let contents = |size_bytes| Contents::Host {
            path: path.clone(),
            size_bytes,
        };
        assert!(contents(5000).copy(&mut |_, _| Ok(())).is_ok());
        for size_bytes in [5001, 100_000] {
            let error = contents(size_bytes).copy(&mut |_, _| Ok(())).unwrap_err();
            let Cause::Host(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }
}
