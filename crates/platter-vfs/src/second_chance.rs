//! A map of bounded length that evicts what was not used for longest, roughly: the clock
//! algorithm, which gives each used entry a second chance.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, Equivalent, HashTable};

/// Number of slots examined for a value to evict before the map is full.
const LOOKS: usize = 2;

/// Up to `slots_max` values by key. When full, a hand goes round the slots and replaces the first
/// one that was not used since it last came by. From `slots_few` on, it replaces values that are
/// [cheap](Self::insert_sparing), and the map grows only where it finds none.
///
/// # Invariants
/// `places` holds the index of every slot, by the hash of its key.
pub(crate) struct SecondChanceMap<K, V> {
    slots_max: usize,
    slots_few: usize,
    slots: Vec<Slot<K, V>>,
    places: HashTable<usize>,
    hasher: DefaultHashBuilder,
    hand: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    used: bool,
}

impl<K: Hash + Eq, V> SecondChanceMap<K, V> {
    pub(crate) fn new(slots_max: usize) -> Self {
        Self::sparing(slots_max, slots_max)
    }

    /// A map of at most `slots_max` values, which evicts cheap ones from `slots_few` on.
    pub(crate) fn sparing(slots_few: usize, slots_max: usize) -> Self {
        Self {
            slots_max,
            slots_few,
            slots: Vec::new(),
            places: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            hand: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The value of a key, which counts as used now.
    pub(crate) fn get<Q: Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<&V> {
        let hash = self.hasher.hash_one(key);
        let same = |&place: &usize| key.equivalent(&self.slots[place].key);
        let place = *self.places.find(hash, same)?;
        let slot = &mut self.slots[place];
        slot.used = true;
        Some(&slot.value)
    }

    /// Sets the value of a key. What had to go for it, or a value the key had, comes back, to be
    /// dropped where that is no harm.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.insert_sparing(key, value, |_| false)
    }

    /// As [`insert`](Self::insert), but preferably replaces a value that `is_cheap`, whose loss costs
    /// little, instead of growing the map.
    pub(crate) fn insert_sparing(
        &mut self,
        key: K,
        value: V,
        is_cheap: impl Fn(&V) -> bool,
    ) -> Option<V> {
        let hash = self.hasher.hash_one(&key);
        let same = |&place: &usize| self.slots[place].key == key;
        if let Some(&place) = self.places.find(hash, same) {
            let slot = &mut self.slots[place];
            slot.used = true;
            return Some(std::mem::replace(&mut slot.value, value));
        }
        if self.slots_max == 0 {
            return Some(value);
        }
        let slot = Slot {
            key,
            value,
            used: false,
        };
        let victim = if self.slots.len() >= self.slots_max {
            Some(self.next_victim())
        } else if self.slots.len() >= self.slots_few {
            self.cheap_victim(is_cheap)
        } else {
            None
        };
        let (place, evicted) = if let Some(place) = victim {
            self.forget_place(place);
            let evicted = std::mem::replace(&mut self.slots[place], slot);
            (place, Some(evicted.value))
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1, None)
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash_of = |&place: &usize| hasher.hash_one(&slots[place].key);
        self.places.insert_unique(hash, place, hash_of);
        evicted
    }

    pub(crate) fn remove<Q: Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<V> {
        let hash = self.hasher.hash_one(key);
        let same = |&place: &usize| key.equivalent(&self.slots[place].key);
        let place = *self.places.find(hash, same)?;
        Some(self.remove_at(place))
    }

    /// Removes every entry whose key is `unwanted`.
    pub(crate) fn remove_all(&mut self, unwanted: impl Fn(&K) -> bool) {
        let mut place = 0;
        while let Some(slot) = self.slots.get(place) {
            if unwanted(&slot.key) {
                self.remove_at(place);
            } else {
                place += 1;
            }
        }
    }

    /// Empties the map.
    pub(crate) fn take_all(&mut self) -> Vec<V> {
        self.places.clear();
        self.hand = 0;
        self.slots.drain(..).map(|slot| slot.value).collect()
    }

    /// The first slot from the hand on that was not used since the hand passed it. Passing a used
    /// slot clears it, so this ends within two rounds.
    fn next_victim(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[place].used) {
                return place;
            }
        }
    }

    /// One of the next slots that was not used since the hand passed it, and whose value is cheap. To
    /// the others the hand does nothing.
    fn cheap_victim(&mut self, is_cheap: impl Fn(&V) -> bool) -> Option<usize> {
        for _ in 0..LOOKS.min(self.slots.len()) {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[place];
            if is_cheap(&slot.value) && !std::mem::take(&mut slot.used) {
                return Some(place);
            }
        }
        None
    }

    fn remove_at(&mut self, place: usize) -> V {
        self.forget_place(place);
        let last = self.slots.len() - 1;
        if place != last {
            let hash = self.hasher.hash_one(&self.slots[last].key);
            let moved = self.places.find_mut(hash, |&other| other == last);
            *moved.expect("every slot has its place in the table") = place;
        }
        let removed = self.slots.swap_remove(place);
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        removed.value
    }

    fn forget_place(&mut self, place: usize) {
        let hash = self.hasher.hash_one(&self.slots[place].key);
        let entry = self.places.find_entry(hash, |&other| other == place);
        entry
            .expect("every slot has its place in the table")
            .remove();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn its_length_is_bounded_and_what_is_used_stays() {
        let mut map = SecondChanceMap::new(10);
        for key in 0..1000_u32 {
            map.insert(key, key);
            assert_eq!(map.get(&0), Some(&0), "after {key}");
            assert!(map.len() <= 10);
        }
        assert_eq!(map.take_all().len(), 10);
        assert_eq!((map.len(), map.get(&0)), (0, None));
    }

    #[test]
    fn what_was_not_used_goes_first() {
        let mut map = SecondChanceMap::new(3);
        for key in ["a", "b", "c"] {
            map.insert(key, key);
        }
        map.get(&"a");
        assert_eq!(map.insert("d", "d"), Some("b"));
        assert_eq!(map.insert("e", "e"), Some("c"));
        assert_eq!(map.insert("f", "f"), Some("a"), "its chance is used up");
    }

    #[test]
    fn what_is_cheap_makes_space_before_the_map_is_full() {
        let mut map = SecondChanceMap::sparing(10, 100);
        let insert = |map: &mut SecondChanceMap<u32, u32>, key| {
            let evicted = map.insert_sparing(key, key, |value| value % 2 == 0);
            assert!(evicted.is_none_or(|value| value % 2 == 0 || map.len() == 100));
        };
        (0..1000).for_each(|key| insert(&mut map, 2 * key));
        assert_eq!(map.len(), 10);
        assert_eq!(map.get(&1998), Some(&1998));
        (0..300).for_each(|key| {
            insert(&mut map, 2 * key + 1);
            assert_eq!(map.get(&1998), Some(&1998), "what is used stays");
        });
        assert_eq!(map.len(), 100);
    }

    #[test]
    fn a_key_has_one_value() {
        let mut map = SecondChanceMap::new(3);
        assert_eq!(map.insert(1, "one"), None);
        assert_eq!(map.insert(1, "uno"), Some("one"));
        assert_eq!((map.len(), map.get(&1)), (1, Some(&"uno")));
        assert_eq!(map.remove(&1), Some("uno"));
        assert_eq!(map.remove(&1), None);
    }

    #[test]
    fn no_slots_keep_nothing() {
        let mut map = SecondChanceMap::new(0);
        assert_eq!(map.insert(1, "one"), Some("one"));
        assert_eq!(map.get(&1), None);
    }

    #[test]
    fn it_agrees_with_a_plain_map_as_long_as_there_is_space() {
        let (mut map, mut model, mut random) = (SecondChanceMap::new(64), HashMap::new(), 1_u64);
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (key, action) = (random >> 58, random >> 32 & 7);
            match action {
                0..4 => assert_eq!(map.insert(key, random), model.insert(key, random)),
                4..6 => assert_eq!(map.get(&key), model.get(&key)),
                6 => assert_eq!(map.remove(&key), model.remove(&key)),
                _ => {
                    map.remove_all(|other| other % 16 == key % 16);
                    model.retain(|other, _| other % 16 != key % 16);
                }
            }
            assert_eq!(map.len(), model.len());
        }
    }
}
