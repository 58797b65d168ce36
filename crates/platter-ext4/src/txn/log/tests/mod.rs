//! What the log guarantees, on devices in memory.

mod crash;
mod handles;
mod journal;
mod parallel;
mod workload;

use std::sync::Arc;

use platter_block::sim::{RecordingDevice, Request};
use platter_block::{BlockDevice, MemoryDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::verify::Unverified;
use platter_vfs::Condition;

use super::*;

const BLOCK: u32 = 1024;

fn log() -> (Arc<MemoryDevice>, Log) {
    log_within(1 << 20)
}

fn log_within(budget_bytes: u64) -> (Arc<MemoryDevice>, Log) {
    let device = Arc::new(MemoryDevice::new("memory", vec![0; 64 << 10]));
    let budget = Arc::new(MemoryBudget::new(budget_bytes));
    let below: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let buffers = Arc::new(BufferCache::new(below, BLOCK, budget));
    (device, Log::without_journal(buffers))
}

fn first_byte(device: &MemoryDevice, block: u64) -> u8 {
    let mut byte = [0];
    device.read_at(block * u64::from(BLOCK), &mut byte).unwrap();
    byte[0]
}

#[test]
fn a_commit_writes_what_handles_changed() {
    let (device, log) = log();
    let mut handle = log.begin(2).unwrap();
    for block in [3, 5] {
        handle
            .edit(BlockNr(block), &Unverified, |bytes| {
                bytes[0] = 7;
                Ok(())
            })
            .unwrap();
    }
    let transaction = handle.transaction();
    drop(handle);
    assert_eq!(first_byte(&device, 3), 0);
    log.commit(transaction).unwrap();
    assert_eq!((first_byte(&device, 3), first_byte(&device, 5)), (7, 7));
}

#[test]
fn a_failed_change_leaves_the_block_alone() {
    let (_, log) = log();
    let mut handle = log.begin(1).unwrap();
    let result: Result<()> =
        handle.edit(BlockNr(3), &Unverified, |_| Err(Condition::NoSpace.into()));
    assert!(result.is_err());
    assert_eq!(handle.credits(), 1);
    drop(handle);
    assert_eq!(log.fs_device.buffers.dirty_len(), 0);
    log.commit_all().unwrap();
    assert_eq!(log.statistics().blocks, 0);
}

#[test]
fn a_block_that_is_kept_takes_no_part_in_the_transaction() {
    let (device, log) = log();
    let mut handle = log.begin(0).unwrap();
    let seen = handle.edit_or_keep(BlockNr(3), &Unverified, |bytes| Ok(Edit::Kept(bytes[1])));
    assert_eq!(seen.unwrap(), 0);
    drop(handle);
    log.commit_all().unwrap();
    assert_eq!(first_byte(&device, 3), 0);
    let seen = log.inspect(BlockNr(3), &Unverified, |buffer| buffer[0]);
    assert_eq!(seen.unwrap(), 0);
}

#[test]
fn nothing_begins_after_an_abort() {
    let (device, log) = log();
    let mut handle = log.begin(1).unwrap();
    handle
        .create(BlockNr(3), &Unverified, vec![7; BLOCK as usize])
        .unwrap();
    handle.abort(Condition::InvalidArgument.into());
    drop(handle);
    assert!(matches!(
        log.begin(1),
        Err(Error::Condition(Condition::ReadOnly))
    ));
    assert!(log.commit_all().is_err());
    assert_eq!(first_byte(&device, 3), 0);
}

#[test]
fn an_idle_commit_asks_nothing_of_the_device() {
    let (_, log) = log();
    log.commit_all().unwrap();
    assert_eq!(log.running(), Sequence(1));
}

#[test]
fn created_blocks_are_durable_before_those_that_refer_to_them() {
    let memory = Arc::new(MemoryDevice::new("memory", vec![0; 64 << 10]));
    let device = Arc::new(RecordingDevice::new(memory));
    let budget = Arc::new(MemoryBudget::new(1 << 20));
    let below: Arc<dyn BlockDevice> = Arc::<RecordingDevice>::clone(&device);
    let log = Log::without_journal(Arc::new(BufferCache::new(below, BLOCK, budget)));
    let mut handle = log.begin(3).unwrap();
    let change = |bytes: &mut [u8]| {
        bytes[0] = 7;
        Ok(())
    };
    handle.edit(BlockNr(3), &Unverified, change).unwrap();
    let created = handle.create(BlockNr(9), &Unverified, vec![7; BLOCK as usize]);
    created.unwrap();
    handle.edit(BlockNr(9), &Unverified, change).unwrap();
    drop(handle);
    log.commit_all().unwrap();
    let events = device.recording().events().to_vec();
    let places: Vec<_> = events
        .iter()
        .map(|event| match &event.request {
            Request::Write { offset, .. } => Some(offset / u64::from(BLOCK)),
            Request::Flush | Request::Discard(_) => None,
        })
        .collect();
    assert_eq!(places, [Some(9), None, Some(3), None]);
}

#[test]
fn transaction_without_a_journal_takes_a_part_of_the_memory() {
    let (_, log) = log();
    assert_eq!(log.credits_max(), TRANSACTION_BLOCKS_MIN);
    assert!(log.begin(TRANSACTION_BLOCKS_MIN + 1).is_err());
    let (_, log) = log_within(16 << 20);
    assert_eq!(log.credits_max(), 4096);
    let (_, log) = log_within(1 << 30);
    assert_eq!(log.credits_max(), TRANSACTION_BLOCKS_MAX);
}
