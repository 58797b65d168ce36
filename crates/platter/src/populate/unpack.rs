//! Archives that are compressed, or come through a pipe, become a file without a name: an archive is
//! read twice, here and there.

use std::fs::File;
use std::io::{self, BufRead, Error, ErrorKind, Read};
use std::os::unix::fs::FileExt;

use flate2::bufread::GzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

use super::broken;
use super::contents::write_data;
use crate::Cause;

/// Bytes read or unpacked at once; a multiple of what becomes a hole.
const STEP_BYTES: usize = 128 << 10;
/// No archive is longer.
const LEN_BYTES_MAX: u64 = 1 << 44;
/// Memory for the dictionary of xz: `xz -9` needs 65 MiB.
const XZ_MEMORY_KIB: u32 = 256 << 10;
/// The longest of the magic numbers below.
const MAGIC_BYTES_MAX: usize = 6;
/// Magic numbers of skippable frames of zstd, but for their last four bits.
const ZSTD_SKIPPABLE: u32 = 0x184d_2a50;

/// How an archive is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Zstd,
    Xz,
    /// One that cannot be unpacked, and what can.
    Unknown(&'static str),
}

impl Packing {
    /// What the first bytes say.
    fn of(start: &[u8]) -> Self {
        let is = |magic: &[u8]| start.starts_with(magic);
        if is(b"\x1f\x8b\x08") {
            Self::Gzip
        } else if is(b"\x28\xb5\x2f\xfd") || is_skippable(start) {
            Self::Zstd
        } else if is(b"\xfd7zXZ\0") {
            Self::Xz
        } else if is(b"BZh") && start.get(4..6) == Some(b"1A") {
            Self::Unknown("bzip2, which is not supported: unpack it with bunzip2")
        } else if is(b"\x04\x22\x4d\x18") {
            Self::Unknown("lz4, which is not supported: unpack it with unlz4")
        } else {
            Self::None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None | Self::Unknown(_) => "archive",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }
}

fn is_skippable(start: &[u8]) -> bool {
    let magic = start.first_chunk().map(|magic| u32::from_le_bytes(*magic));
    magic.is_some_and(|magic| magic & !15 == ZSTD_SKIPPABLE)
}

/// An archive as a file to read at any place: itself if it is not compressed, else what it holds, of
/// which no more than `data_bytes_max` may be other than zeros.
pub(super) fn plain(archive: File, data_bytes_max: u64) -> Result<File, Cause> {
    let mut start = [0; MAGIC_BYTES_MAX];
    let mut len = 0;
    while len < start.len() {
        match archive.read_at(&mut start[len..], len as u64)? {
            0 => break,
            count => len += count,
        }
    }
    if Packing::of(&start[..len]) == Packing::None {
        return Ok(archive);
    }
    unpack(archive, data_bytes_max)
}

/// What comes out of a stream, which may be compressed.
pub(super) fn unpack(stream: impl Read, data_bytes_max: u64) -> Result<File, Cause> {
    let mut source = Source::new(stream);
    let start = source.peek(MAGIC_BYTES_MAX).map(Packing::of);
    let packing = start.map_err(|error| source.failure.take().unwrap_or(error))?;
    let mut spool = Spool::new(data_bytes_max)?;
    let unpacked = match packing {
        Packing::None => spool.take(&mut source),
        Packing::Gzip => gunzip(&mut source, &mut spool),
        Packing::Zstd => unzstd(&mut source, &mut spool),
        Packing::Xz => spool.take(&mut XzReader::new_mem_limit(
            &mut source,
            true,
            XZ_MEMORY_KIB,
        )),
        Packing::Unknown(what) => {
            return Err(broken(format!("is compressed by {what}")));
        }
    };
    if let Some(error) = source.failure.take() {
        return Err(error.into());
    }
    match unpacked {
        Ok(()) => spool.finish(),
        Err(Failure::Target(cause)) => Err(cause),
        Err(Failure::Source(error)) if packing == Packing::None => Err(error.into()),
        Err(Failure::Source(error)) => {
            let (name, place) = (packing.name(), source.taken);
            let is_cut = error.kind() == ErrorKind::UnexpectedEof || source.is_at_end();
            let text = if is_cut {
                "the archive ends too early".to_owned()
            } else {
                error.to_string()
            };
            Err(broken(format!(
                "{name} data is corrupt before byte {place}: {text}"
            )))
        }
    }
}

/// Members come one after the other; zeros may follow the last, which tapes are filled up with.
fn gunzip(source: &mut Source<impl Read>, spool: &mut Spool) -> Result<(), Failure> {
    loop {
        spool.take(&mut GzDecoder::new(&mut *source))?;
        match source.peek(2).map_err(Failure::Source)? {
            [0x1f, 0x8b] => {}
            _ => return source.pass_zeros().map_err(Failure::Source),
        }
    }
}

/// Frames come one after the other, and some are to be skipped.
fn unzstd(source: &mut Source<impl Read>, spool: &mut Spool) -> Result<(), Failure> {
    loop {
        let start = source.peek(8).map_err(Failure::Source)?;
        if start.is_empty() {
            return Ok(());
        }
        if is_skippable(start) {
            let len = start.last_chunk().filter(|_| start.len() == 8);
            let len = len.map(|len: &[u8; 4]| u32::from_le_bytes(*len));
            let len = len.ok_or_else(|| Failure::Source(ErrorKind::UnexpectedEof.into()))?;
            source.pass(8 + u64::from(len)).map_err(Failure::Source)?;
            continue;
        }
        let frame = StreamingDecoder::new(&mut *source);
        let mut frame = frame.map_err(|error| Failure::Source(Error::other(error)))?;
        spool.take(&mut frame)?;
        let decoder = frame.into_frame_decoder();
        let stored = decoder.get_checksum_from_data();
        if stored.is_some() && stored != decoder.get_calculated_checksum() {
            let text = "the checksum of a frame does not match";
            return Err(Failure::Source(Error::other(text)));
        }
    }
}

/// On which side something went wrong.
#[derive(Debug)]
enum Failure {
    Source(Error),
    Target(Cause),
}

/// What is unpacked, without the blocks of zeros.
#[derive(Debug)]
struct Spool {
    file: File,
    /// Where the buffer begins.
    place: u64,
    buffer: Vec<u8>,
    filled: usize,
    /// Bytes that may still be other than zeros.
    left: u64,
}

impl Spool {
    fn new(data_bytes_max: u64) -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile()?,
            place: 0,
            buffer: vec![0; STEP_BYTES],
            filled: 0,
            left: data_bytes_max,
        })
    }

    /// Takes all that comes.
    fn take(&mut self, from: &mut dyn Read) -> Result<(), Failure> {
        loop {
            match from.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::Source(error)),
            }
            if self.filled == self.buffer.len() {
                self.flush().map_err(Failure::Target)?;
            }
        }
    }

    fn flush(&mut self) -> Result<(), Cause> {
        let Self { file, left, .. } = self;
        write_data(
            self.place,
            &self.buffer[..self.filled],
            &mut |place, bytes| {
                let len = bytes.len() as u64;
                *left = left.checked_sub(len).ok_or_else(too_much)?;
                Ok(file.write_all_at(bytes, place)?)
            },
        )?;
        self.place += self.filled as u64;
        self.filled = 0;
        if self.place > LEN_BYTES_MAX {
            return Err(broken("unpacks to more than any image holds"));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<File, Cause> {
        self.flush()?;
        self.file.set_len(self.place)?;
        Ok(self.file)
    }
}

fn too_much() -> Cause {
    broken("unpacks to far more than the image can hold")
}

/// A stream that knows how far it was read, and what comes next.
struct Source<R> {
    input: R,
    buffer: Vec<u8>,
    /// Where in the buffer what comes next begins, and where it ends.
    next: usize,
    end: usize,
    taken: u64,
    /// Why it could not be read: decoders make other errors of it.
    failure: Option<Error>,
}

impl<R: Read> Source<R> {
    fn new(input: R) -> Self {
        Self {
            input,
            buffer: vec![0; STEP_BYTES],
            next: 0,
            end: 0,
            taken: 0,
            failure: None,
        }
    }

    /// The next bytes, fewer only at the end.
    fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        if self.end - self.next < count {
            self.buffer.copy_within(self.next..self.end, 0);
            (self.next, self.end) = (0, self.end - self.next);
        }
        while self.end - self.next < count {
            match self.fill()? {
                0 => break,
                read => self.end += read,
            }
        }
        let end = self.end.min(self.next + count);
        Ok(&self.buffer[self.next..end])
    }

    /// Reads more after what there is.
    fn fill(&mut self) -> io::Result<usize> {
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let kind = error.kind();
                    self.failure = Some(error);
                    return Err(kind.into());
                }
                read => return read,
            }
        }
    }

    /// Whether nothing is left to read.
    fn is_at_end(&mut self) -> bool {
        self.fill_buf().is_ok_and(<[u8]>::is_empty)
    }

    /// Leaves out so many bytes.
    fn pass(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let len = self.fill_buf()?.len();
            if len == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let step = usize::try_from(count).unwrap_or(len).min(len);
            self.consume(step);
            count -= step as u64;
        }
        Ok(())
    }

    /// Goes to the end, before which there are zeros only.
    fn pass_zeros(&mut self) -> io::Result<()> {
        loop {
            let bytes = self.fill_buf()?;
            let len = bytes.len();
            if len == 0 {
                return Ok(());
            }
            if bytes.iter().any(|&byte| byte != 0) {
                return Err(Error::other("something else follows"));
            }
            self.consume(len);
        }
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let count = bytes.len().min(target.len());
        target[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl<R: Read> BufRead for Source<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.next == self.end {
            (self.next, self.end) = (0, 0);
            self.end = self.fill()?;
        }
        Ok(&self.buffer[self.next..self.end])
    }

    fn consume(&mut self, count: usize) {
        self.next += count;
        self.taken += count as u64;
    }
}
