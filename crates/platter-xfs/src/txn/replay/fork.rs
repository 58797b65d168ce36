//! The forks of a logged inode: as they are, or the root of a tree of extents in the form that it has in
//! memory. Spec: `xfs/data_extents`.

use std::collections::HashSet;

use platter_ondisk::endian::{Be16, Be64};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::FromBytes;

use super::rules::ReplayRule;
use super::second_pass::SecondPass;
use crate::ondisk::log::Stamp;
use crate::ondisk::{BasicBlock, FsBlock, InodeNr, Lsn};

/// Header of a tree block with long pointers, in version 5 and before.
const LONG_HEADER_V5: usize = 72;
const LONG_HEADER_V4: usize = 24;
/// `bb_level` and `bb_numrecs` of a tree block, after its magic number.
const LEVEL_AT: usize = 4;
/// Header of a root in an inode: level and number of records.
const ROOT_HEADER: usize = 4;
const KEY_BYTES: usize = 8;
const POINTER_BYTES: usize = 8;
/// `XFS_BMAP_CRC_MAGIC`.
const EXTENT_TREE_MAGIC: &[u8] = b"BMA3";
/// `bb_blkno` of a block with long pointers: its place, in basic blocks.
const PLACE_AT: usize = 24;
/// `bb_owner` of a block with long pointers.
const OWNER_AT: usize = 56;
/// The most levels of a tree of extents.
const LEVELS_MAX: u16 = 9;

/// Stores a logged fork in the inode's; `None` if it does not fit.
pub(super) fn store(fork: &mut [u8], region: &[u8], is_root: bool, is_v5: bool) -> Option<()> {
    if !is_root {
        fork.get_mut(..region.len())?.copy_from_slice(region);
        return Some(());
    }
    let header = if is_v5 {
        LONG_HEADER_V5
    } else {
        LONG_HEADER_V4
    };
    let entry = KEY_BYTES + POINTER_BYTES;
    let level = region.get(LEVEL_AT..LEVEL_AT + 4)?;
    let (records, _) = Be16::ref_from_prefix(region.get(LEVEL_AT + 2..)?).ok()?;
    let records = usize::from(records.get());
    let logged_max = region.len().checked_sub(header)? / entry;
    let stored_max = fork.len().checked_sub(ROOT_HEADER)? / entry;
    if records > logged_max || records > stored_max {
        return None;
    }
    let keys = region.get(header..header + records * KEY_BYTES)?;
    let pointers_at = header + logged_max * KEY_BYTES;
    let pointers = region.get(pointers_at..pointers_at + records * POINTER_BYTES)?;
    fork.get_mut(..ROOT_HEADER)?.copy_from_slice(level);
    let stored = fork.get_mut(ROOT_HEADER..)?;
    stored.get_mut(..keys.len())?.copy_from_slice(keys);
    let pointers_at = stored_max * KEY_BYTES;
    stored
        .get_mut(pointers_at..pointers_at + pointers.len())?
        .copy_from_slice(pointers);
    Some(())
}

/// Level and pointers of a root or block whose entries begin at `at`.
fn pointers(block: &[u8], level_at: usize, at: usize) -> Option<(u16, Vec<FsBlock>)> {
    let (level, _) = Be16::ref_from_prefix(block.get(level_at..)?).ok()?;
    let (records, _) = Be16::ref_from_prefix(block.get(level_at + 2..)?).ok()?;
    if level.get() == 0 {
        return Some((0, Vec::new()));
    }
    let max = block.len().checked_sub(at)? / (KEY_BYTES + POINTER_BYTES);
    let records = usize::from(records.get());
    if records > max {
        return None;
    }
    let pointers = block.get(at + max * KEY_BYTES..)?;
    let (pointers, _) = <[Be64]>::ref_from_prefix_with_elems(pointers, records).ok()?;
    let pointers = pointers.iter().map(|pointer| FsBlock(pointer.get()));
    Some((level.get(), pointers.collect()))
}

/// Whether a block says that this is its place.
fn is_at(block: &[u8], place: BasicBlock) -> bool {
    let stored = block.get(PLACE_AT..PLACE_AT + 8);
    stored == Some(&place.0.to_be_bytes()[..])
}

/// Sets a new owner in all blocks of the tree below a fork's root, after forks were swapped.
pub(super) fn change_owner(pass: &mut SecondPass<'_>, root: &[u8], owner: InodeNr) -> Result<()> {
    let locus = Locus::inode(owner.get());
    let broken = || Corrupt::new(locus, ReplayRule::OwnerTree);
    let (level, mut next) = pointers(root, 0, ROOT_HEADER).ok_or_else(broken)?;
    if level > LEVELS_MAX {
        return Err(broken().into());
    }
    let mut seen = HashSet::new();
    for level in (0..level).rev() {
        let mut below = Vec::new();
        for block in next {
            // A block that is pointed to twice would be walked again with all below it.
            if !seen.insert(block.0) || !pass.geometry.contains(block, 1) {
                return Err(broken().into());
            }
            let pointers = change_block_owner(pass, block, level, owner)?;
            below.extend(pointers.ok_or_else(broken)?);
        }
        next = below;
    }
    Ok(())
}

/// Sets the owner of a block of this level, and returns its pointers; `None`, unchanged, for any other block.
fn change_block_owner(
    pass: &mut SecondPass<'_>,
    block: FsBlock,
    level: u16,
    owner: InodeNr,
) -> Result<Option<Vec<FsBlock>>> {
    let place = pass.geometry.basic_block(block);
    let sectors = u64::from(pass.geometry.block_bytes() / 512);
    let (meta_uuid, lsn) = (pass.geometry.meta_uuid, pass.lsn);
    let buffer = pass.buffers.get(place, sectors)?;
    let found = pointers(&buffer.bytes, LEVEL_AT, LONG_HEADER_V5);
    let Some((_, pointers)) = found.filter(|&(found, _)| found == level) else {
        return Ok(None);
    };
    let stamp = Stamp::of_block(&buffer.bytes).filter(|stamp| {
        let bytes = &buffer.bytes;
        bytes.starts_with(EXTENT_TREE_MAGIC) && stamp.lsn(bytes, meta_uuid).is_some()
    });
    let (Some(stamp), true) = (stamp, is_at(&buffer.bytes, place)) else {
        return Ok(None);
    };
    // What was written after this transaction has the owner that it had then.
    let written = stamp.lsn(&buffer.bytes, meta_uuid);
    if written.is_some_and(|written| written != Lsn::NULL && written > lsn) {
        return Ok(Some(pointers));
    }
    // A torn block keeps the checksum that says so.
    if buffer.torn_stamp().is_some() && written == Some(lsn) {
        return Ok(Some(pointers));
    }
    let bytes = buffer.edit();
    if let Some(slot) = bytes.get_mut(OWNER_AT..OWNER_AT + 8) {
        slot.copy_from_slice(&owner.get().to_be_bytes());
    }
    stamp.seal_checksum(bytes);
    Ok(Some(pointers))
}
