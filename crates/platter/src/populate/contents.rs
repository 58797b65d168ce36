//! The contents of a file on its way into an image. Blocks of zeros become holes, so that it does
//! not matter which holes the source knows of.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, fstat};
use rustix::io::Errno;

use super::FileId;
use crate::host_file::data_ranges;
use crate::{Cause, Progress, Result};

/// Bytes read at once.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// Zeros of this length at a multiple of it are not written.
pub(super) const HOLE_BYTES: usize = 4096;
/// What is compared with.
static ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];

/// Takes bytes of a file with their offset.
pub(crate) type PieceSink<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Cause> + 'a;

/// Where the contents of a file are.
#[derive(Debug)]
pub(crate) enum Contents {
    /// A file of the host, which it was and its size when it was looked at.
    Host {
        place: HostPlace,
        id: FileId,
        size_bytes: u64,
    },
    /// In an archive: each piece of the file with its place there.
    Tape {
        archive: Arc<File>,
        pieces: Vec<(Range<u64>, u64)>,
        size_bytes: u64,
    },
}

/// Where a file of the host is.
#[derive(Debug)]
pub(crate) struct HostPlace {
    /// The directory that `path` leads from, if that is not the current one.
    dir: Option<Arc<Path>>,
    path: Box<Path>,
    /// The path was named by the caller, and may be a symbolic link.
    is_operand: bool,
}

/// The directory that a file of the host was opened in last: other files in it are found from there,
/// not from the root of the host.
#[derive(Debug, Default)]
pub(super) struct Nearby {
    dir: Option<Arc<Path>>,
    /// Open from the second file on.
    open: Option<OwnedFd>,
}

impl HostPlace {
    /// The entry of a directory that has this name.
    pub(super) fn within(dir: &Arc<Path>, name: &Path) -> Self {
        Self {
            dir: Some(Arc::clone(dir)),
            path: name.into(),
            is_operand: false,
        }
    }

    /// A path that the caller named, which may be a symbolic link.
    pub(crate) fn followed(path: &Path) -> Self {
        Self {
            is_operand: true,
            ..path.into()
        }
    }

    fn open(&self, id: FileId) -> Result<File, Cause> {
        match &self.dir {
            Some(dir) => self.open_at(CWD, &dir.join(&self.path), id),
            None => self.open_at(CWD, &self.path, id),
        }
    }

    /// Opens it for reading, unless something else took its place.
    fn open_at(&self, dir: impl AsFd, path: &Path, id: FileId) -> Result<File, Cause> {
        // What is a pipe by now is not waited for.
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        if !self.is_operand {
            flags |= OFlags::NOFOLLOW;
        }
        let file = match open_at(dir, path, flags) {
            Err(Errno::LOOP) if !self.is_operand => return Err(changed()),
            opened => opened?,
        };
        if FileId::from(&fstat(&file)?) != id {
            return Err(changed());
        }
        Ok(file.into())
    }
}

impl From<&Path> for HostPlace {
    fn from(path: &Path) -> Self {
        Self {
            dir: None,
            path: path.into(),
            is_operand: false,
        }
    }
}

impl Nearby {
    fn open(&mut self, place: &HostPlace, id: FileId) -> Result<File, Cause> {
        let Some(dir) = &place.dir else {
            return place.open(id);
        };
        let last = self.dir.as_ref();
        if last.is_none_or(|last| !Arc::ptr_eq(last, dir)) {
            self.dir = Some(Arc::clone(dir));
            self.open = None;
            return place.open(id);
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(open_at(CWD, dir, OFlags::PATH | OFlags::DIRECTORY)?),
        };
        place.open_at(open, &place.path, id)
    }
}

fn open_at(dir: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let open = || rustix::fs::openat(&dir, path, flags | OFlags::CLOEXEC, Mode::empty());
    rustix::io::retry_on_intr(open)
}

impl Contents {
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Host { size_bytes, .. } | Self::Tape { size_bytes, .. } => *size_bytes,
        }
    }

    /// Bytes of the blocks that [`copy`](Self::copy) gives.
    pub(super) fn data_bytes(&self, progress: &Progress) -> Result<u64, Cause> {
        let mut all = 0;
        progress.check()?;
        self.copy(&|| progress.check(), &mut |_, bytes| {
            all += bytes.len().next_multiple_of(HOLE_BYTES) as u64;
            Ok(())
        })?;
        Ok(all)
    }

    /// No fewer bytes than that, found without a look at a file that is no longer than a chunk.
    pub(super) fn data_bytes_max(&self, progress: &Progress) -> Result<u64, Cause> {
        let size_bytes = self.size_bytes();
        if size_bytes <= CHUNK_BYTES {
            return Ok(size_bytes.next_multiple_of(HOLE_BYTES as u64));
        }
        self.data_bytes(progress)
    }

    /// Passes the data to `write`, in ascending order: blocks of [`HOLE_BYTES`] in which any byte is
    /// not zero, whatever holes the source knows of. Calls `check` before each chunk, also one that is zeros.
    ///
    /// # Errors
    /// When a file of the host is shorter than it was, and where `check` refuses.
    pub(crate) fn copy(
        &self,
        check: &dyn Fn() -> Result<(), Cause>,
        write: &mut PieceSink<'_>,
    ) -> Result<(), Cause> {
        let mut buffer = Vec::new();
        let mut nearby = Nearby::default();
        for chunk in self.chunks()? {
            check()?;
            buffer.resize(
                usize::try_from(chunk.end - chunk.start).unwrap_or(usize::MAX),
                0,
            );
            self.read(chunk.start, &mut buffer, &mut nearby)?;
            write_data(chunk.start, &buffer, write)?;
        }
        Ok(())
    }

    /// The bytes that it begins with: all if they are no more than a chunk.
    pub(super) fn first_bytes(&self) -> Result<Vec<u8>, Cause> {
        let len = usize::try_from(self.size_bytes().min(CHUNK_BYTES)).unwrap_or_default();
        let mut bytes = vec![0; len];
        self.read(0, &mut bytes, &mut Nearby::default())?;
        Ok(bytes)
    }

    /// Whole blocks of no more than [`CHUNK_BYTES`], in ascending order, with all the data.
    pub(super) fn chunks(&self) -> Result<Vec<Range<u64>>, Cause> {
        match self {
            Self::Host { size_bytes: 0, .. } => Ok(Vec::new()),
            Self::Host { size_bytes, .. } if *size_bytes <= CHUNK_BYTES => {
                Ok(iter::once(0..*size_bytes).collect())
            }
            Self::Host {
                place,
                id,
                size_bytes,
            } => {
                let file = place.open(*id)?;
                let ranges = data_ranges(&file, *size_bytes)?;
                // What is missing looks like a hole.
                if file.metadata()?.len() < *size_bytes {
                    return Err(shorter());
                }
                Ok(chunks_of(ranges.into_iter(), *size_bytes))
            }
            Self::Tape {
                pieces, size_bytes, ..
            } => {
                let ranges = pieces.iter().map(|(range, _)| range.clone());
                Ok(chunks_of(ranges, *size_bytes))
            }
        }
    }

    /// Fills a buffer with what lies at an offset: a chunk, or the beginning of one.
    pub(super) fn read(
        &self,
        offset: u64,
        bytes: &mut [u8],
        nearby: &mut Nearby,
    ) -> Result<(), Cause> {
        match self {
            Self::Host { place, id, .. } => {
                match nearby.open(place, *id)?.read_exact_at(bytes, offset) {
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(shorter()),
                    read => Ok(read?),
                }
            }
            Self::Tape {
                archive, pieces, ..
            } => {
                bytes.fill(0);
                let len = bytes.len();
                let end = offset.saturating_add(len as u64);
                let first = pieces.partition_point(|(range, _)| range.end <= offset);
                let inside = pieces[first..]
                    .iter()
                    .take_while(|(range, _)| range.start < end);
                for (range, place) in inside {
                    let (from, to) = (range.start.max(offset), range.end.min(end));
                    let part = [from, to].map(|at| usize::try_from(at - offset).unwrap_or(len));
                    let part = &mut bytes[part[0]..part[1]];
                    archive.read_exact_at(part, place + (from - range.start))?;
                }
                Ok(())
            }
        }
    }
}

/// The error of contents that are not what was read of them before.
pub(super) fn changed() -> Cause {
    Error::other("changed while it was read").into()
}

fn shorter() -> Cause {
    let text = "became shorter while it was read";
    Error::new(ErrorKind::UnexpectedEof, text).into()
}

/// The chunks in which ranges lie. They end at multiples of their length, so that blocks are whole.
fn chunks_of(ranges: impl Iterator<Item = Range<u64>>, size_bytes: u64) -> Vec<Range<u64>> {
    const HOLE: u64 = HOLE_BYTES as u64;
    let mut chunks: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let mut at = range.start / HOLE * HOLE;
        while at < range.end {
            let limit = (at + 1).next_multiple_of(CHUNK_BYTES).min(size_bytes);
            let end = range.end.next_multiple_of(HOLE).min(limit);
            match chunks.last_mut() {
                Some(last) if last.end > at / CHUNK_BYTES * CHUNK_BYTES => {
                    last.end = last.end.max(end);
                }
                _ => chunks.push(at..end),
            }
            at = limit;
        }
    }
    chunks
}

/// Passes what is not zeros to `write`, neighbours together. The offset is that of a block.
pub(super) fn write_data(
    offset: u64,
    bytes: &[u8],
    write: &mut PieceSink<'_>,
) -> Result<(), Cause> {
    let (mut at, mut start) = (0, None);
    while at < bytes.len() {
        let end = (at + HOLE_BYTES).min(bytes.len());
        let is_zero = bytes[at..end] == ZEROS[..end - at];
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

/// Whether any block would become a hole.
pub(super) fn has_holes(bytes: &[u8]) -> bool {
    let mut blocks = bytes.chunks(HOLE_BYTES);
    blocks.any(|block| *block == ZEROS[..block.len()])
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
        contents.copy(&|| Ok(()), &mut keep).unwrap();
        all
    }

    fn read_all(contents: &Contents) -> Result<(), Cause> {
        contents.copy(&|| Ok(()), &mut |_, _| Ok(()))
    }

    #[test]
    fn blocks_are_written_whole_however_they_are_pieced_together() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
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
            place: path.as_path().into(),
            id: FileId::of(&path).unwrap(),
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
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 5000]).unwrap();
        let contents = |size_bytes| Contents::Host {
            place: path.as_path().into(),
            id: FileId::of(&path).unwrap(),
            size_bytes,
        };
        assert!(read_all(&contents(5000)).is_ok());
        for size_bytes in [5001, 100_000] {
            let error = read_all(&contents(size_bytes)).unwrap_err();
            let Cause::Host(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn copy_of_zeros_ends_where_it_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let size_bytes = 5 * CHUNK_BYTES;
        file.set_len(size_bytes).unwrap();
        let contents = Contents::Tape {
            archive: Arc::new(file),
            pieces: vec![(0..size_bytes, 0)],
            size_bytes,
        };
        let calls = Cell::new(0);
        let check = || {
            calls.set(calls.get() + 1);
            if calls.get() == 3 {
                return Err(Cause::Cancelled);
            }
            Ok(())
        };
        let error = contents.copy(&check, &mut |_, _| Ok(())).unwrap_err();
        assert!(matches!(error, Cause::Cancelled), "{error}");
        assert_eq!(calls.get(), 3);
    }

    #[test]
    fn file_that_was_replaced_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| dir.path().join(name));
        std::fs::write(&other, [8; 5000]).unwrap();
        let text = |contents: &Contents| read_all(contents).unwrap_err().to_string();
        for swap in ["file", "link", "pipe"] {
            std::fs::write(&path, [7; 5000]).unwrap();
            let contents = Contents::Host {
                place: path.as_path().into(),
                id: FileId::of(&path).unwrap(),
                size_bytes: 5000,
            };
            let kept = dir.path().join(swap);
            std::fs::rename(&path, kept.with_extension("kept")).unwrap();
            match swap {
                "file" => std::fs::write(&path, [8; 5000]).unwrap(),
                "link" => std::os::unix::fs::symlink(&other, &path).unwrap(),
                _ => {
                    let fifo = rustix::fs::FileType::Fifo;
                    rustix::fs::mknodat(CWD, &path, fifo, Mode::RUSR, 0).unwrap();
                }
            }
            assert_eq!(text(&contents), "changed while it was read", "{swap}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
