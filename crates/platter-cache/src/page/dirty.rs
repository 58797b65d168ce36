//! Which pages of a folio were written to since they last reached the file.

use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};
use crate::xarray::Order;

/// Bits in a word.
const WORD_BITS: u32 = u64::BITS;
/// Words that are kept: a bit for each page of the largest folio that reading ahead makes.
const WORDS: usize = 2;

/// A set of pages, in groups of a power of two where the folio is very large.
///
/// Pages are added under the content's exclusive lock; a writeback, which keeps the content locked
/// until its request is done, looks at them and removes them.
#[derive(Debug)]
pub(super) struct DirtyPages {
    words: [AtomicU64; WORDS],
    /// Pages of the folio.
    pages: u32,
    /// Pages per bit, as a power of two.
    group: u32,
}

impl DirtyPages {
    /// None of a folio of this order.
    pub(super) fn none(order: Order) -> Self {
        let pages = 1 << order.get();
        let bits = WORD_BITS * u32::try_from(WORDS).unwrap_or(u32::MAX);
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            pages,
            group: (pages / bits).max(1).trailing_zeros(),
        }
    }

    /// Adds pages, with those that share a bit with them.
    pub(super) fn add(&self, pages: Range<u32>) {
        let bits = pages.start >> self.group..pages.end.div_ceil(1 << self.group);
        for (word, mask) in self.masks(bits) {
            word.fetch_or(mask, Ordering::SeqCst);
        }
    }

    /// Removes pages; those that share a bit with others stay.
    pub(super) fn remove(&self, pages: Range<u32>) {
        let bits = pages.start.div_ceil(1 << self.group)..pages.end >> self.group;
        for (word, mask) in self.masks(bits) {
            word.fetch_and(!mask, Ordering::SeqCst);
        }
    }

    /// The pages, as ranges in order that do not touch.
    pub(super) fn runs(&self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (first, word) in (0..).step_by(WORD_BITS as usize).zip(&self.words) {
            let mut word = word.load(Ordering::SeqCst);
            while word != 0 {
                let bit = first + word.trailing_zeros();
                word &= word - 1;
                let start = bit << self.group;
                let end = start + (1 << self.group);
                match runs.last_mut() {
                    Some(run) if run.end == start => run.end = end,
                    _ => runs.push(start..end),
                }
            }
        }
        runs
    }

    /// All pages of the folio.
    pub(super) fn all(&self) -> Range<u32> {
        0..self.pages
    }

    /// What to set or clear in each word for a range of bits.
    fn masks(&self, bits: Range<u32>) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let words = (0..).step_by(WORD_BITS as usize).zip(&self.words);
        words.filter_map(move |(first, word)| {
            let start = bits.start.max(first) - first;
            let end = bits.end.min(first + WORD_BITS).checked_sub(first)?;
            let count = end.checked_sub(start).filter(|&count| count > 0)?;
            Some((word, (u64::MAX >> (WORD_BITS - count)) << start))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(order: u8) -> DirtyPages {
        DirtyPages::none(Order::new(order).unwrap())
    }

    fn one(run: Range<u32>) -> Vec<Range<u32>> {
        std::iter::once(run).collect()
    }

    #[test]
    fn pages_are_kept_one_by_one() {
        let dirty = none(7);
        assert_eq!(dirty.all(), 0..128);
        assert!(dirty.runs().is_empty());
        for pages in [3..5, 60..70, 70..71, 127..128, 9..9] {
            dirty.add(pages);
        }
        assert_eq!(dirty.runs(), [3..5, 60..71, 127..128]);
        dirty.remove(62..66);
        dirty.remove(3..4);
        assert_eq!(dirty.runs(), [4..5, 60..62, 66..71, 127..128]);
        dirty.remove(dirty.all());
        assert!(dirty.runs().is_empty());
        dirty.add(0..128);
        assert_eq!(dirty.runs(), one(dirty.all()));
    }

    #[test]
    fn pages_of_a_very_large_folio_are_kept_in_groups() {
        let dirty = none(9);
        dirty.add(5..6);
        dirty.add(510..512);
        assert_eq!(dirty.runs(), [4..8, 508..512]);
        dirty.remove(5..512);
        assert_eq!(
            dirty.runs(),
            one(4..8),
            "the rest of the group is still dirty"
        );
    }

    #[test]
    fn folio_of_one_page_has_one_bit() {
        let dirty = none(0);
        dirty.add(0..1);
        assert_eq!(dirty.runs(), one(0..1));
    }
}
