//! A leaf of a directory: hashes of names, and where their entries lie.
//! Spec: `xfs/directories`, "Leaf Directories".

use platter_ondisk::endian::{Be16, Be32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DataPointer;
use crate::ondisk::da::{self, DaKind, DaLinks, DaRule};
use crate::ondisk::identity::Site;

/// A leaf entry. Spec: `struct xfs_dir2_leaf_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskLeafEntry {
    /// `hashval`.
    pub hash: Be32,
    /// `address`: the entry; zero for one that was removed.
    pub address: Be32,
}

/// What follows the header. Spec: `struct xfs_dir2_leaf_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskLeafCounts {
    /// `count`: leaf entries.
    pub count: Be16,
    /// `stale`: leaf entries of names that were removed.
    pub stale: Be16,
}

const _: () = assert!(size_of::<DiskLeafEntry>() == 8);
const _: () = assert!(size_of::<DiskLeafCounts>() == 4);

impl DiskLeafEntry {
    /// Where the entry is; `None` for one that was removed.
    #[must_use]
    pub fn pointer(&self) -> Option<DataPointer> {
        Some(DataPointer(self.address.get())).filter(|pointer| pointer.0 != 0)
    }
}

rules! {
    /// What a leaf of a directory must hold to.
    pub enum DirLeafRule of "directory leaf" {
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
        /// `count`, `stale` and `bestcount` fit the block.
        Count => "bad number of entries",
        /// Hashes ascend.
        Order => "hashes not ascending",
    }
}

identity_rules!(DirLeafRule);

impl DaRule for DirLeafRule {
    const MAGIC: Self = Self::Magic;
}

/// A leaf whose rules hold.
#[derive(Debug, Clone, Copy)]
pub struct DirLeaf<'a> {
    /// Its neighbours.
    pub links: DaLinks,
    /// Leaf entries, by ascending hash.
    pub entries: &'a [DiskLeafEntry],
    /// How many of them are of names that were removed.
    pub stale: u16,
    /// The longest free region of each block of entries, where there are no free indexes.
    pub bests: &'a [Be16],
}

impl<'a> DirLeaf<'a> {
    /// Validates the leaf that fills `bytes`, which is the only one or one of several.
    pub fn decode(bytes: &'a [u8], kind: DaKind, site: &Site<'_>) -> Result<Self, DirLeafRule> {
        const PADDING: usize = 4;
        let (links, rest) = da::header(bytes, kind, site)?;
        let (counts, rest) =
            DiskLeafCounts::ref_from_prefix(rest).map_err(|_| DirLeafRule::Count)?;
        let mut rest = if site.geometry.features.is_v5() {
            rest.get(PADDING..).ok_or(DirLeafRule::Count)?
        } else {
            rest
        };
        let mut bests: &[Be16] = &[];
        if kind == DaKind::DirLeaf1 {
            (rest, bests) = take_bests(rest).ok_or(DirLeafRule::Count)?;
        }
        let count = usize::from(counts.count.get());
        let (entries, _) = <[DiskLeafEntry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| DirLeafRule::Count)?;
        if counts.stale.get() > counts.count.get() {
            return Err(DirLeafRule::Count);
        }
        if !site.is_verified() && !entries.is_sorted_by_key(|entry| entry.hash.get()) {
            return Err(DirLeafRule::Order);
        }
        Ok(Self {
            links,
            entries,
            stale: counts.stale.get(),
            bests,
        })
    }
}

/// The entries that have this hash, names that were removed left out.
pub fn matching(entries: &[DiskLeafEntry], hash: u32) -> impl Iterator<Item = DataPointer> {
    let first = entries.partition_point(|entry| entry.hash.get() < hash);
    let rest = entries.get(first..).unwrap_or_default();
    rest.iter()
        .take_while(move |entry| entry.hash.get() == hash)
        .filter_map(DiskLeafEntry::pointer)
}

/// The longest free regions at the end of the only leaf.
fn take_bests(bytes: &[u8]) -> Option<(&[u8], &[Be16])> {
    let (rest, count) = Be32::ref_from_suffix(bytes).ok()?;
    let count = usize::try_from(count.get()).ok()?;
    <[Be16]>::ref_from_suffix_with_elems(rest, count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::checksum;
    use crate::ondisk::da::DiskDaHeaderV5;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::types::BasicBlock;

    fn sample() -> Vec<u8> {
        let mut block = vec![0; 4096];
        let (header, rest) = DiskDaHeaderV5::mut_from_prefix(&mut block).unwrap();
        header.common.magic.set(0x3df1);
        header.block.set(80);
        header.uuid = [0x5a; 16];
        header.owner.set(131);
        rest[..4].copy_from_slice(&[0, 4, 0, 1]);
        let (entries, _) =
            <[DiskLeafEntry]>::mut_from_prefix_with_elems(&mut rest[8..], 4).unwrap();
        for (entry, (hash, address)) in entries.iter_mut().zip([(5, 8), (7, 10), (7, 0), (7, 12)]) {
            entry.hash.set(hash);
            entry.address.set(address);
        }
        block[4095] = 1;
        block[4091] = 0x40;
        seal(&mut block);
        block
    }

    fn seal(block: &mut [u8]) {
        checksum::seal(block, DiskDaHeaderV5::CHECKSUM_OFFSET);
    }

    fn decode(block: &[u8]) -> Result<(Vec<u32>, usize), DirLeafRule> {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        let leaf = DirLeaf::decode(block, DaKind::DirLeaf1, &site)?;
        let found = matching(leaf.entries, 7).map(|pointer| pointer.0);
        Ok((found.collect(), leaf.bests.len()))
    }

    fn broken(change: impl FnOnce(&mut [u8])) -> DirLeafRule {
        let mut block = sample();
        change(&mut block);
        seal(&mut block);
        decode(&block).unwrap_err()
    }

    #[test]
    fn leaf_has_several_entries_of_one_hash() {
        assert_eq!(decode(&sample()), Ok((vec![10, 12], 1)));
    }

    #[test]
    fn rules_of_a_leaf_are_checked() {
        assert_eq!(broken(|block| block[8] = 0), DirLeafRule::Magic);
        assert_eq!(broken(|block| block[32] = 0), DirLeafRule::Uuid);
        assert_eq!(broken(|block| block[23] = 0), DirLeafRule::BlockNumber);
        assert_eq!(broken(|block| block[55] = 0), DirLeafRule::Owner);
        assert_eq!(broken(|block| block[56] = 2), DirLeafRule::Count);
        assert_eq!(broken(|block| block[59] = 5), DirLeafRule::Count);
        assert_eq!(broken(|block| block[4093] = 9), DirLeafRule::Count);
        assert_eq!(broken(|block| block[64] = 1), DirLeafRule::Order);
        let mut block = sample();
        block[2000] = 1;
        assert_eq!(decode(&block), Err(DirLeafRule::Checksum));
    }
}
