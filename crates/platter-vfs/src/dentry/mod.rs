//! Remembers what names in directories name, and which names are not there.

#[cfg(test)]
mod tests;

use std::fmt;

use hashbrown::Equivalent;

use crate::second_chance::SecondChanceMap;
use crate::shard::shard_of;
use crate::sync::{Mutex, rank};
use crate::{InodeId, Name, NameBuf};

/// The parts of the cache. A power of two.
const SHARDS: usize = 16;

/// What names in directories name, for a bounded number of names.
///
/// Callers that change a name hold a [`change`](Self::change) from before the change until after
/// it. What is looked up meanwhile is not cached, so that no entry is ever stale.
///
/// Names are compared as bytes. Those in directories that compare them otherwise do not belong
/// here.
pub struct DentryCache {
    /// All names of a directory are in one.
    shards: [Mutex<Shard, { rank(4, 0) }>; SHARDS],
}

struct Shard {
    names: SecondChanceMap<Key, Remembered>,
    /// Moves on with the beginning and the end of every change.
    version: u64,
    /// Changes under way.
    changing: usize,
}

/// What is known of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// It names this file.
    File(InodeId),
    /// There is no such name.
    Missing,
}

/// The answer of the cache.
#[derive(Debug)]
pub enum Recall {
    /// It is known.
    Known(Remembered),
    /// It is not; what looking it up gives may be put in with this ticket.
    Unknown(Ticket),
}

/// Says when a lookup began.
#[derive(Debug)]
#[must_use = "what was looked up is to be remembered"]
pub struct Ticket {
    version: u64,
}

/// A change of a name under way.
#[must_use = "a change ends when this is dropped"]
pub struct Change<'c> {
    shard: &'c Mutex<Shard, { rank(4, 0) }>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    dir: InodeId,
    name: NameBuf,
}

/// A [`Key`] that does not own its name.
#[derive(Hash)]
struct BorrowedKey<'n> {
    dir: InodeId,
    name: Name<'n>,
}

impl Equivalent<Key> for BorrowedKey<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.dir == key.dir && self.name == key.name.as_name()
    }
}

impl DentryCache {
    /// A cache of about `names_max` names.
    #[must_use]
    pub fn new(names_max: usize) -> Self {
        let shard = |_| {
            let shard = Shard {
                names: SecondChanceMap::new(names_max.div_ceil(SHARDS)),
                version: 0,
                changing: 0,
            };
            Mutex::new(shard)
        };
        Self {
            shards: std::array::from_fn(shard),
        }
    }

    /// What is known of `name` in `dir`.
    pub fn recall(&self, dir: InodeId, name: Name<'_>) -> Recall {
        let mut shard = self.shard(dir).lock();
        match shard.names.get(&BorrowedKey { dir, name }) {
            Some(&remembered) => Recall::Known(remembered),
            None => Recall::Unknown(Ticket {
                version: shard.version,
            }),
        }
    }

    /// Whether `name` in `dir` is known to name `file`.
    #[must_use]
    pub fn recalls(&self, dir: InodeId, name: Name<'_>, file: InodeId) -> bool {
        let mut shard = self.shard(dir).lock();
        shard.names.get(&BorrowedKey { dir, name }) == Some(&Remembered::File(file))
    }

    /// Remembers what was looked up, unless a name may have changed since `ticket` was given.
    pub fn remember(&self, ticket: &Ticket, dir: InodeId, name: Name<'_>, found: Remembered) {
        let mut shard = self.shard(dir).lock();
        if shard.version == ticket.version && shard.changing == 0 {
            let name = name.to_owned();
            shard.names.insert(Key { dir, name }, found);
        }
    }

    /// Says that what `name` in `dir` names is about to change, until the result is dropped.
    pub fn change(&self, dir: InodeId, name: Name<'_>) -> Change<'_> {
        self.begin(dir, |shard| {
            shard.names.remove(&BorrowedKey { dir, name });
        })
    }

    /// Says that the directory `dir` is about to change as a whole, as when it is removed and its
    /// number may be given to another, until the result is dropped.
    pub fn change_directory(&self, dir: InodeId) -> Change<'_> {
        self.begin(dir, |shard| shard.names.remove_all(|key| key.dir == dir))
    }

    /// How many names are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().names.len())
            .sum()
    }

    /// Whether no name is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn begin(&self, dir: InodeId, forget: impl FnOnce(&mut Shard)) -> Change<'_> {
        let shard = self.shard(dir);
        let mut state = shard.lock();
        forget(&mut state);
        state.version += 1;
        state.changing += 1;
        Change { shard }
    }

    fn shard(&self, dir: InodeId) -> &Mutex<Shard, { rank(4, 0) }> {
        &self.shards[shard_of(dir, SHARDS)]
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let mut shard = self.shard.lock();
        shard.version += 1;
        shard.changing -= 1;
    }
}

impl fmt::Debug for DentryCache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DentryCache")
            .field("names", &self.len())
            .finish()
    }
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Change")
    }
}
