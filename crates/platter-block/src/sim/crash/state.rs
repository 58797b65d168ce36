//! One crash state: what was kept of each write, and the device that this makes.

use std::ops::Range;
use std::sync::Arc;

use crate::sim::dice::coin;
use crate::sim::recording::write_zeros;
use crate::sim::{Event, Recording, Request};
use crate::{BlockDevice, IoError, OverlayDevice};

/// The device as a power cut left it.
#[derive(Debug, Clone)]
pub struct CrashState<'a> {
    /// How many entries of the log had begun when the power went.
    pub cut: usize,
    /// How many flushes had returned by then.
    pub flushes: usize,
    /// What became of the writes that no flush vouches for: each by its place in the log.
    pub losses: Vec<(usize, Loss)>,
    /// Stands for the contents of the device: equal for equal contents, and different otherwise,
    /// among the states of all recordings that began with the same contents.
    pub contents: u128,
    pub(super) recording: &'a Recording,
    pub(super) durable: Arc<OverlayDevice>,
}

impl CrashState<'_> {
    /// The device, to be opened and written to; each call gives one of its own.
    pub fn device(&self) -> Result<OverlayDevice, IoError> {
        let device = self.durable.fork();
        let block_bytes = device.geometry().logical_block_bytes.into();
        let events = self.recording.events();
        for &(index, loss) in &self.losses {
            let event = &events[index];
            if let Some(range) = changed_range(event) {
                for run in kept_runs(&range, loss, block_bytes) {
                    apply(&device, event, &run)?;
                }
            }
        }
        Ok(device)
    }
}

/// What becomes of one write or discard that was not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of it reached the medium.
    Kept,
    /// Nothing of it did.
    Dropped,
    /// Only its blocks before this byte of the device did.
    Before(u64),
    /// Only its blocks from this byte of the device on did.
    After(u64),
    /// Only some of its blocks did, chosen by this seed.
    Torn(u64),
}

impl Loss {
    /// Whether the block that begins at `place` reached the medium.
    pub(super) fn keeps(self, place: u64) -> bool {
        match self {
            Self::Kept => true,
            Self::Dropped => false,
            Self::Before(limit) => place < limit,
            Self::After(limit) => place >= limit,
            Self::Torn(seed) => coin(seed, place),
        }
    }
}

/// The bytes that an event changes.
pub(super) fn changed_range(event: &Event) -> Option<Range<u64>> {
    match &event.request {
        Request::Write { offset, data } => Some(*offset..*offset + data.len() as u64),
        Request::Discard(range) => Some(range.clone()),
        Request::Flush => None,
    }
}

/// Plays the part of an event that lies in `part`.
pub(super) fn apply(
    device: &OverlayDevice,
    event: &Event,
    part: &Range<u64>,
) -> Result<(), IoError> {
    match &event.request {
        Request::Write { offset, data } => {
            let place = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            device.write_at(part.start, &data[place(part.start)..place(part.end)])
        }
        Request::Discard(_) => write_zeros(device, part),
        Request::Flush => Ok(()),
    }
}

/// The places of the blocks that a range touches.
pub(super) fn blocks(range: &Range<u64>, block_bytes: u64) -> impl Iterator<Item = u64> {
    let end = range.end;
    let first = range.start - range.start % block_bytes;
    let next = move |place: &u64| place.checked_add(block_bytes);
    std::iter::successors(Some(first), next).take_while(move |&place| place < end)
}

/// The parts of a range whose blocks reached the medium, neighbours joined.
fn kept_runs(range: &Range<u64>, loss: Loss, block_bytes: u64) -> Vec<Range<u64>> {
    match loss {
        Loss::Kept => return vec![range.clone()],
        Loss::Dropped => return Vec::new(),
        Loss::Before(_) | Loss::After(_) | Loss::Torn(_) => {}
    }
    let mut runs: Vec<Range<u64>> = Vec::new();
    for place in blocks(range, block_bytes).filter(|&place| loss.keeps(place)) {
        let piece = place.max(range.start)..(place + block_bytes).min(range.end);
        match runs.last_mut() {
            Some(run) if run.end == piece.start => run.end = piece.end,
            _ => runs.push(piece),
        }
    }
    runs
}
