//! Reproducible pseudo-random numbers: the `SplitMix64` sequence.

/// The increment of the sequence, and the mixing of one number.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded pseudo-random number generator.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `sides`, which is not zero.
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }
}

/// Returns a bit that depends only on seed and `place`, in any order of calls.
pub(super) fn coin(seed: u64, place: u64) -> bool {
    Dice::new(seed ^ place.wrapping_mul(STEP)).next() & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_splitmix64() {
        let mut dice = Dice::new(1_234_567);
        assert_eq!(dice.next(), 6_457_827_717_110_365_317);
        assert_eq!(dice.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn coin_returns_both_values() {
        let heads = (0..1000).filter(|&place| coin(7, place)).count();
        assert!((400..600).contains(&heads), "{heads}");
    }
}
