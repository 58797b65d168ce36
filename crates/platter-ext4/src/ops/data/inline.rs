//! Contents that lie in the inode, and what grows out of it.

use platter_vfs::Result;

use super::super::Node;
use crate::alloc::{RECORD_CREDITS, Reserve, Taken};
use crate::mapping::{Backing, BlockMap, InlineData, Run};
use crate::ondisk::features::Incompat;
use crate::ondisk::xattr::remove_from_inode;
use crate::ondisk::{FileBlock, InodeFlags};

impl Node {
    /// Moves contents that lie in the inode into a block, which gets them before the inode names it.
    /// The caller holds the order lock alone.
    pub(super) fn grow_out_of_inode(&self) -> Result<()> {
        if !self
            .core
            .read()
            .inode
            .flags
            .contains(InodeFlags::INLINE_DATA)
        {
            return Ok(());
        }
        let (volume, space) = (self.volume(), self.tree.space()?);
        let block_bytes = volume.geometry.block_bytes as usize;
        let mut bytes = vec![0; block_bytes];
        let is_empty = {
            let inode = &self.core.read().inode;
            let len = usize::try_from(inode.size_bytes).unwrap_or(usize::MAX);
            let contents = InlineData::decode(inode, &volume.geometry)?;
            contents.read_at(0, &mut bytes[..len.min(block_bytes)]);
            len == 0
        };
        let mut taken = None;
        if !is_empty {
            let goal = space.first_goal(self.number, self.kind);
            let block = space.take(volume, goal, 1, Reserve::Ordinary)?;
            let at = volume.geometry.offset_bytes(block.start());
            if let Err(error) = volume.device().write_at(at, &bytes) {
                space.give_back(block);
                return Err(error.into());
            }
            taken = Some(block);
        }
        let moved = self.name_first_block(&mut taken);
        if let Some(taken) = taken {
            space.give_back(taken);
        }
        moved
    }

    /// Has the inode name a block instead of holding the contents itself.
    fn name_first_block(&self, taken: &mut Option<Taken>) -> Result<()> {
        let (volume, space) = (self.volume(), self.tree.space()?);
        let has_extents = volume
            .geometry
            .features
            .incompat
            .contains(Incompat::EXTENTS);
        // The first block of a map lies in its root.
        self.change(RECORD_CREDITS, |handle, core| {
            let system = crate::mapping::INLINE_DATA_NAME;
            remove_from_inode(&mut core.inode.tail, system.0, system.1);
            core.inode.flags -= InodeFlags::INLINE_DATA;
            core.inode.flags.set(InodeFlags::EXTENTS, has_extents);
            core.map = BlockMap::begin(volume, &mut core.inode);
            core.data_sync = handle.transaction();
            let Some(taken) = taken.take() else {
                return Ok(());
            };
            let run = Run {
                first: FileBlock(0),
                count: 1,
                backing: Backing::Written(taken.start()),
            };
            let (map, mut change) = core.map_change(volume, &**space, handle);
            let mapped = map.insert(&mut change, run);
            change.inode.sectors += change.cluster_sectors();
            let recorded = mapped.and_then(|_| space.record(volume, change.handle, taken));
            recorded.map_err(|error| handle.abort(error))
        })
    }
}
