//! Locking and replacement policies of the mbcache: those of earlier Linux versions, for comparison
//! with ours.

use crate::sync::{Mutex, MutexGuard, rank};

/// The end of a queue, or no link.
const NIL: u32 = u32::MAX;

/// A locking and replacement policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Design {
    /// One lock for all entries, in LRU order. Linux up to 4.5 did that and more, so this is an
    /// approximation.
    GlobalLock,
    /// Sharded locks, and one LRU list.
    LruList,
    /// Shards, each with an LRU list.
    ShardedLru,
    /// Shards, and one list in insertion order. A use sets a referenced bit, which lets the entry
    /// pass through the list once more, as in Linux.
    RefBit,
    /// Shards, each with a CLOCK hand; a use sets a referenced bit. There is no list.
    #[default]
    ShardedClock,
}

impl Design {
    /// Whether all entries share one lock.
    pub(super) const fn is_one_shard(self) -> bool {
        matches!(self, Self::GlobalLock)
    }

    /// Whether a use moves the entry, instead of setting a bit.
    const fn moves_used(self) -> bool {
        matches!(self, Self::GlobalLock | Self::LruList | Self::ShardedLru)
    }

    const fn has_queue_per_shard(self) -> bool {
        matches!(self, Self::ShardedLru)
    }
}

/// An entry, by its shard and its slot there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) shard: usize,
    pub(super) slot: usize,
}

/// A link of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link(u32);

/// The lists of a policy that has some. Locked after a shard.
#[derive(Debug)]
pub(super) struct Queues {
    moves_used: bool,
    /// Entries in the order of eviction.
    queues: Vec<Mutex<Queue, { rank(13, 1) }>>,
}

impl Queues {
    /// Creates the lists of `design`, if it has any.
    pub(super) fn new(design: Design, shards: usize) -> Option<Self> {
        if design == Design::ShardedClock {
            return None;
        }
        let count = if design.has_queue_per_shard() {
            shards
        } else {
            1
        };
        Some(Self {
            moves_used: design.moves_used(),
            queues: (0..count).map(|_| Mutex::new(Queue::default())).collect(),
        })
    }

    /// Returns the number of lists: one, or one for each shard.
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Adds an entry.
    pub(super) fn push(&self, place: Place) -> Link {
        self.queue_of(place.shard).push(place)
    }

    /// Removes an entry.
    pub(super) fn remove(&self, shard: usize, link: Link) {
        self.queue_of(shard).remove(link);
    }

    /// Records a use; returns `false` if the policy uses a bit instead.
    pub(super) fn used(&self, shard: usize, link: Link) -> bool {
        if self.moves_used {
            self.queue_of(shard).renew(link);
        }
        self.moves_used
    }

    /// Returns the next entry to be evicted among those of `shard` and of those that share its
    /// list. It is moved to the end, so that the next call returns another one.
    pub(super) fn next_to_go(&self, shard: usize) -> Option<Place> {
        let mut queue = self.queue_of(shard);
        let oldest = Link(queue.oldest?);
        let place = queue.links[oldest.0 as usize].place;
        queue.renew(oldest);
        Some(place)
    }

    fn queue_of(&self, shard: usize) -> MutexGuard<'_, Queue> {
        self.queues[shard % self.queues.len()].lock()
    }
}

/// Entries in order, oldest first.
#[derive(Debug, Default)]
struct Queue {
    links: Vec<Links>,
    free: Vec<u32>,
    newest: Option<u32>,
    oldest: Option<u32>,
}

#[derive(Debug)]
struct Links {
    place: Place,
    newer: u32,
    older: u32,
}

impl Queue {
    fn push(&mut self, place: Place) -> Link {
        let links = Links {
            place,
            newer: NIL,
            older: NIL,
        };
        let at = if let Some(at) = self.free.pop() {
            self.links[at as usize] = links;
            at
        } else {
            self.links.push(links);
            u32::try_from(self.links.len() - 1).unwrap_or(NIL)
        };
        self.attach(at);
        Link(at)
    }

    fn remove(&mut self, Link(at): Link) {
        self.detach(at);
        self.free.push(at);
    }

    fn renew(&mut self, Link(at): Link) {
        self.detach(at);
        self.attach(at);
    }

    fn attach(&mut self, at: u32) {
        let before = self.newest.replace(at);
        self.links[at as usize].newer = NIL;
        self.links[at as usize].older = before.unwrap_or(NIL);
        match before {
            Some(before) => self.links[before as usize].newer = at,
            None => self.oldest = Some(at),
        }
    }

    fn detach(&mut self, at: u32) {
        let Links { newer, older, .. } = self.links[at as usize];
        match self.links.get_mut(newer as usize) {
            Some(links) => links.older = older,
            None => self.newest = (older != NIL).then_some(older),
        }
        match self.links.get_mut(older as usize) {
            Some(links) => links.newer = newer,
            None => self.oldest = (newer != NIL).then_some(newer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(slot: usize) -> Place {
        Place { shard: 0, slot }
    }

    #[test]
    fn used_entry_is_evicted_last() {
        let queues = Queues::new(Design::LruList, 1).unwrap();
        let links: Vec<_> = (0..3).map(|slot| queues.push(place(slot))).collect();
        assert!(queues.used(0, links[0]));
        assert_eq!(queues.next_to_go(0), Some(place(1)));
        queues.remove(0, links[2]);
        assert_eq!(queues.next_to_go(0), Some(place(0)));
        assert_eq!(queues.next_to_go(0), Some(place(1)));
        queues.remove(0, links[1]);
        queues.remove(0, links[0]);
        assert_eq!(queues.next_to_go(0), None);
        assert_eq!(queues.push(place(9)), links[0]);
        assert_eq!(queues.next_to_go(0), Some(place(9)));
    }

    #[test]
    fn referenced_bit_does_not_move_the_entry() {
        let queues = Queues::new(Design::RefBit, 16).unwrap();
        let link = queues.push(place(0));
        queues.push(place(1));
        assert!(!queues.used(0, link));
        assert_eq!(queues.next_to_go(5), Some(place(0)), "one queue for all");
        assert!(Queues::new(Design::ShardedClock, 16).is_none());
    }
}
