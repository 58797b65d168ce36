//! Crash states compared with the ordering rule of the device, block by block.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::MemoryDevice;
use crate::sim::{Effect, Fault, FaultDevice, Recorder, RecordingDevice, When};
use crate::{Operation, ReadOnlyDevice};

const BLOCK: usize = 512;
const BLOCKS: usize = 6;

/// A step of a workload, in bytes.
#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize, u8),
    Discard(usize, usize),
    Flush,
}

fn recording_device(blocks: usize) -> RecordingDevice {
    let memory = Arc::new(MemoryDevice::new("memory", vec![0xee; blocks * BLOCK]));
    RecordingDevice::new(Arc::new(ReadOnlyDevice::new(memory)))
}

fn record(steps: &[Step]) -> Recording {
    let device = recording_device(BLOCKS);
    for step in steps {
        match *step {
            Step::Write(at, len, byte) => device.write_at(at as u64, &vec![byte; len]).unwrap(),
            Step::Discard(at, len) => device.discard(at as u64..(at + len) as u64).unwrap(),
            Step::Flush => device.flush().unwrap(),
        }
    }
    device.recording()
}

fn block_write(block: usize, byte: u8) -> Step {
    Step::Write(block * BLOCK, BLOCK, byte)
}

fn contents(device: &OverlayDevice) -> Vec<u8> {
    let length = device.geometry().len_bytes;
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn states(recording: &Recording, options: CrashOptions) -> Vec<(CrashState<'_>, Vec<u8>)> {
    let states = recording.crash_states(options).map(Result::unwrap);
    states
        .map(|state| {
            let bytes = contents(&state.device().unwrap());
            (state, bytes)
        })
        .collect()
}

/// The first byte of each block: enough where all writes are of whole blocks.
fn first_bytes(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().step_by(BLOCK).copied().collect()
}

/// Returns every content that each block may have at a position, derived from the ordering rule
/// alone.
fn allowed(steps: &[Step], position: usize) -> Vec<BTreeSet<Vec<u8>>> {
    let initial = vec![0xee; BLOCK];
    let mut allowed = vec![BTreeSet::from([initial.clone()]); BLOCKS];
    let mut latest = vec![initial; BLOCKS];
    for step in &steps[..position] {
        let (at, len, byte) = match *step {
            Step::Write(at, len, byte) => (at, len, byte),
            Step::Discard(at, len) => (at, len, 0),
            Step::Flush => {
                for (allowed, latest) in allowed.iter_mut().zip(&latest) {
                    *allowed = BTreeSet::from([latest.clone()]);
                }
                continue;
            }
        };
        for block in 0..BLOCKS {
            let start = at.max(block * BLOCK);
            let end = (at + len).min((block + 1) * BLOCK);
            if start < end {
                let place = start - block * BLOCK..end - block * BLOCK;
                let grown: Vec<Vec<u8>> = allowed[block]
                    .iter()
                    .map(|version| {
                        let mut version = version.clone();
                        version[place.clone()].fill(byte);
                        version
                    })
                    .collect();
                allowed[block].extend(grown);
                latest[block][place].fill(byte);
            }
        }
    }
    allowed
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    const END: usize = BLOCKS * BLOCK;
    let range = |(at, len): (usize, usize)| (at, len.min(END - at));
    let blocks = (0..BLOCKS, 1..4usize).prop_map(move |(at, len)| range((at * BLOCK, len * BLOCK)));
    let bytes = (0..END, 1..1500usize).prop_map(range);
    let write = (prop_oneof![3 => blocks, 1 => bytes.clone()], 1..5u8);
    let step = prop_oneof![
        6 => write.prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
        1 => bytes.prop_map(|(at, len)| Step::Discard(at, len)),
        2 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn states_obey_the_ordering_and_are_distinct(steps in steps(), seed: u64) {
        let recording = record(&steps);
        let options = CrashOptions { seed, mixes_per_position: 4, ..CrashOptions::default() };
        let mut seen = BTreeSet::new();
        let mut whole = vec![false; steps.len() + 1];
        for (state, bytes) in states(&recording, options) {
            let allowed = allowed(&steps, state.position);
            for (block, versions) in bytes.chunks(BLOCK).zip(&allowed) {
                prop_assert!(versions.contains(block), "{state:?}");
            }
            let flushes = steps[..state.position].iter().filter(|step| matches!(step, Step::Flush));
            prop_assert_eq!(state.flushes, flushes.count());
            prop_assert!(seen.insert((state.flushes, bytes)), "{state:?}");
            whole[state.position] = true;
        }
        // Every position has its complete prefix: returned there, or as an equal state since the
        // last flush.
        for position in 0..=steps.len() {
            let flushes = steps[..position].iter().filter(|step| matches!(step, Step::Flush)).count();
            let prefix = contents(&recording.replay(position).unwrap()[0]);
            prop_assert!(seen.contains(&(flushes, prefix)), "position {position}");
        }
    }

    #[test]
    fn fingerprints_are_equal_only_for_equal_contents(
        one in steps(),
        other in steps(),
    ) {
        let mut known = BTreeMap::from([(vec![0xee; BLOCKS * BLOCK], 0)]);
        for recording in [record(&one), record(&other)] {
            for (state, bytes) in states(&recording, CrashOptions::default()) {
                prop_assert_eq!(*known.entry(bytes).or_insert(state.contents), state.contents);
            }
        }
        let distinct: BTreeSet<u128> = known.values().copied().collect();
        prop_assert_eq!(distinct.len(), known.len());
    }

    #[test]
    fn seed_reproduces_its_states(steps in steps(), seed: u64) {
        let recording = record(&steps);
        let options = CrashOptions { seed, ..CrashOptions::default() };
        let bytes = || states(&recording, options).into_iter().map(|(_, bytes)| bytes);
        prop_assert!(bytes().eq(bytes()));
    }
}

#[test]
fn few_writes_are_dropped_in_all_subsets() {
    let steps = [
        block_write(0, 1),
        block_write(1, 2),
        block_write(2, 3),
        Step::Flush,
    ];
    let recording = record(&steps);
    let found: BTreeSet<Vec<u8>> = states(&recording, CrashOptions::default())
        .iter()
        .filter(|(state, _)| state.flushes == 0)
        .map(|(_, bytes)| first_bytes(bytes)[..3].to_vec())
        .collect();
    assert_eq!(found.len(), 8);
}

#[test]
fn newer_write_can_be_lost_before_an_older_one() {
    let recording = record(&[block_write(0, 1), block_write(1, 2), block_write(0, 3)]);
    let states = states(&recording, CrashOptions::default());
    let found = |want: [u8; 2]| {
        states
            .iter()
            .any(|(_, bytes)| first_bytes(bytes)[..2] == want)
    };
    for want in [[0xee, 2], [1, 2], [3, 2], [3, 0xee], [1, 0xee]] {
        assert!(found(want), "{want:?}");
    }
}

#[test]
fn many_writes_are_dropped_and_kept_singly() {
    let device = recording_device(40);
    for block in 0..40u8 {
        device
            .write_at(u64::from(block) * 512, &[block; BLOCK])
            .unwrap();
    }
    device.flush().unwrap();
    let recording = device.recording();
    let options = CrashOptions {
        mixes_per_position: 0,
        ..CrashOptions::default()
    };
    let states = states(&recording, options);
    for lost in 0..40 {
        let is_lost = |bytes: &[u8], block: usize| bytes[block * BLOCK] == 0xee;
        let alone = |bytes: &[u8]| (0..40).all(|block| is_lost(bytes, block) == (block == lost));
        let only = |bytes: &[u8]| (0..40).all(|block| is_lost(bytes, block) == (block != lost));
        assert!(
            states.iter().any(|(_, bytes)| alone(bytes)),
            "without {lost}"
        );
        assert!(states.iter().any(|(_, bytes)| only(bytes)), "only {lost}");
    }
}

#[test]
fn long_write_is_torn() {
    let recording = record(&[Step::Write(0, BLOCKS * BLOCK, 1)]);
    let options = CrashOptions {
        mixes_per_position: 50,
        ..CrashOptions::default()
    };
    let states = states(&recording, options);
    let found = |want: [u8; 6]| states.iter().any(|(_, bytes)| first_bytes(bytes) == want);
    assert!(found([1, 1, 1, 0xee, 0xee, 0xee]));
    assert!(found([0xee, 0xee, 0xee, 1, 1, 1]));
    let ragged = |bytes: &Vec<u8>| {
        let first = first_bytes(bytes);
        first.windows(2).filter(|pair| pair[0] != pair[1]).count() > 2
    };
    assert!(states.iter().any(|(_, bytes)| ragged(bytes)));
}

#[test]
fn flushed_writes_are_never_lost() {
    let recording = record(&[block_write(0, 1), Step::Flush]);
    let states = states(&recording, CrashOptions::default());
    let after: Vec<_> = states
        .iter()
        .filter(|(state, _)| state.position == 2)
        .collect();
    assert_eq!(after.len(), 1);
    assert_eq!(first_bytes(&after[0].1)[0], 1);
    assert_eq!(after[0].0.losses, []);
}

#[test]
fn skipped_flush_makes_nothing_durable() {
    let below = Arc::new(recording_device(BLOCKS));
    let device = FaultDevice::new(below.clone());
    device.arm(Fault {
        operation: Operation::Flush,
        when: When::Always,
        effect: Effect::Skip,
    });
    device.write_at(0, &[1; BLOCK]).unwrap();
    device.flush().unwrap();
    let flushed = below.mark();
    device.write_at(BLOCK as u64, &[2; BLOCK]).unwrap();
    let recording = below.recording();
    let states = states(&recording, CrashOptions::default());
    let broken = |(state, bytes): &&(CrashState<'_>, Vec<u8>)| {
        state.position >= flushed && first_bytes(bytes)[0] != 1
    };
    assert_eq!(states.iter().filter(broken).count(), 2);
}

#[test]
fn failed_flush_leaves_writes_undefined() {
    let mut recording = record(&[
        block_write(0, 1),
        Step::Flush,
        block_write(1, 2),
        Step::Flush,
    ]);
    recording.events[1].returned = None;
    let states = states(&recording, CrashOptions::default());
    let end: BTreeSet<Vec<u8>> = states
        .iter()
        .filter(|(state, _)| state.position == 4)
        .map(|(_, bytes)| first_bytes(bytes)[..2].to_vec())
        .collect();
    assert_eq!(end, BTreeSet::from([vec![1, 2], vec![0xee, 2]]));
}

#[test]
fn flush_does_not_cover_writes_in_flight() {
    let mut recording = record(&[block_write(0, 1), block_write(1, 2), Step::Flush]);
    // The second write returned only after the flush had.
    recording.events[1].returned = Some(3);
    let states = states(&recording, CrashOptions::default());
    let end: BTreeSet<Vec<u8>> = states
        .iter()
        .filter(|(state, _)| state.position == 3)
        .map(|(_, bytes)| first_bytes(bytes)[..2].to_vec())
        .collect();
    assert_eq!(end, BTreeSet::from([vec![1, 2], vec![1, 0xee]]));
}

#[test]
fn crash_during_a_flush_makes_nothing_durable() {
    let mut recording = record(&[block_write(0, 1), Step::Flush, block_write(1, 2)]);
    recording.events[1].returned = Some(3);
    let states = states(&recording, CrashOptions::default());
    let at = |position| {
        states
            .iter()
            .filter(move |(state, _)| state.position == position)
    };
    assert!(at(2).all(|(state, _)| state.flushes == 0));
    assert!(at(3).all(|(state, bytes)| state.flushes == 1 && bytes[0] == 1));
    assert_eq!(at(3).count(), 2);
}

#[test]
fn positions_before_the_first_are_skipped() {
    let recording = record(&[block_write(0, 1), Step::Flush, block_write(1, 2)]);
    let options = CrashOptions {
        first_position: 2,
        ..CrashOptions::default()
    };
    let states = states(&recording, options);
    assert!(
        states
            .iter()
            .all(|(state, bytes)| state.position >= 2 && bytes[0] == 1)
    );
    assert_eq!(states.len(), 2);
}

#[test]
fn hundreds_of_pending_writes_are_searched_lazily() {
    let device = recording_device(8000);
    for block in 0..400u64 {
        device.write_at(block * 4096, &[1; 4096]).unwrap();
    }
    device.flush().unwrap();
    let recording = device.recording();
    let mut states = 0;
    for state in recording.crash_states(CrashOptions::default()) {
        let state = state.unwrap();
        if states % 200 == 0 {
            state.device().unwrap();
        }
        states += 1;
    }
    // Everything and two mixes at each of four hundred positions, and four at the end for each
    // write.
    assert!(states > 2400, "{states}");
}

/// Two devices of one log.
fn pair() -> Recorder {
    let memory = |name| -> Arc<dyn BlockDevice> {
        let memory = MemoryDevice::new(name, vec![0xee; BLOCKS * BLOCK]);
        Arc::new(ReadOnlyDevice::new(Arc::new(memory)))
    };
    Recorder::new(vec![memory("first"), memory("second")])
}

/// The first bytes of the first block of both devices in every state.
fn pair_states(recording: &Recording) -> Vec<(CrashState<'_>, [u8; 2])> {
    let states = recording.crash_states(CrashOptions::default());
    let states = states.map(Result::unwrap);
    states
        .map(|state| {
            let devices = state.devices().unwrap();
            let first = |device| contents(device)[0];
            let bytes = [first(&devices[0]), first(&devices[1])];
            (state, bytes)
        })
        .collect()
}

#[test]
fn flush_covers_its_own_device_only() {
    let recorder = pair();
    let [first, second] = recorder.devices() else {
        panic!("two devices");
    };
    first.write_at(0, &[1; BLOCK]).unwrap();
    second.write_at(0, &[2; BLOCK]).unwrap();
    first.flush().unwrap();
    second.flush().unwrap();
    let recording = recorder.recording();
    let members: Vec<_> = recording
        .events()
        .iter()
        .map(|event| event.member)
        .collect();
    assert_eq!(members, [0, 1, 0, 1]);
    let states = pair_states(&recording);
    let at = |position: usize| -> BTreeSet<[u8; 2]> {
        let at = states
            .iter()
            .filter(|(state, _)| state.position == position);
        at.map(|(_, bytes)| *bytes).collect()
    };
    let undecided = BTreeSet::from([[1, 2], [1, 0xee], [0xee, 2], [0xee, 0xee]]);
    assert_eq!(
        at(2)
            .union(&at(1))
            .copied()
            .chain(at(0))
            .collect::<BTreeSet<_>>(),
        undecided
    );
    assert_eq!(
        at(3),
        BTreeSet::from([[1, 2], [1, 0xee]]),
        "between the flushes"
    );
    assert_eq!(at(4), BTreeSet::from([[1, 2]]));
    assert_eq!(states.last().unwrap().0.flushes, 2);
    let replayed = recording.replay(1).unwrap();
    assert_eq!(
        replayed
            .iter()
            .map(|device| contents(device)[0])
            .collect::<Vec<_>>(),
        [1, 0xee]
    );
}

#[test]
fn one_device_of_many_writes_is_lost() {
    let recorder = pair();
    for block in 0..40 {
        for device in recorder.devices() {
            device.write_at(block % 6 * 512, &[3; BLOCK]).unwrap();
        }
    }
    let recording = recorder.recording();
    let states = recording.crash_states(CrashOptions {
        mixes_per_position: 0,
        ..CrashOptions::default()
    });
    let held = |device: &OverlayDevice| {
        let first = first_bytes(&contents(device));
        first
            .iter()
            .all(|byte| *byte == first[0])
            .then_some(first[0])
    };
    let end: BTreeSet<_> = states
        .map(Result::unwrap)
        .filter(|state| state.position == 80)
        .map(|state| {
            state
                .devices()
                .unwrap()
                .iter()
                .map(held)
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(end.contains(&vec![Some(3), Some(0xee)]));
    assert!(end.contains(&vec![Some(0xee), Some(3)]));
}

#[test]
fn failed_flush_leaves_other_devices_defined() {
    let recorder = pair();
    for (device, byte) in recorder.devices().iter().zip([1, 2]) {
        device.write_at(0, &[byte; BLOCK]).unwrap();
        device.flush().unwrap();
    }
    for device in recorder.devices() {
        device.flush().unwrap();
    }
    let mut recording = recorder.recording();
    recording.events[1].returned = None;
    let end: BTreeSet<[u8; 2]> = pair_states(&recording)
        .iter()
        .filter(|(state, _)| state.position == 6)
        .map(|(_, bytes)| *bytes)
        .collect();
    assert_eq!(end, BTreeSet::from([[1, 2], [0xee, 2]]));
}
