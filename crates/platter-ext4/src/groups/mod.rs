//! Block groups: their descriptors, read on demand.
//!
//! A read-only mount reads no descriptor in advance: each costs a lookup in the buffer cache, and a
//! large filesystem has a hundred thousand of them.

pub mod layout;
pub(crate) mod backups;
mod space;

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use crate::FsContext;
use crate::ondisk::group_desc::GroupDescRule;
use crate::ondisk::{BlockNr, Geometry, GroupDesc, GroupNr, InodeNr};
use crate::txn::Handle;

pub use space::{
    FreeSpace, GROUPS_SUMMED_MAX, free_space, metadata_clusters, read_table_ahead,
    split_reserve_clusters, stored_overhead_clusters, visit_descriptors,
};

/// Number of inode table blocks read together: a power of two.
const INODE_READ_AHEAD_BLOCKS: u32 = 32;

/// Reads the descriptor of a group.
pub fn read_descriptor(fs: &FsContext, group: GroupNr) -> Result<GroupDesc> {
    read_with(fs, group, GroupDesc::decode)
}

/// Reads the descriptor of a group without verifying its checksum, for the check.
pub fn read_unsummed_descriptor(fs: &FsContext, group: GroupNr) -> Result<GroupDesc> {
    read_with(fs, group, GroupDesc::decode_unsummed)
}

type DecodeDescriptor =
    fn(&[u8], GroupNr, &Geometry) -> std::result::Result<GroupDesc, Corrupt<GroupDescRule>>;

fn read_with(fs: &FsContext, group: GroupNr, decode: DecodeDescriptor) -> Result<GroupDesc> {
    let geometry = &fs.geometry;
    let (block, offset) = descriptor_place(geometry, group);
    // Descriptors of one block are validated one by one, so that a corrupt one does not affect
    // others.
    let buffer = fs.read_block(block, &Unverified)?;
    let bytes = buffer.get(offset..).ok_or(truncated(group))?;
    Ok(decode(bytes, group, geometry)?)
}

/// Modifies the descriptor of a group. If `change` fails, it is unchanged.
pub fn edit_descriptor<R>(
    handle: &mut Handle<'_>,
    geometry: &Geometry,
    group: GroupNr,
    change: impl FnOnce(&mut GroupDesc) -> Result<R>,
) -> Result<R> {
    let (block, offset) = descriptor_place(geometry, group);
    handle.edit(block, &Unverified, |bytes| {
        let bytes = bytes.get_mut(offset..).ok_or(truncated(group))?;
        let mut desc = GroupDesc::decode(bytes, group, geometry)?;
        let result = change(&mut desc)?;
        desc.encode_into(bytes, group, geometry);
        Ok(result)
    })
}

/// Adds the block of a group's descriptor to the transaction, for later modification.
pub fn join_descriptor(handle: &mut Handle<'_>, geometry: &Geometry, group: GroupNr) -> Result<()> {
    let (block, _) = descriptor_place(geometry, group);
    handle.edit(block, &Unverified, |_| Ok(()))
}

/// Returns the block of a group's descriptor, and its offset there.
fn descriptor_place(geometry: &Geometry, group: GroupNr) -> (BlockNr, usize) {
    let per_block = geometry.descriptors_per_block;
    let offset = (group.0 % per_block) as usize * usize::from(geometry.descriptor_bytes);
    (geometry.descriptor_block(group.0 / per_block), offset)
}

fn truncated(group: GroupNr) -> Corrupt<GroupDescRule> {
    Corrupt::new(Locus::group(u64::from(group.0)), GroupDescRule::Truncated)
}

/// Location of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeSlot {
    /// The inode table block.
    pub block: BlockNr,
    /// Byte offset in that block.
    pub offset: usize,
}

/// Finds the slot of an inode; `None` for a number beyond the last inode.
pub fn find_inode(fs: &FsContext, inode: InodeNr) -> Result<Option<InodeSlot>> {
    let geometry = &fs.geometry;
    let Some((group, index)) = geometry.group_of_inode(inode) else {
        return Ok(None);
    };
    let table = if let Some(table) = fs.inode_tables().get(group) {
        table
    } else {
        let table = read_descriptor(fs, group)?.inode_table;
        fs.inode_tables().note(group, table);
        table
    };
    let in_block = (index % geometry.inodes_per_block) as usize;
    Ok(Some(InodeSlot {
        block: BlockNr(table.0 + u64::from(index / geometry.inodes_per_block)),
        offset: in_block * usize::from(geometry.inode_bytes),
    }))
}

/// Reads the block of an inode's slot with adjacent ones that contain inodes ever used.
pub fn read_inodes_ahead(fs: &FsContext, inode: InodeNr) -> Result<()> {
    let geometry = &fs.geometry;
    let Some((group, index)) = geometry.group_of_inode(inode) else {
        return Ok(());
    };
    let desc = read_descriptor(fs, group)?;
    let table_block = index / geometry.inodes_per_block;
    let used_inodes = if geometry.features.has_group_csum() {
        geometry.inodes_per_group.saturating_sub(desc.unused_inodes)
    } else {
        geometry.inodes_per_group
    };
    let used_blocks = used_inodes.div_ceil(geometry.inodes_per_block);
    let first = table_block & !(INODE_READ_AHEAD_BLOCKS - 1);
    let end = first
        .saturating_add(INODE_READ_AHEAD_BLOCKS)
        .min(used_blocks);
    let start = BlockNr(desc.inode_table.0 + u64::from(first));
    fs.read_ahead(start, u64::from(end.saturating_sub(first)));
    Ok(())
}
