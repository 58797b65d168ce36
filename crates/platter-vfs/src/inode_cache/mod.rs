//! One object per inode, shared by all its users, with a bounded set of recent ones kept alive.
//!
//! A driver's inode type holds its [`Seat`]; as long as the seat lives, no other thread can load the
//! same inode, so there are never two objects for one inode, not even while the last user's drop
//! is still at work.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as MapEntry;
use platter_cache::MemoryBudget;

use crate::InodeId;
use crate::second_chance::SecondChanceMap;
use crate::shard::shard_of;
use crate::sync::{Condvar, Mutex, rank};

/// The parts of the table. A power of two.
const SHARDS: usize = 64;
/// So many neighbours lie in one part: a thread that makes files, or goes through a directory, stays
/// there a while, and finds memory in the caches of its own processor.
const NEIGHBOURS: u64 = 16;
/// From so many inodes on, each part evicts cheap ones before it grows. Few next to its
/// neighbours, so that most of those that go were made by the same thread.
const CHEAP_MAX: usize = 2;
/// Unused inodes take such a part of a budget, and so many bytes, at most. Their pages are evicted with them.
const RECENT_PART: u64 = 8;
const RECENT_BYTES_MAX: u64 = 32 << 20;

/// The table of a mounted filesystem's inodes in memory.
///
/// # Invariants
/// - An id is in the table exactly as long as its [`Seat`] lives.
/// - No lock is held while an inode is loaded or dropped.
pub struct InodeCache<T> {
    /// Each counts the seats that know it: threads do not meet there but for inodes of the same one.
    shards: Box<[Arc<Shard<T>>]>,
}

/// The right to be the one object of an inode. It must be kept inside the object, as its last
/// field, so that it is given up only when nothing of the object can reach the disk any more.
#[must_use = "an inode gives up its place in the cache when its seat is dropped"]
pub struct Seat<T> {
    id: InodeId,
    shard: Weak<Shard<T>>,
}

struct Shard<T> {
    /// Inodes by number.
    state: Mutex<ShardState<T>, { rank(3, 0) }>,
    /// Notified whenever an entry of the shard goes live or is removed.
    changed: Condvar,
}

struct ShardState<T> {
    entries: HashMap<InodeId, Entry<T>>,
    recent: SecondChanceMap<InodeId, Arc<T>>,
    is_cheap: fn(&T) -> bool,
}

enum Entry<T> {
    /// The seat is held: the object is not in it yet, or was [withdrawn](InodeCache::withdraw).
    Held,
    /// The object; not to be upgraded any more once its last user let it go.
    Live(Weak<T>),
}

impl<T> InodeCache<T> {
    /// A cache that keeps about `recent_max` unused inodes alive.
    #[must_use]
    pub fn new(recent_max: usize) -> Self {
        Self::sparing(recent_max, |_| false)
    }

    /// A cache that keeps about `recent_max` unused inodes alive, preferably not those that are cheap
    /// to load again: a walk through many files then reuses memory that is still in the CPU cache.
    #[must_use]
    pub fn sparing(recent_max: usize, is_cheap: fn(&T) -> bool) -> Self {
        let recent_max = recent_max.div_ceil(SHARDS);
        let recent_few = recent_max.min(CHEAP_MAX);
        let shard = || {
            let state = ShardState {
                entries: HashMap::new(),
                recent: SecondChanceMap::sparing(recent_few, recent_max),
                is_cheap,
            };
            Arc::new(Shard {
                state: Mutex::new(state),
                changed: Condvar::default(),
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    /// A [sparing](Self::sparing) cache whose unused inodes take a part of a budget. A file has `overhead_bytes` besides its
    /// object and its pages: its places in tables, and the runs of blocks that it remembers.
    #[must_use]
    pub fn within(budget: &MemoryBudget, overhead_bytes: usize, is_cheap: fn(&T) -> bool) -> Self {
        let bytes = (budget.limit_bytes() / RECENT_PART).min(RECENT_BYTES_MAX);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self::sparing(bytes / (size_of::<T>() + overhead_bytes), is_cheap)
    }

    /// The inode, if it is in use or was used recently.
    #[must_use]
    pub fn get(&self, id: InodeId) -> Option<Arc<T>> {
        let mut state = self.shard(id).state.lock();
        state.touch(id)
    }

    /// The inode, by `load` if it is not in memory.
    ///
    /// Of several callers for one inode one loads and the others wait for it; when it fails, each
    /// of them tries for itself. `load` runs without a lock and must not ask for the same inode. A large object is best
    /// made in its `Arc`, since it is copied each time that it is returned.
    ///
    /// # Panics
    /// If `load` returns an object without keeping the seat.
    pub fn get_or_load<E, O: Into<Arc<T>>>(
        &self,
        id: InodeId,
        load: impl FnOnce(Seat<T>) -> Result<O, E>,
    ) -> Result<Arc<T>, E> {
        let seat = match self.find_or_reserve(id) {
            Ok(object) => return Ok(object),
            Err(seat) => seat,
        };
        let object = load(seat)?.into();
        self.publish(id, &object);
        Ok(object)
    }

    /// Releases an inode that must not be found again, such as one without names: it is dropped as soon
    /// as its last user is done.
    pub fn release(&self, id: InodeId) {
        let released = self.shard(id).state.lock().recent.remove(&id);
        drop(released);
    }

    /// Makes the caller the only user of an object, if there is no other: it is not found any more, and
    /// callers that ask for its inode wait until the object is gone.
    #[must_use]
    pub fn withdraw(&self, id: InodeId, object: &Arc<T>) -> bool {
        let mut state = self.shard(id).state.lock();
        let kept = state.recent.get(&id).is_some();
        // Another one is only handed out under the lock.
        if Arc::strong_count(object) > 1 + usize::from(kept) {
            return false;
        }
        let released = state.recent.remove(&id);
        state.entries.insert(id, Entry::Held);
        drop(state);
        drop(released);
        true
    }

    /// Releases all unused inodes.
    pub fn release_all(&self) {
        for shard in &*self.shards {
            let released = shard.state.lock().recent.take_all();
            drop(released);
        }
    }

    /// All inodes in memory at some moment of the call, in no order.
    #[must_use]
    pub fn live(&self) -> Vec<Arc<T>> {
        let mut objects = Vec::new();
        for shard in &*self.shards {
            let state = shard.state.lock();
            objects.extend(state.entries.values().filter_map(Entry::object));
        }
        objects
    }

    fn find_or_reserve(&self, id: InodeId) -> Result<Arc<T>, Seat<T>> {
        let shard = self.shard(id);
        let mut state = shard.state.lock();
        loop {
            let ShardState {
                entries, recent, ..
            } = &mut *state;
            match entries.entry(id) {
                MapEntry::Vacant(entry) => {
                    entry.insert(Entry::Held);
                    let shard = Arc::downgrade(shard);
                    return Err(Seat { id, shard });
                }
                MapEntry::Occupied(entry) => {
                    if let Some(object) = entry.get().object() {
                        recent.get(&id);
                        return Ok(object);
                    }
                }
            }
            state = shard.changed.wait(state);
        }
    }

    fn publish(&self, id: InodeId, object: &Arc<T>) {
        let shard = self.shard(id);
        let mut state = shard.state.lock();
        let entry = state.entries.get_mut(&id);
        let entry = entry.expect("a loaded inode keeps its seat");
        *entry = Entry::Live(Arc::downgrade(object));
        let ShardState {
            recent, is_cheap, ..
        } = &mut *state;
        // One in use is held anyway, and may come to be worth more.
        let is_cheap = |object: &Arc<T>| Arc::strong_count(object) == 1 && is_cheap(object);
        let evicted = recent.insert_sparing(id, Arc::clone(object), is_cheap);
        drop(state);
        shard.changed.notify_all();
        drop(evicted);
    }

    fn shard(&self, id: InodeId) -> &Arc<Shard<T>> {
        let parts = SHARDS as u64;
        let neighbours = id.number.wrapping_sub(1) / NEIGHBOURS;
        // In a row they fill all parts alike; from where on says chance.
        let row = InodeId {
            number: neighbours / parts,
            ..id
        };
        let place = neighbours.wrapping_add(shard_of(row, SHARDS) as u64) % parts;
        &self.shards[place as usize]
    }
}

impl<T> ShardState<T> {
    /// The object of `id` if there is one, marked as used.
    fn touch(&mut self, id: InodeId) -> Option<Arc<T>> {
        let object = self.entries.get(&id)?.object()?;
        self.recent.get(&id);
        Some(object)
    }
}

impl<T> Entry<T> {
    fn object(&self) -> Option<Arc<T>> {
        match self {
            Self::Held => None,
            Self::Live(object) => object.upgrade(),
        }
    }
}

impl<T> Seat<T> {
    /// The inode it belongs to.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.id
    }
}

impl<T> Drop for Seat<T> {
    fn drop(&mut self) {
        let Some(shard) = self.shard.upgrade() else {
            return;
        };
        shard.state.lock().entries.remove(&self.id);
        shard.changed.notify_all();
    }
}

impl<T> fmt::Debug for InodeCache<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut in_memory, mut recent) = (0, 0);
        for shard in &*self.shards {
            let state = shard.state.lock();
            in_memory += state.entries.len();
            recent += state.recent.len();
        }
        out.debug_struct("InodeCache")
            .field("in_memory", &in_memory)
            .field("recent", &recent)
            .finish()
    }
}

impl<T> fmt::Debug for Seat<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Seat").field(&self.id).finish()
    }
}
