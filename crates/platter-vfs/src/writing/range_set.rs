//! A set of numbers as ranges: blocks of a file, or bytes of it.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::{Add, Range, Sub};

/// A number that a [`RangeSet`] can hold.
pub trait RangeNumber:
    Copy + Ord + Default + Add<Output = Self> + Sub<Output = Self> + Sum<Self>
{
}

impl RangeNumber for u32 {}
impl RangeNumber for u64 {}

/// A set of numbers; those that follow each other are one entry.
///
/// # Invariants
/// Ranges are not empty, and no two of them touch. The count is the sum of their lengths.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RangeSet<N> {
    /// End by start.
    ranges: BTreeMap<N, N>,
    count: N,
}

impl<N: RangeNumber> RangeSet<N> {
    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many numbers are in it.
    #[must_use]
    pub fn count(&self) -> N {
        self.count
    }

    /// The first range that ends after `at`, from `at` on.
    #[must_use]
    pub fn next(&self, at: N) -> Option<Range<N>> {
        let before = self.ranges.range(..=at).next_back();
        let found = before.filter(|&(_, &end)| at < end);
        let found = found.or_else(|| self.ranges.range(at..).next());
        found.map(|(&start, &end)| start.max(at)..end)
    }

    /// Whether `at` is in it.
    #[must_use]
    pub fn contains(&self, at: N) -> bool {
        self.next(at).is_some_and(|range| range.start == at)
    }

    /// The parts of `range` that are in it.
    pub fn within(&self, range: Range<N>) -> impl Iterator<Item = Range<N>> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let found = self.next(at).filter(|found| found.start < range.end)?;
            at = found.end.min(range.end);
            Some(found.start..at)
        })
    }

    /// The parts of `range` that are not in it.
    pub fn gaps(&self, range: Range<N>) -> impl Iterator<Item = Range<N>> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            while at < range.end {
                let found = self.next(at).filter(|found| found.start < range.end);
                let found = found.unwrap_or(range.end..range.end);
                let gap = at..found.start;
                at = found.end;
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }

    /// Adds a range, of which parts may be in it. Returns how many numbers were not.
    pub fn insert(&mut self, range: Range<N>) -> N {
        if range.is_empty() {
            return N::default();
        }
        let new = self
            .gaps(range.clone())
            .map(|gap| gap.end - gap.start)
            .sum();
        let (mut start, mut end) = (range.start, range.end);
        // All that overlap or touch become one.
        while let Some((&first, &last)) = self.ranges.range(..=end).next_back() {
            if last < start {
                break;
            }
            self.ranges.remove(&first);
            start = start.min(first);
            end = end.max(last);
        }
        self.ranges.insert(start, end);
        self.count = self.count + new;
        new
    }

    /// Takes a range out, of which parts may be missing. Returns how many numbers were in it.
    pub fn remove(&mut self, range: Range<N>) -> N {
        let mut count = N::default();
        if range.is_empty() {
            return count;
        }
        while let Some((&start, &end)) = self.ranges.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.ranges.remove(&start);
            count = count + (end.min(range.end) - start.max(range.start));
            if range.end < end {
                self.ranges.insert(range.end, end);
            }
            if start < range.start {
                self.ranges.insert(start, range.start);
                break;
            }
        }
        self.count = self.count - count;
        count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn range_set_equals_a_set_of_numbers() {
        let mut random = 1u32;
        let mut below = |bound: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % bound
        };
        for _ in 0..300 {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for _ in 0..60 {
                let start = below(100);
                let range = start..start + below(20);
                let before = model.len();
                if below(2) == 0 {
                    model.extend(range.clone());
                    let added = set.insert(range.clone());
                    assert_eq!(added as usize, model.len() - before);
                } else {
                    model.retain(|at| !range.contains(at));
                    let removed = set.remove(range.clone());
                    assert_eq!(removed as usize, before - model.len());
                }
                let flat: BTreeSet<u32> = set.within(0..200).flatten().collect();
                assert_eq!(flat, model);
                assert_eq!(set.count() as usize, model.len());
                let gaps: Vec<u32> = set.gaps(10..90).flatten().collect();
                let expected: Vec<u32> = (10..90).filter(|at| !model.contains(at)).collect();
                assert_eq!(gaps, expected);
                let touching = set.ranges.iter().zip(set.ranges.iter().skip(1));
                assert!(
                    touching
                        .into_iter()
                        .all(|((_, end), (start, _))| end < start)
                );
                let at = below(120);
                assert_eq!(set.contains(at), model.contains(&at));
            }
        }
    }
}
