//! Ranges of logical addresses.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranges {
    /// Where each begins, and ends.
    ends: BTreeMap<u64, u64>,
    len_bytes: u64,
}

impl Ranges {
    /// How long they are together.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// All ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    /// The ranges that end after `from`, ascending.
    pub fn since(&self, from: u64) -> impl Iterator<Item = Range<u64>> {
        self.overlapping(&(from..u64::MAX))
    }

    /// Adds a range. Returns `false`, without a change, if a part of it is there.
    pub fn add(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() || self.intersects(&range) {
            return range.is_empty();
        }
        let Range { mut start, mut end } = range;
        self.len_bytes += end - start;
        if let Some((&before, &before_end)) = self.ends.range(..start).next_back()
            && before_end == start
        {
            start = before;
        }
        if let Some(after_end) = self.ends.remove(&end) {
            end = after_end;
        }
        self.ends.insert(start, end);
        true
    }

    /// Removes a range. Returns `false`, without a change, unless all of it is there.
    pub fn remove(&mut self, range: &Range<u64>) -> bool {
        let Some((&start, &end)) = self.ends.range(..=range.start).next_back() else {
            return range.is_empty();
        };
        if end < range.end || range.is_empty() {
            return range.is_empty();
        }
        self.len_bytes -= range.end - range.start;
        self.ends.remove(&start);
        if start < range.start {
            self.ends.insert(start, range.start);
        }
        if range.end < end {
            self.ends.insert(range.end, end);
        }
        true
    }

    /// Removes what is there of a range.
    pub fn exclude(&mut self, range: &Range<u64>) {
        let parts: Vec<_> = self.overlapping(range).collect();
        for part in parts {
            let part = part.start.max(range.start)..part.end.min(range.end);
            self.remove(&part);
        }
    }

    /// Whether all of the range is there.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let before = self.ends.range(..=range.start).next_back();
        before.is_some_and(|(_, end)| *end >= range.end)
    }

    /// Whether a part of the range is there.
    #[must_use]
    pub fn intersects(&self, range: &Range<u64>) -> bool {
        self.overlapping(range).next().is_some()
    }

    fn overlapping<'r>(&'r self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'r> {
        let before = self.ends.range(..range.start).next_back();
        let first = before.filter(|(_, end)| **end > range.start);
        let rest = self.ends.range(range.start..range.end.max(range.start));
        first
            .into_iter()
            .chain(rest)
            .map(|(start, end)| *start..*end)
    }

    /// The first aligned range of this length at or after `from`.
    #[must_use]
    pub fn find(&self, from: u64, len_bytes: u64, align: u64) -> Option<Range<u64>> {
        let before = self.ends.range(..from).next_back();
        let before = before.filter(|(_, end)| **end > from);
        before
            .into_iter()
            .chain(self.ends.range(from..))
            .find_map(|(start, end)| {
                let first = (*start).max(from).checked_next_multiple_of(align)?;
                let last = first.checked_add(len_bytes)?;
                (last <= *end).then_some(first..last)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[Range<u64>]) -> Ranges {
        let mut ranges = Ranges::default();
        for range in all {
            assert!(ranges.add(range.clone()));
        }
        ranges
    }

    fn list(ranges: &Ranges) -> Vec<(u64, u64)> {
        let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert_eq!(sum, ranges.len_bytes());
        ranges
            .iter()
            .map(|range| (range.start, range.end))
            .collect()
    }

    #[test]
    fn neighbours_become_one_range() {
        let mut all = ranges(&[10..20, 30..40, 20..30]);
        assert_eq!(list(&all), [(10, 40)]);
        assert!(!all.add(39..50) && !all.add(5..11) && !all.add(15..16));
        assert!(all.add(5..10) && all.add(40..41));
        assert_eq!(list(&all), [(5, 41)]);
        assert!(all.add(50..50));
    }

    #[test]
    fn parts_are_removed() {
        let mut all = ranges(&[10..20, 30..40]);
        assert!(all.remove(&(12..15)));
        assert!(!all.remove(&(14..16)) && !all.remove(&(18..31)) && !all.remove(&(0..2)));
        assert_eq!(list(&all), [(10, 12), (15, 20), (30, 40)]);
        all.exclude(&(11..35));
        assert_eq!(list(&all), [(10, 11), (35, 40)]);
        assert!(all.remove(&(10..11)) && all.remove(&(35..40)));
        assert!(all.is_empty());
    }

    #[test]
    fn range_that_ends_before_it_begins_is_empty() {
        let all = ranges(&[10..20, 30..40]);
        let mut same = all.clone();
        let reversed = Range { start: 35, end: 15 };
        same.exclude(&reversed);
        assert!(same.remove(&reversed) && same.add(reversed));
        assert_eq!(same, all);
    }

    #[test]
    fn search_begins_at_a_hint_and_aligns() {
        let all = ranges(&[10..20, 30..47, 64..128]);
        assert_eq!(all.find(0, 8, 1), Some(10..18));
        assert_eq!(all.find(14, 8, 1), Some(30..38));
        assert_eq!(all.find(0, 8, 8), Some(32..40));
        assert_eq!(all.find(33, 16, 16), Some(64..80));
        assert_eq!(all.find(120, 16, 16), None);
    }
}
