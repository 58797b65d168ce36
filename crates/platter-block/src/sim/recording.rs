//! A device that logs every write, flush and discard.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{CrashOptions, CrashStates};
use crate::device::{check_range, check_range_vectored, check_span};
use crate::{BlockDevice, Geometry, IoError, Operation, OverlayDevice, OverlayOptions};

/// Keeps writes in memory and logs them. The device below is only read, and must not change: it is
/// the initial state of the log.
#[derive(Debug)]
pub struct RecordingDevice {
    initial: Arc<dyn BlockDevice>,
    current: OverlayDevice,
    log: Mutex<Log>,
}

#[derive(Debug, Clone, Default)]
struct Log {
    events: Vec<Event>,
    marks: BTreeSet<usize>,
}

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
    /// The request.
    pub request: Request,
    /// Length of the log when the request returned successfully; `None` if it has not. Entries in
    /// between ran concurrently.
    pub returned: Option<usize>,
}

impl RecordingDevice {
    /// Records the requests to a device with the contents of `initial`.
    #[must_use]
    pub fn new(initial: Arc<dyn BlockDevice>) -> Self {
        let current = unbounded_overlay(&initial);
        Self {
            initial,
            current,
            log: Mutex::default(),
        }
    }

    /// Marks the point at which the workload received a durability guarantee, such as the return of
    /// an `fsync`, and returns its position in the log: the guarantee holds after a crash at that
    /// position or later.
    pub fn mark(&self) -> usize {
        let mut log = self.log.lock();
        let position = log.events.len();
        log.marks.insert(position);
        position
    }

    /// Returns the number of entries in the log.
    #[must_use]
    pub fn position(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Returns the log so far.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let Log { events, marks } = self.log.lock().clone();
        Recording {
            initial: Arc::clone(&self.initial),
            events,
            marks,
        }
    }

    /// Logs a request, executes it, and logs its return.
    fn run(
        &self,
        request: Request,
        work: impl FnOnce() -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let index = {
            let events = &mut self.log.lock().events;
            let returned = None;
            events.push(Event { request, returned });
            events.len() - 1
        };
        work()?;
        let events = &mut self.log.lock().events;
        events[index].returned = Some(events.len());
        Ok(())
    }
}

impl BlockDevice for RecordingDevice {
    fn name(&self) -> &Arc<str> {
        self.initial.name()
    }

    fn geometry(&self) -> Geometry {
        self.current.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.current.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.current.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        check_range(self, Operation::Write, offset, buf.len())?;
        let data = buf.into();
        self.run(Request::Write { offset, data }, || {
            self.current.write_at(offset, buf)
        })
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Write, offset, bufs)?;
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter()).copied().collect();
        self.write_at(offset, &bytes)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.run(Request::Flush, || self.current.flush())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        check_span(self, Operation::Discard, &range)?;
        self.run(Request::Discard(range.clone()), || {
            write_zeros(&self.current, &range)
        })
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.current.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.current.will_need(range);
    }
}

/// A complete log and the initial contents of the device.
#[derive(Debug, Clone)]
pub struct Recording {
    initial: Arc<dyn BlockDevice>,
    pub(super) events: Vec<Event>,
    marks: BTreeSet<usize>,
}

impl Recording {
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

    /// Returns the device as it was before the first entry, as an empty overlay.
    #[must_use]
    pub fn initial(&self) -> OverlayDevice {
        unbounded_overlay(&self.initial)
    }

    /// Returns the device after the first `position` entries, all applied completely and in order.
    pub fn replay(&self, position: usize) -> Result<OverlayDevice, IoError> {
        let device = self.initial();
        for event in &self.events[..position.min(self.events.len())] {
            match &event.request {
                Request::Write { offset, data } => device.write_at(*offset, data)?,
                Request::Discard(range) => write_zeros(&device, range)?,
                Request::Flush => {}
            }
        }
        Ok(device)
    }

    /// Returns an iterator over the states that power failures can leave.
    #[must_use]
    pub fn crash_states(&self, options: CrashOptions) -> CrashStates<'_> {
        CrashStates::new(self, options)
    }
}

fn unbounded_overlay(base: &Arc<dyn BlockDevice>) -> OverlayDevice {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use crate::sim::CrashState;

    fn device() -> (Arc<MemoryDevice>, RecordingDevice) {
        let memory = Arc::new(MemoryDevice::new("memory", vec![7; 8192]));
        let device = RecordingDevice::new(memory.clone());
        (memory, device)
    }

    fn contents(device: &dyn BlockDevice) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn changes_are_logged_and_base_is_unchanged() {
        let (memory, device) = device();
        device.write_at(10, &[1, 2]).unwrap();
        let bufs = [IoSlice::new(&[3]), IoSlice::new(&[4, 5])];
        device.write_vectored_at(20, &bufs).unwrap();
        assert_eq!(device.mark(), 2);
        device.flush().unwrap();
        device.discard(512..1024).unwrap();
        assert!(device.write_at(8191, &[0; 2]).is_err());
        assert!(device.discard(0..8193).is_err());
        let write = |offset, data: &[u8]| Request::Write {
            offset,
            data: data.into(),
        };
        let requests = [
            write(10, &[1, 2]),
            write(20, &[3, 4, 5]),
            Request::Flush,
            Request::Discard(512..1024),
        ];
        let recording = device.recording();
        for (index, (event, request)) in recording.events().iter().zip(requests).enumerate() {
            assert_eq!(event.request, request);
            assert_eq!(event.returned, Some(index + 1));
        }
        assert_eq!(recording.events().len(), 4);
        assert_eq!(*recording.marks(), BTreeSet::from([2]));
        assert_eq!(memory.snapshot(), vec![7; 8192]);
        assert_eq!(contents(&recording.replay(4).unwrap()), contents(&device));
        assert_eq!(contents(&recording.replay(0).unwrap()), vec![7; 8192]);
        assert_eq!(contents(&recording.replay(1).unwrap())[9..13], [7, 1, 2, 7]);
    }

    #[test]
    fn concurrent_requests_are_all_logged() {
        let (_, device) = device();
        let device = &device;
        std::thread::scope(|scope| {
            for lane in 0..4u8 {
                scope.spawn(move || {
                    for round in 0..100u8 {
                        device
                            .write_at(u64::from(lane) * 2048, &[round; 2048])
                            .unwrap();
                        device.flush().unwrap();
                    }
                });
            }
        });
        let recording = device.recording();
        assert_eq!(recording.events().len(), 800);
        for (index, event) in recording.events().iter().enumerate() {
            assert!(event.returned.is_some_and(|returned| returned > index));
        }
        assert_eq!(contents(&recording.replay(800).unwrap()), vec![99; 8192]);
        let end = |state: CrashState<'_>| (state.position == 800).then(|| state.device().unwrap());
        let states = recording.crash_states(CrashOptions::default());
        let ends: Vec<_> = states.filter_map(|state| end(state.unwrap())).collect();
        assert_eq!(
            ends.len(),
            1,
            "every write is covered by a flush of its own lane"
        );
        assert_eq!(contents(&ends[0]), vec![99; 8192]);
    }
}
