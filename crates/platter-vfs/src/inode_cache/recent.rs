//! The recently used inodes of one shard: a clock of bounded length.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::InodeId;

/// Keeps up to `slots_max` objects alive; when full, the hand of the clock takes the first one not
/// used since it last came by.
pub(super) struct RecentSet<T> {
    slots_max: usize,
    slots: Vec<Slot<T>>,
    places: HashMap<InodeId, usize>,
    hand: usize,
}

struct Slot<T> {
    id: InodeId,
    object: Arc<T>,
    used: bool,
}

impl<T> RecentSet<T> {
    pub(super) fn new(slots_max: usize) -> Self {
        Self {
            slots_max,
            slots: Vec::new(),
            places: HashMap::new(),
            hand: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Says that `id` was used, where it is in the set.
    pub(super) fn mark_used(&mut self, id: InodeId) {
        if let Some(&place) = self.places.get(&id) {
            self.slots[place].used = true;
        }
    }

    /// Adds an object that is not in the set. What comes back left the set, and is to be dropped
    /// without a lock held.
    pub(super) fn insert(&mut self, id: InodeId, object: Arc<T>) -> Option<Arc<T>> {
        if self.slots_max == 0 {
            return Some(object);
        }
        let slot = Slot {
            id,
            object,
            used: false,
        };
        if self.slots.len() < self.slots_max {
            self.places.insert(id, self.slots.len());
            self.slots.push(slot);
            return None;
        }
        // Every pass over a used slot clears it, so this ends within two rounds.
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.advance();
        }
        let evicted = std::mem::replace(&mut self.slots[self.hand], slot);
        self.places.remove(&evicted.id);
        self.places.insert(id, self.hand);
        self.advance();
        Some(evicted.object)
    }

    /// Takes `id` out of the set.
    pub(super) fn remove(&mut self, id: InodeId) -> Option<Arc<T>> {
        let place = self.places.remove(&id)?;
        let removed = self.slots.swap_remove(place);
        if let Some(moved) = self.slots.get(place) {
            self.places.insert(moved.id, place);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        Some(removed.object)
    }

    /// Empties the set.
    pub(super) fn take_all(&mut self) -> Vec<Arc<T>> {
        self.places.clear();
        self.hand = 0;
        self.slots.drain(..).map(|slot| slot.object).collect()
    }

    fn advance(&mut self) {
        self.hand = (self.hand + 1) % self.slots.len();
    }
}
