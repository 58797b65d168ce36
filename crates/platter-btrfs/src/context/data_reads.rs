//! Reads that are in progress while extents move: where these lie was looked up before, and may have changed since.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::{Condvar, Mutex, RwLock};

use crate::chunk::wait_until_unshared;
use crate::ondisk::Generation;

/// The reads of a filesystem's data, and how often a move of data to other addresses began or ended.
#[derive(Debug, Default)]
pub struct DataReads {
    /// Shared by the reads that began since it was replaced.
    current: RwLock<Arc<()>>,
    moves: AtomicU64,
    /// The last transaction in which data moved.
    moved_in: AtomicU64,
    users: Mutex<Users>,
    changed: Condvar,
}

/// What keeps extents where they are, and what moves them.
#[derive(Debug, Default)]
struct Users {
    keeping: u32,
    is_moving: bool,
}

/// A read in progress, from before its addresses are looked up.
#[derive(Debug)]
#[must_use]
pub struct DataRead {
    _current: Arc<()>,
}

/// Extents of subvolumes stay where they are, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct KeptAddresses<'r>(&'r DataReads);

/// Extents move, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct MovingExtents<'r>(&'r DataReads);

impl DataReads {
    /// Begins a read.
    pub fn begin(&self) -> DataRead {
        DataRead {
            _current: Arc::clone(&self.current.read()),
        }
    }

    /// Returns when all reads that began before have ended.
    fn wait_for_earlier(&self) {
        let earlier = std::mem::take(&mut *self.current.write());
        wait_until_unshared(&earlier);
    }

    /// Says that data moves in a transaction, before its new addresses can be looked up.
    pub fn begin_move(&self, transaction: Generation) {
        self.moved_in.fetch_max(transaction.0, Ordering::AcqRel);
        // What was kept by an address is not found for what moves there.
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// Says that its new addresses are those that are looked up, and returns when nothing reads at the old ones. The caller
    /// has no lock.
    pub fn end_move(&self) {
        self.wait_for_earlier();
        // What those reads kept by the old addresses is not found any more.
        self.moves.fetch_add(1, Ordering::AcqRel);
    }

    /// The last transaction in which data moved: until it is durable, what is written at a new address may be where the
    /// last commit does not look.
    #[must_use]
    pub fn moved_in(&self) -> Generation {
        Generation(self.moved_in.load(Ordering::Acquire))
    }

    /// How often a move of data began or ended.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Keeps extents where they are, once those that are moving have moved. The caller has no lock.
    pub fn keep_addresses(&self) -> KeptAddresses<'_> {
        let mut users = self.users.lock();
        while users.is_moving {
            self.changed.wait(&mut users);
        }
        users.keeping += 1;
        KeptAddresses(self)
    }

    /// Lets extents move, one thread at a time; `None` while they are kept where they are.
    pub fn try_move(&self) -> Option<MovingExtents<'_>> {
        let mut users = self.users.lock();
        if users.keeping > 0 || users.is_moving {
            return None;
        }
        users.is_moving = true;
        Some(MovingExtents(self))
    }
}

impl Drop for KeptAddresses<'_> {
    fn drop(&mut self) {
        self.0.users.lock().keeping -= 1;
    }
}

impl Drop for MovingExtents<'_> {
    fn drop(&mut self) {
        self.0.users.lock().is_moving = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Whether `wait` returns after `end` was done.
    fn waits(wait: impl FnOnce() + Send, end: impl FnOnce()) -> bool {
        let has_ended = &AtomicBool::new(false);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                wait();
                has_ended.load(Ordering::Acquire)
            });
            thread::sleep(Duration::from_millis(30));
            has_ended.store(true, Ordering::Release);
            end();
            waiting.join().unwrap()
        })
    }

    #[test]
    fn earlier_reads_are_waited_for() {
        let reads = DataReads::default();
        let earlier = reads.begin();
        assert!(waits(|| reads.wait_for_earlier(), || drop(earlier)));
        // They have ended.
        reads.wait_for_earlier();
    }

    #[test]
    fn extents_do_not_move_while_they_are_kept() {
        let reads = DataReads::default();
        let kept = reads.keep_addresses();
        let also = reads.keep_addresses();
        drop(kept);
        assert!(reads.try_move().is_none());
        drop(also);
        let moving = reads.try_move().unwrap();
        assert!(reads.try_move().is_none());
        assert!(waits(|| drop(reads.keep_addresses()), || drop(moving)));
    }

    #[test]
    fn what_is_kept_by_addresses_is_not_found_while_data_moves() {
        let reads = DataReads::default();
        let before = reads.moves();
        reads.begin_move(Generation(7));
        let meanwhile = reads.moves();
        reads.end_move();
        assert!(before != meanwhile && meanwhile != reads.moves());
        assert_eq!(reads.moved_in(), Generation(7));
    }
}
