//! A set of blocks, which takes memory only where blocks are in it.

use std::collections::HashMap;

/// Bits of a page of the set.
const PAGE_BITS: u64 = 4096;

/// A set of blocks, as bitmaps of ranges that hold some.
#[derive(Debug, Default)]
pub(super) struct BlockSet {
    pages: HashMap<u64, Box<[u64; 64]>>,
}

impl BlockSet {
    /// Adds a block; returns whether it is new.
    pub(super) fn insert(&mut self, block: u64) -> bool {
        let page = self.pages.entry(block / PAGE_BITS);
        let page = page.or_insert_with(|| Box::new([0; 64]));
        let bit = block % PAGE_BITS;
        // The index is below 64.
        let word = &mut page[usize::try_from(bit / 64).unwrap_or(0)];
        let mask = 1 << (bit % 64);
        let is_new = *word & mask == 0;
        *word |= mask;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_new_once() {
        let mut set = BlockSet::default();
        for block in [0, 63, 64, 4095, 4096, u64::MAX] {
            assert!(set.insert(block), "{block}");
        }
        assert!(!set.insert(4095) && !set.insert(u64::MAX) && set.insert(1));
    }
}
