//! Logs that are cut while they are written.

use platter_block::sim::{Event, Recording, Request};
use platter_ondisk::Uuid;

use super::*;

/// Numbers of a sequence that depends on nothing else.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn chunk(&mut self) -> usize {
        usize::try_from(self.below(32)).unwrap()
    }

    fn byte(&mut self) -> u8 {
        // Few values: what is changed is often changed back.
        u8::try_from(self.below(3)).unwrap()
    }
}

/// A recording of random transactions, the state after each, and for each position of the recording that was
/// forced, the number of the state that is durable there.
struct Work {
    recording: Recording,
    states: Vec<State>,
    forced: Vec<(usize, usize)>,
    scene: Scene,
}

fn work(seed: u64, sectors: usize, unit: u32, transactions: usize) -> Work {
    let recorder = Recorder::new(vec![data(), log_device(sectors)]);
    let [data, log] = devices_of(&recorder);
    let scene = Scene::open(data, log, unit);
    let mut dice = Dice(seed);
    let mut states = vec![scene.state()];
    let mut forced = Vec::new();
    for _ in 0..transactions {
        let mut transaction = scene.begin(24 << 10);
        for _ in 0..=dice.below(4) {
            edit(
                &mut transaction,
                dice.below(BLOCKS),
                dice.chunk(),
                dice.byte(),
            );
        }
        if dice.below(8) == 0 {
            // One that is dropped changes nothing.
            drop(transaction);
        } else {
            transaction.commit().unwrap();
        }
        states.push(scene.state());
        match dice.below(6) {
            0 | 1 => {
                scene.log.force_all().unwrap();
                forced.push((recorder.position(), states.len() - 1));
            }
            2 if dice.below(4) == 0 => {
                scene.log.quiesce().unwrap();
                forced.push((recorder.position(), states.len() - 1));
            }
            _ => {}
        }
    }
    Work {
        recording: recorder.recording(),
        states,
        forced,
        scene,
    }
}

/// Recovers states cut at every `step`-th write, and compares them with what was committed.
fn check_cuts(work: &Work, unit: u32, step: usize) {
    let end = work.recording.events().len();
    let mut newest = 0;
    for position in (0..=end).step_by(step) {
        let durable = work.forced.iter().rev().find(|(at, _)| *at <= position);
        let durable = durable.map_or(0, |(_, state)| *state);
        let [data, log] = replayed(&work.recording, position);
        let found = work.scene.recovered(&data, log, unit);
        let first = newest.max(durable);
        let state = work.states[first..]
            .iter()
            .position(|state| *state == found);
        let state =
            state.unwrap_or_else(|| panic!("cut {position} of {end} is no state after {first}"));
        // States may repeat: this is the first that it can be.
        newest = first + state;
    }
}

#[test]
fn cut_logs_recover_to_a_committed_prefix() {
    // A log that wraps several times, and stripe units.
    for (seed, sectors, unit) in [(1, 256, 512), (2, 320, 4096), (3, 2048, 32 << 10)] {
        let work = work(seed, sectors, unit, 300);
        assert!(work.scene.log.position.lock().has_wrapped(), "{seed}");
        check_cuts(&work, unit, 7);
    }
}

#[test]
fn records_of_the_largest_size_are_recovered() {
    let unit = 256 << 10;
    let work = work(4, 16 << 10, unit, 40);
    check_cuts(&work, unit, 5);
}

#[test]
fn checkpoint_of_many_records_is_durable_as_a_whole() {
    let recorder = Recorder::new(vec![data(), log_device(8192)]);
    let [data, log] = devices_of(&recorder);
    let scene = Scene::open(data, log, 512);
    scene.set(0, 0, 1);
    scene.log.force_all().unwrap();
    let before = scene.state();
    let start = recorder.position();
    // Twelve records' worth of changes.
    for round in 0..8 {
        for block in 0..BLOCKS {
            let mut transaction = scene.begin(64 << 10);
            (0..32).for_each(|chunk| edit(&mut transaction, block, chunk, round + 2));
            transaction.commit().unwrap();
        }
    }
    scene.log.force_all().unwrap();
    let after = scene.state();
    let recording = recorder.recording();
    let end = recording.events().len();
    assert!(end - start > 3);
    for position in start..=end {
        let [data, log] = replayed(&recording, position);
        let found = scene.recovered(&data, log, 512);
        let expected = if position == end { &after } else { &before };
        assert!(
            found == *expected || (position + 1 == end && found == after),
            "{position} of {end}"
        );
    }
}

/// Changes all of every block in one transaction, which takes several records.
fn fill_all(scene: &Scene, fill: u8) {
    let mut transaction = scene.begin(80 << 10);
    for (block, chunk) in (0..BLOCKS).flat_map(|block| (0..32).map(move |chunk| (block, chunk))) {
        edit(&mut transaction, block, chunk, fill);
    }
    transaction.commit().unwrap();
    scene.log.force_all().unwrap();
}

#[test]
fn records_are_no_longer_than_a_log_buffer_with_any_stripe_unit() {
    // Units that do not divide the 32 KiB of a buffer.
    for unit in [12 << 10, 20 << 10, 28 << 10] {
        let recorder = Recorder::new(vec![data(), log_device(8192)]);
        let [data, log] = devices_of(&recorder);
        let scene = Scene::open(data, log, unit);
        fill_all(&scene, 1);
        let recording = recorder.recording();
        let [data, log] = replayed(&recording, recording.events().len());
        assert_eq!(scene.recovered(&data, log, unit), scene.state(), "{unit}");
    }
}

#[test]
fn checkpoint_follows_one_that_a_crash_cut() {
    let (data, log) = (data(), log_device(8192));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    scene.set(0, 0, 1);
    scene.log.force_all().unwrap();
    // The first record of one checkpoint, and all of the one that takes its place.
    let recorder = Recorder::new(vec![data, log]);
    let [data, log] = devices_of(&recorder);
    fill_all(&Scene::open_replayed(data, log), 2);
    let recording = recorder.recording();
    let is_record =
        |event: &Event| event.member == 1 && matches!(event.request, Request::Write { .. });
    let first = recording.events().iter().position(is_record).unwrap();
    assert!(recording.events()[first + 1..].iter().any(is_record));
    let [data, log] = replayed(&recording, first + 1);
    let before = scene.recovered(&data, Arc::clone(&log), 512);
    assert!(before == scene.state());
    let second = Scene::open_replayed(Arc::clone(&data), Arc::clone(&log));
    fill_all(&second, 3);
    let found = second.recovered(&data, log, 512);
    assert!(found == second.state());
    assert!(found != before);
}

#[test]
fn records_after_kept_ones_have_their_size() {
    for bytes in [16 << 10, 32 << 10, 96 << 10, 256 << 10] {
        let (data, log) = (data(), log_device(8192));
        fill_all(
            &Scene::with_buffers(Arc::clone(&data), Arc::clone(&log), bytes),
            1,
        );
        let device = LogDevice::sample(Arc::clone(&log), sample().decode().unwrap().uuid);
        let before = headers_of_linux(&device).len();
        let recorder = Recorder::new(vec![data, log]);
        let [data, log] = devices_of(&recorder);
        let scene = Scene::open_replayed(data, log);
        fill_all(&scene, 2);
        scene.log.release_tail();
        scene.log.unmount().unwrap();
        // The crash after the first block that is written back.
        let recording = recorder.recording();
        let is_write_back =
            |event: &Event| event.member == 0 && matches!(event.request, Request::Write { .. });
        let cut = recording.events().iter().position(is_write_back).unwrap();
        let [data, log] = replayed(&recording, cut + 1);
        let device = LogDevice::sample(Arc::clone(&log), scene.superblock.uuid);
        let headers = headers_of_linux(&device);
        assert!(headers.len() > before, "{bytes}");
        for header in &headers {
            assert_eq!(header.size, bytes);
            assert!(header.len <= bytes, "{bytes}");
        }
        assert!(scene.recovered(&data, log, 512) == scene.state(), "{bytes}");
    }
}

#[test]
fn records_of_a_size_that_no_log_buffer_has_are_refused() {
    let device = LogDevice::sample_of(log_device(1024), Uuid::from_bytes([1; 16]), 64 << 10);
    for bytes in [0, 8 << 10, 32 << 10, (256 << 10) + 1] {
        assert!(Shape::following(&device, bytes).is_none(), "{bytes}");
    }
    assert!(Shape::following(&device, 64 << 10).is_some());
}

#[test]
fn unmounted_log_is_clean_and_goes_on_where_it_ended() {
    let (data, log) = (data(), log_device(1024));
    for round in 1..20 {
        let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
        for step in 0..30 {
            scene.set(u64::from(step % 16), 3, round * 10 + step % 7);
        }
        scene.log.unmount().unwrap();
        assert!(Transaction::begin(&scene.mount, &scene.log, 100, 1).is_err());
        let device = LogDevice::sample_of(Arc::clone(&log), scene.superblock.uuid, 512);
        let position = find_position(&device, true).unwrap();
        assert_eq!(position.state, LogState::Clean, "{round}");
        let mut bytes = vec![0; 1];
        data.read_at(at(15).byte_offset() + 3 * 128, &mut bytes)
            .unwrap();
        assert_eq!(bytes, [round * 10 + 15 % 7]);
    }
}

#[test]
fn change_that_is_undone_before_it_is_in_its_place_is_logged() {
    let (data, log) = (data(), log_device(1024));
    let scene = Scene::open(Arc::clone(&data), Arc::clone(&log), 512);
    for fill in [1, 0] {
        scene.set(2, 5, fill);
        scene.log.force_all().unwrap();
    }
    let found = scene.recovered(&data, log, 512);
    assert!(found == scene.state() && found[2].iter().all(|&byte| byte == 0));
}
