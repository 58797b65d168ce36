//! Block and inode bitmaps: one bit for each cluster or inode of a group, checksummed as far as
//! the group goes. Spec: `ext4/bitmaps`.

use platter_ondisk::checksum::crc32c;
use platter_ondisk::{Corruption, Locus, VerifierKey, Verify};

use super::corrupt::{Corrupt, Rule, Structure};
use super::geometry::{DESCRIPTOR_SIZE_MIN, Geometry};
use super::group_desc::GroupDesc;
use super::types::GroupNr;

/// What a bitmap must hold to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BitmapRule {
    /// The checksum in the group's descriptor.
    Checksum,
}

impl Rule for BitmapRule {
    const STRUCTURE: &'static str = "bitmap";

    fn text(self) -> &'static str {
        match self {
            Self::Checksum => "checksum does not match the group descriptor's",
        }
    }
}

/// Proves a bitmap against the checksum in its group's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitmapVerifier {
    /// The group whose bitmap it is.
    pub group: GroupNr,
    covered_bytes: usize,
    /// What the checksum starts from, what it should be, and which of its bits are kept.
    expected: Option<(u32, u32, u32)>,
}

impl BitmapVerifier {
    /// For the block bitmap of a group.
    #[must_use]
    pub fn of_blocks(group: GroupNr, desc: &GroupDesc, geometry: &Geometry) -> Self {
        let bits = geometry.clusters_per_group;
        Self::new(group, bits, desc.block_bitmap_checksum, geometry)
    }

    /// For the inode bitmap of a group.
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
}
