//! Heads and tails of logs, whole and torn.

use std::sync::Arc;

use platter_block::sim::{CrashOptions, RecordingDevice};
use platter_block::{BlockDevice, CountingDevice, MemoryDevice};
use platter_ondisk::{Rule, Uuid};

use super::sample::{LOG_SECTORS, Sample, plain};
use crate::ondisk::Lsn;
use crate::ondisk::log::LogByteOrder;
use crate::ondisk::log::record::sector_cycle;
use crate::txn::replay::ReplayRule;
use crate::txn::{
    LogDevice, LogPosition, LogState, clear_stale_records, find_position, write_unmount_record,
};

#[test]
fn log_that_was_never_written_is_clean() {
    let sample = Sample::new();
    assert_eq!(sample.position().unwrap().state, LogState::Clean);
}

#[test]
fn unmount_record_makes_a_log_clean() {
    for (cycle, head) in [(1, 0), (3, 17), (7, LOG_SECTORS - 2), (7, LOG_SECTORS - 1)] {
        let mut sample = Sample::at(cycle, head);
        sample.transaction(1, &plain(8, 1));
        assert_eq!(sample.position().unwrap().state, LogState::Dirty);
        sample.unmount();
        let position = sample.position().unwrap();
        assert_eq!(position.state, LogState::Clean, "{head}");
        assert_eq!((position.head, position.cycle), (sample.head, sample.cycle));
        sample.transaction(2, &plain(16, 2));
        let position = sample.position().unwrap();
        assert_eq!(position.state, LogState::Dirty, "{head}");
    }
}

#[test]
fn log_wraps_inside_a_record_and_between_records() {
    for head in LOG_SECTORS - 12..LOG_SECTORS {
        let mut sample = Sample::at(5, head);
        for tid in 1..8 {
            sample.transaction(tid, &plain(8 * u64::from(tid), 0x40));
        }
        let position = sample.position().unwrap();
        assert_eq!((position.tail, position.head), (head, sample.head));
        assert_eq!(position.cycle, 6);
        assert_eq!(sample.replay().unwrap().transactions, 7, "{head}");
    }
}

/// Sectors of a pass over the log.
fn sectors(cycle: u32, count: usize) -> Vec<u8> {
    let mut sector = vec![0; 512];
    sector[..4].copy_from_slice(&cycle.to_be_bytes());
    sector.repeat(count)
}

#[test]
fn start_of_the_log_is_not_durable_before_its_end() {
    let across: fn(&LogDevice) = |log| {
        let bytes = [sectors(1, 2), sectors(2, 3)].concat();
        log.write(LOG_SECTORS - 2, &bytes).unwrap();
    };
    let between: fn(&LogDevice) = |log| {
        log.write(LOG_SECTORS - 2, &sectors(1, 2)).unwrap();
        log.write(0, &sectors(2, 3)).unwrap();
    };
    for writes in [across, between] {
        let memory = MemoryDevice::new("log", vec![0; LOG_SECTORS as usize * 512]);
        let recorded = Arc::new(RecordingDevice::new(Arc::new(memory)));
        writes(&LogDevice::sample(
            recorded.clone(),
            Uuid::from_bytes([7; 16]),
        ));
        let recording = recorded.recording();
        let mut starts = 0;
        for state in recording.crash_states(CrashOptions::default()) {
            let device = Arc::new(state.unwrap().device().unwrap());
            let log = LogDevice::sample(device, Uuid::from_bytes([7; 16]));
            let cycle = |at| sector_cycle(&log.read(at, 1).unwrap());
            if cycle(0) == 2 {
                starts += 1;
                assert_eq!((cycle(LOG_SECTORS - 2), cycle(LOG_SECTORS - 1)), (1, 1));
            }
        }
        assert!(starts > 0);
    }
}

#[test]
fn torn_records_and_all_after_them_are_dropped() {
    for torn in 0..4 {
        let mut sample = Sample::at(2, 100);
        sample.unmount();
        sample.tail = Lsn::new(2, sample.head);
        let starts: Vec<u32> = (1..6)
            .map(|tid| sample.transaction(tid, &plain(8 * u64::from(tid), 0x40)))
            .collect();
        let start = starts[torn + 1];
        // The body of the record keeps what was there a cycle before.
        let stale = [&1_u32.to_be_bytes()[..], &[0; 508]].concat();
        sample.log.write(start + 1, &stale).unwrap();
        let position = sample.position().unwrap();
        assert_eq!((position.head, position.torn), (start, true));
        let report = sample.replay().unwrap();
        assert_eq!(report.transactions, torn as u64 + 1);
    }
}

#[test]
fn tail_moves_past_records_that_writes_in_flight_overwrote() {
    let mut moved = 0;
    for lost_sectors in 6..24 {
        let mut sample = Sample::at(2, 100);
        let mut starts = Vec::new();
        while sample.cycle == 2 || sample.head < 90 {
            starts.push(sample.transaction(1, &plain(8, 0x40)));
        }
        let head = sample.head;
        let before = sample.log.read(head, lost_sectors).unwrap();
        // Two records that name a later tail: one is lost, and the one after it is not.
        sample.tail = Lsn::new(2, starts[40]);
        let body = (lost_sectors as usize - 2) * 512;
        sample.transaction(2, &[vec![1; body]]);
        assert_eq!(sample.head, head + lost_sectors);
        let kept = sample.transaction(3, &plain(16, 0x40));
        let overwritten = kept..sample.head;
        sample.log.write(head, &before).unwrap();
        let is_overwritten =
            |&&start: &&u32| (start..start + 2).any(|sector| overwritten.contains(&sector));
        let hit = starts.iter().filter(is_overwritten).count();
        let first = starts.iter().rposition(|start| is_overwritten(&start));
        let first = first.map_or(0, |last| last + 1);
        moved += usize::from(hit > 0);
        let position = sample.position().unwrap();
        assert_eq!((position.head, position.tail), (head, starts[first]));
        assert_eq!(find_position(&sample.log, false).unwrap(), position);
        let replayed = sample.replay().unwrap().transactions;
        assert_eq!(replayed, (starts.len() - first) as u64, "{lost_sectors}");
    }
    assert!(moved > 10, "{moved}");
}

/// A log whose last record was to cross its end, of which only the part at the start is there. Returns where it began.
fn without_end(sample: &mut Sample) -> u32 {
    sample.unmount();
    sample.tail = Lsn::new(sample.cycle, sample.head);
    for tid in 1..4 {
        sample.transaction(tid, &plain(8, 0x40));
    }
    let at = sample.head;
    let before = sample.log.read(at, LOG_SECTORS - at).unwrap();
    sample.transaction(4, &[vec![1; 20 << 10]]);
    assert!(sample.head < at);
    sample.log.write(at, &before).unwrap();
    at
}

#[test]
fn records_at_the_start_do_not_follow_a_hole_at_the_end() {
    let mut sample = Sample::at(5, LOG_SECTORS - 20);
    let hole = without_end(&mut sample);
    let cycle = |at| sector_cycle(&sample.log.read(at, 1).unwrap());
    assert_eq!((cycle(0), cycle(LOG_SECTORS - 1)), (6, 4));
    let position = sample.position().unwrap();
    assert_eq!((position.head, position.cycle), (hole, 5));
    assert_eq!(sample.replay().unwrap().transactions, 3);
    write_unmount_record(&sample.log, &position).unwrap();
    let ended = sample.position().unwrap();
    assert_eq!((ended.state, ended.last), (LogState::Clean, hole));
    assert_eq!((cycle(0), cycle(LOG_SECTORS - 1)), (5, 4));
}

#[test]
fn records_after_the_start_do_not_follow_a_hole_at_the_end() {
    let mut sample = Sample::at(5, LOG_SECTORS - 20);
    let hole = without_end(&mut sample);
    // The record that crosses the end was lost whole, and those after it, at the middle of the log, were not.
    sample.log.write(0, &sectors(5, 30)).unwrap();
    sample.log.write(30, &sectors(6, 4 * 513)).unwrap();
    let position = sample.position().unwrap();
    assert_eq!((position.head, position.cycle), (hole, 5));
    assert_eq!(sample.replay().unwrap().transactions, 3);
}

#[test]
fn log_without_the_pass_before_its_start_is_refused() {
    let sample = Sample::at(5, 0);
    sample.log.write(0, &sectors(6, 10)).unwrap();
    assert_eq!(sample.broken_rule(), ReplayRule::Cycles.text());
}

/// A log of six records after an unmount record, of which one was lost. Returns where that began, and where the
/// next record would have gone.
fn with_hole(sample: &mut Sample, lost: usize) -> (u32, u32) {
    sample.unmount();
    sample.tail = Lsn::new(sample.cycle, sample.head);
    let mut starts: Vec<u32> = (1..7)
        .map(|tid| sample.transaction(tid, &plain(8, 0x40)))
        .collect();
    starts.push(sample.head);
    for at in 0..sample.log.distance(starts[lost], starts[lost + 1]) {
        let at = sample.log.after(starts[lost], at);
        let cycle = if at < 100 { 2_u32 } else { 1 };
        let stale = [&cycle.to_be_bytes()[..], &[0; 508]].concat();
        sample.log.write(at, &stale).unwrap();
    }
    (starts[lost], sample.head)
}

#[test]
fn records_after_a_hole_do_not_follow_an_unmount_record() {
    for (lost, head) in (0..6).flat_map(|lost| [100, LOG_SECTORS - 5].map(|head| (lost, head))) {
        let mut sample = Sample::at(2, head);
        let (hole, end) = with_hole(&mut sample, lost);
        let position = sample.position().unwrap();
        assert_eq!(position.head, hole, "{lost} {head}");
        if lost > 0 {
            assert_eq!(position.state, LogState::Dirty, "{lost} {head}");
            assert_eq!(sample.replay().unwrap().transactions, lost as u64);
        }
        write_unmount_record(&sample.log, &position).unwrap();
        let ended = sample.position().unwrap();
        assert_eq!((ended.state, ended.last), (LogState::Clean, hole));
        for at in 0..sample.log.distance(ended.head, end) {
            let at = sample.log.after(ended.head, at);
            let cycle = sector_cycle(&sample.log.read(at, 1).unwrap());
            let expected = ended.cycle - u32::from(at >= ended.head);
            assert_eq!(cycle, expected, "{lost} {head}: {at}");
        }
    }
}

#[test]
fn stale_records_of_a_clean_log_are_cleared() {
    let mut sample = Sample::at(2, 100);
    let (hole, end) = with_hole(&mut sample, 0);
    let position = sample.position().unwrap();
    assert_eq!((position.state, position.head), (LogState::Clean, hole));
    clear_stale_records(&sample.log, &position).unwrap();
    let cleared = sample.position().unwrap();
    assert_eq!((cleared.state, cleared.head), (LogState::Clean, hole));
    // A record that fills the hole is the last one.
    sample.head = hole;
    let filling = sample.transaction(9, &plain(8, 0x40));
    assert!(sample.head < end);
    let position = sample.position().unwrap();
    assert_eq!((position.last, position.head), (filling, sample.head));
    assert_eq!(sample.replay().unwrap().transactions, 1);
}

#[test]
fn clearing_may_be_cut_where_the_log_wraps() {
    let mut sample = Sample::at(5, LOG_SECTORS - 20);
    sample.unmount();
    sample.tail = Lsn::new(sample.cycle, sample.head);
    sample.transaction(1, &plain(8, 0x40));
    // A record whose end, at the start of the log, is torn.
    let torn = sample.transaction(2, &[vec![1; 20 << 10]]);
    assert!(sample.cycle == 6 && sample.head > 5);
    sample
        .log
        .write(4, &sectors(5, sample.head as usize - 4))
        .unwrap();
    let before = sample.position().unwrap();
    assert_eq!((before.state, before.head), (LogState::Dirty, torn));
    let memory = MemoryDevice::new("log", sample.disk.snapshot());
    let recorded = Arc::new(RecordingDevice::new(Arc::new(memory)));
    let log = LogDevice::sample(recorded.clone(), sample.uuid);
    clear_stale_records(&log, &before).unwrap();
    assert!(log.read(0, 1).unwrap()[4..8] == 5_u32.to_be_bytes());
    let mut states = 0;
    for state in recorded.recording().crash_states(CrashOptions::default()) {
        let device = Arc::new(state.unwrap().device().unwrap());
        let log = LogDevice::sample(device, sample.uuid);
        let found = find_position(&log, true).unwrap();
        let of = |position: &LogPosition| (position.state, position.tail, position.head);
        assert_eq!(of(&found), of(&before));
        states += 1;
    }
    assert!(states > 10, "{states}");
}

#[test]
fn clean_log_without_stale_records_is_not_written() {
    let mut sample = Sample::at(2, 1000);
    sample.unmount();
    let before = sample.disk.snapshot();
    clear_stale_records(&sample.log, &sample.position().unwrap()).unwrap();
    assert!(before == sample.disk.snapshot());
}

#[test]
fn clearing_keeps_the_records_that_recovery_needs() {
    let mut sample = Sample::at(2, 100);
    sample.unmount();
    sample.tail = Lsn::new(2, sample.head);
    // The head is close to the tail, a pass of the log later.
    while sample.cycle == 2 || sample.head < 60 {
        sample.transaction(1, &[vec![1; 20 << 10]]);
    }
    let position = sample.position().unwrap();
    assert_eq!((position.state, position.tail), (LogState::Dirty, 102));
    clear_stale_records(&sample.log, &position).unwrap();
    assert_eq!(sample.position().unwrap(), position);
}

#[test]
fn record_with_wrong_checksum_at_the_head_is_dropped() {
    let mut sample = Sample::at(2, 100);
    sample.unmount();
    sample.tail = Lsn::new(2, sample.head);
    sample.transaction(1, &plain(8, 0x40));
    let bad = sample.transaction(2, &plain(16, 0x40));
    sample
        .disk
        .write_at(u64::from(bad) * 512 + 600, &[9])
        .unwrap();
    let position = sample.position().unwrap();
    assert_eq!((position.head, position.torn), (bad, true));
    assert_eq!(sample.replay().unwrap().transactions, 1);
    write_unmount_record(&sample.log, &position).unwrap();
    let position = sample.position().unwrap();
    assert_eq!(position.state, LogState::Clean);
    assert_eq!(position.last, bad);
}

#[test]
fn only_torn_record_leaves_the_log_clean() {
    let mut sample = Sample::at(2, 100);
    sample.unmount();
    sample.tail = Lsn::new(2, sample.head);
    let bad = sample.transaction(2, &plain(16, 0x40));
    sample
        .disk
        .write_at(u64::from(bad) * 512 + 600, &[9])
        .unwrap();
    let position = sample.position().unwrap();
    assert_eq!((position.state, position.head), (LogState::Clean, bad));
}

#[test]
fn only_what_a_recovery_wrote_is_in_its_place() {
    for head in [100, LOG_SECTORS - 8] {
        let mut sample = Sample::at(2, head);
        sample.transaction(1, &plain(8, 0x40));
        sample.transaction(2, &plain(16, 0x40));
        let before = sample.position().unwrap();
        let state = before.after_recovery(&before).state;
        assert_eq!((before.state, state), (LogState::Dirty, LogState::Dirty));
        sample.tail = Lsn::new(sample.cycle, sample.head);
        let start = sample.transaction(3, &plain(24, 0x40));
        let ended = sample.position().unwrap();
        assert_eq!((ended.state, ended.tail), (LogState::Dirty, start));
        let recovered = ended.after_recovery(&before);
        let clean = LogPosition {
            state: LogState::Clean,
            ..ended
        };
        assert_eq!(recovered, clean, "{head}");
    }
}

#[test]
fn clean_log_takes_few_reads() {
    let mut sample = Sample::at(2, 1000);
    sample.unmount();
    let disk = Arc::<MemoryDevice>::clone(&sample.disk);
    let counting = Arc::new(CountingDevice::new(disk));
    let device: Arc<dyn BlockDevice> = Arc::<CountingDevice>::clone(&counting);
    let log = LogDevice::sample(device, sample.uuid);
    let position = find_position(&log, true).unwrap();
    assert_eq!(position.state, LogState::Clean);
    let reads = counting.counts().reads;
    assert!(reads < 40, "{reads}");
}

#[test]
fn log_of_another_byte_order_is_refused_by_name() {
    for (byte_order, name) in [
        (LogByteOrder::LinuxBig, "big-endian"),
        (LogByteOrder::Irix, "IRIX"),
        (LogByteOrder::Unknown, "unknown byte order"),
    ] {
        let mut sample = Sample::new();
        sample.byte_order = byte_order;
        sample.transaction(1, &plain(8, 1));
        let refused = sample.replay().unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
    }
}
