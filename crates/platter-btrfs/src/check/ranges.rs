//! Sets of logical addresses as runs in order.

use std::ops::Range;

/// Runs that do not touch, in ascending order.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    runs: Vec<Range<u64>>,
    /// The number of bytes in the runs before each one, since they were last sorted.
    before: Vec<u64>,
    /// Some runs were added out of order.
    is_unsorted: bool,
}

impl Ranges {
    /// Adds a run. Runs in ascending order are merged at once; after others, [`sort`](Self::sort) is due.
    pub(super) fn add(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        match self.runs.last_mut() {
            Some(last) if run.start == last.end => last.end = run.end,
            Some(last) if run.start < last.end => {
                self.is_unsorted = true;
                self.runs.push(run);
            }
            Some(_) | None => self.runs.push(run),
        }
    }

    /// Puts the runs in order and merges those that touch or overlap.
    pub(super) fn sort(&mut self) {
        if std::mem::take(&mut self.is_unsorted) {
            self.runs.sort_by_key(|run| run.start);
            self.runs.dedup_by(|next, last| {
                let touches = next.start <= last.end;
                if touches {
                    last.end = last.end.max(next.end);
                }
                touches
            });
        }
        let sums = self.runs.iter().scan(0, |sum, run| {
            let before = *sum;
            *sum += run.end - run.start;
            Some(before)
        });
        self.before = sums.collect();
    }

    /// All runs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.runs.iter()
    }

    /// How many bytes of `range` are in the set, in a time that depends little on how many runs it covers. What
    /// was added after the last [`sort`](Self::sort) does not count.
    pub(super) fn overlap(&self, range: &Range<u64>) -> u64 {
        let below = |at: u64| {
            let count = self.runs.partition_point(|run| run.start < at);
            let last = self.runs.get(..count).and_then(<[_]>::last);
            let before = count
                .checked_sub(1)
                .and_then(|index| self.before.get(index));
            match (last, before) {
                (Some(run), Some(before)) => before + run.end.min(at) - run.start,
                _ => 0,
            }
        };
        below(range.end).saturating_sub(below(range.start))
    }

    /// The first part of `range` that is not in the set.
    pub(super) fn first_missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        let first = self.runs.partition_point(|run| run.end <= at);
        for run in self.runs.get(first..).unwrap_or_default() {
            if run.start > at {
                return Some(at..run.start.min(range.end)).filter(|gap| !gap.is_empty());
            }
            at = run.end;
            if at >= range.end {
                return None;
            }
        }
        (at < range.end).then_some(at..range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_merged_in_any_order() {
        let mut ranges = Ranges::default();
        for run in [10..20, 20..30, 50..60, 5..12, 58..70, 0..0] {
            ranges.add(run);
        }
        ranges.sort();
        assert_eq!(ranges.iter().cloned().collect::<Vec<_>>(), [5..30, 50..70]);
        assert_eq!(ranges.overlap(&(0..100)), 45);
        assert_eq!(ranges.overlap(&(29..51)), 2);
        for (range, expected) in [(0..5, 0), (0..6, 1), (30..50, 0), (60..90, 10), (7..7, 0)] {
            assert_eq!(ranges.overlap(&range), expected, "{range:?}");
        }
        assert_eq!(ranges.first_missing(&(6..30)), None);
        assert_eq!(ranges.first_missing(&(6..31)), Some(30..31));
        assert_eq!(ranges.first_missing(&(6..55)), Some(30..50));
        assert_eq!(ranges.first_missing(&(80..90)), Some(80..90));
        assert_eq!(ranges.first_missing(&(0..6)), Some(0..5));
    }
}
