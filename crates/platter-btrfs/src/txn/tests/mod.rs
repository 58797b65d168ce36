//! Transactions that change items: `btrfs check` finds each commit right, and the kernel reads what was
//! written.

pub(crate) mod concurrent;
pub(crate) mod crash;
pub(crate) mod files;
mod groups;
pub(crate) mod image;
mod live;
pub(crate) mod locations;
pub(crate) mod quotas;
mod rules;
mod space;
pub(crate) mod unblocked;
mod xattrs;

/// A sequence of numbers (`SplitMix64`).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
