//! The buffer cache and the budget: readers, writers and evictors at once.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use platter_block::{BlockDevice, Geometry, IoError, MemoryDevice};
use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corruption, Locus, VerifierKey, Verify};
use shuttle::thread;

use crate::buffer::{Addressing, BlockSize, BufferCache, BufferError, Edit, Edited, MetadataStore};
use crate::{MemoryBudget, Model};

pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "concurrent_readers_of_one_block_share_one_read",
        schedules: 1000,
        run: readers_of_one_block,
    },
    Model {
        name: "a_published_version_is_never_lost_to_a_read_in_flight",
        schedules: 1000,
        run: publish_against_read,
    },
    Model {
        name: "changes_in_place_are_seen_whole_and_none_is_lost",
        schedules: 1000,
        run: edits_against_reads,
    },
    Model {
        name: "eviction_never_takes_a_version_in_use_and_the_budget_holds",
        schedules: 1000,
        run: readers_against_eviction,
    },
    Model {
        name: "readahead_and_readers_agree",
        schedules: 1000,
        run: readahead_against_reads,
    },
    Model {
        name: "an_invalidation_during_a_read_leaves_nothing_stale",
        schedules: 1000,
        run: invalidation_against_read,
    },
    Model {
        name: "repair_of_a_copy_never_undoes_a_write",
        schedules: 1000,
        run: repair_against_writes,
    },
    Model {
        name: "repair_never_reaches_a_block_that_was_forgotten",
        schedules: 1000,
        run: repair_against_reuse,
    },
    Model {
        name: "readers_of_a_bad_copy_share_the_good_one",
        schedules: 1000,
        run: readers_of_a_bad_copy,
    },
];

const BLOCK: u32 = 512;
/// What the cache charges for a block of this size.
const COST: u64 = 512 + 512;

/// A memory device on which other threads run in the middle of each request.
#[derive(Debug)]
struct Slow {
    inner: MemoryDevice,
    reads: AtomicUsize,
}

impl Slow {
    fn new(blocks: u8) -> Arc<Self> {
        let bytes = (0..blocks).flat_map(|block| [block; BLOCK as usize]);
        Arc::new(Self {
            inner: MemoryDevice::new("slow", bytes.collect()),
            reads: AtomicUsize::new(0),
        })
    }
}

impl BlockDevice for Slow {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_at(offset, buf)?;
        thread::yield_now();
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        thread::yield_now();
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.inner.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.inner.discard(range)
    }
}

fn cache(device: &Arc<Slow>, limit_bytes: u64) -> (Arc<BufferCache>, Arc<MemoryBudget>) {
    let budget = Arc::new(MemoryBudget::new(limit_bytes));
    let device: Arc<dyn BlockDevice> = Arc::clone(device) as _;
    let cache = BufferCache::new(device, BLOCK, Arc::clone(&budget));
    (Arc::new(cache), budget)
}

fn spawn(
    cache: &Arc<BufferCache>,
    action: impl Fn(&BufferCache) + Send + 'static,
) -> thread::JoinHandle<()> {
    let cache = Arc::clone(cache);
    thread::spawn(move || action(&cache))
}

fn readers_of_one_block() {
    let device = Slow::new(4);
    let (cache, _) = cache(&device, 100 * COST);
    let read = |cache: &BufferCache| assert_eq!(cache.read(2, &Unverified).unwrap()[0], 2);
    let readers = [spawn(&cache, read), spawn(&cache, read)];
    read(&cache);
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(device.reads.load(Ordering::Relaxed), 1);
}

fn publish_against_read() {
    let device = Slow::new(4);
    let (cache, _) = cache(&device, 100 * COST);
    let reader = spawn(&cache, |cache| {
        let first = cache.read(1, &Unverified).unwrap()[0];
        let second = cache.read(1, &Unverified).unwrap()[0];
        assert!(
            first <= second,
            "a reader goes back from the published version"
        );
    });
    let bytes = vec![9; BLOCK as usize];
    let published = cache.publish(1, bytes, &Unverified).unwrap();
    let current = cache.read(1, &Unverified).unwrap();
    assert!(current.is_same_version(&published));
    assert_eq!(cache.write_dirty(0..u64::MAX).unwrap(), 1);
    reader.join().unwrap();
    assert_eq!(cache.read(1, &Unverified).unwrap()[0], 9);
    assert_eq!(cache.dirty_len(), 0);
}

fn edits_against_reads() {
    let device = Slow::new(4);
    let (cache, budget) = cache(&device, 2 * COST);
    let add = |cache: &BufferCache| {
        let edited = cache.edit(1, &Unverified, 1, |bytes| {
            let (first, rest) = bytes.split_at_mut(1);
            first[0] += 1;
            thread::yield_now();
            rest.fill(first[0]);
            Ok::<_, BufferError>(Edit::Changed(()))
        });
        assert!(matches!(edited.unwrap(), Edited::Changed { .. }));
    };
    // From here on it is changed where it is, unless the reader has it.
    add(&cache);
    let writers = [spawn(&cache, add), spawn(&cache, add)];
    let reader = spawn(&cache, |cache| {
        for block in [1, 2, 1, 3] {
            let buffer = cache.read(block, &Unverified).unwrap();
            thread::yield_now();
            assert!(buffer.iter().all(|&byte| byte == buffer[0]));
        }
    });
    let sealed = cache.seal(1).unwrap();
    assert!(sealed.is_none_or(|buffer| buffer.iter().all(|&byte| byte == buffer[0])));
    for thread in writers.into_iter().chain([reader]) {
        thread.join().unwrap();
    }
    assert_eq!(cache.read(1, &Unverified).unwrap()[0], 4);
    assert_eq!(cache.dirty_len(), 1);
    drop(cache);
    assert_eq!(budget.used_bytes(), 0);
}

fn readers_against_eviction() {
    let device = Slow::new(8);
    let (cache, budget) = cache(&device, 2 * COST);
    let read = |cache: &BufferCache| {
        for block in [1, 2, 3] {
            let buffer = cache.read(block, &Unverified).unwrap();
            thread::yield_now();
            assert!(buffer.iter().all(|&byte| u64::from(byte) == block));
        }
    };
    let readers = [spawn(&cache, read), spawn(&cache, read)];
    for _ in 0..3 {
        assert!(budget.used_bytes() <= 2 * COST);
        thread::yield_now();
    }
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(budget.used_bytes() <= 2 * COST);
    drop(cache);
    assert_eq!(budget.used_bytes(), 0);
}

fn readahead_against_reads() {
    let device = Slow::new(8);
    let (cache, budget) = cache(&device, 100 * COST);
    let reader = spawn(&cache, |cache| {
        for block in [3, 2] {
            let buffer = cache.read(block, &Unverified).unwrap();
            assert_eq!(u64::from(buffer[0]), block);
        }
    });
    cache.read_ahead(0..5);
    reader.join().unwrap();
    for block in 0..5 {
        assert_eq!(u64::from(cache.read(block, &Unverified).unwrap()[0]), block);
    }
    assert_eq!(
        device.reads.load(Ordering::Relaxed),
        5,
        "each block was read once"
    );
    assert_eq!(budget.used_bytes(), 5 * COST);
}

fn invalidation_against_read() {
    let device = Slow::new(4);
    let (cache, budget) = cache(&device, 100 * COST);
    let reader = spawn(&cache, |cache| {
        cache.read(1, &Unverified).unwrap();
    });
    device
        .inner
        .write_at(u64::from(BLOCK), &[7; BLOCK as usize])
        .unwrap();
    cache.invalidate(1..2);
    assert_eq!(cache.read(1, &Unverified).unwrap()[0], 7);
    reader.join().unwrap();
    assert_eq!(cache.read(1, &Unverified).unwrap()[0], 7);
    assert_eq!(budget.used_bytes(), COST);
}

/// Two slow devices with the same blocks, of which the first has a bad one.
struct Mirror([Arc<Slow>; 2]);

/// The block of the mirror's tests.
const AT: u64 = 1;

impl Mirror {
    fn new() -> Arc<Self> {
        let mirror = Self([Slow::new(4), Slow::new(4)]);
        mirror.put(0, &[255; BLOCK as usize]);
        Arc::new(mirror)
    }

    fn put(&self, copy: usize, bytes: &[u8]) {
        let at = AT * u64::from(BLOCK);
        self.0[copy].inner.write_at(at, bytes).unwrap();
    }

    fn first_byte(&self, copy: usize) -> u8 {
        self.0[copy].inner.snapshot()[usize::try_from(AT).unwrap() * BLOCK as usize]
    }
}

impl MetadataStore for Mirror {
    fn name(&self) -> &Arc<str> {
        self.0[0].name()
    }

    fn len_bytes(&self) -> u64 {
        4 * u64::from(BLOCK)
    }

    fn copies(&self, _: u64, _: u32) -> u16 {
        2
    }

    fn read(&self, at: u64, copy: u16, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BufferError> {
        Ok(self.0[usize::from(copy)].read_vectored_at(at, bufs)?)
    }

    fn write(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<(), BufferError> {
        // At once: schedules in which a whole write falls into a repair would be rare otherwise.
        for device in &self.0 {
            device.inner.write_vectored_at(at, bufs)?;
        }
        Ok(())
    }

    fn repair(&self, at: u64, copy: u16, bytes: &[u8]) -> Result<(), BufferError> {
        Ok(self.0[usize::from(copy)].write_at(at, bytes)?)
    }
}

/// All bytes are equal, and not 255.
#[derive(Clone)]
struct Equal;

impl Verify for Equal {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: 1,
            seed: 0,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let is_equal = bytes.iter().all(|&byte| byte == bytes[0] && byte != 255);
        let corruption = || Corruption::new("block", Locus::block(block), "bytes differ");
        is_equal.then_some(()).ok_or_else(corruption)
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(Self))
    }
}

fn mirrored(mirror: &Arc<Mirror>, limit_bytes: u64) -> Arc<BufferCache<Mirror>> {
    let budget = Arc::new(MemoryBudget::new(limit_bytes));
    let addressing = Addressing::by_number(BlockSize::new(BLOCK).unwrap());
    let cache = BufferCache::over(Arc::clone(mirror), addressing, budget);
    cache.set_repair(true);
    Arc::new(cache)
}

fn repair_against_writes() {
    // With memory for the block, and without; by a change, and by a new version that needs no old one.
    let cases = [
        (100 * COST, false),
        (1, false),
        (100 * COST, true),
        (1, true),
    ];
    for (limit_bytes, is_whole) in cases {
        let mirror = Mirror::new();
        let cache = mirrored(&mirror, limit_bytes);
        let healing = Arc::clone(&cache);
        let healer = thread::spawn(move || {
            let byte = healing.read(AT, &Equal).unwrap()[0];
            assert!([1, 9].contains(&byte));
        });
        if is_whole {
            let bytes = vec![9; BLOCK as usize];
            cache.publish(AT, bytes, &Equal).unwrap();
        } else {
            let edited = cache.edit(AT, &Equal, 1, |bytes| {
                bytes.fill(9);
                Ok::<_, BufferError>(Edit::Changed(()))
            });
            edited.unwrap();
        }
        assert_eq!(cache.write_dirty(0..9).unwrap(), 1);
        healer.join().unwrap();
        assert_eq!((mirror.first_byte(0), mirror.first_byte(1)), (9, 9));
        assert_eq!(cache.read(AT, &Equal).unwrap()[0], 9);
    }
}

fn repair_against_reuse() {
    let mirror = Mirror::new();
    let cache = mirrored(&mirror, 100 * COST);
    let healing = Arc::clone(&cache);
    let healer = thread::spawn(move || drop(healing.read(AT, &Equal)));
    // It is freed while it is repaired. No thread begins to read a block that is free.
    while mirror.0[1].reads.load(Ordering::Relaxed) == 0 {
        thread::yield_now();
    }
    cache.forget(AT);
    // The block was freed, and is data now, of which the cache knows nothing.
    mirror.put(0, &[77; BLOCK as usize]);
    healer.join().unwrap();
    assert_eq!(mirror.first_byte(0), 77);
}

fn readers_of_a_bad_copy() {
    let mirror = Mirror::new();
    let cache = mirrored(&mirror, 100 * COST);
    let spawn = || {
        let cache = Arc::clone(&cache);
        thread::spawn(move || assert_eq!(cache.read(AT, &Equal).unwrap()[0], 1))
    };
    for reader in [spawn(), spawn(), spawn()] {
        reader.join().unwrap();
    }
    assert_eq!((mirror.first_byte(0), cache.bad_copies().repaired), (1, 1));
    let reads = mirror.0[1].reads.load(Ordering::Relaxed);
    assert_eq!(reads, 1, "the good copy was read once");
}
