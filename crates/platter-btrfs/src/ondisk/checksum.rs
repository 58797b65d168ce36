//! The checksum algorithms of metadata and data. Spec: `btrfs/csum`.

use platter_ondisk::checksum::crc32c;
use sha2::{Digest as _, Sha256};

/// The space that tree blocks and the superblock have for a checksum.
pub const CHECKSUM_BYTES_MAX: usize = 32;

/// A checksum algorithm (`csum_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChecksumKind {
    /// CRC-32C.
    Crc32c,
    /// xxHash, 64 bits.
    Xxhash64,
    /// SHA-256.
    Sha256,
    /// `BLAKE2b` with a digest of 256 bits.
    Blake2b,
}

/// A checksum: as many bytes as its kind has, zeros after them.
pub type Checksum = [u8; CHECKSUM_BYTES_MAX];

impl ChecksumKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Crc32c, Self::Xxhash64, Self::Sha256, Self::Blake2b];

    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The number in the superblock.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Crc32c => 0,
            Self::Xxhash64 => 1,
            Self::Sha256 => 2,
            Self::Blake2b => 3,
        }
    }

    /// The name in btrfs-progs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Xxhash64 => "xxhash64",
            Self::Sha256 => "sha256",
            Self::Blake2b => "blake2b",
        }
    }

    /// The length of a checksum in bytes.
    #[must_use]
    pub fn len_bytes(self) -> usize {
        match self {
            Self::Crc32c => 4,
            Self::Xxhash64 => 8,
            Self::Sha256 | Self::Blake2b => CHECKSUM_BYTES_MAX,
        }
    }

    /// The checksum of `bytes`.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> Checksum {
        let mut checksum = [0; CHECKSUM_BYTES_MAX];
        let mut put = |digest: &[u8]| {
            for (to, from) in checksum.iter_mut().zip(digest) {
                *to = *from;
            }
        };
        match self {
            Self::Crc32c => put(&(!crc32c(!0, bytes)).to_le_bytes()),
            Self::Xxhash64 => put(&twox_hash::XxHash64::oneshot(0, bytes).to_le_bytes()),
            Self::Sha256 => put(&Sha256::digest(bytes)),
            Self::Blake2b => {
                let hash = blake2b_simd::Params::new()
                    .hash_length(CHECKSUM_BYTES_MAX)
                    .hash(bytes);
                put(hash.as_bytes());
            }
        }
        checksum
    }

    /// Whether `stored` begins with the checksum of `bytes`.
    #[must_use]
    pub fn matches(self, bytes: &[u8], stored: &[u8]) -> bool {
        let len_bytes = self.len_bytes();
        let expected = self.of(bytes);
        stored.get(..len_bytes) == expected.get(..len_bytes)
    }
}

/// The hash of a name in a directory or of an attribute (`btrfs_name_hash`).
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(crc32c(!1, name))
}

/// The hash of a name in an extended reference: seeded with the parent directory.
#[must_use]
pub fn extref_hash(parent: u64, name: &[u8]) -> u64 {
    let seed = u32::try_from(parent & 0xffff_ffff).unwrap_or_default();
    u64::from(crc32c(seed, name))
}

/// The hash of a file's reference to data, by which keyed references are found.
#[must_use]
pub fn extent_data_ref_hash(tree: u64, object: u64, offset: u64) -> u64 {
    let high = u64::from(crc32c(!0, &tree.to_le_bytes()));
    let low = crc32c(!0, &object.to_le_bytes());
    let low = u64::from(crc32c(low, &offset.to_le_bytes()));
    (high << 31) ^ low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes
            .iter()
            .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    #[test]
    fn checksums_match_their_published_values() {
        let of = |kind: ChecksumKind| hex(&kind.of(b"abc")[..kind.len_bytes()]);
        assert_eq!(of(ChecksumKind::Crc32c), "b73f4b36");
        assert_eq!(of(ChecksumKind::Xxhash64), "990977adf52cbc44");
        assert_eq!(
            of(ChecksumKind::Sha256),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            of(ChecksumKind::Blake2b),
            "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"
        );
    }

    #[test]
    fn checksum_that_differs_does_not_match() {
        for (number, kind) in (0..).zip(ChecksumKind::ALL) {
            assert_eq!(ChecksumKind::from_number(number), Some(kind));
            assert_eq!(kind.number(), number);
            let mut stored = kind.of(b"contents");
            assert!(kind.matches(b"contents", &stored));
            stored[kind.len_bytes() - 1] ^= 1;
            assert!(!kind.matches(b"contents", &stored));
            assert!(!kind.matches(b"contents", &stored[..2]));
        }
        assert_eq!(ChecksumKind::from_number(4), None);
    }

    #[test]
    fn names_hash_as_in_a_tree_made_by_mkfs() {
        // The entry of the default subvolume in the root tree's directory.
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
