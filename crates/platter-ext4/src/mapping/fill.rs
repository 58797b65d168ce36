//! Filling holes block by block, for files whose contents are metadata.

use platter_vfs::Result;

use super::{Backing, BlockMap, MapChange, Run};
use crate::FsContext;
use crate::ondisk::{BlockNr, FileBlock};

impl BlockMap {
    /// Maps a block that is a hole: to a block of a cluster that the inode has, or else of one that
    /// `alloc` allocates. Returns the physical block.
    ///
    /// # Errors
    /// `NoSpace`; after an error, nothing was changed, or the handle was aborted.
    pub fn fill_hole(
        &mut self,
        change: &mut MapChange<'_, '_>,
        block: FileBlock,
        alloc: impl FnOnce(&mut MapChange<'_, '_>) -> Result<BlockNr>,
    ) -> Result<BlockNr> {
        let shared = self.place_in_shared_cluster(change.fs, block)?;
        let ratio = change.fs.geometry.cluster_blocks;
        let place = if let Some(place) = shared {
            place
        } else {
            let cluster = alloc(change)?;
            BlockNr(cluster.0.saturating_add(u64::from(block.0 % ratio)))
        };
        let run = Run {
            first: block,
            count: 1,
            backing: Backing::Written(place),
        };
        let mapped = self.insert(change, run);
        if shared.is_some() {
            return mapped.map(|_| place);
        }
        if let Err(error) = mapped {
            let start = BlockNr(place.0 - place.0 % u64::from(ratio));
            let cluster = start..BlockNr(start.0.saturating_add(u64::from(ratio)));
            let freed = change.space.free(change.fs, change.handle, cluster);
            freed.map_err(|error| change.handle.abort(error))?;
            return Err(error);
        }
        let sectors = change.cluster_sectors();
        change.inode.sectors = change.inode.sectors.saturating_add(sectors);
        Ok(place)
    }

    /// Returns the physical block of a hole whose cluster is already allocated to the inode.
    fn place_in_shared_cluster(&self, fs: &FsContext, block: FileBlock) -> Result<Option<BlockNr>> {
        let ratio = fs.geometry.cluster_blocks;
        let first = block.0 - block.0 % ratio;
        for other in (first..first.saturating_add(ratio)).map(FileBlock) {
            if let Some(place) = self.block(fs, other)? {
                let start = place.0.checked_sub(u64::from(other.0 - first));
                return Ok(start.map(|start| BlockNr(start + u64::from(block.0 - first))));
            }
        }
        Ok(None)
    }
}
