//! The policy of the mbcache: shards, each with a CLOCK hand. It needs no list; those of the policies that
//! the benchmark compares it with have some, in the same place.

/// A locking and replacement policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Design {
    /// Shards, each with a CLOCK hand; a use sets a referenced bit. There is no list.
    #[default]
    ShardedClock,
}

impl Design {
    /// Whether all entries share one lock.
    pub(super) fn is_one_shard(self) -> bool {
        self != Self::ShardedClock
    }
}

/// An entry, by its shard and its slot there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) shard: usize,
    pub(super) slot: usize,
}

/// A link of a list: there is none.
#[derive(Debug, Clone, Copy)]
pub(super) enum Link {}

/// The lists of a policy that has some: there is none.
#[derive(Debug)]
pub(super) enum Queues {}

impl Queues {
    pub(super) fn new(_: Design, _: usize) -> Option<Self> {
        None
    }

    pub(super) fn len(&self) -> usize {
        match *self {}
    }

    pub(super) fn push(&self, _: Place) -> Link {
        match *self {}
    }

    pub(super) fn remove(&self, _: usize, _: Link) {
        match *self {}
    }

    pub(super) fn used(&self, _: usize, _: Link) -> bool {
        match *self {}
    }

    pub(super) fn next_to_go(&self, _: usize) -> Option<Place> {
        match *self {}
    }
}
