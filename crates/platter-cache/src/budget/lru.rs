//! Eviction order: an inactive and an active list, sharded so that inserts rarely contend.
//!
//! An entry identifies its cached object by owner and key and holds no reference to it, so a list
//! never keeps memory alive. The owner resolves the key when the entry is evicted.

use crossbeam_utils::CachePadded;

use super::OwnerId;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, rank};

const SHARD_COUNT: usize = 8;
/// Adjacent keys share a shard up to this many bits, so that a batch takes one lock.
const SHARD_KEY_BITS: u32 = 9;
/// The end of a list, or no link.
const NIL: u32 = u32::MAX;

/// A position in the eviction order. Stale positions are recognised by their generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LruId(u64);

impl LruId {
    /// Not in the order: differs from every allocated position.
    pub(crate) const NONE: Self = Self(0);

    fn new(shard: usize, generation: u32, index: u32) -> Self {
        let shard = shard as u64;
        // Generations start at one, so no position is zero.
        Self(shard << 56 | u64::from(generation & 0x00ff_ffff) << 32 | u64::from(index))
    }

    /// Returns the position as a number, to be stored in an atomic.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// Creates the position from the result of [`to_bits`](Self::to_bits).
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn shard(self) -> usize {
        usize::from(self.0.to_be_bytes()[0])
    }

    fn generation(self) -> u32 {
        let [_, high, middle, low, ..] = self.0.to_be_bytes();
        u32::from_be_bytes([0, high, middle, low])
    }

    fn index(self) -> usize {
        let [.., a, b, c, d] = self.0.to_be_bytes();
        u32::from_be_bytes([a, b, c, d]) as usize
    }
}

/// Which of the two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// Used at most once since it was inserted: evicted from the tail.
    Inactive,
    /// Used again, or refaulted early: aged before it is evicted.
    Active,
}

/// An entry isolated by one evictor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) id: LruId,
    pub(crate) owner: OwnerId,
    pub(crate) key: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    /// Isolated: off the lists.
    Isolated,
    On(List),
}

#[derive(Debug)]
struct Link {
    owner: OwnerId,
    key: u64,
    bytes: u64,
    generation: u32,
    newer: u32,
    older: u32,
    place: Place,
}

#[derive(Debug)]
struct Ends {
    newest: u32,
    oldest: u32,
    bytes: u64,
}

impl Ends {
    const EMPTY: Self = Self {
        newest: NIL,
        oldest: NIL,
        bytes: 0,
    };
}

#[derive(Debug)]
struct Shard {
    links: Vec<Link>,
    free: Vec<u32>,
    inactive: Ends,
    active: Ends,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            free: Vec::new(),
            inactive: Ends::EMPTY,
            active: Ends::EMPTY,
        }
    }
}

impl Shard {
    fn ends(&mut self, list: List) -> &mut Ends {
        match list {
            List::Inactive => &mut self.inactive,
            List::Active => &mut self.active,
        }
    }

    fn link(&mut self, at: u32) -> &mut Link {
        &mut self.links[at as usize]
    }

    fn push_newest(&mut self, at: u32, list: List) {
        let next = self.ends(list).newest;
        let link = self.link(at);
        link.place = Place::On(list);
        link.older = next;
        link.newer = NIL;
        let bytes = link.bytes;
        if next == NIL {
            self.ends(list).oldest = at;
        } else {
            self.link(next).newer = at;
        }
        let ends = self.ends(list);
        ends.newest = at;
        ends.bytes += bytes;
    }

    fn push_oldest(&mut self, at: u32, list: List) {
        let next = self.ends(list).oldest;
        let link = self.link(at);
        link.place = Place::On(list);
        link.newer = next;
        link.older = NIL;
        let bytes = link.bytes;
        if next == NIL {
            self.ends(list).newest = at;
        } else {
            self.link(next).older = at;
        }
        let ends = self.ends(list);
        ends.oldest = at;
        ends.bytes += bytes;
    }

    fn unlink(&mut self, at: u32) {
        let Link {
            newer,
            older,
            bytes,
            place,
            ..
        } = *self.link(at);
        let Place::On(list) = place else {
            return;
        };
        match newer {
            NIL => self.ends(list).newest = older,
            newer => self.link(newer).older = older,
        }
        match older {
            NIL => self.ends(list).oldest = newer,
            older => self.link(older).newer = newer,
        }
        self.ends(list).bytes -= bytes;
        self.link(at).place = Place::Isolated;
    }

    fn find(&mut self, id: LruId) -> Option<u32> {
        let link = self.links.get(id.index())?;
        let current = link.place != Place::Free && link.generation == id.generation();
        current.then_some(u32::try_from(id.index()).unwrap_or(NIL))
    }
}

/// The eviction order of one budget.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    /// Entries in the order of eviction.
    shards: [CachePadded<Mutex<Shard, { rank(14, 2) }>>; SHARD_COUNT],
    active_bytes: AtomicU64,
    inactive_bytes: AtomicU64,
    entries: AtomicUsize,
}

impl Lru {
    pub(crate) const SHARDS: usize = SHARD_COUNT;

    /// Adds `key` of `owner` at the newest end of `list`.
    pub(crate) fn insert(&self, owner: OwnerId, key: u64, bytes: u64, list: List) -> LruId {
        let shard_index = shard_of(owner, key);
        let mut shard = self.shards[shard_index].lock();
        let at = shard.free.pop().unwrap_or_else(|| {
            shard.links.push(Link {
                owner,
                key,
                bytes,
                generation: 0,
                newer: NIL,
                older: NIL,
                place: Place::Free,
            });
            u32::try_from(shard.links.len() - 1).unwrap_or(NIL)
        });
        let link = shard.link(at);
        link.owner = owner;
        link.key = key;
        link.bytes = bytes;
        link.generation = (link.generation % 0x00ff_ffff) + 1;
        let id = LruId::new(shard_index, link.generation, at);
        shard.push_newest(at, list);
        self.bytes_of(list).fetch_add(bytes, Ordering::Relaxed);
        self.entries.fetch_add(1, Ordering::Relaxed);
        id
    }

    /// Removes an entry. A stale or absent position is ignored.
    pub(crate) fn remove(&self, id: LruId) {
        if id == LruId::NONE {
            return;
        }
        let mut shard = self.shards[id.shard()].lock();
        let Some(at) = shard.find(id) else {
            return;
        };
        let place = shard.link(at).place;
        let bytes = shard.link(at).bytes;
        shard.unlink(at);
        shard.link(at).place = Place::Free;
        shard.free.push(at);
        if let Place::On(list) = place {
            self.bytes_of(list).fetch_sub(bytes, Ordering::Relaxed);
        }
        self.entries.fetch_sub(1, Ordering::Relaxed);
    }

    /// Isolates up to `count` of the oldest entries of `list` in one shard.
    pub(crate) fn isolate(
        &self,
        shard: usize,
        list: List,
        count: usize,
        taken: &mut Vec<Candidate>,
    ) {
        let mut locked = self.shards[shard].lock();
        let mut bytes = 0;
        for _ in 0..count {
            let at = locked.ends(list).oldest;
            if at == NIL {
                break;
            }
            locked.unlink(at);
            let link = locked.link(at);
            bytes += link.bytes;
            taken.push(Candidate {
                id: LruId::new(shard, link.generation, at),
                owner: link.owner,
                key: link.key,
            });
        }
        self.bytes_of(list).fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns an isolated entry to the newest end of `list`, unless it was removed meanwhile.
    pub(crate) fn put_back(&self, id: LruId, list: List) {
        self.put(id, list, Shard::push_newest);
    }

    /// Returns an isolated entry to the oldest end of `list`.
    pub(crate) fn put_back_oldest(&self, id: LruId, list: List) {
        self.put(id, list, Shard::push_oldest);
    }

    fn put(&self, id: LruId, list: List, push: fn(&mut Shard, u32, List)) {
        let mut shard = self.shards[id.shard()].lock();
        let Some(at) = shard.find(id) else {
            return;
        };
        if shard.link(at).place != Place::Isolated {
            return;
        }
        push(&mut shard, at, list);
        let bytes = shard.link(at).bytes;
        self.bytes_of(list).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether there are more active than inactive bytes, so that active entries must age.
    pub(crate) fn is_active_heavy(&self) -> bool {
        self.bytes(List::Active) > self.bytes(List::Inactive)
    }

    /// Returns the bytes of the entries of `list`.
    pub(crate) fn bytes(&self, list: List) -> u64 {
        self.bytes_of(list).load(Ordering::Relaxed)
    }

    /// Returns the number of entries, including isolated ones.
    pub(crate) fn len(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    fn bytes_of(&self, list: List) -> &AtomicU64 {
        match list {
            List::Inactive => &self.inactive_bytes,
            List::Active => &self.active_bytes,
        }
    }
}

fn shard_of(owner: OwnerId, key: u64) -> usize {
    let mixed = (key >> SHARD_KEY_BITS) ^ u64::from(owner.0);
    usize::try_from(mixed % SHARD_COUNT as u64).unwrap_or_default()
}
