//! All blocks of a fork. Spec: `xfs/data_extents`.

use std::collections::HashSet;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use crate::ondisk::btree::{BtreeBlock, BtreeKind, BtreeRule, DiskMapping};
use crate::ondisk::extent::{ExtentDevice, Mapping};
use crate::ondisk::inode::{Fork, ForkFormat};
use crate::ondisk::{FsBlock, Geometry, InodeNr, Site};

/// The blocks of a fork: its mappings, and the blocks of its B-tree.
#[derive(Debug, Default)]
pub(super) struct ForkBlocks {
    pub(super) mappings: Vec<Mapping>,
    pub(super) tree: Vec<FsBlock>,
}

impl ForkBlocks {
    /// Reads a fork.
    pub(super) fn read(
        fork: &Fork<'_>,
        inode: InodeNr,
        geometry: &Geometry,
        device: &dyn BlockDevice,
    ) -> Result<Self> {
        let mut found = Self::default();
        match fork.format {
            ForkFormat::Extents => found.add(fork.mappings(), inode, geometry)?,
            ForkFormat::Btree => found.walk(fork, inode, geometry, device)?,
            ForkFormat::Device | ForkFormat::Local | ForkFormat::MetaBtree => {}
        }
        Ok(found)
    }

    fn add(&mut self, records: &[DiskMapping], inode: InodeNr, geometry: &Geometry) -> Result<()> {
        for record in records {
            let mapping = Mapping::unpack(record);
            let checked = mapping.check(geometry, ExtentDevice::Data);
            checked.map_err(|rule| Corrupt::new(Locus::inode(inode.get()), rule))?;
            self.mappings.push(mapping);
        }
        Ok(())
    }

    /// Level by level, each block once.
    fn walk(
        &mut self,
        fork: &Fork<'_>,
        inode: InodeNr,
        geometry: &Geometry,
        device: &dyn BlockDevice,
    ) -> Result<()> {
        let broken = |rule: BtreeRule| Corrupt::new(Locus::inode(inode.get()), rule);
        let root = BtreeBlock::decode_root(fork.bytes, BtreeKind::Bmap).map_err(broken)?;
        let mut seen = HashSet::new();
        let mut next = children(&root, geometry, inode).map_err(broken)?;
        for level in (0..root.level).rev() {
            let mut below = Vec::new();
            for block in next {
                if !seen.insert(block) {
                    return Err(broken(BtreeRule::Pointer).into());
                }
                let mut bytes = vec![0; geometry.block_bytes() as usize];
                device.read_at(geometry.byte_offset(block), &mut bytes)?;
                let site = Site::new(geometry, geometry.basic_block(block), inode.get());
                let found = BtreeBlock::decode(&bytes, BtreeKind::Bmap, &site).map_err(broken)?;
                if found.level != level {
                    return Err(broken(BtreeRule::Level).into());
                }
                self.tree.push(block);
                self.add(found.records(), inode, geometry)?;
                below.extend(children(&found, geometry, inode).map_err(broken)?);
            }
            next = below;
        }
        Ok(())
    }
}

fn children(
    block: &BtreeBlock<'_>,
    geometry: &Geometry,
    inode: InodeNr,
) -> Result<Vec<FsBlock>, BtreeRule> {
    let count = if block.level > 0 { block.count } else { 0 };
    (0..count)
        .map(|index| block.child(index, geometry, inode.get()))
        .collect()
}
