//! The contents of a regular file.

use std::fs::File as HostFile;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::worker::{Source, Worker};
use super::{errno, problem_of};
use crate::data_map::DataMap;
use crate::problem::{Effect, Problem};
use crate::salvage::{self, Missing};
use crate::{Error, File, Result};

/// How much is read and written at once.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// A file of the host that is being filled.
#[derive(Debug)]
pub(super) struct Filling {
    target: HostFile,
    /// It can have holes, and be filled in any order.
    is_regular: bool,
    /// It was made with the permissions that it is to have, and has no ACL.
    pub(super) has_mode: bool,
    map: DataMap,
    /// What the map does not have because it could not be read.
    lost: Lost,
}

/// What could not be read of a file.
#[derive(Debug, Default)]
pub(super) struct Lost(Option<Missing>);

impl Lost {
    pub(super) fn add(&mut self, other: Self) {
        match (&mut self.0, other.0) {
            (Some(all), Some(more)) => all.bytes += more.bytes,
            (None, more) => self.0 = more,
            (Some(_), None) => {}
        }
    }

    pub(super) fn problem(self, file: &File) -> Option<Problem> {
        let Missing { bytes, error } = self.0?;
        Some(problem_of(file.error(error), Effect::ZeroFilled { bytes }))
    }
}

impl Filling {
    /// A regular file, made for the copy.
    pub(super) fn of_regular(
        source: &mut Source,
        target: HostFile,
        host: &dyn Fn(Errno) -> Error,
    ) -> Result<Self> {
        let size_bytes = source.attr.size_bytes;
        let mut lost = Lost::default();
        let map = if let Some(map) = source.map.take() {
            map
        } else {
            let (map, missing) = read_map(source, size_bytes);
            lost = Lost(missing);
            map
        };
        let data_end = map.data().last().map_or(0, |last| last.end);
        if data_end < size_bytes {
            target
                .set_len(size_bytes)
                .map_err(|error| host(errno(&error)))?;
        }
        Ok(Self {
            target,
            is_regular: true,
            has_mode: false,
            map,
            lost,
        })
    }

    /// What was there already, of any kind.
    pub(super) fn of_any(
        source: &mut Source,
        target: HostFile,
        host: &dyn Fn(Errno) -> Error,
    ) -> Result<Self> {
        let found = target.metadata().map_err(|error| host(errno(&error)))?;
        if found.is_file() {
            return Self::of_regular(source, target, host);
        }
        Ok(Self {
            target,
            is_regular: false,
            has_mode: false,
            map: DataMap::dense(source.attr.size_bytes),
            lost: Lost::default(),
        })
    }

    pub(super) fn target(&self) -> &HostFile {
        &self.target
    }

    /// What is to be filled, in order, in pieces of at most [`CHUNK_BYTES`].
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.map.data().iter().flat_map(chunks)
    }

    /// What is missing whatever is filled.
    pub(super) fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut target = &self.target;
        if self.is_regular {
            return target.write_all_at(bytes, offset);
        }
        target.write_all(bytes)
    }
}

impl Worker {
    /// Fills a range, which is one of [`Filling::ranges`]. Holes stay holes where the target can have them.
    pub(super) fn fill(
        &mut self,
        source: &Source,
        filling: &Filling,
        range: Range<u64>,
        host: &dyn Fn(Errno) -> Error,
    ) -> Result<Lost> {
        self.check_progress(&source.file)?;
        let length = usize::try_from(range.end - range.start).unwrap_or_default();
        if self.buf.len() < length {
            self.buf.resize(length, 0);
        }
        let buf = &mut self.buf[..length];
        let inode = source.file.inode();
        if range.end < source.attr.size_bytes {
            inode.will_need(range.end..range.end.saturating_add(CHUNK_BYTES));
        }
        let missing = salvage::read(&**inode, range.start, buf);
        filling
            .write(range.start, buf)
            .map_err(|error| host(errno(&error)))?;
        self.progress.add_bytes(length as u64);
        Ok(Lost(missing))
    }
}

/// Where a file has data, and what cannot be found out about it.
fn read_map(source: &Source, size_bytes: u64) -> (DataMap, Option<Missing>) {
    let (sound, error) = DataMap::read_sound(&**source.file.inode(), size_bytes);
    let stat = source.file.volume().stat_fs();
    let device_bytes = stat.map_or(0, |stat| {
        stat.blocks.saturating_mul(u64::from(stat.block_bytes))
    });
    match error {
        None => (sound, None),
        // Reading returns the error again, and finds what is still readable.
        Some(_) if size_bytes <= device_bytes => (DataMap::dense(size_bytes), None),
        // A size that no filesystem like this could fill may be corrupt, too.
        Some(error) => {
            let bytes = size_bytes - sound.data_bytes();
            (sound, Some(Missing { bytes, error }))
        }
    }
}

/// A range in pieces of at most [`CHUNK_BYTES`].
fn chunks(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let start = at;
        at = end.min(start.saturating_add(CHUNK_BYTES));
        (start < end).then_some(start..at)
    })
}
