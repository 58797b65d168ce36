//! Targets of symbolic links: in the inode, or in blocks of their own.

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, FileKind, Result};

use super::Inode;
use crate::context::FsContext;
use crate::mapping::{Backing, ForkMap};
use crate::ondisk::symlink::{self, SymlinkRule};
use crate::ondisk::{self, FileBlock, FsBlock, Site};

/// The target of a symbolic link.
pub(super) fn target(inode: &Inode) -> Result<Vec<u8>> {
    if inode.kind != FileKind::Symlink {
        return Err(Condition::InvalidArgument.into());
    }
    let state = inode.state.read();
    let target = stored_target(inode.context(), &state.inode, &state.map)?;
    if target.is_empty() || target.contains(&0) {
        let locus = Locus::inode(inode.number.get());
        return Err(Corrupt::new(locus, SymlinkRule::Target).into());
    }
    Ok(target)
}

/// The target of a link, as it is stored.
pub(crate) fn stored_target(
    context: &FsContext,
    inode: &ondisk::Inode,
    map: &ForkMap,
) -> Result<Vec<u8>> {
    if let Some(target) = inode.local_data() {
        return Ok(target.to_vec());
    }
    let geometry = context.geometry();
    let owner = inode.number.get();
    let missing = || Corrupt::new(Locus::inode(owner), SymlinkRule::Missing);
    // Validated inodes have targets of 1024 bytes at most.
    let len = u32::try_from(inode.size_bytes).unwrap_or(u32::MAX);
    let mut target = Vec::new();
    let mut left = len;
    let end = FileBlock(symlink::blocks(len, geometry).into());
    let mut at = FileBlock(0);
    while left > 0 {
        let run = map.lookup(context, at)?;
        let count = run.count.min(end.0.saturating_sub(at.0));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let Backing::Written(start) = run.backing else {
            return Err(missing().into());
        };
        if count == 0 {
            return Err(missing().into());
        }
        let block = FsBlock(start);
        let bytes = read_extent(context, block, count)?;
        let site = Site::new(geometry, geometry.basic_block(block), owner);
        let part = symlink::decode(&bytes, len - left, left, &site)
            .map_err(|rule| Corrupt::new(site.locus().of_inode(owner), rule))?;
        target.extend_from_slice(part);
        left -= u32::try_from(part.len()).unwrap_or(left);
        at = FileBlock(at.0 + u64::from(count));
    }
    Ok(target)
}

/// The bytes of neighbouring blocks that have one checksum together. They are one cached block, as they are when the
/// link is made, if their number is a power of two.
fn read_extent(context: &FsContext, first: FsBlock, count: u32) -> Result<Vec<u8>> {
    if count.is_power_of_two() {
        return Ok(context.read_blocks(first, count, &Unverified)?.to_vec());
    }
    let mut bytes = Vec::new();
    for nth in 0..count {
        let block = FsBlock(first.0 + u64::from(nth));
        bytes.extend_from_slice(&context.read_block(block, &Unverified)?);
    }
    Ok(bytes)
}
