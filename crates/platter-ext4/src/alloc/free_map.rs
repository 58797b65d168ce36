//! A buddy bitmap of the free clusters of a group.
//!
//! Level `k` has a bit for each aligned chunk of `2^k` clusters, set while all of them are free. So
//! a free chunk of any size is found without searching its clusters.

use std::ops::Range;

/// The free clusters of one group.
///
/// # Invariants
/// Bit `i` of level `k + 1` is the conjunction of bits `2 i` and `2 i + 1` of level `k`, and `set`
/// counts the bits of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FreeMap {
    clusters: u32,
    levels: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Level {
    words: Box<[u64]>,
    set: u32,
}

impl FreeMap {
    /// Creates the map of a group of `clusters` clusters; those whose bit in `taken` is set are not
    /// free.
    pub(super) fn new(taken: &[u8], clusters: u32) -> Self {
        let mut levels = Vec::new();
        let mut chunks = clusters;
        while chunks > 0 {
            levels.push(Level {
                words: vec![0; chunks.div_ceil(64) as usize].into(),
                set: 0,
            });
            chunks /= 2;
        }
        let mut map = Self { clusters, levels };
        let Some(lowest) = map.levels.first_mut() else {
            return map;
        };
        for (word, bytes) in lowest.words.iter_mut().zip(taken.chunks(8)) {
            let mut eight = [0xff; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = !u64::from_le_bytes(eight);
        }
        if let Some(last) = lowest.words.last_mut() {
            *last &= u64::MAX >> ((64 - clusters % 64) % 64);
        }
        lowest.set = lowest.words.iter().map(|word| word.count_ones()).sum();
        map.propagate(0..clusters);
        map
    }

    /// Marks the clusters of `range` as free, or not. Those after the last are never free.
    pub(super) fn assign(&mut self, range: Range<u32>, is_free: bool) {
        let range = range.start..range.end.min(self.clusters);
        if range.is_empty() {
            return;
        }
        let Some(lowest) = self.levels.first_mut() else {
            return;
        };
        for (index, mask) in masks(&range) {
            let word = &mut lowest.words[index];
            let before = word.count_ones();
            *word = if is_free { *word | mask } else { *word & !mask };
            lowest.set = lowest.set - before + word.count_ones();
        }
        self.propagate(range);
    }

    /// Updates the levels above the lowest after a change of `range` there.
    fn propagate(&mut self, range: Range<u32>) {
        let (mut first, mut last) = (range.start, range.end - 1);
        for upper in 1..self.levels.len() {
            (first, last) = (first / 2, last / 2);
            let (below, above) = self.levels.split_at_mut(upper);
            let (lower, level) = (&below[upper - 1].words, &mut above[0]);
            let words = first as usize / 64..=last as usize / 64;
            // A partial last chunk may have no bit.
            let len = level.words.len();
            for index in words.take_while(|&index| index < len) {
                let low = lower.get(2 * index).copied().unwrap_or(0);
                let high = lower.get(2 * index + 1).copied().unwrap_or(0);
                let word = pairs(low) | pairs(high) << 32;
                let before = std::mem::replace(&mut level.words[index], word);
                level.set = level.set - before.count_ones() + word.count_ones();
            }
        }
    }

    /// Returns the number of free clusters.
    pub(super) fn free(&self) -> u32 {
        self.levels.first().map_or(0, |level| level.set)
    }

    /// Returns the binary logarithm of the largest aligned free chunk.
    pub(super) fn order(&self) -> Option<u32> {
        let order = self.levels.iter().rposition(|level| level.set > 0)?;
        u32::try_from(order).ok()
    }

    /// Whether all clusters of `range` are free.
    pub(super) fn is_free(&self, range: Range<u32>) -> bool {
        self.run_end(range.start, range.end) == range.end
    }

    /// Returns the end of the run of free clusters that begins with `start`, at most `limit`;
    /// `start` itself if it is not free.
    pub(super) fn run_end(&self, start: u32, limit: u32) -> u32 {
        let Some(lowest) = self.levels.first() else {
            return start;
        };
        let mut at = start;
        while at < limit {
            let Some(word) = lowest.words.get(at as usize / 64) else {
                break;
            };
            let run = (!(word >> (at % 64))).trailing_zeros().min(64 - at % 64);
            at += run;
            if run == 0 || !at.is_multiple_of(64) {
                break;
            }
        }
        at.min(limit).max(start)
    }

    /// Returns the start of the run of free clusters that ends with `last`.
    fn run_start(&self, last: u32) -> u32 {
        let Some(lowest) = self.levels.first() else {
            return last;
        };
        let mut end = last + 1;
        while end > 0 {
            let index = (end - 1) as usize / 64;
            let in_word = (end - 1) % 64 + 1;
            let word = lowest.words[index] << (64 - in_word);
            let run = (!word).leading_zeros().min(in_word);
            end -= run;
            if run < in_word {
                break;
            }
        }
        end
    }

    /// Returns the first `need` contiguous free clusters at or after `from`.
    pub(super) fn first_run(&self, from: u32, need: u32) -> Option<Range<u32>> {
        let clusters = self.clusters;
        // Such a run contains an aligned chunk of at least this order.
        let order = need.div_ceil(2).max(1).ilog2();
        let level = self.levels.get(order as usize)?;
        let mut chunk = from >> order;
        while let Some(found) = level.next_set(chunk) {
            let inside = found << order;
            let start = self.run_start(inside).max(from);
            let wanted = start.saturating_add(need);
            let end = self.run_end(inside, wanted.min(clusters));
            if end >= wanted {
                return Some(start..end);
            }
            // A chunk before `from` may be set in a run that ends there.
            chunk = (end >> order).max(found + 1);
        }
        None
    }

    /// Returns the longest free run; the first of several.
    pub(super) fn longest_run(&self) -> Option<Range<u32>> {
        // A run longer than the largest chunk contains one at least half as large.
        let order = self.order()?.saturating_sub(1);
        let level = self.levels.get(order as usize)?;
        let clusters = self.clusters;
        let mut longest = 0..0;
        let mut chunk = 0;
        while let Some(found) = level.next_set(chunk) {
            let run = self.run_start(found << order)..self.run_end(found << order, clusters);
            chunk = (run.end >> order).max(found + 1);
            if run.len() > longest.len() {
                longest = run;
            }
        }
        (!longest.is_empty()).then_some(longest)
    }
}

impl Level {
    /// Returns the first set bit at or after `from`.
    fn next_set(&self, from: u32) -> Option<u32> {
        let mut index = from as usize / 64;
        let mut word = self.words.get(index)? & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            word = *self.words.get(index)?;
        }
        u32::try_from(index * 64)
            .ok()?
            .checked_add(word.trailing_zeros())
    }
}

/// Returns the words that hold the bits of `range`, each with the mask of those bits.
fn masks(range: &Range<u32>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let (start, end) = (range.start, range.end);
    (start / 64..end.div_ceil(64)).map(move |index| {
        let low = start.saturating_sub(index * 64).min(63);
        let high = (end - index * 64).min(64);
        let mask = (u64::MAX << low) & (u64::MAX >> (64 - high));
        (index as usize, mask)
    })
}

/// Sets bit `i` of the lower half if bits `2 i` and `2 i + 1` of `word` are set.
fn pairs(word: u64) -> u64 {
    let mut bits = word & (word >> 1) & 0x5555_5555_5555_5555;
    bits = (bits | bits >> 1) & 0x3333_3333_3333_3333;
    bits = (bits | bits >> 2) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits >> 4) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits >> 8) & 0x0000_ffff_0000_ffff;
    (bits | bits >> 16) & 0x0000_0000_ffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reproducible sequence of numbers.
    fn numbers(mut state: u64) -> impl FnMut(u32) -> u32 {
        move |bound| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            u32::try_from((state >> 33) % u64::from(bound)).unwrap()
        }
    }

    /// Returns the free runs of a plain list.
    fn runs(free: &[bool]) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (index, _) in (0u32..).zip(free).filter(|(_, is_free)| **is_free) {
            match runs.last_mut() {
                Some(run) if run.end == index => run.end += 1,
                _ => runs.push(index..index + 1),
            }
        }
        runs
    }

    #[test]
    fn free_map_agrees_with_a_plain_list() {
        for clusters in [1, 63, 64, 65, 200, 1000, 1024] {
            let mut random = numbers(u64::from(clusters));
            let mut free = vec![true; clusters as usize];
            let mut map = FreeMap::new(&[], clusters);
            map.assign(0..clusters, true);
            for step in 0..600 {
                let start = random(clusters);
                let end = start + 1 + random((clusters - start).min(40));
                let is_free = random(3) == 0;
                free[start as usize..end.min(clusters) as usize].fill(is_free);
                map.assign(start..end, is_free);
                let runs = runs(&free);
                assert_eq!(
                    map.free() as usize,
                    free.iter().filter(|free| **free).count()
                );
                let from = random(clusters);
                let need = 1 + random(9);
                let clipped = |run: &Range<u32>| run.start.max(from)..run.end.max(from);
                let first = runs
                    .iter()
                    .map(clipped)
                    .find(|run| run.len() >= need as usize);
                let first = first.map(|run| run.start..run.start + need);
                assert_eq!(map.first_run(from, need), first, "step {step}");
                let longest = runs.iter().map(ExactSizeIterator::len).max();
                assert_eq!(map.longest_run().map(|run| run.len()), longest);
                let chunk = |order: u32, index: u32| {
                    let chunk = (index << order) as usize..((index + 1) << order) as usize;
                    free.get(chunk)
                        .is_some_and(|chunk| chunk.iter().all(|free| *free))
                };
                let order = (0..11)
                    .rev()
                    .find(|&order| (0..clusters >> order).any(|index| chunk(order, index)));
                assert_eq!(map.order(), order);
            }
            let mut taken = vec![0; clusters.div_ceil(8) as usize];
            for (index, _) in free.iter().enumerate().filter(|(_, free)| !**free) {
                taken[index / 8] |= 1 << (index % 8);
            }
            assert_eq!(FreeMap::new(&taken, clusters), map);
        }
    }

    #[test]
    fn run_ends_at_the_limit() {
        let map = FreeMap::new(&[0; 128], 1024);
        assert_eq!(map.run_end(100, 612), 612);
        assert_eq!(map.run_end(100, 5000), 1024);
        assert!(map.is_free(0..1024));
        let map = FreeMap::new(&[0x10; 128], 1024);
        assert_eq!(map.run_end(4, 8), 4);
        assert_eq!(map.run_end(5, 64), 12);
    }

    #[test]
    fn group_without_clusters_has_none_free() {
        let map = FreeMap::new(&[], 0);
        assert_eq!((map.free(), map.order()), (0, None));
        assert_eq!(map.first_run(0, 1), None);
        assert_eq!(map.longest_run(), None);
    }
}
