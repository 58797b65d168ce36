//! Block groups: their descriptors, read as they are needed.
//!
//! Nothing is read at mount: a descriptor costs a lookup in the buffer cache, and a large
//! filesystem has a hundred thousand of them.

mod space;

use platter_ondisk::Locus;
use platter_ondisk::verify::Unverified;
use platter_vfs::Result;

use crate::Volume;
use crate::ondisk::corrupt::Corrupt;
use crate::ondisk::group_desc::GroupDescRule;
use crate::ondisk::{BlockNr, Geometry, GroupDesc, GroupNr, InodeNr};

pub use space::{
    FreeSpace, GROUPS_SUMMED_MAX, free_space, metadata_clusters, stored_overhead_clusters,
};

/// The inode table blocks that are read with one that is needed: a power of two.
const INODE_READ_AHEAD_BLOCKS: u32 = 32;

/// The descriptor of a group.
pub fn read_descriptor(volume: &Volume, group: GroupNr) -> Result<GroupDesc> {
    read_with(volume, group, GroupDesc::decode)
}

/// The descriptor of a group whose checksum is wrong, for checks.
pub fn read_unsummed_descriptor(volume: &Volume, group: GroupNr) -> Result<GroupDesc> {
    read_with(volume, group, GroupDesc::decode_unsummed)
}

type DecodeDescriptor =
    fn(&[u8], GroupNr, &Geometry) -> std::result::Result<GroupDesc, Corrupt<GroupDescRule>>;

fn read_with(volume: &Volume, group: GroupNr, decode: DecodeDescriptor) -> Result<GroupDesc> {
    let geometry = &volume.geometry;
    let per_block = geometry.descriptors_per_block;
    let block = geometry.descriptor_block(group.0 / per_block);
    // Descriptors of one block are proven one by one, so that a bad one takes no other with it.
    let buffer = volume.read_block(block, &Unverified)?;
    let offset = (group.0 % per_block) as usize * usize::from(geometry.descriptor_bytes);
    let Some(bytes) = buffer.get(offset..) else {
        let locus = Locus::group(u64::from(group.0)).at_block(block.0);
        return Err(Corrupt::new(locus, GroupDescRule::Truncated).into());
    };
    Ok(decode(bytes, group, geometry)?)
}

/// Where an inode lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeSlot {
    /// The block of the inode table.
    pub block: BlockNr,
    /// The inode's first byte in that block.
    pub offset: usize,
    /// The blocks around it that hold inodes which were ever used.
    pub neighbours: (BlockNr, u32),
}

/// Finds the slot of an inode; `None` for a number beyond the last inode.
pub fn find_inode(volume: &Volume, inode: InodeNr) -> Result<Option<InodeSlot>> {
    let geometry = &volume.geometry;
    let Some((group, index)) = geometry.group_of_inode(inode) else {
        return Ok(None);
    };
    let desc = read_descriptor(volume, group)?;
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
    let at = |index: u32| BlockNr(desc.inode_table.0 + u64::from(index));
    let in_block = (index % geometry.inodes_per_block) as usize;
    Ok(Some(InodeSlot {
        block: at(table_block),
        offset: in_block * usize::from(geometry.inode_bytes),
        neighbours: (at(first), end.saturating_sub(first)),
    }))
}
