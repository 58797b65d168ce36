//! The two counts that change while a filesystem is mounted, when it grows. A reader sees both of before or
//! both of after. Spec: `xfs/allocation_groups`.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// How far a filesystem reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsSize {
    /// Number of allocation groups (`sb_agcount`).
    pub ag_count: u32,
    /// Blocks of the data device (`sb_dblocks`).
    pub data_blocks: u64,
}

/// How far a filesystem reaches, published under a sequence count.
///
/// # Invariants
/// The sequence is odd while the counts are replaced, by one thread at a time. A reader that finds the same
/// even sequence before and after has counts of one publication.
#[derive(Debug)]
pub struct Growth {
    sequence: AtomicU32,
    ag_count: AtomicU32,
    data_blocks: AtomicU64,
    /// How often a reader had to look again.
    retries: AtomicU32,
}

/// The counts are being replaced; readers wait until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Publication<'g> {
    growth: &'g Growth,
    /// The odd sequence.
    sequence: u32,
}

impl Growth {
    /// A filesystem that reaches so far.
    #[must_use]
    pub fn new(size: FsSize) -> Self {
        Self {
            sequence: AtomicU32::new(0),
            ag_count: AtomicU32::new(size.ag_count),
            data_blocks: AtomicU64::new(size.data_blocks),
            retries: AtomicU32::new(0),
        }
    }

    /// Number of allocation groups.
    #[must_use]
    pub fn ag_count(&self) -> u32 {
        self.ag_count.load(Ordering::Relaxed)
    }

    /// Blocks of the data device.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks.load(Ordering::Relaxed)
    }

    /// Both counts, of one publication.
    #[must_use]
    pub fn size(&self) -> FsSize {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let size = FsSize {
                    ag_count: self.ag_count(),
                    data_blocks: self.data_blocks(),
                };
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return size;
                }
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
            spin_loop();
        }
    }

    /// Begins to replace the counts; waits for another thread that does.
    pub fn begin(&self) -> Publication<'_> {
        loop {
            let even = self.sequence.load(Ordering::Relaxed) & !1;
            let odd = even | 1;
            let begun = self.sequence.compare_exchange_weak(
                even,
                odd,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if begun.is_ok() {
                // The counts change after the sequence did.
                fence(Ordering::Release);
                return Publication {
                    growth: self,
                    sequence: odd,
                };
            }
            spin_loop();
        }
    }

    /// How often a reader had to look again, because the counts were being replaced.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.retries.load(Ordering::Relaxed)
    }
}

impl Publication<'_> {
    /// Replaces the counts.
    pub fn set(&self, size: FsSize) {
        let growth = self.growth;
        growth.ag_count.store(size.ag_count, Ordering::Relaxed);
        growth
            .data_blocks
            .store(size.data_blocks, Ordering::Relaxed);
    }
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        let even = self.sequence.wrapping_add(1);
        self.growth.sequence.store(even, Ordering::Release);
    }
}

impl Clone for Growth {
    fn clone(&self) -> Self {
        Self::new(self.size())
    }
}

impl PartialEq for Growth {
    fn eq(&self, other: &Self) -> bool {
        self.size() == other.size()
    }
}

impl Eq for Growth {}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(ag_count: u32) -> FsSize {
        FsSize {
            ag_count,
            data_blocks: u64::from(ag_count) * 1000,
        }
    }

    #[test]
    fn reader_waits_for_a_publication_and_sees_all_of_it() {
        let growth = Growth::new(size(4));
        std::thread::scope(|scope| {
            let publication = growth.begin();
            let reader = scope.spawn(|| growth.size());
            publication.set(FsSize {
                ag_count: 5,
                data_blocks: 4000,
            });
            while growth.retries() == 0 {
                std::thread::yield_now();
            }
            publication.set(size(5));
            drop(publication);
            assert_eq!(reader.join().unwrap(), size(5));
        });
        assert!(growth.retries() > 0);
    }

    #[test]
    fn publications_of_two_threads_take_turns() {
        let growth = Growth::new(size(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let publication = growth.begin();
                        publication.set(size(growth.ag_count() + 1));
                    }
                });
            }
        });
        assert_eq!(growth.size(), size(1000));
    }
}
