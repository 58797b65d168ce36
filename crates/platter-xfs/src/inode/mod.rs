//! Inodes in memory: found in their cluster, read, and shown as attributes.

mod attr;
mod chunk;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use crate::context::FsContext;
use crate::ondisk::inode::InodeRule;
use crate::ondisk::{AgBlock, AgNr, Geometry, Inode, InodeLocation, InodeNr};
use crate::txn::InodePlace;

pub use attr::{SETTABLE_FLAGS, attr, stored_flags};
pub use chunk::{chunk_of, is_allocated};

/// Directory blocks that are read ahead on each side of the cluster of a directory's inode.
const NEAR_DIR_BLOCKS: u64 = 2;

rules! {
    /// What every number of an inode must hold to, wherever it comes from.
    pub enum InodeNumberRule of "inode number" {
        /// An inode can have the number.
        OutOfRange => "bad inode number",
        /// A chunk of inodes holds it.
        NoChunk => "inode is in no inode chunk",
        /// No directory is in itself.
        Itself => "directory is its own ancestor",
        /// It is in use.
        Deleted => "inode is free",
        /// Entries of directories do not name metadata inodes.
        Metadata => "is a metadata inode",
    }
}

/// The inode with this number, whatever its use; it may have no links.
pub fn read(context: &FsContext, number: InodeNr) -> Result<Arc<Inode>> {
    let locus = Locus::inode(number.get());
    let found = find(context, number)?;
    found.ok_or_else(|| Corrupt::new(locus, InodeNumberRule::Deleted).into())
}

/// The inode with this number; `None` if it is free.
pub fn find(context: &FsContext, number: InodeNr) -> Result<Option<Arc<Inode>>> {
    let geometry = context.geometry();
    let locus = Locus::inode(number.get());
    let Some(location) = context.mount().locate_inode(number) else {
        return Err(Corrupt::new(locus, InodeNumberRule::OutOfRange).into());
    };
    // The newest version may be in the log alone.
    if let Some(version) = context.log().and_then(|log| log.inode(number)) {
        return Ok(version.inode);
    }
    let place = place(context, location)?;
    let first = geometry.fs_block(location.ag, place.first);
    // Inodes of a cluster are validated one by one, so that a bad one takes no other with it.
    let buffer = context.read_blocks(first, geometry.cluster_blocks(), &Unverified)?;
    let end = place
        .start
        .saturating_add(usize::try_from(geometry.inode_bytes()).unwrap_or(0));
    let bytes = buffer.get(place.start..end).unwrap_or_default();
    Ok(decoded(bytes, number, geometry)?.map(Arc::new))
}

/// Requests readahead of a directory. A hint.
pub fn read_ahead_dir(context: &FsContext, number: InodeNr) {
    if let Some(range) = around_dir(context, number) {
        context.device().will_need(range);
    }
}

/// The bytes of a directory's cluster and of the blocks on both sides: the first block of a directory is
/// allocated as near to its inode as can be.
fn around_dir(context: &FsContext, number: InodeNr) -> Option<Range<u64>> {
    let geometry = context.geometry();
    let location = context.mount().locate_inode(number)?;
    let cluster = geometry.aligned_cluster(location.block);
    let start = geometry.byte_offset(geometry.fs_block(location.ag, cluster));
    let len = u64::from(geometry.cluster_blocks()) * u64::from(geometry.block_bytes());
    let near = NEAR_DIR_BLOCKS * u64::from(geometry.dir_block_bytes());
    let end = start.saturating_add(len.saturating_add(near));
    Some(start.saturating_sub(near)..end.min(geometry.len_bytes()))
}

/// Where an inode lies, for the log.
///
/// # Errors
/// That no inode can have the number, or no chunk holds it.
pub fn place_in_log(context: &FsContext, number: InodeNr) -> Result<InodePlace> {
    let geometry = context.geometry();
    let Some(location) = context.mount().locate_inode(number) else {
        let locus = Locus::inode(number.get());
        return Err(Corrupt::new(locus, InodeNumberRule::OutOfRange).into());
    };
    let place = place(context, location)?;
    let first = geometry.fs_block(location.ag, place.first);
    let len = geometry
        .cluster_blocks()
        .saturating_mul(geometry.block_bytes());
    Ok(InodePlace {
        number,
        cluster: geometry.basic_block(first),
        cluster_bytes: len,
        offset: u32::try_from(place.start).unwrap_or(u32::MAX),
    })
}

/// The cluster of an inode, and its first byte there.
struct InCluster {
    first: AgBlock,
    start: usize,
}

fn place(context: &FsContext, location: InodeLocation) -> Result<InCluster> {
    let geometry = context.geometry();
    let first = cluster_of(context, location.ag, location.block)?;
    let block_bytes = usize::try_from(geometry.block_bytes()).unwrap_or(usize::MAX);
    let skipped = usize::try_from(location.block.0.saturating_sub(first.0)).unwrap_or(0);
    let start = skipped
        .saturating_mul(block_bytes)
        .saturating_add(location.offset);
    Ok(InCluster { first, start })
}

fn decoded(bytes: &[u8], number: InodeNr, geometry: &Geometry) -> Result<Option<Inode>> {
    let locus = Locus::inode(number.get());
    match Inode::decode(bytes, number, geometry) {
        Err(InodeRule::Unused) => Ok(None),
        decoded => Ok(Some(decoded.map_err(|rule| Corrupt::new(locus, rule))?)),
    }
}

/// The first block of the cluster that holds a block of inodes.
fn cluster_of(context: &FsContext, ag: AgNr, block: AgBlock) -> Result<AgBlock> {
    let geometry = context.geometry();
    let cluster = geometry.cluster_blocks();
    if cluster == 1 {
        return Ok(block);
    }
    if geometry.inode_alignment >= cluster {
        return Ok(geometry.aligned_cluster(block));
    }
    let first = geometry.first_ag_inode(block);
    let Some(chunk) = chunk_of(context, ag, first)? else {
        let number = geometry.inode_nr(ag, first).map_or(0, InodeNr::get);
        return Err(Corrupt::new(Locus::inode(number), InodeNumberRule::NoChunk).into());
    };
    let chunk = geometry.locate_ag_inode(chunk.start).0;
    let within = block.0.saturating_sub(chunk.0);
    Ok(AgBlock(block.0 - within % cluster))
}
