//! The checksum of self-describing metadata: CRC-32C of a block, its own field taken as zeros, stored
//! little-endian. Spec: `xfs/metadata_integrity`.

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::Le32;
use zerocopy::FromBytes;

/// Whether bytes have their checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// It is compared.
    Present,
    /// It is computed when they are written.
    Later,
}

/// Length of the stored checksum.
const FIELD_BYTES: usize = 4;

/// The longest part of a block before its checksum that is copied to be summed together with the zeros.
const HEAD_BYTES_MAX: usize = 124;

/// The checksum that `bytes` should have, stored at `at`; `None` if the field lies outside.
#[must_use]
pub fn expected(bytes: &[u8], at: usize) -> Option<u32> {
    let (head, rest) = bytes.split_at_checked(at)?;
    let (_, tail) = rest.split_at_checked(FIELD_BYTES)?;
    let mut copy = [0; HEAD_BYTES_MAX + FIELD_BYTES];
    let copy = copy.get_mut(..at.saturating_add(FIELD_BYTES));
    let crc = if let Some(copy) = copy {
        copy.get_mut(..at)?.copy_from_slice(head);
        crc32c(!0, copy)
    } else {
        crc32c(crc32c(!0, head), &[0; FIELD_BYTES])
    };
    Some(!crc32c(crc, tail))
}

/// Whether the checksum stored at `at` is that of `bytes`.
#[must_use]
pub fn matches(bytes: &[u8], at: usize) -> bool {
    let field = bytes
        .get(at..)
        .and_then(|rest| Le32::ref_from_prefix(rest).ok());
    field.is_some_and(|(stored, _)| expected(bytes, at) == Some(stored.get()))
}

/// Stores the checksum of `bytes` at `at`, if that lies inside.
pub fn seal(bytes: &mut [u8], at: usize) {
    let crc = expected(bytes, at);
    let field = bytes
        .get_mut(at..)
        .and_then(|rest| Le32::mut_from_prefix(rest).ok());
    if let (Some(crc), Some((field, _))) = (crc, field) {
        field.set(crc);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_block_matches_and_changed_one_does_not() {
        let mut block = vec![7; 512];
        assert!(!matches(&block, 224));
        seal(&mut block, 224);
        assert!(matches(&block, 224));
        block[511] ^= 1;
        assert!(!matches(&block, 224));
        assert!(!matches(&block, 510));
    }

    #[test]
    fn field_counts_as_zeros_wherever_it_lies() {
        let block: Vec<u8> = (0..=255).chain(0..=255).collect();
        for at in [0, 4, 100, 123, 124, 125, 224, 508] {
            let mut zeros = block.clone();
            zeros[at..at + 4].fill(0);
            assert_eq!(expected(&block, at), Some(!crc32c(!0, &zeros)), "{at}");
        }
        assert_eq!(expected(&block, 509), None);
    }

    #[test]
    fn checksum_is_the_standard_crc32c_in_little_endian() {
        let mut block = b"\0\0\0\0".to_vec();
        seal(&mut block, 0);
        // CRC-32C of four zero bytes.
        assert_eq!(block, 0x4867_4bc7_u32.to_le_bytes());
    }
}
