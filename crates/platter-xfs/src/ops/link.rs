//! Targets of symbolic links: in the inode, or in blocks of their own.

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, FileKind, Result};

use super::Inode;
use crate::ag::{BlockRole, Group, rmap, space};
use crate::change::Change;
use crate::context::FsContext;
use crate::fork::{ForkEdit, InodeEdit, alloc_by};
use crate::mapping::{Backing, ForkMap};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::inode::edit::{self, StoredFork};
use crate::ondisk::symlink::{self, SymlinkRule};
use crate::ondisk::{self, BlockKind, FileBlock, ForkFormat, ForkKind, FsBlock, Mapping, Site};

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

/// Stores the target of a new link: in the inode, or in blocks.
pub(super) fn fill(change: &mut Change<'_>, edit: &mut InodeEdit, target: &[u8]) -> Result<()> {
    let fork = edit.fork(ForkKind::Data)?;
    if target.len() <= fork.bytes.len() {
        let stored = StoredFork {
            kind: ForkKind::Data,
            format: ForkFormat::Local,
            extents: 0,
            bytes: target,
        };
        edit.set_fork(&stored, 0)?;
    } else {
        let fork = ForkEdit::open(&fork, edit.inode().number, change.geometry())?;
        store_in_blocks(change, edit, fork, target)?;
    }
    edit.change(|bytes| edit::set_size(bytes, target.len() as u64))?;
    edit.refresh(change.geometry())
}

/// Moves a target that is in the inode to a block of its own.
pub(super) fn leave_inode(change: &mut Change<'_>, edit: &mut InodeEdit) -> Result<()> {
    let locus = Locus::inode(edit.inode().number.get());
    let target = edit.inode().local_data().map(<[u8]>::to_vec);
    let target = target.ok_or_else(|| Corrupt::new(locus, SymlinkRule::Length))?;
    let len = edit.fork(ForkKind::Data)?.bytes.len();
    let fork = ForkEdit::empty(ForkKind::Data, edit.inode().number, len);
    store_in_blocks(change, edit, fork, &target)?;
    edit.refresh(change.geometry())
}

/// Stores a target in blocks that are allocated for it, which `fork` maps from then on.
fn store_in_blocks(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    mut fork: ForkEdit,
    target: &[u8],
) -> Result<()> {
    let geometry = change.geometry();
    let number = edit.inode().number;
    let len = u32::try_from(target.len()).map_err(|_| Condition::NameTooLong)?;
    let count = symlink::blocks(len, geometry);
    let mut done = 0;
    // A block of a length that is a power of two is logged as one.
    let take = |group: &mut Group<'_>, most: u32| space::alloc_extent(group, 1 << most.ilog2());
    while done < count {
        let (ag, start, found) = alloc_by(&mut change.groups, number, count - done, take)?;
        rmap::add(
            &mut change.groups.get(ag)?,
            &Owner {
                offset: done.into(),
                ..Owner::special(start, found, RmapOwner(number.get()))
            },
        )?;
        let mapping = Mapping {
            offset: FileBlock(done.into()),
            start: geometry.fs_block(ag, start).0,
            count: found.into(),
            is_unwritten: false,
        };
        fork.map(&mut change.groups, mapping)?;
        done += found;
    }
    let (mappings, _) = fork.contents(&mut change.groups)?;
    fork.store(edit)?;
    let mut offset = 0;
    for mapping in mappings {
        let at = FsBlock(mapping.start);
        let blocks = u32::try_from(mapping.count).unwrap_or(u32::MAX);
        let site = Site::new(geometry, geometry.basic_block(at), number.get());
        let extent = symlink::encode(target, offset, blocks, &site);
        let (bytes, len) = extent.ok_or(Condition::NameTooLong)?;
        let place = geometry.byte_offset(at);
        let role = BlockRole {
            kind: BlockKind::Symlink,
            owner: number.get(),
        };
        change.groups.blocks_mut().create_as(place, role, bytes);
        offset += len;
    }
    Ok(())
}
