//! Chunks of a buffer: what of it a log item holds. Spec: `xfs/journaling_log`, "Buffer Log Item".

use std::ops::Range;

/// `XFS_BLF_CHUNK`: bytes of a buffer that one bit of the map stands for.
pub const CHUNK_BYTES: usize = 128;
/// Bytes of a buffer that one word of the map stands for.
const WORD_BYTES: usize = 64 * CHUNK_BYTES;

/// Chunks of a buffer of up to 64 KiB, of [`CHUNK_BYTES`] each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chunks([u64; 8]);

impl Chunks {
    /// All chunks.
    pub const ALL: Self = Self([u64::MAX; 8]);

    /// The chunks of a new version of a buffer that are logged: those among `within`, in which it was changed, or where
    /// that says nothing, those in which it differs from an earlier version; all of it without one.
    #[must_use]
    pub fn logged(before: Option<&[u8]>, after: &[u8], within: Self) -> Self {
        if before.is_none() || within == Self::ALL {
            return Self::between(before, after, within);
        }
        // That nothing else differs is asserted there.
        debug_assert!(Self::between(before, after, within).count().0 <= within.count().0);
        debug_assert!(
            within
                .indices()
                .all(|index| index < after.len().div_ceil(CHUNK_BYTES)),
            "what was changed lies within the buffer"
        );
        within
    }

    /// The chunks among `within` in which two versions of a buffer differ; all of it without an earlier one. The
    /// versions are the same in all others.
    #[must_use]
    pub fn between(before: Option<&[u8]>, after: &[u8], within: Self) -> Self {
        let mut chunks = Self::default();
        let Some(before) = before else {
            chunks.add_bytes(0..after.len());
            return chunks;
        };
        let differs = |start: usize| {
            let chunk = start..start.saturating_add(CHUNK_BYTES).min(after.len());
            before.get(chunk.clone()) != after.get(chunk)
        };
        let mut first = 0_usize;
        for (found, &word) in chunks.0.iter_mut().zip(&within.0) {
            if first >= after.len() {
                break;
            }
            let mut left = word;
            while left != 0 {
                let index = usize::try_from(left.trailing_zeros()).unwrap_or_default();
                let rest = left & left.wrapping_sub(1);
                let start = first.saturating_add(index.saturating_mul(CHUNK_BYTES));
                if start >= after.len() {
                    break;
                }
                if differs(start) {
                    // The bit of the chunk.
                    *found |= left ^ rest;
                }
                left = rest;
            }
            first = first.saturating_add(WORD_BYTES);
        }
        debug_assert!(
            (0..after.len().div_ceil(CHUNK_BYTES))
                .all(|index| within.has(index) || !differs(index.saturating_mul(CHUNK_BYTES))),
            "a chunk was changed that is not said to be"
        );
        chunks
    }

    /// Adds the chunks that hold some of these bytes.
    pub fn add_bytes(&mut self, bytes: Range<usize>) {
        if !bytes.is_empty() {
            let last = bytes.end.saturating_sub(1).div_euclid(CHUNK_BYTES);
            (bytes.start.div_euclid(CHUNK_BYTES)..=last).for_each(|index| self.set(index));
        }
    }

    /// Adds the chunks of another set.
    pub fn add(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn set(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index.div_euclid(64)) {
            *word |= 1 << index.rem_euclid(64);
        }
    }

    fn has(&self, index: usize) -> bool {
        let word = self.0.get(index.div_euclid(64)).copied();
        word.unwrap_or_default() & (1 << index.rem_euclid(64)) != 0
    }

    /// How many there are, and how many runs of neighbours.
    #[must_use]
    pub fn count(self) -> (u64, u64) {
        let (mut chunks, mut runs, mut carry) = (0_u32, 0_u32, 0);
        for word in self.0 {
            // Most words are zero, and not all processors count bits with one instruction.
            if word == 0 {
                carry = 0;
                continue;
            }
            let begins = word & !(word << 1 | carry);
            chunks = chunks.saturating_add(word.count_ones());
            runs = runs.saturating_add(begins.count_ones());
            carry = word >> 63;
        }
        (chunks.into(), runs.into())
    }

    /// Their numbers, ascending.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        let words = (0_usize..).zip(self.0);
        words.flat_map(|(place, mut word)| {
            std::iter::from_fn(move || {
                let bit = usize::try_from(word.trailing_zeros()).ok()?;
                let next = word.checked_sub(1)?;
                word &= next;
                Some(place.saturating_mul(64).saturating_add(bit))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_bytes_are_those_that_hold_some() {
        let of = |bytes| {
            let mut chunks = Chunks::default();
            chunks.add_bytes(bytes);
            chunks.indices().collect::<Vec<_>>()
        };
        assert_eq!(of(5..5), [0; 0]);
        assert_eq!(of(127..129), [0, 1]);
        assert_eq!(of(256..384), [2]);
        assert_eq!(of(0..65536).len(), 512);
    }

    #[test]
    fn chunks_that_differ_are_found_within_others() {
        let before = vec![0; 4096];
        let mut after = before.clone();
        assert!(Chunks::between(Some(&before), &after, Chunks::ALL).is_empty());
        after[130] = 1;
        after[4095] = 1;
        let found = Chunks::between(Some(&before), &after, Chunks::ALL);
        assert_eq!(found.indices().collect::<Vec<_>>(), [1, 31]);
        let mut within = Chunks::default();
        within.add_bytes(100..300);
        within.add_bytes(4000..4096);
        assert_eq!(Chunks::between(Some(&before), &after, within), found);
        let all = Chunks::between(None, &after, Chunks::default());
        assert_eq!(all.count(), (32, 1));
    }

    #[test]
    fn chunks_that_are_said_to_be_changed_are_logged() {
        let before = vec![0; 4096];
        let mut after = before.clone();
        after[130] = 1;
        let mut within = Chunks::default();
        within.add_bytes(100..300);
        assert_eq!(Chunks::logged(Some(&before), &after, within), within);
        let all = Chunks::logged(Some(&before), &after, Chunks::ALL);
        assert_eq!(all.indices().collect::<Vec<_>>(), [1]);
        let new = Chunks::logged(None, &after, Chunks::ALL);
        assert_eq!(new.count(), (32, 1));
        let none = Chunks::logged(Some(&before), &before, Chunks::default());
        assert!(none.is_empty());
    }

    #[test]
    fn chunks_that_differ_are_found_in_buffers_of_all_lengths() {
        for len in [512, 4096, 8192, 16384, 65536] {
            let before = vec![0; len];
            let mut after = before.clone();
            let mut expected = Chunks::default();
            for at in [0, 130, len / 2 + 1, len - 1] {
                after[at] = 1;
                expected.add_bytes(at..at + 1);
            }
            let found = Chunks::between(Some(&before), &after, Chunks::ALL);
            assert_eq!(found, expected, "{len}");
            assert_eq!(Chunks::between(Some(&before), &after, expected), expected);
        }
    }
}
