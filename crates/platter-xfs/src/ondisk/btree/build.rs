//! Building blocks of B-trees, and roots in inodes. Spec: `xfs/btrees`.

use platter_ondisk::endian::{Be32, Be64};
use zerocopy::{FromBytes, IntoBytes};

use super::super::checksum;
use super::super::geometry::Geometry;
use super::super::types::{AgBlock, FsBlock};
use super::{
    BtreeKind, DiskLongHeader, DiskLongHeaderV5, DiskRootHeader, DiskShortHeader,
    DiskShortHeaderV5, checksum_offset,
};

/// What a block of a B-tree holds.
#[derive(Debug, Clone, Copy)]
pub struct BuiltBlock<'a> {
    /// Which B-tree it is of.
    pub kind: BtreeKind,
    /// The allocation group or inode that owns it.
    pub owner: u64,
    /// Zero for a leaf.
    pub level: u16,
    /// The block to the left on the same level.
    pub left: Option<u64>,
    /// The block to the right on the same level.
    pub right: Option<u64>,
    /// Records or keys, one after the other.
    pub entries: &'a [u8],
    /// How many they are.
    pub count: usize,
    /// Pointers of a node, one for each key.
    pub pointers: &'a [u64],
}

impl BuiltBlock<'_> {
    /// Builds the block in `bytes`, which keep their LSN; `None` if the entries do not fit.
    #[must_use]
    pub fn encode(&self, at: FsBlock, geometry: &Geometry, bytes: &mut [u8]) -> Option<()> {
        self.encode_unsealed(at, geometry, bytes)?;
        if geometry.features.is_v5() {
            checksum::seal(bytes, checksum_offset(self.kind));
        }
        Some(())
    }

    /// Builds the block without its checksum.
    #[must_use]
    pub fn encode_unsealed(
        &self,
        at: FsBlock,
        geometry: &Geometry,
        bytes: &mut [u8],
    ) -> Option<()> {
        let header = self.kind.header_bytes(geometry.features.is_v5());
        if self.kind.is_long() {
            self.long_header(at, geometry, bytes)?;
        } else {
            self.short_header(at, geometry, bytes)?;
        }
        self.body(bytes.get_mut(header..)?)
    }

    /// Builds a root in the fork of an inode.
    #[must_use]
    pub fn encode_root(&self, fork: &mut [u8]) -> Option<()> {
        let (disk, body) = DiskRootHeader::mut_from_prefix(fork).ok()?;
        disk.level.set(self.level);
        disk.records.set(u16::try_from(self.count).ok()?);
        self.body(body)
    }

    fn short_header(&self, at: FsBlock, geometry: &Geometry, bytes: &mut [u8]) -> Option<()> {
        let is_v5 = geometry.features.is_v5();
        let number = |block: u64| u32::try_from(block).ok();
        if is_v5 {
            let (disk, _) = DiskShortHeaderV5::mut_from_prefix(bytes).ok()?;
            disk.block.set(geometry.basic_block(at).0);
            disk.uuid = *geometry.meta_uuid.as_bytes();
            disk.owner.set(number(self.owner)?);
        }
        let (disk, _) = DiskShortHeader::mut_from_prefix(bytes).ok()?;
        disk.magic.set(self.kind.magic(is_v5)?);
        disk.level.set(self.level);
        disk.records.set(u16::try_from(self.count).ok()?);
        let null = AgBlock::NULL.0.into();
        disk.left.set(number(self.left.unwrap_or(null))?);
        disk.right.set(number(self.right.unwrap_or(null))?);
        Some(())
    }

    fn long_header(&self, at: FsBlock, geometry: &Geometry, bytes: &mut [u8]) -> Option<()> {
        let is_v5 = geometry.features.is_v5();
        if is_v5 {
            let (disk, _) = DiskLongHeaderV5::mut_from_prefix(bytes).ok()?;
            disk.block.set(geometry.basic_block(at).0);
            disk.uuid = *geometry.meta_uuid.as_bytes();
            disk.owner.set(self.owner);
        }
        let (disk, _) = DiskLongHeader::mut_from_prefix(bytes).ok()?;
        disk.magic.set(self.kind.magic(is_v5)?);
        disk.level.set(self.level);
        disk.records.set(u16::try_from(self.count).ok()?);
        disk.left.set(self.left.unwrap_or(FsBlock::NULL.0));
        disk.right.set(self.right.unwrap_or(FsBlock::NULL.0));
        Some(())
    }

    /// Entries, and pointers after as many keys as fit.
    fn body(&self, body: &mut [u8]) -> Option<()> {
        let max = self.kind.capacity(self.level, body.len());
        if self.count > max {
            return None;
        }
        body.get_mut(..self.entries.len())?
            .copy_from_slice(self.entries);
        if self.level == 0 {
            return Some(());
        }
        let each = self.entries.len().checked_div(self.count)?;
        let mut rest = body.get_mut(each.checked_mul(max)?..)?;
        for &pointer in self.pointers {
            let (slot, after) = rest.split_at_mut_checked(self.kind.pointer_bytes())?;
            if self.kind.is_long() {
                Be64::new(pointer).write_to(slot).ok()?;
            } else {
                Be32::new(u32::try_from(pointer).ok()?)
                    .write_to(slot)
                    .ok()?;
            }
            rest = after;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::geometry::tests::sample_geometry;
    use super::super::super::identity::Site;
    use super::super::super::types::AgNr;
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
        for (level, pointers) in [(0, vec![]), (1, vec![9, 10, 11])] {
            let block = BuiltBlock {
                kind: BtreeKind::Bno,
                owner: 1,
                level,
                left: None,
                right: Some(50),
                entries: entries.as_bytes(),
                count: 3,
                pointers: &pointers,
            };
            let mut bytes = vec![0; 4096];
            let at = geometry.fs_block(AgNr(1), AgBlock(20));
            block.encode(at, &geometry, &mut bytes).unwrap();
            let site = Site::new(&geometry, geometry.basic_block(at), 1);
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
            let many = BuiltBlock {
                count: 9999,
                ..block
            };
            assert!(many.encode(at, &geometry, &mut bytes).is_none());
        }
    }
    #[test]
    fn built_blocks_of_a_fork_decode() {
        let geometry = sample_geometry();
        let at = geometry.fs_block(AgNr(1), AgBlock(20));
        let keys: [Be64; 2] = [0.into(), 70.into()];
        let block = BuiltBlock {
            kind: BtreeKind::Bmap,
            owner: 131,
            level: 1,
            left: None,
            right: Some(30),
            entries: keys.as_bytes(),
            count: 2,
            pointers: &[21, 22],
        };
        let mut bytes = vec![0; 4096];
        block.encode(at, &geometry, &mut bytes).unwrap();
        let site = Site::new(&geometry, geometry.basic_block(at), 131);
        let decoded = BtreeBlock::decode(&bytes, BtreeKind::Bmap, &site).unwrap();
        assert_eq!((decoded.left, decoded.right), (None, Some(30)));
        assert_eq!(decoded.keys::<Be64>(), keys);
        assert_eq!(
            (decoded.pointer(0), decoded.pointer(1)),
            (Some(21), Some(22))
        );
        let mut fork = vec![0; 60];
        block.encode_root(&mut fork).unwrap();
        let root = BtreeBlock::decode_root(&fork, BtreeKind::Bmap).unwrap();
        assert_eq!((root.level, root.pointer(1)), (1, Some(22)));
        assert_eq!(root.keys::<Be64>(), keys);
        assert!(block.encode_root(&mut fork[..30]).is_none());
    }
}
