//! A filesystem of nothing but metadata, mirrored over two devices: the recorder of several devices,
//! the cache over a store of copies, and the order of commits are tested on it.

mod store;

use std::sync::Arc;

use platter_block::sim::{CrashOptions, Recorder, RecordingDevice};
use platter_block::{BlockDevice, MemoryDevice, ReadOnlyDevice};
use platter_cache::BufferError;
use testkit::subject::Devices;

use self::store::{MirrorFs, Order};

/// Bytes of each device.
const DEVICE_BYTES: usize = 256 << 10;
/// Commits of a workload.
const COMMITS: u64 = 12;

fn new_devices() -> Devices {
    let devices: Devices = ["first", "second"]
        .map(|name| -> Arc<dyn BlockDevice> {
            Arc::new(MemoryDevice::new(name, vec![0; DEVICE_BYTES]))
        })
        .into();
    MirrorFs::make(&devices).unwrap();
    devices
}

fn unchanging(devices: Devices) -> Devices {
    let unchanging = |device| -> Arc<dyn BlockDevice> { Arc::new(ReadOnlyDevice::new(device)) };
    devices.into_iter().map(unchanging).collect()
}

/// What a crash left is wrong.
#[derive(Debug)]
struct Failure {
    position: usize,
    error: Result<u64, BufferError>,
}

impl Failure {
    fn line(&self) -> String {
        format!("after a crash at {}: {:?}", self.position, self.error)
    }
}

/// What a search through the crash states of a workload came to.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    /// States in which one device had been flushed and the other had not, within one commit.
    between_flushes: usize,
    failures: Vec<Failure>,
}

/// Commits generations, with a mark after each, and mounts every state that a crash can leave: the
/// value of the last marked commit, or a later one, must be there.
fn search(order: Order) -> Found {
    let recorder = Recorder::new(unchanging(new_devices()));
    let member = |device: &Arc<RecordingDevice>| -> Arc<dyn BlockDevice> { device.clone() };
    let devices: Devices = recorder.devices().iter().map(member).collect();
    let mut fs = MirrorFs::mount(&devices).unwrap();
    let mut guaranteed = vec![(0, fs.value())];
    for value in 1..=COMMITS {
        fs.commit(value * 1000, order).unwrap();
        guaranteed.push((recorder.mark(), value * 1000));
    }
    let recording = recorder.recording();
    let mut found = Found::default();
    for state in recording.crash_states(CrashOptions::default()) {
        let state = state.unwrap();
        found.states += 1;
        found.between_flushes += usize::from(state.flushes % 2 == 1);
        let overlays = state.devices().unwrap().into_iter();
        let devices: Devices = overlays
            .map(|device| -> Arc<dyn BlockDevice> { Arc::new(device) })
            .collect();
        let marked = guaranteed
            .iter()
            .filter(|(mark, _)| *mark <= state.position);
        let least = marked.map(|(_, value)| *value).max().unwrap_or(0);
        let value = MirrorFs::mount(&devices).map(|fs| fs.value());
        if !value
            .as_ref()
            .is_ok_and(|value| *value >= least && value % 1000 == 0)
        {
            found.failures.push(Failure {
                position: state.position,
                error: value,
            });
        }
    }
    found
}

#[test]
fn mirror_keeps_commits_in_every_crash_state() {
    let found = search(Order::FlushAllFirst);
    let lines: Vec<_> = found.failures.iter().map(Failure::line).collect();
    assert!(lines.is_empty(), "{lines:?}");
    assert!(found.states > 100, "{}", found.states);
    assert!(found.between_flushes > 20, "{}", found.between_flushes);
}

#[test]
fn superblock_before_the_first_flush_is_found() {
    let found = search(Order::SecondSuperblockFirst);
    assert!(!found.failures.is_empty(), "of {} states", found.states);
    let is_corrupt = |failure: &Failure| matches!(failure.error, Err(BufferError::Corrupt(_)));
    assert!(
        found.failures.iter().any(is_corrupt),
        "{:?}",
        found.failures
    );
}

#[test]
fn flipped_bit_is_read_from_the_other_copy_and_repaired() {
    let devices = new_devices();
    let mut fs = MirrorFs::mount(&devices).unwrap();
    fs.commit(7000, Order::FlushAllFirst).unwrap();
    let (node, len) = (fs.root(), MirrorFs::NODE_BYTES);
    let read = |member: usize| {
        let mut bytes = vec![0; len];
        devices[member].read_at(node, &mut bytes).unwrap();
        bytes
    };
    let good = read(0);
    for member in [0, 1] {
        for bit in (0..len * 8).step_by(1009) {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            devices[member].write_at(node, &bytes).unwrap();
            let fs = MirrorFs::mount(&devices).unwrap();
            assert_eq!(fs.value(), 7000);
            let bad = fs.bad_copies();
            // The second copy is not looked at as long as the first is good.
            let expected = u64::from(member == 0);
            assert_eq!((bad.found, bad.repaired), (expected, expected), "bit {bit}");
            if member == 0 {
                assert_eq!(bad.listed[0].copy, 0);
            } else {
                devices[1].write_at(node, &good).unwrap();
            }
            assert!(read(member) == good, "bit {bit} of device {member}");
        }
    }
}

#[test]
fn node_with_no_good_copy_is_corrupt() {
    let devices = new_devices();
    let fs = MirrorFs::mount(&devices).unwrap();
    for device in &devices {
        device.write_at(fs.root() + 100, &[1]).unwrap();
    }
    let error = MirrorFs::mount(&devices).unwrap_err();
    assert!(matches!(error, BufferError::Corrupt(_)), "{error}");
}

#[test]
fn lost_member_leaves_the_other_readable() {
    for lost in [0, 1] {
        let mut devices = new_devices();
        let mut fs = MirrorFs::mount(&devices).unwrap();
        fs.commit(3000, Order::FlushAllFirst).unwrap();
        devices[lost] = Arc::new(MemoryDevice::new("empty", vec![0; DEVICE_BYTES]));
        assert_eq!(MirrorFs::mount(&devices).unwrap().value(), 3000);
    }
}
