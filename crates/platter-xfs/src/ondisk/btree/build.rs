//! Building blocks of B-trees of allocation groups. Spec: `xfs/btrees`.

use zerocopy::{FromBytes, IntoBytes};

use super::super::checksum;
use super::super::geometry::Geometry;
use super::super::types::{AgBlock, AgNr};
use super::{BtreeKind, DiskShortHeader, DiskShortHeaderV5, checksum_offset};

/// What a block of an allocation group's B-tree holds.
#[derive(Debug, Clone, Copy)]
pub struct ShortBlock<'a> {
    /// Which B-tree it is of.
    pub kind: BtreeKind,
    /// The allocation group.
    pub ag: AgNr,
    /// Zero for a leaf.
    pub level: u16,
    /// The block to the left on the same level.
    pub left: Option<AgBlock>,
    /// The block to the right on the same level.
    pub right: Option<AgBlock>,
    /// Records or keys, one after the other.
    pub entries: &'a [u8],
    /// How many they are.
    pub count: usize,
    /// Pointers of a node, one for each key.
    pub pointers: &'a [AgBlock],
}

impl ShortBlock<'_> {
    /// Builds the block in `bytes`, which keep their LSN; `None` if the entries do not fit.
    #[must_use]
    pub fn encode(&self, at: AgBlock, geometry: &Geometry, bytes: &mut [u8]) -> Option<()> {
        let is_v5 = geometry.features.is_v5();
        let header = self.kind.header_bytes(is_v5);
        let sibling = |block: Option<AgBlock>| block.unwrap_or(AgBlock::NULL).0;
        if is_v5 {
            let (disk, _) = DiskShortHeaderV5::mut_from_prefix(bytes).ok()?;
            let place = geometry.basic_block(geometry.fs_block(self.ag, at));
            disk.block.set(place.0);
            disk.uuid = *geometry.meta_uuid.as_bytes();
            disk.owner.set(self.ag.0);
        }
        let (disk, _) = DiskShortHeader::mut_from_prefix(bytes).ok()?;
        disk.magic.set(self.kind.magic(is_v5)?);
        disk.level.set(self.level);
        disk.records.set(u16::try_from(self.count).ok()?);
        disk.left.set(sibling(self.left));
        disk.right.set(sibling(self.right));
        let max = self.kind.records_max(self.level, geometry);
        if self.count > max {
            return None;
        }
        let body = bytes.get_mut(header..)?;
        body.get_mut(..self.entries.len())?
            .copy_from_slice(self.entries);
        if self.level > 0 {
            let each = self.entries.len().checked_div(self.count)?;
            let mut rest = body.get_mut(each.checked_mul(max)?..)?;
            for pointer in self.pointers {
                let (slot, after) = rest.split_at_mut_checked(size_of::<u32>())?;
                platter_ondisk::endian::Be32::new(pointer.0)
                    .write_to(slot)
                    .ok()?;
                rest = after;
            }
        }
        if is_v5 {
            checksum::seal(bytes, checksum_offset(self.kind));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::geometry::tests::sample_geometry;
    use super::super::super::identity::Site;
    use super::super::{BtreeBlock, DiskFreeExtent};
    use super::*;

    #[test]
    fn built_blocks_decode() {
        let geometry = sample_geometry();
        let entries: Vec<DiskFreeExtent> = (1..4)
            .map(|at| DiskFreeExtent {
                start: (at * 100).into(),
                count: 7.into(),
            })
            .collect();
        for (level, pointers) in [(0, vec![]), (1, vec![AgBlock(9), AgBlock(10), AgBlock(11)])] {
            let block = ShortBlock {
                kind: BtreeKind::Bno,
                ag: AgNr(1),
                level,
                left: None,
                right: Some(AgBlock(50)),
                entries: entries.as_bytes(),
                count: 3,
                pointers: &pointers,
            };
            let mut bytes = vec![0; 4096];
            block.encode(AgBlock(20), &geometry, &mut bytes).unwrap();
            let at = geometry.basic_block(geometry.fs_block(AgNr(1), AgBlock(20)));
            let site = Site::new(&geometry, at, 1);
            let decoded = BtreeBlock::decode(&bytes, BtreeKind::Bno, &site).unwrap();
            assert_eq!(
                (decoded.level, decoded.count, decoded.right),
                (level, 3, Some(50))
            );
            if level == 0 {
                assert_eq!(decoded.records::<DiskFreeExtent>(), entries);
            } else {
                assert_eq!(decoded.pointer(2), Some(11));
            }
            let many = ShortBlock {
                count: 9999,
                ..block
            };
            assert!(many.encode(AgBlock(20), &geometry, &mut bytes).is_none());
        }
    }
}
