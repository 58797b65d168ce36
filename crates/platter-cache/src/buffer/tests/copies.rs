//! Blocks of several lengths, and stores with two copies of each.

use std::io::IoSlice;
use std::sync::Mutex as StdMutex;

use platter_ondisk::verify::Unverified;

use super::*;
use crate::buffer::{Addressing, BlockSize, Healed, MetadataStore};

const NODE: u32 = 16384;
const STORE_BYTES: usize = 1 << 20;

/// Two copies in memory. Reads are counted by copy.
struct Mirror {
    name: Arc<str>,
    copies: [StdMutex<Vec<u8>>; 2],
    reads: [AtomicUsize; 2],
    is_failing: AtomicBool,
    is_read_only: AtomicBool,
}

impl Mirror {
    fn new() -> Self {
        Self {
            name: Arc::from("mirror"),
            copies: std::array::from_fn(|_| StdMutex::new(vec![0; STORE_BYTES])),
            reads: Default::default(),
            is_failing: AtomicBool::new(false),
            is_read_only: AtomicBool::new(false),
        }
    }

    fn error(&self, at: u64) -> BufferError {
        let source = io::Error::other("the disk is scratched");
        IoError::new(&self.name, Operation::Read, at, 0, source).into()
    }

    fn flip(&self, copy: usize, at: u64) {
        self.copies[copy].lock().unwrap()[usize::try_from(at).unwrap()] ^= 1;
    }

    fn byte(&self, copy: usize, at: u64) -> u8 {
        self.copies[copy].lock().unwrap()[usize::try_from(at).unwrap()]
    }

    fn put(&self, copy: usize, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        self.copies[copy].lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn reads(&self) -> [usize; 2] {
        [0, 1].map(|copy: usize| self.reads[copy].load(Ordering::Relaxed))
    }
}

impl MetadataStore for Mirror {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn len_bytes(&self) -> u64 {
        STORE_BYTES as u64
    }

    fn copies(&self, _at: u64, _len_bytes: u32) -> u16 {
        2
    }

    fn read(&self, at: u64, copy: u16, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BufferError> {
        let copy = usize::from(copy);
        self.reads[copy].fetch_add(1, Ordering::Relaxed);
        if copy == 0 && self.is_failing.load(Ordering::Relaxed) {
            return Err(self.error(at));
        }
        let mut from = usize::try_from(at).unwrap();
        let bytes = self.copies[copy].lock().unwrap();
        for buf in bufs {
            let Some(bytes) = bytes.get(from..from + buf.len()) else {
                return Err(self.error(at));
            };
            buf.copy_from_slice(bytes);
            from += buf.len();
        }
        Ok(())
    }

    fn write(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<(), BufferError> {
        let bytes = bufs.iter().flat_map(|buf| buf.iter().copied());
        let bytes: Vec<_> = bytes.collect();
        self.put(0, at, &bytes);
        self.put(1, at, &bytes);
        Ok(())
    }

    fn repair(&self, at: u64, copy: u16, bytes: &[u8]) -> Result<(), BufferError> {
        if self.is_read_only.load(Ordering::Relaxed) {
            return Err(self.error(at));
        }
        self.put(usize::from(copy), at, bytes);
        Ok(())
    }
}

fn size(bytes: u32) -> BlockSize {
    BlockSize::new(bytes).unwrap()
}

/// Nodes at byte addresses.
fn mirror_within(limit_bytes: u64) -> (Arc<Mirror>, BufferCache<Mirror>, Arc<MemoryBudget>) {
    let store = Arc::new(Mirror::new());
    let budget = Arc::new(MemoryBudget::new(limit_bytes));
    let addressing = Addressing {
        unit_bytes: 1,
        usual: size(NODE),
    };
    let cache = BufferCache::over(Arc::clone(&store), addressing, Arc::clone(&budget));
    (store, cache, budget)
}

fn mirror() -> (Arc<Mirror>, BufferCache<Mirror>) {
    let (store, cache, _) = mirror_within(1 << 20);
    (store, cache)
}

/// Where the nodes of the tests lie: at no multiple of their length.
const AT: u64 = 0x5000;

#[test]
fn flipped_bit_is_read_from_the_other_copy() {
    let (store, cache) = mirror();
    store.flip(0, AT + 5);
    let verifier = Filled::new(0);
    let node = cache.read(AT, &verifier).unwrap();
    assert_eq!((&node[..], node.copy()), (&[0; NODE as usize][..], 1));
    assert_eq!(store.byte(0, AT + 5), 1, "no repair was requested");
    assert!(cache.read(AT, &verifier).unwrap().is_same_version(&node));
    assert_eq!(store.reads(), [1, 1]);
    let bad = cache.bad_copies();
    assert_eq!((bad.found, bad.repaired, bad.listed.len()), (1, 0, 1));
    let listed = &bad.listed[0];
    assert_eq!((listed.block, listed.len_bytes, listed.copy), (AT, NODE, 0));
    assert_eq!(
        listed.error.to_string(),
        "filled block at copy 0, block 20480: a byte differs"
    );
}

#[test]
fn bad_copy_is_repaired_where_asked() {
    let (store, cache) = mirror();
    cache.set_repair(true);
    store.flip(0, AT + 5);
    let (_, healed) = cache
        .read_expecting(AT, &Filled::new(0), &|_| Ok(()))
        .unwrap();
    assert_eq!(
        healed,
        Healed {
            bad: 1,
            repaired: 1
        }
    );
    assert_eq!(store.byte(0, AT + 5), 0);
    assert!(cache.bad_copies().listed[0].is_repaired);
    cache.invalidate(0..u64::MAX);
    let (node, healed) = cache
        .read_expecting(AT, &Filled::new(0), &|_| Ok(()))
        .unwrap();
    assert_eq!((node.copy(), healed), (0, Healed::default()));
}

#[test]
fn failed_repair_leaves_the_read_good() {
    let (store, cache) = mirror();
    cache.set_repair(true);
    store.is_read_only.store(true, Ordering::Relaxed);
    store.flip(0, AT);
    cache.read(AT, &Filled::new(0)).unwrap();
    assert_eq!(cache.bad_copies().repaired, 0);
    cache.forget(AT);
    store.is_read_only.store(false, Ordering::Relaxed);
    cache.read(AT, &Filled::new(0)).unwrap();
    let bad = cache.bad_copies();
    assert_eq!((bad.found, bad.repaired, bad.listed.len()), (2, 1, 1));
    assert!(bad.listed[0].is_repaired);
}

#[test]
fn block_with_all_copies_bad_is_corrupt() {
    let (store, cache) = mirror();
    store.flip(0, AT);
    store.flip(1, AT);
    for _ in 0..2 {
        let error = cache.read(AT, &Filled::new(0)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "filled block at copy 0, block 20480: a byte differs"
        );
    }
    assert_eq!((cache.len(), cache.bad_copies().found), (0, 0));
    store.is_failing.store(true, Ordering::Relaxed);
    let error = cache.read(AT, &Filled::new(0)).unwrap_err();
    assert!(matches!(error, BufferError::Corrupt(_)), "{error}");
    store.flip(1, AT);
    let node = cache.read(AT, &Filled::new(0)).unwrap();
    assert_eq!(node.copy(), 1, "the first cannot be read");
}

#[test]
fn stale_copy_is_detected_by_what_is_expected() {
    let (store, cache) = mirror();
    store.put(1, AT, &[7; NODE as usize]);
    let generation = |wanted: u8| {
        move |bytes: &[u8]| {
            let found = bytes[0];
            let rule = format!("generation is {found}, not {wanted}");
            let stale = || Corruption::new("node", Locus::block(AT), rule);
            (found == wanted).then_some(()).ok_or_else(stale)
        }
    };
    // Both copies hold to the rules; the first missed a write.
    let (node, healed) = cache
        .read_expecting(AT, &Unverified, &generation(7))
        .unwrap();
    assert_eq!((node[0], node.copy(), healed.bad), (7, 1, 1));
    let error = cache
        .read_expecting(AT, &Unverified, &generation(9))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "node at copy 1, block 20480: generation is 7, not 9"
    );
    // The version that was validated before is still there.
    assert!(cache.read(AT, &Unverified).unwrap().is_same_version(&node));
    assert_eq!(store.reads(), [2, 1]);
}

#[test]
fn node_read_ahead_is_healed_when_read() {
    let (store, cache) = mirror();
    store.flip(0, AT);
    cache.read_ahead(AT..AT + 4 * u64::from(NODE));
    assert_eq!((store.reads(), cache.len()), ([1, 0], 4));
    let node = cache.read(AT, &Filled::new(0)).unwrap();
    assert_eq!((node.copy(), store.reads()), (1, [1, 1]));
}

#[test]
fn version_not_yet_written_is_not_read_from_a_copy() {
    let (store, cache) = mirror();
    cache
        .publish(AT, vec![9; NODE as usize], &Filled::new(9))
        .unwrap();
    assert!(cache.read(AT, &Filled::new(0)).is_err());
    assert_eq!(store.reads(), [0, 0]);
    assert_eq!(cache.write_dirty(0..u64::MAX).unwrap(), 1);
    assert_eq!((store.byte(0, AT), store.byte(1, AT)), (9, 9));
}

#[test]
fn node_is_healed_without_memory_to_cache_it() {
    let (store, cache, budget) = mirror_within(100);
    cache.set_repair(true);
    store.flip(0, AT);
    let node = cache.read(AT, &Filled::new(0)).unwrap();
    assert_eq!((node.copy(), store.byte(0, AT)), (1, 0));
    assert_eq!((cache.len(), budget.used_bytes()), (0, 0));
}

#[test]
fn block_that_holds_a_bad_copy_is_edited_on_a_good_one() {
    let (store, cache) = mirror();
    store.flip(0, AT + 9);
    let edited = cache.edit(AT, &Filled::new(0), 1, |bytes| {
        assert_eq!(bytes, [0; NODE as usize]);
        Ok::<_, BufferError>(Edit::Kept(()))
    });
    assert_eq!(edited.unwrap(), Edited::Kept(()));
    assert_eq!(cache.bad_copies().found, 1);
}

#[test]
fn blocks_of_different_lengths_lie_side_by_side() {
    let (store, cache, _) = mirror_within(1 << 20);
    for (at, bytes) in [(0, 512), (512, 512), (1024, 4096), (8192, 65536)] {
        let byte = u8::try_from(at / 512).unwrap();
        let block = (at, size(bytes));
        let filled = vec![byte; bytes as usize];
        store.put(0, at, &filled);
        assert_eq!(
            cache.read(block, &Filled::new(byte)).unwrap()[..],
            filled[..]
        );
        assert!(cache.contains(block));
        assert!(!cache.contains((at, size(2048))));
    }
    assert_eq!(cache.len(), 4);
    let edit = |block| {
        let edited = cache.edit(block, &Unverified, 1, |bytes| {
            bytes.fill(200);
            Ok::<_, BufferError>(Edit::Changed(()))
        });
        edited.unwrap();
    };
    edit((1024, size(4096)));
    edit((512, size(512)));
    assert_eq!(cache.write_dirty(0..1024).unwrap(), 1);
    assert_eq!(cache.dirty_len(), 1);
    assert_eq!(cache.write_dirty(0..u64::MAX).unwrap(), 1);
    assert_eq!(
        [511, 512, 5119, 5120].map(|at| store.byte(1, at)),
        [0, 200, 200, 0]
    );
    cache.forget((512, size(512)));
    assert_eq!(cache.len(), 3);
    cache.invalidate(1..8193);
    assert!(cache.contains((0, size(512))) && cache.len() == 1);
}

#[test]
fn dirty_block_over_one_of_another_length_is_refused() {
    let (_, cache) = mirror();
    let publish = |at: u64, bytes: u32| {
        let contents = vec![0; bytes as usize];
        cache.publish((at, size(bytes)), contents, &Unverified)
    };
    publish(AT, NODE).unwrap();
    for (at, bytes) in [(AT, 512), (AT + 512, 512), (AT - 4096, 8192), (0, 65536)] {
        let error = publish(at, bytes).unwrap_err().to_string();
        assert!(error.contains("overlaps dirty block 20480"), "{error}");
    }
    publish(AT - 4096, 4096).unwrap();
    publish(AT + u64::from(NODE), 4096).unwrap();
    publish(AT, NODE).unwrap();
    cache.forget(AT);
    publish(AT, 512).unwrap();
    assert_eq!(cache.dirty_len(), 3);
}

#[test]
fn refused_edit_leaves_the_block_as_it_was() {
    let (_, cache) = mirror();
    let block = (AT + 512, size(512));
    let before = cache.read(block, &Unverified).unwrap().to_vec();
    cache
        .publish((AT, size(NODE)), vec![0; NODE as usize], &Unverified)
        .unwrap();
    let edited = cache.edit(block, &Unverified, 1, |bytes| {
        bytes.fill(200);
        Ok::<_, BufferError>(Edit::Changed(()))
    });
    assert!(edited.is_err());
    assert_eq!(*cache.read(block, &Unverified).unwrap(), *before);
    assert_eq!(cache.dirty_len(), 1);
}

#[test]
fn unaligned_address_is_corrupt() {
    let (store, cache) = mirror();
    let error = cache.read(AT + 1, &Unverified).unwrap_err();
    assert_eq!(
        error.to_string(),
        "metadata block at block 20481: address is not aligned"
    );
    assert!(cache.read(u64::MAX, &Unverified).is_err());
    assert!(cache.seal(1).unwrap().is_none() && cache.current(1).is_none());
    cache.read_ahead_each([AT + 1]);
    assert_eq!(store.reads(), [0, 0]);
}

#[test]
fn listed_blocks_are_read_ahead_by_neighbourhood() {
    let (store, cache) = mirror();
    let blocks = [(0, 8192), (8192, 16384), (24576, 512), (65536, 512)];
    cache.read_ahead_each(blocks.map(|(at, bytes)| (at, size(bytes))));
    assert_eq!((cache.len(), store.reads()), (4, [2, 0]));
    cache.read_ahead_each([STORE_BYTES as u64 - 512]);
    assert_eq!(cache.len(), 4, "beyond the end");
}

#[test]
fn blocks_of_all_lengths_share_the_budget() {
    let (_, cache, budget) = mirror_within(256 << 10);
    for round in 0..3 {
        for at in (0..STORE_BYTES as u64).step_by(65536) {
            for bytes in [512, 4096, 8192, 32768] {
                let block = (at + u64::from(bytes), size(bytes));
                assert_eq!(
                    cache.read(block, &Filled::new(0)).unwrap().len(),
                    bytes as usize
                );
                assert!(budget.used_bytes() <= 256 << 10, "round {round}");
            }
        }
    }
    assert!(budget.stats().evictions > 60);
    drop(cache);
    assert_eq!(budget.used_bytes(), 0);
}
