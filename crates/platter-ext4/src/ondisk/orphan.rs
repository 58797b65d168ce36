//! Blocks of the orphan file: numbers of inodes to truncate or delete after a crash. Spec:
//! `ext4/orphan`, orphan file.

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::structure::Structure;
use super::types::InodeNr;

/// `ob_magic`.
const ORPHAN_BLOCK_MAGIC: u32 = 0x0b10_ca04;

/// The last 8 bytes of a block. Spec: `ext4/orphan`, `struct ext4_orphan_block_tail`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskOrphanTail {
    /// `ob_magic`.
    pub magic: Le32,
    /// `ob_checksum`: CRC-32C of the block's number and its entries, from the inode's seed.
    pub checksum: Le32,
}

const _: () = assert!(size_of::<DiskOrphanTail>() == 8);

rules! {
    /// The rules of a block of the orphan file.
    pub enum OrphanRule of "orphan file block" {
        /// `ob_magic`.
        Magic => "magic is not 0x0b10ca04",
        /// `ob_checksum`.
        Checksum => "checksum does not match",
    }
}

/// The verifier of a block of the orphan file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphanBlockRules {
    /// The checksum seed of the orphan file's inode; `None` without `metadata_csum`.
    pub inode_seed: Option<u32>,
}

impl OrphanBlockRules {
    fn check(self, block: u64, bytes: &[u8]) -> Result<(), OrphanRule> {
        let (entries, tail) = split(bytes).ok_or(OrphanRule::Magic)?;
        if tail.magic.get() != ORPHAN_BLOCK_MAGIC {
            return Err(OrphanRule::Magic);
        }
        let Some(seed) = self.inode_seed else {
            return Ok(());
        };
        if tail.checksum.get() != checksum(seed, block, entries) {
            return Err(OrphanRule::Checksum);
        }
        Ok(())
    }
}

impl Verify for OrphanBlockRules {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: Structure::OrphanBlock as u32,
            seed: self.inode_seed.map_or(u64::MAX, u64::from),
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let corrupt = |rule| Corrupt::new(Locus::block(block), rule).into();
        self.check(block, bytes).map_err(corrupt)
    }

    fn seal(&self, block: u64, bytes: &mut [u8]) {
        let sum = split(bytes)
            .zip(self.inode_seed)
            .map(|((entries, _), seed)| checksum(seed, block, entries));
        if let (Some(sum), Ok((_, tail))) = (sum, DiskOrphanTail::mut_from_suffix(bytes)) {
            tail.checksum = sum.into();
        }
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(*self))
    }
}

/// Returns the orphaned inodes of a verified block, in the order of its slots.
pub fn orphans(bytes: &[u8]) -> impl Iterator<Item = InodeNr> + '_ {
    places(bytes).flatten()
}

/// Returns the slots of a verified block in order: each an orphan, or `None`.
pub fn places(bytes: &[u8]) -> impl Iterator<Item = Option<InodeNr>> + '_ {
    let entries = split(bytes).map_or(&[][..], |(entries, _)| entries);
    let numbers = entries.chunks_exact(size_of::<Le32>());
    numbers.map(|number| InodeNr::new(Le32::read_from_bytes(number).ok()?.get()))
}

/// Stores an orphan in a slot of a block, or clears it.
pub fn set_place(bytes: &mut [u8], place: u32, orphan: Option<InodeNr>) {
    let (places, _) = bytes.as_chunks_mut::<{ size_of::<Le32>() }>();
    let place = usize::try_from(place)
        .ok()
        .and_then(|at| places.get_mut(at));
    if let Some(place) = place {
        *place = orphan.map_or(0, InodeNr::get).to_le_bytes();
    }
}

fn split(bytes: &[u8]) -> Option<(&[u8], &DiskOrphanTail)> {
    DiskOrphanTail::ref_from_suffix(bytes).ok()
}

fn checksum(seed: u32, block: u64, entries: &[u8]) -> u32 {
    crc32c(crc32c(seed, Le64::new(block).as_bytes()), entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEALED: OrphanBlockRules = OrphanBlockRules {
        inode_seed: Some(77),
    };
    const PLAIN: OrphanBlockRules = OrphanBlockRules { inode_seed: None };

    fn block() -> Vec<u8> {
        let mut block = vec![0; 1024];
        block[4] = 12;
        block[1012] = 13;
        block[1016..1020].copy_from_slice(&ORPHAN_BLOCK_MAGIC.to_le_bytes());
        SEALED.seal(5, &mut block);
        block
    }

    #[test]
    fn sealed_block_returns_its_orphans() {
        let block = block();
        SEALED.verify(5, &block).unwrap();
        PLAIN.verify(5, &block).unwrap();
        let found: Vec<_> = orphans(&block).map(InodeNr::get).collect();
        assert_eq!(found, [12, 13]);
    }

    #[test]
    fn orphan_slot_is_set_and_cleared() {
        let mut block = block();
        assert_eq!(places(&block).count(), 254);
        set_place(&mut block, 7, InodeNr::new(99));
        assert_eq!(places(&block).nth(7), Some(InodeNr::new(99)));
        assert_eq!(orphans(&block).count(), 3);
        for place in [1, 7] {
            set_place(&mut block, place, None);
        }
        assert_eq!(
            orphans(&block).collect::<Vec<_>>(),
            InodeNr::new(13).as_slice()
        );
    }

    #[test]
    fn wrong_magic_is_corrupt() {
        let mut block = block();
        block[1016] ^= 1;
        assert_eq!(PLAIN.check(5, &block), Err(OrphanRule::Magic));
        assert_eq!(PLAIN.check(5, &[]), Err(OrphanRule::Magic));
    }

    #[test]
    fn checksum_covers_entries_and_block_number() {
        let mut block = block();
        assert_eq!(SEALED.check(6, &block), Err(OrphanRule::Checksum));
        block[4] = 11;
        assert_eq!(SEALED.check(5, &block), Err(OrphanRule::Checksum));
    }
}
