//! The buffer cache over devices that count, fail and wait.

use std::collections::HashSet;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use platter_block::{Geometry, MemoryDevice, Operation};
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Locus, VerifierKey};

use super::*;

mod copies;

const BLOCK: u32 = 1024;

/// A memory device whose block `n` is filled with the byte `n`, and which counts its reads.
#[derive(Debug)]
struct Probe {
    inner: MemoryDevice,
    reads: AtomicUsize,
    vectored: AtomicUsize,
    failing: AtomicBool,
    /// Each reader waits at it inside its read, where set.
    gate: Option<Barrier>,
}

impl Probe {
    fn new(blocks: u8) -> Self {
        let bytes = (0..blocks).flat_map(|block| [block; BLOCK as usize]);
        Self {
            inner: MemoryDevice::new("probe", bytes.collect()),
            reads: AtomicUsize::new(0),
            vectored: AtomicUsize::new(0),
            failing: AtomicBool::new(false),
            gate: None,
        }
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }

    fn fail(&self, offset: u64, length: usize) -> Result<(), IoError> {
        if self.failing.load(Ordering::Relaxed) {
            let source = io::Error::other("the disk is scratched");
            let length = length as u64;
            return Err(IoError::new(
                self.name(),
                Operation::Read,
                offset,
                length,
                source,
            ));
        }
        Ok(())
    }
}

impl BlockDevice for Probe {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(gate) = &self.gate {
            gate.wait();
        }
        self.fail(offset, buf.len())?;
        self.inner.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.vectored.fetch_add(1, Ordering::Relaxed);
        self.fail(offset, bufs.iter().map(|buf| buf.len()).sum())?;
        self.inner.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.inner.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.inner.discard(range)
    }
}

/// Wants every byte of a block to be `byte`; seals by writing it to the last one.
struct Filled {
    byte: u8,
    seed: u64,
    runs: AtomicUsize,
}

impl Filled {
    fn new(byte: u8) -> Self {
        Self {
            byte,
            seed: 0,
            runs: AtomicUsize::new(0),
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

impl Verify for Filled {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: 1 + u32::from(self.byte),
            seed: self.seed,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        if bytes.iter().all(|&byte| byte == self.byte) {
            return Ok(());
        }
        let rule = "a byte differs";
        Err(Corruption::new("filled block", Locus::block(block), rule))
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        if let Some(last) = bytes.last_mut() {
            *last = self.byte;
        }
    }
}

fn cache(probe: Probe, limit_bytes: u64) -> (Arc<Probe>, BufferCache, Arc<MemoryBudget>) {
    let probe = Arc::new(probe);
    let budget = Arc::new(MemoryBudget::new(limit_bytes));
    let device: Arc<dyn BlockDevice> = Arc::clone(&probe) as _;
    let cache = BufferCache::new(device, BLOCK, Arc::clone(&budget));
    (probe, cache, budget)
}

#[test]
fn a_cached_block_is_neither_read_nor_verified_again() {
    let (probe, cache, _) = cache(Probe::new(8), 1 << 20);
    let verifier = Filled::new(3);
    let first = cache.read(3, &verifier).unwrap();
    let second = cache.read(3, &verifier).unwrap();
    assert_eq!(&first[..], &[3; BLOCK as usize]);
    assert!(first.is_same_version(&second));
    assert_eq!((probe.reads(), verifier.runs()), (1, 1));
}

#[test]
fn one_block_under_two_structures_is_verified_as_each() {
    let (probe, cache, _) = cache(Probe::new(8), 1 << 20);
    cache.read(3, &Filled::new(3)).unwrap();
    let other = Filled::new(4);
    assert!(matches!(
        cache.read(3, &other),
        Err(BufferError::Corrupt(_))
    ));
    let reseeded = Filled {
        seed: 7,
        ..Filled::new(3)
    };
    for _ in 0..3 {
        cache.read(3, &reseeded).unwrap();
        cache.read(3, &Filled::new(3)).unwrap();
    }
    assert_eq!(reseeded.runs(), 1);
    assert_eq!(
        probe.reads(),
        1,
        "the refusal does not cost the sound version"
    );
}

#[test]
fn more_structures_than_are_remembered_are_verified_again() {
    let (_, cache, _) = cache(Probe::new(8), 1 << 20);
    let verifiers: Vec<_> = (0..20)
        .map(|seed| Filled {
            seed,
            ..Filled::new(2)
        })
        .collect();
    for verifier in verifiers.iter().chain(&verifiers) {
        cache.read(2, verifier).unwrap();
    }
    assert!(verifiers[1].runs() == 2 && verifiers[0].runs() == 1);
}

#[test]
fn block_read_without_rules_counts_as_not_validated() {
    let (probe, cache, budget) = cache(Probe::new(8), 1 << 20);
    let raw = cache.read(5, &Unverified).unwrap();
    assert!(raw.is_same_version(&cache.read(5, &Unverified).unwrap()));
    drop(raw);
    assert!(cache.read(5, &Filled::new(9)).is_err());
    assert_eq!((cache.len(), budget.used_bytes()), (0, 0));
    cache.read(5, &Filled::new(5)).unwrap();
    cache.read(5, &Unverified).unwrap();
    assert_eq!(probe.reads(), 2);
}

#[test]
fn a_corrupt_block_is_named_and_not_cached() {
    let (probe, cache, budget) = cache(Probe::new(8), 1 << 20);
    let verifier = Filled::new(9);
    for _ in 0..2 {
        let error = cache.read(5, &verifier).unwrap_err();
        assert_eq!(error.to_string(), "filled block at block 5: a byte differs");
    }
    assert_eq!(probe.reads(), 2);
    assert_eq!((cache.len(), budget.used_bytes()), (0, 0));
}

#[test]
fn concurrent_readers_of_one_block_share_one_read() {
    let mut probe = Probe::new(8);
    probe.gate = Some(Barrier::new(2));
    let (probe, cache, _) = cache(probe, 1 << 20);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| cache.read(1, &Filled::new(1)).unwrap()))
            .collect();
        probe.gate.as_ref().unwrap().wait();
        let buffers: Vec<_> = readers.into_iter().map(|r| r.join().unwrap()).collect();
        assert!(buffers.iter().all(|b| b.is_same_version(&buffers[0])));
    });
    assert_eq!(probe.reads(), 1);
}

#[test]
fn a_failed_read_does_not_poison_its_block() {
    let (probe, cache, budget) = cache(Probe::new(8), 1 << 20);
    probe.failing.store(true, Ordering::Relaxed);
    assert!(matches!(
        cache.read(1, &Unverified),
        Err(BufferError::Io(_))
    ));
    assert!(cache.is_empty());
    probe.failing.store(false, Ordering::Relaxed);
    cache.read(1, &Unverified).unwrap();
    assert!(matches!(
        cache.read(u64::MAX >> 10, &Unverified),
        Err(BufferError::Io(_))
    ));
    assert_eq!(budget.used_bytes(), cost_bytes(&[0; BLOCK as usize]));
}

#[test]
fn readahead_reads_a_run_in_one_request() {
    let (probe, cache, _) = cache(Probe::new(100), 1 << 20);
    cache.read(10, &Unverified).unwrap();
    cache.read_ahead(0..20);
    assert_eq!(
        probe.vectored.load(Ordering::Relaxed),
        2,
        "a run on each side"
    );
    for block in 0..20 {
        let byte = u8::try_from(block).unwrap();
        assert_eq!(cache.read(block, &Filled::new(byte)).unwrap()[0], byte);
    }
    assert_eq!(probe.reads(), 1);
}

#[test]
fn readahead_is_bounded_by_the_device_and_the_budget() {
    let (_, cache, budget) = cache(Probe::new(100), 64 << 10);
    cache.read_ahead(90..u64::MAX);
    assert!(cache.len() <= 8);
    cache.read_ahead(0..u64::MAX);
    cache.read_ahead(u64::MAX - 1..u64::MAX);
    cache.read_ahead(Range { start: 9, end: 3 });
    assert!(budget.used_bytes() <= 64 << 10);
}

#[test]
fn failed_readahead_leaves_nothing() {
    let (probe, cache, budget) = cache(Probe::new(100), 1 << 20);
    probe.failing.store(true, Ordering::Relaxed);
    cache.read_ahead(0..20);
    assert!(cache.is_empty());
    assert_eq!(budget.used_bytes(), 0);
    probe.failing.store(false, Ordering::Relaxed);
    cache.read(7, &Filled::new(7)).unwrap();
}

#[test]
fn the_cache_stays_within_its_budget() {
    let (_, cache, budget) = cache(Probe::new(200), 32 << 10);
    for round in 0..3 {
        for block in 0..200 {
            let byte = u8::try_from(block).unwrap();
            cache.read(block, &Filled::new(byte)).unwrap();
            assert!(budget.used_bytes() <= 32 << 10, "round {round}");
        }
    }
    assert!(budget.stats().evictions > 500);
    drop(cache);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn a_budget_without_space_reads_without_caching() {
    let (probe, cache, _) = cache(Probe::new(8), 100);
    for _ in 0..2 {
        cache.read(1, &Filled::new(1)).unwrap();
    }
    assert_eq!(probe.reads(), 2);
    assert!(cache.is_empty());
}

#[test]
fn held_versions_are_not_evicted_and_stay_charged() {
    let (_, cache, budget) = cache(Probe::new(200), 32 << 10);
    let held = cache.read(0, &Filled::new(0)).unwrap();
    for block in 1..200 {
        cache.read(block, &Unverified).unwrap();
    }
    assert!(held.is_same_version(&cache.read(0, &Filled::new(0)).unwrap()));
    drop(cache);
    assert_eq!(budget.used_bytes(), cost_bytes(&held));
}

#[test]
fn references_to_an_older_version_keep_reading_it() {
    let (_, cache, _) = cache(Probe::new(8), 1 << 20);
    let old = cache.read(2, &Filled::new(2)).unwrap();
    let new = cache
        .publish(2, vec![6; BLOCK as usize], &Filled::new(6))
        .unwrap();
    assert_eq!((old[0], new[0]), (2, 6));
    let current = cache.read(2, &Filled::new(6)).unwrap();
    assert!(current.is_same_version(&new));
}

#[test]
fn a_published_version_is_sealed_and_validated() {
    let (probe, cache, _) = cache(Probe::new(8), 1 << 20);
    let mut bytes = vec![6; BLOCK as usize];
    bytes[BLOCK as usize - 1] = 0;
    let verifier = Filled::new(6);
    let new = cache.publish(2, bytes.clone(), &verifier).unwrap();
    assert_eq!(new[BLOCK as usize - 1], 6);
    bytes[0] = 1;
    assert!(cache.publish(2, bytes, &verifier).is_err());
    assert!(cache.read(2, &verifier).unwrap().is_same_version(&new));
    assert_eq!((verifier.runs(), probe.reads()), (2, 0));
}

#[test]
fn version_without_a_seal_is_written_by_its_owner_only() {
    let (probe, cache, _) = cache(Probe::new(8), 1 << 20);
    let verifier = Filled::new(6);
    let mut bytes = vec![6; BLOCK as usize];
    bytes[BLOCK as usize - 1] = 0;
    let new = cache.publish_unsealed(2, bytes, verifier.key()).unwrap();
    assert!(cache.read(2, &verifier).unwrap().is_same_version(&new));
    assert_eq!((new[BLOCK as usize - 1], verifier.runs()), (0, 0));
    assert!(cache.read(2, &Filled::new(7)).is_err());
    cache
        .publish(1, vec![6; BLOCK as usize], &verifier)
        .unwrap();
    assert!(cache.write_dirty(0..u64::MAX).is_err());
    assert!(cache.write(&[(2, new.clone())]).is_err());
    let blocks = 1 << 10..3 << 10;
    let untouched: Vec<u8> = [1, 2].into_iter().flat_map(|byte| [byte; 1024]).collect();
    assert_eq!(probe.inner.snapshot()[blocks], untouched);
    cache.written(2, &new);
    assert_eq!(cache.write_dirty(0..u64::MAX).unwrap(), 1);
    assert!(cache.read(2, &verifier).unwrap().is_same_version(&new));
}

#[test]
fn unwritten_versions_are_never_evicted() {
    let (probe, cache, budget) = cache(Probe::new(200), 32 << 10);
    for block in 0..40 {
        cache
            .publish(block, vec![250; BLOCK as usize], &Filled::new(250))
            .unwrap();
    }
    assert!(budget.used_bytes() > 32 << 10, "kept beyond the budget");
    for block in 40..200 {
        cache.read(block, &Unverified).unwrap();
    }
    for block in 0..40 {
        cache.read(block, &Filled::new(250)).unwrap();
    }
    assert_eq!(cache.dirty_len(), 40);
    assert_eq!(cache.write_dirty(0..u64::MAX).unwrap(), 40);
    assert_eq!(cache.dirty_len(), 0);
    assert_eq!(probe.inner.snapshot()[..40 << 10], vec![250; 40 << 10]);
    for block in 40..200 {
        cache.read(block, &Unverified).unwrap();
    }
    assert!(budget.used_bytes() <= 32 << 10);
}

#[test]
fn an_abandoned_version_is_forgotten_and_a_newer_one_stays() {
    let (_, cache, _) = cache(Probe::new(8), 1 << 20);
    let one = Filled::new(1);
    let old = cache.publish(0, vec![1; BLOCK as usize], &one).unwrap();
    let other = cache.publish(4, vec![1; BLOCK as usize], &one).unwrap();
    let new = cache.publish(0, vec![1; BLOCK as usize], &one).unwrap();
    cache.abandon(0, &old);
    cache.abandon(4, &other);
    assert_eq!((cache.len(), cache.dirty_len()), (1, 1));
    cache.abandon(0, &new);
    cache.abandon(0, &new);
    assert_eq!((cache.len(), cache.dirty_len()), (0, 0));
}

#[test]
fn a_version_written_late_does_not_clean_a_newer_one() {
    let (_, cache, _) = cache(Probe::new(8), 1 << 20);
    let publish = |byte: u8| cache.publish(2, vec![byte; BLOCK as usize], &Filled::new(byte));
    let old = publish(6).unwrap();
    let new = publish(7).unwrap();
    cache.written(2, &old);
    assert_eq!(cache.dirty_len(), 1);
    cache.written(2, &new);
    assert_eq!(cache.dirty_len(), 0);
}

#[test]
fn invalidation_forgets_clean_and_dirty_versions() {
    let (probe, cache, budget) = cache(Probe::new(100), 1 << 20);
    for range in [0..5, 0..u64::MAX] {
        cache.read_ahead(0..50);
        cache
            .publish(3, vec![6; BLOCK as usize], &Filled::new(6))
            .unwrap();
        cache.invalidate(range.clone());
        assert_eq!(cache.dirty_len(), 0);
        cache.read(3, &Filled::new(3)).unwrap();
    }
    cache.invalidate(0..u64::MAX);
    assert_eq!((cache.len(), budget.used_bytes()), (0, 0));
    assert_eq!(probe.reads(), 3, "a run of one block");
}

#[test]
fn blocks_spread_over_all_shards() {
    let (_, cache, _) = cache(Probe::new(200), 8 << 20);
    cache.read_ahead(0..200);
    assert_eq!(cache.len(), 200);
    let bits: HashSet<_> = (0..200)
        .map(|block| crate::hash::spread(block) >> 32 & 15)
        .collect();
    assert_eq!(bits.len(), 16);
}
