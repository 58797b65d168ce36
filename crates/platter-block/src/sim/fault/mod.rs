//! A device that fails selected requests, or reports success without executing them.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use crate::lock::Mutex;
use rustix::io::Errno;

use super::dice::coin;
use crate::device::{check_range, check_range_vectored, total_len};
use crate::{BlockDevice, Geometry, IoError, Operation};

/// Selects requests, and what happens to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of request.
    pub operation: Operation,
    /// Which of that kind.
    pub when: When,
    /// The effect on them.
    pub effect: Effect,
}

/// Selects requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Always,
    /// The n-th after the fault was armed, counted from one.
    Nth(u64),
    /// The n-th after the fault was armed, and all that follow.
    From(u64),
    /// Those that overlap the range. Flushes overlap none.
    Touching(Range<u64>),
}

/// The effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It fails and does nothing.
    Fail(Errno),
    /// It executes in part, for some whole logical blocks chosen by the seed, and fails with EIO.
    /// The other blocks of a read are filled with 0xa5.
    Tear {
        /// Seed of the choice of blocks.
        seed: u64,
    },
    /// It succeeds and does nothing: a lost flush or write. A read returns zeros.
    Skip,
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// Requests of the kind since the fault was armed.
    seen: u64,
}

/// Passes requests to the device below, except those that a fault selects.
#[derive(Debug)]
pub struct FaultDevice {
    base: Arc<dyn BlockDevice>,
    /// The faults to inject.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    armed: Vec<Armed>,
    hits: u64,
}

impl FaultDevice {
    /// Creates a device without faults.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            base,
            state: Mutex::default(),
        }
    }

    /// Adds a fault. If several select a request, the one that was armed first applies.
    pub fn arm(&self, fault: Fault) {
        self.state.lock().armed.push(Armed { fault, seen: 0 });
    }

    /// Removes all faults.
    pub fn disarm(&self) {
        self.state.lock().armed.clear();
    }

    /// Returns the number of requests that faults were applied to.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }

    /// Counts a request, and returns the effect on it.
    fn effect(&self, operation: Operation, range: &Range<u64>) -> Option<Effect> {
        let mut state = self.state.lock();
        let mut effect = None;
        for armed in &mut state.armed {
            if armed.fault.operation != operation {
                continue;
            }
            armed.seen += 1;
            let is_hit = match &armed.fault.when {
                When::Always => true,
                When::Nth(nth) => armed.seen == *nth,
                When::From(first) => armed.seen >= *first,
                When::Touching(bad) => range.start < bad.end && bad.start < range.end,
            };
            if is_hit {
                effect = effect.or(Some(armed.fault.effect));
            }
        }
        state.hits += u64::from(effect.is_some());
        effect
    }

    fn error(&self, operation: Operation, range: &Range<u64>, errno: Errno) -> IoError {
        let length = range.end - range.start;
        IoError::new(self.name(), operation, range.start, length, errno)
    }

    /// Splits a range at logical block boundaries, each piece with its outcome.
    fn torn(&self, range: Range<u64>, seed: u64) -> impl Iterator<Item = (Range<u64>, bool)> {
        let block = u64::from(self.base.geometry().logical_block_bytes);
        let mut at = range.start;
        std::iter::from_fn(move || {
            let end = (at - at % block + block).min(range.end);
            let piece = at..end;
            at = end;
            (!piece.is_empty()).then(|| {
                let kept = coin(seed, piece.start / block);
                (piece, kept)
            })
        })
    }
}

/// Converts a piece of a request into a range of the request's buffer.
fn within(request: &Range<u64>, piece: &Range<u64>) -> Range<usize> {
    let place = |at: u64| usize::try_from(at - request.start).unwrap_or(usize::MAX);
    place(piece.start)..place(piece.end)
}

impl BlockDevice for FaultDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        let range = offset..offset + buf.len() as u64;
        match self.effect(Operation::Read, &range) {
            None => self.base.read_at(offset, buf),
            Some(Effect::Fail(errno)) => Err(self.error(Operation::Read, &range, errno)),
            Some(Effect::Skip) => {
                buf.fill(0);
                Ok(())
            }
            Some(Effect::Tear { seed }) => {
                for (piece, kept) in self.torn(range.clone(), seed) {
                    let target = &mut buf[within(&range, &piece)];
                    if kept {
                        self.base.read_at(piece.start, target)?;
                    } else {
                        target.fill(0xa5);
                    }
                }
                Err(self.error(Operation::Read, &range, Errno::IO))
            }
        }
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Read, offset, bufs)?;
        let mut bytes = vec![0; total_len(bufs)];
        self.read_at(offset, &mut bytes)?;
        let mut bytes = &bytes[..];
        for buf in bufs {
            let (now, later) = bytes.split_at(buf.len());
            buf.copy_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        check_range(self, Operation::Write, offset, buf.len())?;
        let range = offset..offset + buf.len() as u64;
        match self.effect(Operation::Write, &range) {
            None => self.base.write_at(offset, buf),
            Some(Effect::Fail(errno)) => Err(self.error(Operation::Write, &range, errno)),
            Some(Effect::Skip) => Ok(()),
            Some(Effect::Tear { seed }) => {
                for (piece, kept) in self.torn(range.clone(), seed) {
                    if kept {
                        let bytes = &buf[within(&range, &piece)];
                        self.base.write_at(piece.start, bytes)?;
                    }
                }
                Err(self.error(Operation::Write, &range, Errno::IO))
            }
        }
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Write, offset, bufs)?;
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter()).copied().collect();
        self.write_at(offset, &bytes)
    }

    fn flush(&self) -> Result<(), IoError> {
        match self.effect(Operation::Flush, &(0..0)) {
            None => self.base.flush(),
            Some(Effect::Fail(errno)) => Err(self.error(Operation::Flush, &(0..0), errno)),
            Some(Effect::Skip) => Ok(()),
            Some(Effect::Tear { .. }) => Err(self.error(Operation::Flush, &(0..0), Errno::IO)),
        }
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        match self.effect(Operation::Discard, &range) {
            None => self.base.discard(range),
            Some(Effect::Fail(errno)) => Err(self.error(Operation::Discard, &range, errno)),
            Some(Effect::Skip) => Ok(()),
            Some(Effect::Tear { seed }) => {
                for (piece, kept) in self.torn(range.clone(), seed) {
                    if kept {
                        self.base.discard(piece)?;
                    }
                }
                Err(self.error(Operation::Discard, &range, Errno::IO))
            }
        }
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.base.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.base.will_need(range);
    }
}

#[cfg(test)]
mod tests;
