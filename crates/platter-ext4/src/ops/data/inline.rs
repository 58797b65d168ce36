//! Contents that lie in the inode, and what grows out of it.

use std::io::IoSlice;

use platter_vfs::Result;

use super::super::Ext4Inode;
use crate::alloc::{self, RECORD_CREDITS, Taken};
use crate::mapping::{Backing, BlockMap, InlineData, Run, store_inline};
use crate::ondisk::features::Incompat;
use crate::ondisk::xattr::remove_from_inode;
use crate::ondisk::{FileBlock, InodeFlags};
use crate::ops::quotas;

/// No inode has space for more contents than this.
const INLINE_BYTES_MAX: u64 = 1 << 16;

/// Writes contents that lie in the inode, or may come to lie there because there are none yet.
/// Whether it did: else they have no space. The caller holds the order lock alone.
pub(super) fn write(node: &Ext4Inode, offset: u64, data: &[u8]) -> Result<bool> {
    let end = offset.saturating_add(data.len() as u64);
    change(node, end.max(node.size_bytes()), |contents| {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let target = contents.get_mut(at..).unwrap_or_default();
        target
            .iter_mut()
            .zip(data)
            .for_each(|(to, from)| *to = *from);
    })
}

/// Truncates inline data, or extends it with zeros. Returns whether the contents are still inline.
pub(super) fn resize(node: &Ext4Inode, size: u64) -> Result<bool> {
    let is_inline = node
        .state
        .read()
        .inode
        .flags
        .contains(InodeFlags::INLINE_DATA);
    Ok(is_inline && change(node, size, |_| ())?)
}

fn change(node: &Ext4Inode, size: u64, change: impl FnOnce(&mut [u8])) -> Result<bool> {
    if size > INLINE_BYTES_MAX || !may_be_inline(node)? {
        return Ok(false);
    }
    let geometry = &node.fs().geometry;
    let mut inode = node.state.read().inode.clone();
    let mut contents = vec![0; usize::try_from(size).unwrap_or_default()];
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        let old = InlineData::decode(&inode, geometry)?;
        let kept = size.min(inode.size_bytes);
        old.read_at(
            0,
            &mut contents[..usize::try_from(kept).unwrap_or_default()],
        );
    }
    change(&mut contents);
    // Without a handle first: most contents have no space.
    if !store_inline(&mut inode, geometry, &contents)? {
        return Ok(false);
    }
    let now = node.sb.clock.now();
    let stored = node.change(0, |handle, state| {
        if !store_inline(&mut state.inode, geometry, &contents)? {
            return Ok(false);
        }
        state.inode.flags |= InodeFlags::INLINE_DATA;
        state.inode.flags -= InodeFlags::EXTENTS;
        state.inode.size_bytes = size;
        node.data.file.truncate(size);
        state.inode.modified = now;
        state.inode.changed = now;
        state.map = BlockMap::begin(node.fs(), &mut state.inode);
        state.data_sync = handle.transaction();
        Ok(true)
    })?;
    if stored {
        node.pages.remove_range(0..u64::MAX);
    }
    Ok(stored)
}

/// Whether contents lie in the inode, or there are none and the filesystem keeps small ones there.
fn may_be_inline(node: &Ext4Inode) -> Result<bool> {
    let incompat = node.fs().geometry.features.incompat;
    let state = node.state.read();
    if state.inode.flags.contains(InodeFlags::INLINE_DATA) {
        return Ok(true);
    }
    let is_empty = node.size_bytes() == 0 && state.delayed.dirty().is_empty();
    if !incompat.contains(Incompat::INLINE_DATA) || !is_empty {
        return Ok(false);
    }
    let run = state.map.lookup(node.fs(), FileBlock(0))?;
    Ok(run.backing == Backing::Hole && run.end() == FileBlock::MAX)
}

/// Moves contents that lie in the inode into a block, which gets them before the inode names it.
/// The caller holds the order lock alone.
pub(super) fn leave(node: &Ext4Inode) -> Result<()> {
    if !node
        .state
        .read()
        .inode
        .flags
        .contains(InodeFlags::INLINE_DATA)
    {
        return Ok(());
    }
    let (fs, space) = (node.fs(), node.sb.space()?);
    let block_bytes = fs.geometry.block_bytes as usize;
    let mut bytes = vec![0; block_bytes];
    let is_empty = {
        let inode = &node.state.read().inode;
        let len = usize::try_from(inode.size_bytes).unwrap_or(usize::MAX);
        let contents = InlineData::decode(inode, &fs.geometry)?;
        contents.read_at(0, &mut bytes[..len.min(block_bytes)]);
        len == 0
    };
    let (mut taken, mut _held) = (None, None);
    if !is_empty {
        _held = quotas::hold_cluster(node)?;
        let goal = space.first_goal(node.number, node.kind);
        let block = alloc::take(space, fs, goal, 1, space.contents_from())?;
        let at = fs.geometry.offset_bytes(block.start());
        if let Err(error) = node.sb.write_data(at, &[IoSlice::new(&bytes)]) {
            alloc::give_back(space, block);
            return Err(error);
        }
        taken = Some(block);
    }
    let moved = name_first_block(node, &mut taken);
    if let Some(taken) = taken {
        alloc::give_back(space, taken);
    }
    moved
}

/// Makes the inode map a block instead of storing the contents inline.
fn name_first_block(node: &Ext4Inode, taken: &mut Option<Taken>) -> Result<()> {
    let (fs, space) = (node.fs(), node.sb.space()?);
    let has_extents = fs.geometry.features.incompat.contains(Incompat::EXTENTS);
    // The first block of a map lies in its root.
    node.change(RECORD_CREDITS, |handle, state| {
        let system = crate::mapping::INLINE_DATA_NAME;
        remove_from_inode(&mut state.inode.tail, system.0, system.1);
        state.inode.flags -= InodeFlags::INLINE_DATA;
        state.inode.flags.set(InodeFlags::EXTENTS, has_extents);
        state.map = BlockMap::begin(fs, &mut state.inode);
        state.data_sync = handle.transaction();
        let Some(taken) = taken.take() else {
            return Ok(());
        };
        let run = Run {
            first: FileBlock(0),
            count: 1,
            backing: Backing::Written(taken.start()),
        };
        let (map, mut change) = state.map_change(fs, &**space, handle);
        let mapped = map.insert(&mut change, run);
        change.inode.sectors += change.cluster_sectors();
        let recorded = mapped.and_then(|_| alloc::record(space, fs, change.handle, taken));
        recorded.map_err(|error| handle.abort(error))
    })
}
