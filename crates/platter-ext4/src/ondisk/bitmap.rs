//! Block and inode bitmaps: one bit for each cluster or inode of a group, with a checksum over the
//! bits of the group. Spec: `ext4/bitmaps`.

use std::ops::Range;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify, rules};

use super::geometry::{DESCRIPTOR_SIZE_MIN, Geometry};
use super::group_desc::GroupDesc;
use super::structure::Structure;
use super::types::GroupNr;

rules! {
    /// The rules of a bitmap.
    pub enum BitmapRule of "bitmap" {
        /// The checksum matches the one in the group descriptor.
        Checksum => "checksum does not match bitmap",
    }
}

/// Validates a bitmap against the checksum in its group descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitmapVerifier {
    /// The group of the bitmap.
    pub group: GroupNr,
    covered_bytes: usize,
    /// The checksum's seed, its expected value, and a mask of the stored bits.
    expected: Option<(u32, u32, u32)>,
}

impl BitmapVerifier {
    /// Creates the verifier of a group's block bitmap.
    #[must_use]
    pub fn of_blocks(group: GroupNr, desc: &GroupDesc, geometry: &Geometry) -> Self {
        let bits = geometry.clusters_per_group;
        Self::new(group, bits, desc.block_bitmap_checksum, geometry)
    }

    /// Creates the verifier of a group's inode bitmap.
    #[must_use]
    pub fn of_inodes(group: GroupNr, desc: &GroupDesc, geometry: &Geometry) -> Self {
        let bits = geometry.inodes_per_group;
        Self::new(group, bits, desc.inode_bitmap_checksum, geometry)
    }

    fn new(group: GroupNr, bits: u32, stored: u32, geometry: &Geometry) -> Self {
        let kept = if geometry.descriptor_bytes > DESCRIPTOR_SIZE_MIN {
            u32::MAX
        } else {
            0xffff
        };
        let has_checksum = geometry.features.has_metadata_csum();
        Self {
            group,
            covered_bytes: usize::try_from(bits / 8).unwrap_or(usize::MAX),
            expected: has_checksum.then_some((geometry.checksum_seed, stored, kept)),
        }
    }

    fn check(&self, bytes: &[u8]) -> Result<(), BitmapRule> {
        let Some((seed, stored, kept)) = self.expected else {
            return Ok(());
        };
        let covered = bytes.get(..self.covered_bytes).unwrap_or(bytes);
        if (crc32c(seed, covered) ^ stored) & kept != 0 {
            return Err(BitmapRule::Checksum);
        }
        Ok(())
    }
}

impl Verify for BitmapVerifier {
    fn key(&self) -> VerifierKey {
        let stored = self.expected.map_or(0, |(_, stored, _)| stored);
        VerifierKey {
            structure: Structure::Bitmap as u32,
            seed: u64::from(stored),
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let locus = Locus::group(u64::from(self.group.0)).at_block(block);
        self.check(bytes)
            .map_err(|rule| Corrupt::new(locus, rule).into())
    }
}

/// Returns the checksum of the first `bits` bits, a multiple of 8; `None` without `metadata_csum`.
#[must_use]
pub fn expected_checksum(bitmap: &[u8], bits: u32, geometry: &Geometry) -> Option<u32> {
    if !geometry.features.has_metadata_csum() {
        return None;
    }
    let covered = bitmap.get(..bits as usize / 8).unwrap_or(bitmap);
    Some(crc32c(geometry.checksum_seed, covered))
}

/// Whether a bit is set; bits beyond the end count as set.
#[must_use]
pub fn is_set(bitmap: &[u8], bit: u32) -> bool {
    let byte = bitmap.get(bit as usize / 8);
    byte.is_none_or(|byte| byte & mask(bit) != 0)
}

/// Sets or clears a bit, and returns whether that changed it.
pub fn assign(bitmap: &mut [u8], bit: u32, set: bool) -> bool {
    let Some(byte) = bitmap.get_mut(bit as usize / 8) else {
        return false;
    };
    let before = *byte;
    *byte = if set {
        before | mask(bit)
    } else {
        before & !mask(bit)
    };
    *byte != before
}

/// Sets or clears the bits of a range; bits beyond the end of the bitmap are ignored.
pub fn assign_range(bitmap: &mut [u8], range: Range<u32>, set: bool) {
    let (whole, edges) = whole_bytes(range);
    let end = whole.end.min(bitmap.len());
    if let Some(bytes) = bitmap.get_mut(whole.start..end) {
        bytes.fill(if set { u8::MAX } else { 0 });
    }
    for (index, mask) in edges.into_iter().flat_map(masks) {
        let Some(byte) = bitmap.get_mut(index) else {
            break;
        };
        *byte = if set { *byte | mask } else { *byte & !mask };
    }
}

/// Whether the bits of a range are all set, or all clear; bits beyond the end count as set.
#[must_use]
pub fn has_range(bitmap: &[u8], range: Range<u32>, set: bool) -> bool {
    let wanted = |mask| if set { mask } else { 0 };
    masks(range).all(|(index, mask)| {
        let byte = bitmap.get(index).copied().unwrap_or(u8::MAX);
        byte & mask == wanted(mask)
    })
}

/// Returns the first clear bit of a range.
#[must_use]
pub fn first_clear(bitmap: &[u8], range: Range<u32>) -> Option<u32> {
    let (index, free) = masks(range).find_map(|(index, mask)| {
        let free = !bitmap.get(index)? & mask;
        (free != 0).then_some((index, free))
    })?;
    let first = u32::try_from(index).ok()?.checked_mul(8)?;
    first.checked_add(free.trailing_zeros())
}

/// Returns the number of clear bits among the first `bits`.
#[must_use]
pub fn count_clear(bitmap: &[u8], bits: u32) -> u32 {
    let whole = bits as usize / 8;
    let bytes = bitmap.get(..whole).unwrap_or(bitmap);
    // Unlike a checked sum, this form is vectorised. No block has 2^32 bits.
    let clear = bytes
        .iter()
        .fold(0u32, |sum, byte| sum.wrapping_add(byte.count_zeros()));
    let rest = (bits & !7..bits).filter(|&bit| !is_set(bitmap, bit));
    rest.fold(clear, |sum, _| sum.saturating_add(1))
}

/// Splits a range of bits into the whole bytes it covers and the bits before and after them.
fn whole_bytes(range: Range<u32>) -> (Range<usize>, [Range<u32>; 2]) {
    let (first, end) = (range.start.div_ceil(8), range.end / 8);
    if first >= end {
        return (0..0, [range, 0..0]);
    }
    let before = range.start..first.saturating_mul(8);
    let after = end.saturating_mul(8)..range.end;
    (first as usize..end as usize, [before, after])
}

/// Returns the bytes that hold the bits of a range, each with the mask of those bits.
fn masks(range: Range<u32>) -> impl Iterator<Item = (usize, u8)> {
    let bytes = range.start / 8..range.end.div_ceil(8);
    bytes.map(move |index| {
        let first = index.saturating_mul(8);
        let low = range.start.saturating_sub(first).min(7);
        let above = first.saturating_add(8).saturating_sub(range.end).min(7);
        let mask = u8::MAX.checked_shl(low).unwrap_or(0) & u8::MAX.checked_shr(above).unwrap_or(0);
        (index as usize, mask)
    })
}

fn mask(bit: u32) -> u8 {
    1u8.checked_shl(bit % 8).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::features::RoCompat;
    use super::super::geometry::tests::sample_geometry;
    use super::*;

    #[test]
    fn bitmap_with_a_wrong_checksum_is_corrupt() {
        let mut geometry = sample_geometry();
        let bytes = [0x5a; 1024];
        geometry.features.ro_compat |= RoCompat::METADATA_CSUM;
        let full = crc32c(geometry.checksum_seed, &bytes);
        for (size, stored) in [(32, full & 0xffff), (64, full)] {
            geometry.descriptor_bytes = size;
            let verifier = |stored| BitmapVerifier::new(GroupNr(0), 8192, stored, &geometry);
            assert_eq!(verifier(stored).check(&bytes), Ok(()));
            let flipped = stored ^ 1;
            assert_eq!(verifier(flipped).check(&bytes), Err(BitmapRule::Checksum));
        }
    }

    #[test]
    fn bits_are_numbered_from_the_low_end_of_a_byte() {
        let mut bitmap = [0; 2];
        assert!(assign(&mut bitmap, 9, true));
        assert!(!assign(&mut bitmap, 9, true));
        assert_eq!(bitmap, [0, 2]);
        assert!(is_set(&bitmap, 9));
        assert!(!is_set(&bitmap, 8));
        assert!(is_set(&bitmap, 16));
        assert!(!assign(&mut bitmap, 16, true));
        assert!(assign(&mut bitmap, 9, false));
        assert_eq!(bitmap, [0, 0]);
    }

    #[test]
    fn range_operations_equal_single_bit_operations() {
        for start in 0..30 {
            for end in start..34 {
                for set in [true, false] {
                    let mut bitmap = [if set { 0 } else { 0xff }; 4];
                    let mut bits = bitmap;
                    assign_range(&mut bitmap, start..end, set);
                    for bit in start..end {
                        assign(&mut bits, bit, set);
                    }
                    assert_eq!(bitmap, bits);
                    assert_eq!(has_range(&bitmap, start..end, set), set || end <= 32);
                    let wider = start.saturating_sub(1)..end + 1;
                    let is_wider = wider.clone().all(|bit| is_set(&bitmap, bit) == set);
                    assert_eq!(has_range(&bitmap, wider.clone(), set), is_wider);
                    let first = wider.clone().find(|&bit| !is_set(&bitmap, bit));
                    assert_eq!(first_clear(&bitmap, wider), first);
                }
            }
        }
    }

    #[test]
    fn clear_bits_are_counted_exactly() {
        let bitmap = [0xf0, 0x01, 0xff];
        let counts = [0, 3, 8, 9, 12, 16, 24].map(|bits| count_clear(&bitmap, bits));
        assert_eq!(counts, [0, 3, 4, 4, 7, 11, 11]);
        assert_eq!(count_clear(&bitmap, 100), 11);
    }

    #[test]
    fn checksum_covers_only_the_bits_of_the_group() {
        let mut geometry = sample_geometry();
        geometry.features.ro_compat = RoCompat::METADATA_CSUM;
        let sum = |bitmap: &[u8]| expected_checksum(bitmap, 16, &geometry);
        assert_eq!(sum(&[1, 2, 3]), sum(&[1, 2, 4]));
        assert_ne!(sum(&[1, 2, 3]), sum(&[1, 3, 3]));
        geometry.features.ro_compat = RoCompat::empty();
        assert_eq!(expected_checksum(&[1, 2, 3], 16, &geometry), None);
    }
}
