//! Writes kept in memory over a device that is never written.
//!
//! A dirty journal is replayed into such an overlay when an image is opened read-only.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::RwLock;

use crate::device::{check_range, check_range_vectored, check_span, read_in_turn};
use crate::{BlockDevice, Geometry, IoError, Operation};

/// How an overlay uses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverlayOptions {
    /// Granularity of held writes in bytes; a power of two.
    pub chunk_bytes: u32,
    /// Maximum number of bytes held. A write that needs more fails and changes nothing.
    pub limit_bytes: u64,
}

impl Default for OverlayOptions {
    /// Chunks of 4 KiB, and a limit above the largest journal that `mke2fs` makes: 1 GiB.
    fn default() -> Self {
        Self {
            chunk_bytes: 4096,
            limit_bytes: 1 << 30,
        }
    }
}

/// The write exceeds the overlay's memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OverlayFull {
    limit_bytes: u64,
}

impl fmt::Display for OverlayFull {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit_bytes;
        write!(out, "overlay limit of {limit} bytes of memory exceeded")
    }
}

impl std::error::Error for OverlayFull {}

/// A writable device whose writes stay in memory; the device below is only read.
///
/// A flush does nothing and succeeds: the writes end with the process. A discard drops the held
/// chunks inside its range, which frees their memory.
///
/// # Invariants
/// - A held chunk is complete: its length is the chunk size, truncated at the end of the device.
/// - `held_bytes` is the sum of the lengths of the chunks, and at most the limit.
#[derive(Debug)]
pub struct OverlayDevice {
    base: Arc<dyn BlockDevice>,
    options: OverlayOptions,
    len_bytes: u64,
    /// The chunks that were written.
    chunks: RwLock<BTreeMap<u64, Arc<[u8]>>>,
    /// Written under the lock of `chunks`; read without it, so that reads of an empty overlay take
    /// no lock.
    held_bytes: AtomicU64,
}

impl OverlayDevice {
    /// Creates an empty overlay over `base`.
    ///
    /// # Panics
    /// If the chunk size is not a power of two.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>, options: OverlayOptions) -> Self {
        assert!(
            options.chunk_bytes.is_power_of_two(),
            "chunk size {} is not a power of two",
            options.chunk_bytes
        );
        Self {
            len_bytes: base.geometry().len_bytes,
            base,
            options,
            chunks: RwLock::default(),
            held_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the number of bytes held in memory.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Acquire)
    }

    /// Returns the held chunks with their offsets, in ascending order.
    #[must_use]
    pub fn held(&self) -> Vec<(u64, Arc<[u8]>)> {
        let chunks = self.chunks.read();
        let held = chunks.iter();
        held.map(|(&index, chunk)| (index * self.chunk_bytes(), Arc::clone(chunk)))
            .collect()
    }

    /// Creates a second overlay over the same base, with the current contents of this one.
    ///
    /// From then on the two are independent; unmodified chunks are shared.
    #[must_use]
    pub fn fork(&self) -> Self {
        let chunks = self.chunks.read();
        Self {
            base: Arc::clone(&self.base),
            options: self.options,
            len_bytes: self.len_bytes,
            held_bytes: AtomicU64::new(self.held_bytes()),
            chunks: RwLock::new(chunks.clone()),
        }
    }

    fn chunk_bytes(&self) -> u64 {
        u64::from(self.options.chunk_bytes)
    }

    /// Returns the byte range of a chunk, truncated at the end of the device.
    fn chunk_range(&self, index: u64) -> Range<u64> {
        let start = index * self.chunk_bytes();
        start..start.saturating_add(self.chunk_bytes()).min(self.len_bytes)
    }

    /// Returns the indexes of the chunks that overlap a byte range within the device.
    fn touched(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.chunk_bytes()..range.end.div_ceil(self.chunk_bytes())
    }

    /// Whether any chunk that overlaps the range is held.
    fn holds_any(&self, range: &Range<u64>) -> bool {
        self.held_bytes() > 0
            && self
                .chunks
                .read()
                .range(self.touched(range))
                .next()
                .is_some()
    }

    /// Copies the held parts of the range at `offset` into `buf` and returns the parts not held.
    fn copy_held(&self, offset: u64, buf: &mut [u8]) -> Vec<Range<usize>> {
        let range = offset..offset + buf.len() as u64;
        let mut gaps = Vec::new();
        let mut done = 0;
        let chunks = self.chunks.read();
        for (&index, chunk) in chunks.range(self.touched(&range)) {
            let place = Overlap::of(&range, &self.chunk_range(index));
            if done < place.in_request.start {
                gaps.push(done..place.in_request.start);
            }
            done = place.in_request.end;
            buf[place.in_request].copy_from_slice(&chunk[place.in_chunk]);
        }
        if done < buf.len() {
            gaps.push(done..buf.len());
        }
        gaps
    }

    /// Writes `buf` at `offset` if every chunk that it covers partially is held or in `fresh`.
    /// Otherwise changes nothing and returns a missing chunk.
    fn apply(
        &self,
        offset: u64,
        buf: &[u8],
        fresh: &mut BTreeMap<u64, Arc<[u8]>>,
    ) -> Result<Option<u64>, OverlayFull> {
        let range = offset..offset + buf.len() as u64;
        let touched = self.touched(&range);
        let mut chunks = self.chunks.write();
        for index in [touched.start, touched.end - 1] {
            let chunk = self.chunk_range(index);
            let whole = range.start <= chunk.start && chunk.end <= range.end;
            if !whole && !chunks.contains_key(&index) && !fresh.contains_key(&index) {
                return Ok(Some(index));
            }
        }
        let touched_bytes = (touched.end * self.chunk_bytes()).min(self.len_bytes)
            - touched.start * self.chunk_bytes();
        let overwritten: u64 = chunks
            .range(touched.clone())
            .map(|(_, chunk)| chunk.len() as u64)
            .sum();
        let held_bytes = self.held_bytes() + touched_bytes - overwritten;
        if held_bytes > self.options.limit_bytes {
            return Err(OverlayFull {
                limit_bytes: self.options.limit_bytes,
            });
        }
        for index in touched {
            let chunk_range = self.chunk_range(index);
            let place = Overlap::of(&range, &chunk_range);
            let bytes = &buf[place.in_request];
            if place.in_chunk.len() as u64 == chunk_range.end - chunk_range.start {
                chunks.insert(index, bytes.into());
            } else {
                let base = || fresh.remove(&index).unwrap_or_default();
                let chunk = chunks.entry(index).or_insert_with(base);
                Arc::make_mut(chunk)[place.in_chunk].copy_from_slice(bytes);
            }
        }
        self.held_bytes.store(held_bytes, Ordering::Release);
        Ok(None)
    }

    /// Reads a chunk from the device below.
    fn read_base_chunk(&self, index: u64) -> Result<Arc<[u8]>, IoError> {
        let range = self.chunk_range(index);
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        self.base.read_at(range.start, &mut bytes)?;
        Ok(bytes.into())
    }
}

/// The intersection of a request and a chunk, relative to the start of each.
struct Overlap {
    in_request: Range<usize>,
    in_chunk: Range<usize>,
}

impl Overlap {
    fn of(request: &Range<u64>, chunk: &Range<u64>) -> Self {
        let start = request.start.max(chunk.start);
        let end = request.end.min(chunk.end);
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            in_request: count(start - request.start)..count(end - request.start),
            in_chunk: count(start - chunk.start)..count(end - chunk.start),
        }
    }
}

impl BlockDevice for OverlayDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            read_only: false,
            ..self.base.geometry()
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        if self.held_bytes() == 0 {
            return self.base.read_at(offset, buf);
        }
        for gap in self.copy_held(offset, buf) {
            self.base
                .read_at(offset + gap.start as u64, &mut buf[gap])?;
        }
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Read, offset, bufs)?;
        let length: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        if !self.holds_any(&(offset..offset + length)) {
            return self.base.read_vectored_at(offset, bufs);
        }
        read_in_turn(self, offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        check_range(self, Operation::Write, offset, buf.len())?;
        if buf.is_empty() {
            return Ok(());
        }
        // The device below is read outside the lock. A concurrent discard can drop a chunk again,
        // in which case the loop runs once more.
        let mut fresh = BTreeMap::new();
        loop {
            let missing = self.apply(offset, buf, &mut fresh).map_err(|full| {
                let source = io::Error::new(io::ErrorKind::StorageFull, full);
                IoError::new(
                    self.name(),
                    Operation::Write,
                    offset,
                    buf.len() as u64,
                    source,
                )
            })?;
            let Some(index) = missing else { return Ok(()) };
            fresh.insert(index, self.read_base_chunk(index)?);
        }
    }

    fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        check_span(self, Operation::Discard, &range)?;
        let first = range.start.div_ceil(self.chunk_bytes());
        let last = if range.end == self.len_bytes {
            range.end.div_ceil(self.chunk_bytes())
        } else {
            range.end / self.chunk_bytes()
        };
        if first >= last || self.held_bytes() == 0 {
            return Ok(());
        }
        let mut chunks = self.chunks.write();
        let mut freed = chunks.split_off(&first);
        chunks.append(&mut freed.split_off(&last));
        let freed_bytes: u64 = freed.values().map(|chunk| chunk.len() as u64).sum();
        self.held_bytes
            .store(self.held_bytes() - freed_bytes, Ordering::Release);
        Ok(())
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        if offset >= self.len_bytes {
            return Ok(None);
        }
        let below = self.base.next_data(offset)?;
        let held = {
            let chunks = self.chunks.read();
            let mut indexes = chunks.range(offset / self.chunk_bytes()..).map(|(i, _)| *i);
            indexes.next().map(|first| {
                let run = indexes.zip(first + 1..).take_while(|(is, run)| is == run);
                let last = run.last().map_or(first, |(index, _)| index);
                self.chunk_range(first).start.max(offset)..self.chunk_range(last).end
            })
        };
        Ok(match (below, held) {
            (Some(below), Some(held)) if below.start <= held.start => Some(below),
            (below, held) => held.or(below),
        })
    }

    fn will_need(&self, range: Range<u64>) {
        self.base.will_need(range);
    }
}

#[cfg(test)]
mod tests;
