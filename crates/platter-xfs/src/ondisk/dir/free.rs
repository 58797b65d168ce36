//! A free index of a directory: the longest free region of each block of entries.
//! Spec: `xfs/directories`, "Node Directories".

use platter_ondisk::endian::{Be16, Be32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::data::DiskDirHeaderV5;
use crate::ondisk::identity::Site;

/// What a block of entries without free space has in the index.
pub const NO_FREE: u16 = 0xffff;

/// What follows the header. Spec: `struct xfs_dir2_free_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskFreeCounts {
    /// `firstdb`: the block of entries that the first value is of.
    pub first: Be32,
    /// `nvalid`: values.
    pub valid: Be32,
    /// `nused`: values of blocks that exist.
    pub used: Be32,
}

const _: () = assert!(size_of::<DiskFreeCounts>() == 12);

rules! {
    /// What a free index must hold to.
    pub enum DirFreeRule of "directory free index" {
        /// `magic`.
        Magic => "bad magic number",
        /// `crc`.
        Checksum => "bad CRC",
        /// `uuid`.
        Uuid => "bad UUID",
        /// `blkno`.
        BlockNumber => "block number is not where it lies",
        /// `owner`.
        Owner => "bad owner",
        /// `nvalid` fits the block, and `nused` is at most that.
        Count => "bad number of entries",
        /// `firstdb` is a multiple of the values that fit a block.
        First => "bad first data block",
    }
}

identity_rules!(DirFreeRule);

/// A free index whose rules hold.
#[derive(Debug, Clone, Copy)]
pub struct DirFree<'a> {
    /// The block of entries that the first value is of.
    pub first: u32,
    /// How many blocks exist.
    pub used: u32,
    /// The longest free region of each block, or [`NO_FREE`].
    pub bests: &'a [Be16],
}

/// The magic number of the block.
#[must_use]
pub fn magic(is_v5: bool) -> u32 {
    if is_v5 { 0x5844_4633 } else { 0x5844_3246 }
}

/// The first block of entries with a free region of at least so many bytes.
#[must_use]
pub fn first_fit(bests: &[Be16], size: usize) -> Option<usize> {
    const GROUP: usize = 16;
    let size = u16::try_from(size).ok()?;
    // `NO_FREE` becomes zero.
    let fits = |best: &Be16| best.get().wrapping_add(1) > size;
    let mut start = 0_usize;
    // Most blocks are full: groups of them are passed over without a branch for each.
    for group in bests.chunks(GROUP) {
        if group.iter().fold(false, |found, best| found | fits(best)) {
            return Some(start.saturating_add(group.iter().position(fits)?));
        }
        start = start.saturating_add(GROUP);
    }
    None
}

impl<'a> DirFree<'a> {
    /// Validates the free index that fills `bytes`.
    pub fn decode(bytes: &'a [u8], site: &Site<'_>) -> Result<Self, DirFreeRule> {
        const PADDING: usize = 4;
        let is_v5 = site.geometry.features.is_v5();
        let (found, mut rest) = Be32::ref_from_prefix(bytes).map_err(|_| DirFreeRule::Magic)?;
        if found.get() != magic(is_v5) {
            return Err(DirFreeRule::Magic);
        }
        if is_v5 {
            let (header, after) =
                DiskDirHeaderV5::ref_from_prefix(bytes).map_err(|_| DirFreeRule::Magic)?;
            header.identity().check(bytes, site)?;
            rest = after;
        }
        let (counts, rest) =
            DiskFreeCounts::ref_from_prefix(rest).map_err(|_| DirFreeRule::Count)?;
        let rest = if is_v5 {
            rest.get(PADDING..).ok_or(DirFreeRule::Count)?
        } else {
            rest
        };
        let most = rest
            .len()
            .checked_div(size_of::<Be16>())
            .unwrap_or_default();
        let valid = usize::try_from(counts.valid.get()).unwrap_or(usize::MAX);
        let (bests, _) =
            <[Be16]>::ref_from_prefix_with_elems(rest, valid).map_err(|_| DirFreeRule::Count)?;
        if counts.used.get() > counts.valid.get() {
            return Err(DirFreeRule::Count);
        }
        let first = counts.first.get();
        if usize::try_from(first)
            .unwrap_or(usize::MAX)
            .checked_rem(most)
            != Some(0)
        {
            return Err(DirFreeRule::First);
        }
        Ok(Self {
            first,
            used: counts.used.get(),
            bests,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::checksum;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::types::BasicBlock;

    fn sample() -> Vec<u8> {
        let mut block = vec![0; 4096];
        let (header, rest) = DiskDirHeaderV5::mut_from_prefix(&mut block).unwrap();
        header.magic.set(magic(true));
        header.block.set(80);
        header.uuid = [0x5a; 16];
        header.owner.set(131);
        let (counts, _) = DiskFreeCounts::mut_from_prefix(rest).unwrap();
        counts.first.set(2016);
        counts.valid.set(2);
        counts.used.set(1);
        block[67] = 0xff;
        seal(&mut block);
        block
    }

    fn seal(block: &mut [u8]) {
        checksum::seal(block, DiskDirHeaderV5::CHECKSUM_OFFSET);
    }

    fn decode(block: &[u8]) -> Result<(u32, usize), DirFreeRule> {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        DirFree::decode(block, &site).map(|free| (free.first, free.bests.len()))
    }

    fn broken(change: impl FnOnce(&mut [u8])) -> DirFreeRule {
        let mut block = sample();
        change(&mut block);
        seal(&mut block);
        decode(&block).unwrap_err()
    }

    #[test]
    fn first_block_that_fits_is_found() {
        let bests = |count: u16, place: usize, best: u16| -> Vec<Be16> {
            let full = (0..count).map(|index| if index % 3 == 0 { NO_FREE } else { 16 });
            let mut bests: Vec<u16> = full.collect();
            bests[place] = best;
            bests.push(4032);
            bests.into_iter().map(Be16::from).collect()
        };
        for place in [0, 1, 15, 16, 17, 40, 69] {
            assert_eq!(first_fit(&bests(70, place, 24), 24), Some(place));
            assert_eq!(first_fit(&bests(70, place, 23), 24), Some(70));
            assert_eq!(first_fit(&bests(70, place, NO_FREE), 4032), Some(70));
            assert_eq!(first_fit(&bests(70, place, 0), 4040), None);
        }
        assert_eq!(first_fit(&bests(1, 0, NO_FREE - 1), 65534), Some(0));
        assert_eq!(first_fit(&[], 24), None);
        assert_eq!(first_fit(&bests(70, 0, 24), 1 << 20), None);
    }

    #[test]
    fn rules_of_a_free_index_are_checked() {
        assert_eq!(decode(&sample()), Ok((2016, 2)));
        assert_eq!(broken(|block| block[0] = 0), DirFreeRule::Magic);
        assert_eq!(broken(|block| block[24] = 0), DirFreeRule::Uuid);
        assert_eq!(broken(|block| block[15] = 0), DirFreeRule::BlockNumber);
        assert_eq!(broken(|block| block[47] = 0), DirFreeRule::Owner);
        assert_eq!(broken(|block| block[54] = 8), DirFreeRule::Count);
        assert_eq!(broken(|block| block[59] = 3), DirFreeRule::Count);
        assert_eq!(broken(|block| block[51] = 1), DirFreeRule::First);
        let mut block = sample();
        block[2000] = 1;
        assert_eq!(decode(&block), Err(DirFreeRule::Checksum));
    }
}
