//! Reading and writing the bytes of one inode in its table.

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};
use zerocopy::FromBytes;

use crate::FsContext;
use crate::groups;
use crate::inode;
use crate::ondisk::extent::encode_node;
use crate::ondisk::inode::{self as ondisk_inode, BLOCK_AREA_BYTES, DiskInode};
use crate::ondisk::jbd2::fast_commit::FastCommitRule;
use crate::ondisk::{BlockNr, Inode, InodeFlags, InodeNr};

/// Entries of the extent root, in the inode.
pub(super) const ROOT_ENTRIES: usize = 4;

/// Returns the inode with this number, if it is valid and linked.
pub(super) fn find(fs: &FsContext, number: InodeNr) -> Result<Option<Inode>> {
    match inode::read(fs, number) {
        Ok(inode) => Ok(Some(inode).filter(|inode| inode.links > 0)),
        Err(Error::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the bytes of an inode's slot.
pub(super) fn read(fs: &FsContext, number: InodeNr) -> Result<Vec<u8>> {
    let (block, offset) = place(fs, number)?;
    let buffer = fs.read_block(block, &Unverified)?;
    let slot = buffer.get(offset..offset + usize::from(fs.geometry.inode_bytes));
    Ok(slot.ok_or(outside(number))?.to_vec())
}

/// Updates the checksum of `bytes` and writes them into an inode's slot.
pub(super) fn write(fs: &FsContext, number: InodeNr, bytes: &mut [u8]) -> Result<()> {
    let (block, offset) = place(fs, number)?;
    ondisk_inode::seal(bytes, number, &fs.geometry);
    let mut table = fs.read_block(block, &Unverified)?.to_vec();
    let slot = table.get_mut(offset..offset + bytes.len());
    slot.ok_or(outside(number))?.copy_from_slice(bytes);
    fs.buffers().publish(block.0, table, &Unverified)?;
    Ok(())
}

/// Modifies fields of an inode.
pub(super) fn edit(
    fs: &FsContext,
    number: InodeNr,
    change: impl FnOnce(&mut DiskInode),
) -> Result<()> {
    let mut bytes = read(fs, number)?;
    if let Ok((disk, _)) = DiskInode::mut_from_prefix(&mut bytes) {
        change(disk);
    }
    write(fs, number, &mut bytes)
}

/// Returns the `i_block` of an empty file.
pub(super) fn empty_map(flags: InodeFlags) -> [u8; BLOCK_AREA_BYTES] {
    let mut block = [0; BLOCK_AREA_BYTES];
    if flags.contains(InodeFlags::EXTENTS) {
        encode_node(&mut block, 0, ROOT_ENTRIES, &[]);
    }
    block
}

fn place(fs: &FsContext, number: InodeNr) -> Result<(BlockNr, usize)> {
    let slot = groups::find_inode(fs, number)?.ok_or(outside(number))?;
    Ok((slot.block, slot.offset))
}

fn outside(number: InodeNr) -> Corrupt<FastCommitRule> {
    let locus = Locus::inode(u64::from(number.get()));
    Corrupt::new(locus, FastCommitRule::Inode)
}
