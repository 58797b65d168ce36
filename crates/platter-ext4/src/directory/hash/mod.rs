//! The hashes of indexed directories: legacy, half MD4 and TEA, each over signed or unsigned bytes.
//! Spec: `ext4/directory` (hash tree directories), RFC 1320, Wheeler and Needham's TEA.

/// The hash algorithms, by their number in the directory's root or the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// 0: a multiplicative hash without a seed.
    Legacy,
    /// 1: MD4 with eight steps a round instead of sixteen.
    HalfMd4,
    /// 2: the Tiny Encryption Algorithm in a chain.
    Tea,
}

/// The hash version of a directory or a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashVersion {
    /// The algorithm.
    pub algorithm: HashAlgorithm,
    /// Whether bytes above 0x7f are unsigned: a property of the machine that made the filesystem,
    /// stored in `s_flags`.
    pub unsigned: bool,
}

/// `s_hash_seed`; all zeros selects MD4's initial state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HashSeed(pub [u32; 4]);

/// The hash of a name. A directory is ordered by these pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NameHash {
    /// The hash in the index. The lowest bit is always clear, since the index uses it to mark a
    /// block that continues the last hash of its predecessor.
    pub major: u32,
    /// Orders names with the same major hash; 0 with the legacy algorithm.
    pub minor: u32,
}

/// MD4's initial state (RFC 1320, 3.3).
const INITIAL_STATE: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
/// The major hash reserved for the end of a directory.
const END_OF_DIRECTORY: u32 = 0xffff_fffe;

impl HashVersion {
    /// Returns the version for `number` in a directory's root; `None` for unknown ones. `unsigned`
    /// is the filesystem's flag.
    #[must_use]
    pub fn of_directory(number: u8, unsigned: bool) -> Option<Self> {
        let algorithm = match number {
            0 => HashAlgorithm::Legacy,
            1 => HashAlgorithm::HalfMd4,
            2 => HashAlgorithm::Tea,
            _ => return None,
        };
        Some(Self {
            algorithm,
            unsigned,
        })
    }

    /// Returns the version for `number` in the superblock, where 3 to 5 are the unsigned forms of 0
    /// to 2; `None` for unknown ones.
    #[must_use]
    pub fn of_superblock(number: u8, unsigned: bool) -> Option<Self> {
        match number.checked_sub(3) {
            Some(base) => Self::of_directory(base, true),
            None => Self::of_directory(number, unsigned),
        }
    }

    /// Returns the hash of `name`, casefolded by the caller if the directory is.
    #[must_use]
    pub fn hash(self, seed: HashSeed, name: &[u8]) -> NameHash {
        let state = if seed.0 == [0; 4] {
            INITIAL_STATE
        } else {
            seed.0
        };
        let (major, minor) = match self.algorithm {
            HashAlgorithm::Legacy => (self.legacy(name), 0),
            HashAlgorithm::HalfMd4 => {
                let state = self.chain(name, state, half_md4);
                (state[1], state[2])
            }
            HashAlgorithm::Tea => {
                let state = self.chain(name, state, tea);
                (state[0], state[1])
            }
        };
        let major = match major & !1 {
            END_OF_DIRECTORY => END_OF_DIRECTORY - 2,
            major => major,
        };
        NameHash { major, minor }
    }

    /// Converts a byte to 32-bit two's complement.
    fn widen(self, byte: u8) -> u32 {
        if self.unsigned {
            u32::from(byte)
        } else {
            i32::from(byte.cast_signed()).cast_unsigned()
        }
    }

    fn legacy(self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &byte in name {
            let sum = before.wrapping_add(last ^ self.widen(byte).wrapping_mul(0x006d_22f5));
            let folded = if sum >> 31 == 1 {
                sum.wrapping_sub(0x7fff_ffff)
            } else {
                sum
            };
            (before, last) = (last, folded);
        }
        last << 1
    }

    /// Passes the name to `transform` in blocks of `WORDS` words, the last one padded.
    fn chain<const WORDS: usize>(
        self,
        name: &[u8],
        mut state: [u32; 4],
        transform: fn([u32; 4], &[u32; WORDS]) -> [u32; 4],
    ) -> [u32; 4] {
        let mut rest = name;
        while !rest.is_empty() {
            state = transform(state, &self.pack(rest));
            rest = rest.get(WORDS * 4..).unwrap_or_default();
        }
        state
    }

    /// Returns the next block: bytes fill words from the top down, over a padding of the remaining
    /// length.
    fn pack<const WORDS: usize>(self, rest: &[u8]) -> [u32; WORDS] {
        let left = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let padding = left | (left << 8);
        let padding = padding | (padding << 16);
        let mut block = [padding; WORDS];
        for (word, bytes) in block.iter_mut().zip(rest.chunks(4)) {
            for &byte in bytes {
                *word = self.widen(byte).wrapping_add(*word << 8);
            }
        }
        block
    }
}

/// Computes one block of MD4 over eight words: each round has eight steps, in its own order of
/// words.
fn half_md4(state: [u32; 4], input: &[u32; 8]) -> [u32; 4] {
    /// Word order, rotations and additive constant of each round.
    const ROUNDS: [([usize; 8], [u32; 4], u32); 3] = [
        ([0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19], 0),
        ([1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13], 0x5a82_7999),
        ([3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15], 0x6ed9_eba1),
    ];
    let mix = |round: usize, x: u32, y: u32, z: u32| match round {
        0 => (x & y) | (!x & z),
        1 => (x & y) | (x & z) | (y & z),
        _ => x ^ y ^ z,
    };
    let [mut a, mut b, mut c, mut d] = state;
    for (round, (order, rotations, constant)) in ROUNDS.iter().enumerate() {
        for (word, rotation) in order.iter().zip(rotations.iter().cycle()) {
            let sum = a
                .wrapping_add(mix(round, b, c, d))
                .wrapping_add(input[*word])
                .wrapping_add(*constant);
            (a, b, c, d) = (d, sum.rotate_left(*rotation), b, c);
        }
    }
    [
        state[0].wrapping_add(a),
        state[1].wrapping_add(b),
        state[2].wrapping_add(c),
        state[3].wrapping_add(d),
    ]
}

/// Computes half the rounds of TEA (16 cycles), with the input as the key and the state as the
/// text.
fn tea(state: [u32; 4], key: &[u32; 4]) -> [u32; 4] {
    const DELTA: u32 = 0x9e37_79b9;
    let [mut left, mut right, ..] = state;
    let mut sum = 0u32;
    let half = |text: u32, sum: u32, first: u32, second: u32| {
        (text << 4).wrapping_add(first) ^ text.wrapping_add(sum) ^ (text >> 5).wrapping_add(second)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(half(right, sum, key[0], key[1]));
        right = right.wrapping_add(half(left, sum, key[2], key[3]));
    }
    [
        state[0].wrapping_add(left),
        state[1].wrapping_add(right),
        state[2],
        state[3],
    ]
}

#[cfg(test)]
mod tests;
