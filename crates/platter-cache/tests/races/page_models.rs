//! The page cache: readers, writers, writebacks, truncations and evictors at once.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shuttle::thread;

use crate::page::{AddressSpace, Mapping, PAGE_BYTES, WritableSpace};
use crate::{MemoryBudget, Model};

pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "concurrent_fills_of_a_page_are_one_read",
        schedules: 1500,
        run: concurrent_fills,
    },
    Model {
        name: "a_fill_error_reaches_all_waiters_and_is_not_poisoned",
        schedules: 1500,
        run: failing_fill,
    },
    Model {
        name: "readers_of_a_folio_being_split_see_their_own_page",
        schedules: 1500,
        run: readers_against_hole,
    },
    Model {
        name: "reads_are_right_and_the_budget_holds_while_pages_are_evicted",
        schedules: 1000,
        run: readers_against_eviction,
    },
    Model {
        name: "no_write_is_lost_to_a_writeback",
        schedules: 1500,
        run: writers_against_writeback,
    },
    Model {
        name: "what_was_dirty_before_a_sync_is_in_the_file_after_it",
        schedules: 1500,
        run: sync_against_sync,
    },
    Model {
        name: "what_another_one_gave_up_is_in_the_file_after_a_sync",
        schedules: 1500,
        run: sync_against_giving_up,
    },
    Model {
        name: "nothing_is_written_beyond_the_end_once_a_truncation_returned",
        schedules: 1500,
        run: truncation_against_writeback,
    },
    Model {
        name: "nothing_is_read_from_beyond_the_end_once_a_truncation_returned",
        schedules: 1500,
        run: truncation_against_fill,
    },
    Model {
        name: "a_dropped_mapping_gives_its_memory_back_under_an_evictor",
        schedules: 1000,
        run: drop_against_eviction,
    },
];

const PAGE: u64 = PAGE_BYTES as u64;
/// What a page is charged.
const COST: u64 = PAGE + 256;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed;

/// A file in memory on which other threads run in the middle of each request.
#[derive(Default)]
struct File {
    bytes: Mutex<Vec<u8>>,
    size: AtomicU64,
    reads: AtomicUsize,
    fails: AtomicBool,
    /// Set when a truncation has returned.
    is_cut: AtomicBool,
}

impl File {
    /// Pages filled with one more than their number.
    fn of_pages(pages: u8) -> Self {
        let bytes = (1..=pages).flat_map(|number| [number; PAGE_BYTES]);
        Self {
            bytes: Mutex::new(bytes.collect()),
            size: AtomicU64::new(u64::from(pages) * PAGE),
            ..Self::default()
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.lock().unwrap()[at]
    }
}

impl AddressSpace for File {
    type Error = Failed;

    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Failed> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let size = self.size_bytes();
        let mut at = usize::try_from(offset).unwrap();
        for buf in bufs {
            thread::yield_now();
            let is_cut = self.is_cut.load(Ordering::Relaxed);
            assert!(
                !is_cut || size == self.size_bytes(),
                "the blocks found before may be another file's"
            );
            let bytes = self.bytes.lock().unwrap();
            let there = bytes.get(at..).unwrap_or_default();
            let count = there.len().min(buf.len());
            buf[..count].copy_from_slice(&there[..count]);
            buf[count..].fill(0);
            at += buf.len();
        }
        if self.fails.load(Ordering::Relaxed) {
            return Err(Failed);
        }
        Ok(())
    }
}

impl WritableSpace for File {
    fn extend(&self, end: u64) {
        self.size.fetch_max(end, Ordering::Relaxed);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Failed> {
        let mut at = usize::try_from(offset).unwrap();
        for buf in bufs {
            thread::yield_now();
            let end = (at + buf.len()) as u64;
            let is_cut = self.is_cut.load(Ordering::Relaxed);
            assert!(
                !is_cut || end <= self.size_bytes(),
                "blocks that may be another file's"
            );
            self.bytes.lock().unwrap()[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }
}

struct Cached {
    file: File,
    mapping: Mapping<Failed>,
}

impl Cached {
    fn new(file: File, limit_bytes: u64) -> Arc<Self> {
        let mapping = Mapping::new(Arc::new(MemoryBudget::new(limit_bytes)));
        Arc::new(Self { file, mapping })
    }

    fn byte(&self, page: u64) -> Result<u8, Failed> {
        let mut buf = [0];
        self.mapping.read_at(&self.file, page * PAGE, &mut buf)?;
        Ok(buf[0])
    }

    fn read(&self, first: u64, pages: usize) -> Vec<u8> {
        let mut buf = vec![0; pages * PAGE_BYTES];
        self.mapping
            .read_at(&self.file, first * PAGE, &mut buf)
            .unwrap();
        buf
    }

    fn write(&self, at: u64, byte: u8) {
        self.mapping.write_at(&self.file, at, &[byte]).unwrap();
    }

    fn write_back(&self) {
        self.mapping.write_back(&self.file, 0..u64::MAX).unwrap();
    }
}

fn spawn(
    cached: &Arc<Cached>,
    action: impl Fn(&Cached) + Send + 'static,
) -> thread::JoinHandle<()> {
    let cached = Arc::clone(cached);
    thread::spawn(move || action(&cached))
}

fn concurrent_fills() {
    let cached = Cached::new(File::of_pages(4), 64 * COST);
    let read = |cached: &Cached| assert_eq!(cached.byte(2), Ok(3));
    let readers = [spawn(&cached, read), spawn(&cached, read)];
    read(&cached);
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(cached.file.reads.load(Ordering::Relaxed), 1);
}

fn failing_fill() {
    let cached = Cached::new(File::of_pages(4), 64 * COST);
    cached.file.fails.store(true, Ordering::Relaxed);
    let read = |cached: &Cached| assert_eq!(cached.byte(2), Err(Failed));
    let readers = [spawn(&cached, read), spawn(&cached, read)];
    read(&cached);
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(cached.mapping.budget().used_bytes(), 0);
    cached.file.fails.store(false, Ordering::Relaxed);
    assert_eq!(cached.byte(2), Ok(3));
}

fn readers_against_hole() {
    let cached = Cached::new(File::of_pages(16), 256 * COST);
    cached.read(0, 16);
    assert!(cached.mapping.page_count() == 16);
    let readers = [4, 6, 7].map(|page| {
        spawn(&cached, move |cached| {
            assert_eq!(cached.byte(page), Ok(u8::try_from(page).unwrap() + 1));
        })
    });
    cached.mapping.remove_range(5 * PAGE..6 * PAGE);
    for reader in readers {
        reader.join().unwrap();
    }
    for page in 0..16 {
        // Where the folio was in use its page was cleared, not taken out.
        let expected = u8::try_from(page).unwrap() + 1;
        let byte = cached.byte(page).unwrap();
        assert!(byte == expected || page == 5 && byte == 0);
    }
}

fn readers_against_eviction() {
    let cached = Cached::new(File::of_pages(6), 2 * COST + 600);
    let read = |cached: &Cached| {
        for page in [1, 3, 5] {
            assert_eq!(cached.byte(page), Ok(u8::try_from(page).unwrap() + 1));
            let budget = cached.mapping.budget();
            // Index nodes are charged beyond the ceiling; this file has two at most.
            let nodes_max = 2 * crate::xarray::NODE_BYTES as u64;
            assert!(budget.used_bytes() <= budget.limit_bytes() + nodes_max);
        }
    };
    let readers = [spawn(&cached, read), spawn(&cached, read)];
    for reader in readers {
        reader.join().unwrap();
    }
    let budget = Arc::clone(cached.mapping.budget());
    let stats = budget.stats();
    let evictable = stats.inactive_bytes + stats.active_bytes;
    assert_eq!(
        evictable,
        cached.mapping.page_count() * PAGE,
        "each page has its place"
    );
    drop(cached);
    assert_eq!(budget.used_bytes(), 0);
}

fn writers_against_writeback() {
    let cached = Cached::new(File::of_pages(2), 64 * COST);
    let writers = [10, 20].map(|at: u64| {
        spawn(&cached, move |cached| {
            cached.write(at, 101);
            cached.write(at + 1, 102);
        })
    });
    cached.write_back();
    for writer in writers {
        writer.join().unwrap();
    }
    cached.write_back();
    for (at, byte) in [(9, 1), (10, 101), (11, 102), (20, 101), (21, 102), (22, 1)] {
        assert_eq!(cached.file.byte(at), byte);
    }
    assert!(!cached.mapping.is_dirty());
    assert_eq!(cached.mapping.budget().dirty_bytes(), 0);
}

fn sync_against_sync() {
    let cached = Cached::new(File::of_pages(2), 64 * COST);
    let sync = |at: u64| {
        move |cached: &Cached| {
            cached.write(at, 77);
            cached.write_back();
            assert_eq!(cached.file.byte(usize::try_from(at).unwrap()), 77);
        }
    };
    let syncs = [spawn(&cached, sync(5)), spawn(&cached, sync(6))];
    sync(7)(&cached);
    for other in syncs {
        other.join().unwrap();
    }
}

fn sync_against_giving_up() {
    let cached = Cached::new(File::of_pages(2), 64 * COST);
    let give_up = |cached: &Cached| {
        for _ in 0..2 {
            drop(cached.mapping.take_dirty(u64::MAX));
        }
    };
    let sync = |cached: &Cached| {
        cached.write(5, 77);
        cached.write_back();
        assert_eq!(cached.file.byte(5), 77);
    };
    let others = [spawn(&cached, give_up), spawn(&cached, sync)];
    sync(&cached);
    for other in others {
        other.join().unwrap();
    }
    cached.write_back();
    assert!(!cached.mapping.is_dirty());
    assert_eq!(cached.mapping.budget().dirty_bytes(), 0);
}

fn truncation_against_writeback() {
    let cached = Cached::new(File::of_pages(3), 64 * COST);
    cached.write(0, 50);
    cached.write(PAGE, 60);
    let writeback = spawn(&cached, Cached::write_back);
    let reader = spawn(&cached, |cached| {
        let byte = cached.byte(1).unwrap();
        assert!(byte == 60 || byte == 0, "the reader may get no byte");
    });
    cached.file.size.store(PAGE, Ordering::Relaxed);
    cached.mapping.truncate(PAGE);
    cached.file.is_cut.store(true, Ordering::Relaxed);
    cached.write_back();
    writeback.join().unwrap();
    reader.join().unwrap();
    assert_eq!(cached.file.byte(0), 50);
    assert_eq!(cached.mapping.budget().dirty_bytes(), 0);
}

fn truncation_against_fill() {
    let cached = Cached::new(File::of_pages(6), 64 * COST);
    let readers = [1, 4].map(|page| {
        spawn(&cached, move |cached| {
            let byte = cached.byte(page).unwrap();
            assert!(byte == 0 || u64::from(byte) == page + 1);
        })
    });
    cached.file.size.store(PAGE, Ordering::Relaxed);
    cached.mapping.truncate(PAGE);
    cached.file.is_cut.store(true, Ordering::Relaxed);
    cached.file.bytes.lock().unwrap().truncate(PAGE_BYTES);
    for reader in readers {
        reader.join().unwrap();
    }
    cached.file.is_cut.store(false, Ordering::Relaxed);
    cached.file.size.store(6 * PAGE, Ordering::Relaxed);
    for page in 1..6 {
        assert_eq!(cached.byte(page), Ok(0), "the file grew by a hole");
    }
}

fn drop_against_eviction() {
    let budget = Arc::new(MemoryBudget::new(3 * COST));
    let evictor = {
        let mapping = Mapping::new(Arc::clone(&budget));
        thread::spawn(move || {
            let file = File::of_pages(6);
            for page in [1, 3, 5] {
                mapping.read_at(&file, page * PAGE, &mut [0]).unwrap();
            }
        })
    };
    let file = File::of_pages(6);
    let mapping: Mapping<Failed> = Mapping::new(Arc::clone(&budget));
    for page in [1, 3] {
        mapping.read_at(&file, page * PAGE, &mut [0]).unwrap();
    }
    drop(mapping);
    evictor.join().unwrap();
    assert_eq!(budget.used_bytes(), 0);
    let stats = budget.stats();
    assert_eq!(
        (stats.inactive_bytes, stats.active_bytes, stats.node_bytes),
        (0, 0, 0)
    );
}
