//! Devices that log every write, flush and discard in one order.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use crate::lock::Mutex;

use super::recording::{Event, Recording, Request, unbounded_overlay, write_zeros};
use crate::device::{check_range, check_range_vectored, check_span};
use crate::{BlockDevice, Geometry, IoError, Operation, OverlayDevice};

/// Records the requests to all devices of one filesystem in one log. A flush covers the writes of its
/// own device only.
#[derive(Debug)]
pub struct Recorder {
    log: Arc<SharedLog>,
    devices: Vec<Arc<RecordingDevice>>,
}

/// Keeps writes in memory and logs them. The device below is only read, and must not change: it is
/// the initial state of the log.
#[derive(Debug)]
pub struct RecordingDevice {
    member: usize,
    initial: Arc<dyn BlockDevice>,
    current: OverlayDevice,
    log: Arc<SharedLog>,
}

#[derive(Debug)]
struct SharedLog {
    initial: Vec<Arc<dyn BlockDevice>>,
    /// The recorded requests.
    state: Mutex<Log>,
}

#[derive(Debug, Clone, Default)]
struct Log {
    events: Vec<Event>,
    marks: BTreeSet<usize>,
}

impl SharedLog {
    fn mark(&self) -> usize {
        let mut log = self.state.lock();
        let position = log.events.len();
        log.marks.insert(position);
        position
    }

    fn position(&self) -> usize {
        self.state.lock().events.len()
    }

    fn recording(&self) -> Recording {
        let Log { events, marks } = self.state.lock().clone();
        Recording::new(self.initial.clone(), events, marks)
    }
}

impl Recorder {
    /// Records the requests to devices with the contents of `initial`, in the order of members.
    #[must_use]
    pub fn new(initial: Vec<Arc<dyn BlockDevice>>) -> Self {
        let log = Arc::new(SharedLog {
            initial,
            state: Mutex::default(),
        });
        let member = |(member, initial): (usize, &Arc<dyn BlockDevice>)| {
            Arc::new(RecordingDevice {
                member,
                initial: Arc::clone(initial),
                current: unbounded_overlay(initial),
                log: Arc::clone(&log),
            })
        };
        let devices = log.initial.iter().enumerate().map(member).collect();
        Self { log, devices }
    }

    /// Returns the recorded devices in the order of members.
    #[must_use]
    pub fn devices(&self) -> &[Arc<RecordingDevice>] {
        &self.devices
    }

    /// Marks the point at which the workload received a durability guarantee, such as the return of
    /// an `fsync`, and returns its position in the log: the guarantee holds after a crash at that
    /// position or later.
    #[expect(clippy::must_use_candidate, reason = "it changes the log")]
    pub fn mark(&self) -> usize {
        self.log.mark()
    }

    /// Returns the number of entries in the log.
    #[must_use]
    pub fn position(&self) -> usize {
        self.log.position()
    }

    /// Returns the log so far.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.log.recording()
    }
}

impl RecordingDevice {
    /// Records the requests to a device with the contents of `initial`, which is the only one of its
    /// log.
    #[must_use]
    pub fn new(initial: Arc<dyn BlockDevice>) -> Self {
        let current = unbounded_overlay(&initial);
        let log = Arc::new(SharedLog {
            initial: vec![Arc::clone(&initial)],
            state: Mutex::default(),
        });
        Self {
            member: 0,
            initial,
            current,
            log,
        }
    }

    /// Marks the point at which the workload received a durability guarantee, as
    /// [`Recorder::mark`] does.
    pub fn mark(&self) -> usize {
        self.log.mark()
    }

    /// Returns the number of entries in the log.
    #[must_use]
    pub fn position(&self) -> usize {
        self.log.position()
    }

    /// Returns the log so far.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.log.recording()
    }

    /// Logs a request, executes it, and logs its return.
    fn run(
        &self,
        request: Request,
        work: impl FnOnce() -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let index = {
            let events = &mut self.log.state.lock().events;
            events.push(Event {
                member: self.member,
                request,
                returned: None,
            });
            events.len() - 1
        };
        work()?;
        let events = &mut self.log.state.lock().events;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use crate::sim::{CrashOptions, CrashState};

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
        assert_eq!(
            contents(&recording.replay(4).unwrap()[0]),
            contents(&device)
        );
        assert_eq!(contents(&recording.replay(0).unwrap()[0]), vec![7; 8192]);
        assert_eq!(
            contents(&recording.replay(1).unwrap()[0])[9..13],
            [7, 1, 2, 7]
        );
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
        assert_eq!(contents(&recording.replay(800).unwrap()[0]), vec![99; 8192]);
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
