//! One crash state: the outcome of each write, and the device that results.

use std::ops::Range;
use std::sync::Arc;

use crate::sim::dice::coin;
use crate::sim::recording::write_zeros;
use crate::sim::{Event, Recording, Request};
use crate::{BlockDevice, IoError, OverlayDevice};

/// The devices after a simulated power failure.
#[derive(Debug, Clone)]
pub struct CrashState<'a> {
    /// Number of log entries that had begun at the power failure.
    pub position: usize,
    /// Number of flushes that had returned by then.
    pub flushes: usize,
    /// Outcome of each write that no flush covers, by its index in the log.
    pub losses: Vec<(usize, Loss)>,
    /// Fingerprint of the devices' contents: equal if and only if the contents are equal, among the
    /// states of all recordings with the same initial contents.
    pub contents: u128,
    pub(super) recording: &'a Recording,
    pub(super) durable: Vec<Arc<OverlayDevice>>,
}

impl CrashState<'_> {
    /// Returns the only device, writable; each call returns an independent one.
    ///
    /// # Panics
    /// If several devices were recorded, which [`devices`](Self::devices) returns.
    pub fn device(&self) -> Result<OverlayDevice, IoError> {
        let mut devices = self.devices()?;
        assert_eq!(devices.len(), 1, "one device was recorded");
        Ok(devices.remove(0))
    }

    /// Returns the devices in the order of members, writable; each call returns independent ones.
    pub fn devices(&self) -> Result<Vec<OverlayDevice>, IoError> {
        let devices: Vec<_> = self.durable.iter().map(|durable| durable.fork()).collect();
        let events = self.recording.events();
        for &(index, loss) in &self.losses {
            let event = &events[index];
            let device = &devices[event.member];
            let block_bytes = device.geometry().logical_block_bytes.into();
            if let Some(range) = changed_range(event) {
                for run in kept_runs(&range, loss, block_bytes) {
                    apply(device, event, &run)?;
                }
            }
        }
        Ok(devices)
    }
}

/// The outcome of one write or discard that was not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It reached the disk completely.
    Kept,
    /// It did not reach the disk.
    Dropped,
    /// Only its blocks before this byte of the device reached the disk.
    Before(u64),
    /// Only its blocks from this byte of the device on reached the disk.
    After(u64),
    /// Only some of its blocks reached the disk, chosen by this seed.
    Torn(u64),
}

impl Loss {
    /// Whether the block at byte offset `place` reached the disk.
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

/// Returns the byte range that an event changes.
pub(super) fn changed_range(event: &Event) -> Option<Range<u64>> {
    match &event.request {
        Request::Write { offset, data } => Some(*offset..*offset + data.len() as u64),
        Request::Discard(range) => Some(range.clone()),
        Request::Flush => None,
    }
}

/// Applies the part of an event that is within `part`.
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

/// Returns the offsets of the blocks that a range overlaps.
pub(super) fn blocks(range: &Range<u64>, block_bytes: u64) -> impl Iterator<Item = u64> {
    let end = range.end;
    let first = range.start - range.start % block_bytes;
    let next = move |place: &u64| place.checked_add(block_bytes);
    std::iter::successors(Some(first), next).take_while(move |&place| place < end)
}

/// Returns the parts of a range whose blocks reached the disk, with adjacent ones merged.
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
