//! Which inodes exist and are in use, by the inode B-tree of their allocation group.

use platter_vfs::Result;

use crate::btree::Tree;
use crate::context::FsContext;
use crate::ondisk::btree::{BtreeKind, DiskInodeChunk, InodeChunk};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::{AgInode, AgNr, InodeNr};

/// The chunk that holds an inode of a group.
pub fn chunk_of(context: &FsContext, ag: AgNr, inode: AgInode) -> Result<Option<InodeChunk>> {
    let agi = context.agi(ag)?;
    let tree = Tree::of_group(context, BtreeKind::Inobt, ag, agi.inobt);
    let Some(leaf) = tree.search(inode.0.into())? else {
        return Ok(None);
    };
    let view = tree.view_leaf(&leaf)?;
    let records = view.records::<DiskInodeChunk>();
    let after = records.partition_point(|disk| disk.start.get() <= inode.0);
    let is_sparse = context.geometry().features.has_sparse_inodes();
    let found = after.checked_sub(1).and_then(|at| records.get(at));
    let chunk = found.map(|disk| InodeChunk::decode(disk, is_sparse));
    Ok(chunk.filter(|chunk| inode.0 - chunk.start.0 < CHUNK_INODES))
}

/// Whether an inode exists and is in use, whatever its number.
pub fn is_allocated(context: &FsContext, number: InodeNr) -> Result<bool> {
    let geometry = context.geometry();
    if context.mount().locate_inode(number).is_none() {
        return Ok(false);
    }
    let (ag, inode) = geometry.split_inode(number);
    let chunk = chunk_of(context, ag, inode)?;
    Ok(chunk.is_some_and(|chunk| chunk.is_allocated(inode.0 - chunk.start.0)))
}
