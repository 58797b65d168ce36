//! Findings about neighbouring ranges of bytes, as one line each.

use std::collections::VecDeque;

use platter_ondisk::Corruption;

use crate::Finding;

/// Ranges that may become longer: more than there are devices and copies at a time.
const OPEN_MAX: usize = 64;

/// Merges findings that follow each other on a device into one of the whole range.
#[derive(Debug, Default)]
pub struct FindingRanges(VecDeque<Range>);

/// Findings one after the other.
#[derive(Debug)]
struct Range {
    /// The first one.
    first: Finding,
    count: u64,
    len_bytes: u64,
}

impl FindingRanges {
    /// Adds a finding. Returns one that is complete, if there is one now.
    pub fn add(&mut self, finding: Finding) -> Option<Corruption> {
        let of_same = self.0.iter().position(|range| range.is_like(&finding));
        let range = of_same.and_then(|index| self.0.get_mut(index));
        if let Some(range) = range.filter(|range| range.is_followed_by(&finding)) {
            range.count = range.count.saturating_add(1);
            range.len_bytes = range.len_bytes.saturating_add(finding.len_bytes);
            return None;
        }
        let complete = match of_same {
            Some(index) => self.0.remove(index),
            None if self.0.len() >= OPEN_MAX => self.0.pop_front(),
            None => None,
        };
        self.0.push_back(Range {
            count: 1,
            len_bytes: finding.len_bytes,
            first: finding,
        });
        complete.map(Range::finish)
    }

    /// Returns those that are left, one at a time.
    pub fn next_left(&mut self) -> Option<Corruption> {
        self.0.pop_front().map(Range::finish)
    }
}

impl Range {
    /// Whether a finding is about the same copy on the same device.
    fn is_like(&self, other: &Finding) -> bool {
        let place = |finding: &Finding| {
            let parts = finding.corruption.locus.parts();
            (
                parts.member,
                parts.copy,
                parts.tree,
                parts.inode,
                parts.group,
            )
        };
        let (first, next) = (&self.first.corruption, &other.corruption);
        first.structure == next.structure
            && first.rule == next.rule
            && place(&self.first) == place(other)
    }

    /// Whether a finding that is like it begins where it ends.
    fn is_followed_by(&self, next: &Finding) -> bool {
        let ends = |place: Option<u64>| place.map(|it| it.saturating_add(self.len_bytes));
        let first = self.first.corruption.locus.parts();
        let next_parts = next.corruption.locus.parts();
        self.len_bytes > 0
            && next.len_bytes > 0
            && ends(first.block) == next_parts.block
            && ends(first.offset) == next_parts.offset
    }

    fn finish(self) -> Corruption {
        let Self {
            first,
            count,
            len_bytes,
        } = self;
        let corruption = first.corruption;
        if count == 1 {
            return corruption;
        }
        let rule = format!("{} ({count} times in {len_bytes} bytes)", corruption.rule);
        Corruption::new(corruption.structure, corruption.locus, rule)
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::Locus;

    use super::*;

    fn found(device: u64, at: u64, rule: &'static str) -> Finding {
        let locus = Locus::block(at + (1 << 30)).on_member(device).at_offset(at);
        Finding::error(Corruption::new("data", locus, rule)).of_length(4096)
    }

    #[test]
    fn findings_that_follow_each_other_are_one() {
        let mut ranges = FindingRanges::default();
        let mut lines = Vec::new();
        for index in 0..1000 {
            for device in [1, 2] {
                lines.extend(ranges.add(found(device, index * 4096, "is bad")));
            }
        }
        // Not where it ends, and something else there.
        lines.extend(ranges.add(found(1, 1001 * 4096, "is bad")));
        lines.extend(ranges.add(found(1, 1002 * 4096, "is gone")));
        let none = Finding::error(Corruption::new("superblock", Locus::UNKNOWN, "is old"));
        lines.extend(ranges.add(none.clone()));
        lines.extend(ranges.add(none));
        lines.extend(std::iter::from_fn(|| ranges.next_left()));
        let rules: Vec<_> = lines.iter().map(|line| &*line.rule).collect();
        let merged = "is bad (1000 times in 4096000 bytes)";
        let expected = [merged, "is old", merged, "is bad", "is gone", "is old"];
        assert_eq!(rules, expected);
        assert_eq!(lines[0].locus.parts().member, Some(1));
        assert_eq!(lines[0].locus.parts().offset, Some(0));
        assert_eq!(lines[3].locus.parts().offset, Some(1001 * 4096));
    }
}
