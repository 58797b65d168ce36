//! A map for few entries, sorted in one allocation.

/// Entries that there is space for from the first on: as many as most changes touch.
const FIRST_ENTRIES: usize = 8;

/// Entries in the order of their keys.
///
/// Faster than a tree for what one change touches; insertion before others moves them.
#[derive(Debug)]
pub(crate) struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord + Copy, V> SortedMap<K, V> {
    fn find(&self, key: K) -> Result<usize, usize> {
        // Most keys are greater than all others, or among a few.
        match self.0.last() {
            Some((last, _)) if *last >= key => self.0.binary_search_by_key(&key, |(key, _)| *key),
            Some(_) | None => Err(self.0.len()),
        }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let at = self.find(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// The value of a key, to be changed.
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Whether a key has a value.
    pub(crate) fn contains_key(&self, key: K) -> bool {
        self.find(key).is_ok()
    }

    /// The value of a key, which is made if it has none.
    pub(crate) fn get_or_try_insert_with<E>(
        &mut self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&mut V, E> {
        let at = match self.find(key) {
            Ok(at) => at,
            Err(at) => {
                let value = make()?;
                self.insert_at(at, (key, value));
                at
            }
        };
        Ok(&mut self.0[at].1)
    }

    /// Stores the value of a key. Returns the one before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.insert_at(at, (key, value));
                None
            }
        }
    }

    fn insert_at(&mut self, at: usize, entry: (K, V)) {
        if self.0.capacity() == 0 {
            self.0 = Vec::with_capacity(FIRST_ENTRIES);
        }
        self.0.insert(at, entry);
    }

    /// Takes the value of a key.
    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// The greatest key.
    pub(crate) fn last_key(&self) -> Option<K> {
        self.0.last().map(|(key, _)| *key)
    }

    /// How many keys have values.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys, ascending.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.0.iter().map(|(key, _)| *key)
    }

    /// The values by ascending keys.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Takes all entries, ascending.
    pub(crate) fn take(&mut self) -> Vec<(K, V)> {
        std::mem::take(&mut self.0)
    }

    /// Puts entries back that were [taken](Self::take).
    pub(crate) fn put_back(&mut self, entries: Vec<(K, V)>) {
        self.0 = entries;
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn map_holds_what_a_tree_holds() {
        let (mut map, mut tree) = (SortedMap::default(), BTreeMap::new());
        let mut number = 1_u32;
        for step in 0..4000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = number >> 26;
            match number >> 8 & 3 {
                0 => assert_eq!(map.remove(key), tree.remove(&key)),
                1 => assert_eq!(map.insert(key, step), tree.insert(key, step)),
                2 => {
                    let made = map.get_or_try_insert_with(key, || Ok::<_, ()>(step));
                    assert_eq!(made.unwrap(), tree.entry(key).or_insert(step));
                }
                _ => {
                    let failed = map.get_or_try_insert_with(key, || Err(()));
                    assert_eq!(failed.ok(), tree.get_mut(&key));
                }
            }
            assert_eq!(map.get(key), tree.get(&key));
            assert_eq!(map.contains_key(key), tree.contains_key(&key));
            assert_eq!(map.last_key(), tree.keys().next_back().copied());
            assert!(map.keys().eq(tree.keys().copied()) && map.values().eq(tree.values()));
        }
        assert!(map.take().into_iter().eq(tree) && map.is_empty());
    }
}
