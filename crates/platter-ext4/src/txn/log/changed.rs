//! The blocks that a handle changed.

use std::collections::BTreeSet;

/// So many have their place in the handle: most operations change no more.
const FEW: usize = 8;

/// A set of block numbers, of which a few take no memory of their own.
#[derive(Debug, Default)]
pub(super) struct Changed {
    few: [u64; FEW],
    len: usize,
    /// Those beyond the few.
    more: BTreeSet<u64>,
}

impl Changed {
    /// Takes a block in; `false` if it was there.
    pub(super) fn insert(&mut self, block: u64) -> bool {
        let (few, free) = self.few.split_at_mut(self.len);
        if few.contains(&block) {
            return false;
        }
        let Some(place) = free.first_mut() else {
            return self.more.insert(block);
        };
        *place = block;
        self.len += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_taken_in_once_be_they_few_or_many() {
        let mut changed = Changed::default();
        let blocks = || (0..3 * FEW as u64).rev();
        assert!(blocks().all(|block| changed.insert(block)));
        assert!(blocks().all(|block| !changed.insert(block)));
        assert!(changed.insert(u64::MAX) && !changed.insert(u64::MAX));
    }
}
