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
const HOLE_BYTES: usize = 4096;

/// Takes bytes of a file with their offset.
pub(super) type PieceSink<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Cause> + 'a;

/// Where the contents of a file are.
#[derive(Debug)]
pub(super) enum Contents {
    /// A file of the host, and its size and space when it was looked at.
    Host {
        path: PathBuf,
        size_bytes: u64,
        space_bytes: u64,
    },
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

    /// Bytes of data at most.
    pub(super) fn data_bytes(&self) -> u64 {
        match self {
            Self::Host {
                size_bytes,
                space_bytes,
                ..
            } => *size_bytes.min(space_bytes),
            Self::Tape { pieces, .. } => pieces
                .iter()
                .map(|(range, _)| range.end - range.start)
                .sum(),
        }
    }

    /// Gives the data to `write`, in ascending order.
    ///
    /// # Errors
    /// When a file of the host is shorter than it was.
    pub(super) fn copy(&self, write: &mut PieceSink<'_>) -> Result<(), Cause> {
        let most = usize::try_from(self.size_bytes()).unwrap_or(CHUNK_BYTES);
        let mut buffer = vec![0; most.min(CHUNK_BYTES)];
        match self {
            Self::Host {
                path, size_bytes, ..
            } => {
                let file = File::open(path)?;
                for range in data_ranges(&file, *size_bytes)? {
                    copy_piece(&file, &range, range.start, &mut buffer, write)?;
                }
                // What is missing looks like a hole.
                if file.metadata()?.len() < *size_bytes {
                    let text = "became shorter while it was read";
                    return Err(Error::new(ErrorKind::UnexpectedEof, text).into());
                }
            }
            Self::Tape {
                archive, pieces, ..
            } => {
                for (range, place) in pieces {
                    copy_piece(archive, range, *place, &mut buffer, write)?;
                }
            }
        }
        Ok(())
    }
}

/// Copies the bytes of `range` of the target, which lie at `place` of `source`.
fn copy_piece(
    source: &File,
    range: &Range<u64>,
    place: u64,
    buffer: &mut [u8],
    write: &mut PieceSink<'_>,
) -> Result<(), Cause> {
    let mut at = range.start;
    while at < range.end {
        // Reads end at a multiple of the chunk, so that blocks are whole.
        let chunk_end = (at + 1).next_multiple_of(CHUNK_BYTES as u64).min(range.end);
        let len = usize::try_from(chunk_end - at).unwrap_or(buffer.len());
        let bytes = &mut buffer[..len];
        source.read_exact_at(bytes, place + (at - range.start))?;
        write_data(at, bytes, write)?;
        at = chunk_end;
    }
    Ok(())
}

/// Gives what is not zeros to `write`, neighbours together.
fn write_data(offset: u64, bytes: &[u8], write: &mut PieceSink<'_>) -> Result<(), Cause> {
    let inside = usize::try_from(offset % HOLE_BYTES as u64).unwrap_or_default();
    let (mut at, mut start) = (0, None);
    while at < bytes.len() {
        let first = if at == 0 {
            HOLE_BYTES - inside
        } else {
            HOLE_BYTES
        };
        let end = (at + first).min(bytes.len());
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

    #[test]
    fn file_that_became_shorter_is_no_hole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 5000]).unwrap();
        let contents = |size_bytes| Contents::Host {
            path: path.clone(),
            size_bytes,
            space_bytes: size_bytes,
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
