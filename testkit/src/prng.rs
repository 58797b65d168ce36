//! A small generator of reproducible numbers and bytes (`SplitMix64`).

/// A sequence that its seed repeats.
#[derive(Debug, Clone)]
pub struct Prng(u64);

impl Prng {
    /// The sequence of a number.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of a name.
    #[must_use]
    pub fn named(name: &[u8]) -> Self {
        let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.iter().fold(0xcbf2_9ce4_8422_2325, fold))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// That many bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next_u64().to_be_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}
