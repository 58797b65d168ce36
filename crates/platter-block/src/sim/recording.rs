//! The log of all requests to the devices of a filesystem.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::{CrashOptions, CrashStates};
use crate::{BlockDevice, IoError, OverlayDevice, OverlayOptions};

/// A request that changes a device or makes changes durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A write.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The bytes written.
        data: Arc<[u8]>,
    },
    /// A flush.
    Flush,
    /// A discard. Its range reads as zeros afterwards.
    Discard(Range<u64>),
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The device, as an index into the devices of the recorder.
    pub member: usize,
    /// The request.
    pub request: Request,
    /// Length of the log when the request returned successfully; `None` if it has not. Entries in
    /// between ran concurrently.
    pub returned: Option<usize>,
}

/// A complete log and the initial contents of the devices.
#[derive(Debug, Clone)]
pub struct Recording {
    initial: Vec<Arc<dyn BlockDevice>>,
    pub(super) events: Vec<Event>,
    marks: BTreeSet<usize>,
}

impl Recording {
    pub(super) fn new(
        initial: Vec<Arc<dyn BlockDevice>>,
        events: Vec<Event>,
        marks: BTreeSet<usize>,
    ) -> Self {
        Self {
            initial,
            events,
            marks,
        }
    }

    /// Returns the entries in the order in which they began.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the marked positions.
    #[must_use]
    pub fn marks(&self) -> &BTreeSet<usize> {
        &self.marks
    }

    /// Returns the devices as they were before the first entry, as empty overlays.
    #[must_use]
    pub fn initial(&self) -> Vec<OverlayDevice> {
        self.initial.iter().map(unbounded_overlay).collect()
    }

    /// Returns the devices after the first `position` entries, all applied completely and in order.
    pub fn replay(&self, position: usize) -> Result<Vec<OverlayDevice>, IoError> {
        let devices = self.initial();
        for event in &self.events[..position.min(self.events.len())] {
            let device = &devices[event.member];
            match &event.request {
                Request::Write { offset, data } => device.write_at(*offset, data)?,
                Request::Discard(range) => write_zeros(device, range)?,
                Request::Flush => {}
            }
        }
        Ok(devices)
    }

    /// Returns an iterator over the states that power failures can leave.
    #[must_use]
    pub fn crash_states(&self, options: CrashOptions) -> CrashStates<'_> {
        CrashStates::new(self, options)
    }
}

pub(super) fn unbounded_overlay(base: &Arc<dyn BlockDevice>) -> OverlayDevice {
    let options = OverlayOptions {
        limit_bytes: u64::MAX,
        ..OverlayOptions::default()
    };
    OverlayDevice::new(Arc::clone(base), options)
}

/// Writes zeros in chunks.
pub(super) fn write_zeros(device: &dyn BlockDevice, range: &Range<u64>) -> Result<(), IoError> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let zeros = &ZEROS[..left.min(ZEROS.len())];
        device.write_at(at, zeros)?;
        at += zeros.len() as u64;
    }
    Ok(())
}
