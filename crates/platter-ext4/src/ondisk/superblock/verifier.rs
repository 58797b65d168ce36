//! The verifier of the block that contains the superblock in use, alone or after the boot sector.

use platter_ondisk::{Corrupt, Corruption, VerifierKey, Verify};
use zerocopy::FromBytes;

use super::{DiskSuperblock, LOCUS, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET_BYTES, SuperblockRule};
use crate::ondisk::Geometry;
use crate::ondisk::structure::Structure;

/// Validates and seals the superblock inside its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuperblockVerifier {
    /// Byte offset in the block.
    offset: usize,
}

impl SuperblockVerifier {
    /// Creates the verifier for the superblock of `geometry`.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        let primary = SUPERBLOCK_OFFSET_BYTES >> geometry.block_bits;
        let in_block = SUPERBLOCK_OFFSET_BYTES & u64::from(geometry.block_bytes).saturating_sub(1);
        let is_primary = geometry.superblock_block.0 == primary;
        let offset = if is_primary { in_block } else { 0 };
        Self {
            offset: usize::try_from(offset).unwrap_or_default(),
        }
    }

    /// Returns the byte offset of the superblock in its block.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset as u64
    }

    /// Returns the superblock in its block.
    #[must_use]
    pub fn find<'b>(&self, bytes: &'b [u8]) -> Option<&'b DiskSuperblock> {
        let (disk, _) = DiskSuperblock::ref_from_prefix(bytes.get(self.offset..)?).ok()?;
        Some(disk)
    }

    /// Returns the superblock in its block, for modification.
    #[must_use]
    pub fn find_mut<'b>(&self, bytes: &'b mut [u8]) -> Option<&'b mut DiskSuperblock> {
        let (disk, _) = DiskSuperblock::mut_from_prefix(bytes.get_mut(self.offset..)?).ok()?;
        Some(disk)
    }
}

impl Verify for SuperblockVerifier {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: Structure::Superblock as u32,
            seed: self.offset as u64,
        }
    }

    fn verify(&self, _block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let broken = |rule| Corruption::from(Corrupt::new(LOCUS, rule));
        let disk = self.find(bytes).ok_or(broken(SuperblockRule::Magic))?;
        if disk.magic.get() != SUPERBLOCK_MAGIC {
            return Err(broken(SuperblockRule::Magic));
        }
        let has_checksum = disk.features().has_metadata_csum();
        if has_checksum && disk.checksum.get() != disk.expected_checksum() {
            return Err(broken(SuperblockRule::Checksum));
        }
        Ok(())
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        if let Some(disk) = self.find_mut(bytes) {
            disk.seal();
        }
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::super::tests::sample;
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn superblock_is_sealed_in_blocks_of_all_sizes() {
        for (block_bits, offset) in [(10, 0), (11, 1024), (12, 1024)] {
            let mut geometry = sample_geometry();
            geometry.block_bits = block_bits;
            geometry.block_bytes = 1 << block_bits;
            geometry.superblock_block.0 = 1024 >> block_bits;
            let verifier = SuperblockVerifier::new(&geometry);
            let mut block = vec![0; 1 << block_bits];
            assert!(verifier.verify(0, &block).is_err());
            block[offset..offset + 1024].copy_from_slice(sample().as_bytes());
            verifier.verify(0, &block).unwrap();
            verifier.find_mut(&mut block).unwrap().state.set(7);
            let corruption = verifier.verify(0, &block).unwrap_err();
            assert!(corruption.to_string().contains("checksum"));
            verifier.seal(0, &mut block);
            verifier.verify(0, &block).unwrap();
        }
    }

    #[test]
    fn superblock_in_use_elsewhere_begins_its_block() {
        let mut geometry = sample_geometry();
        geometry.block_bits = 12;
        geometry.block_bytes = 4096;
        geometry.superblock_block.0 = 32768;
        assert_eq!(SuperblockVerifier::new(&geometry).offset, 0);
    }
}
