//! Checksums of the on-disk formats in their seeded form, which continues from a given value.

use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC-32C (Castagnoli) of `bytes` continued from `seed`, with neither initial nor
/// final inversion.
///
/// The form of most checksums of metadata: start from `!0`, or from the checksum of the preceding
/// input (the filesystem UUID, the inode number), and store the result as it is.
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    if bytes.is_empty() {
        return seed;
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(bytes);
    // The algorithm's 32 bits live in the low half; its final inversion is undone here.
    !(u32::try_from(digest.finalize() & 0xffff_ffff).unwrap_or_default())
}

/// Returns the CRC-32 (IEEE 802.3, most significant bit first) of `bytes` continued from `seed`,
/// without inversions.
///
/// The form of the checksum in version 1 commit blocks of a journal, which starts from `!0`.
#[must_use]
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| {
        let index = (crc >> 24) ^ u32::from(byte);
        let entry = usize::try_from(index)
            .ok()
            .and_then(|i| CRC32_BE_TABLE.get(i));
        (crc << 8) ^ entry.copied().unwrap_or_default()
    })
}

/// Returns the CRC-16 (polynomial 0x8005 reflected) of `bytes` continued from `seed`, without
/// inversions.
///
/// The form of the `gdt_csum` group descriptor checksum, which starts from `!0`.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| {
        let index = usize::from((crc & 0xff) ^ u16::from(byte));
        (crc >> 8) ^ CRC16_TABLE.get(index).copied().unwrap_or_default()
    })
}

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const CRC32_BE_TABLE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "index is below 256")]
        let mut crc = (index as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000_0000 != 0 {
                (crc << 1) ^ 0x04c1_1db7
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut index = 0;
    while index < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "index is below 256")]
        let mut crc = index as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xa001
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn check_values_of_the_catalogue() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(!crc32_be(!0, b"123456789"), 0xfc89_1918);
        assert_eq!(crc16(!0, b"123456789"), 0x4b37);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
    }

    proptest! {
        #[test]
        fn crc32c_agrees_with_an_independent_implementation(
            seed: u32, bytes in proptest::collection::vec(any::<u8>(), 0..3000)
        ) {
            prop_assert_eq!(crc32c(seed, &bytes), !crc32c::crc32c_append(!seed, &bytes));
        }

        #[test]
        fn checksums_continue(bytes in proptest::collection::vec(any::<u8>(), 0..600), cut in 0usize..600) {
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(crc32c(crc32c(7, head), tail), crc32c(7, &bytes));
            prop_assert_eq!(crc32_be(crc32_be(7, head), tail), crc32_be(7, &bytes));
            prop_assert_eq!(crc16(crc16(7, head), tail), crc16(7, &bytes));
        }
    }
}
