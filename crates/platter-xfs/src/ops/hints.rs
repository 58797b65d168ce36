//! What only `FS_IOC_FSGETXATTR` shows of an inode: hints for the allocation of its blocks, and flags.

use platter_vfs::{Condition, ExtendedFlags, FileKind, Result, SetAttr};

use super::Inode;
use super::data::refused;
use crate::fork::InodeEdit;
use crate::ondisk::extent::MAPPING_LEN_MAX;
use crate::ondisk::inode::edit::core_mut;
use crate::ondisk::{Geometry, InodeFlags, InodeFlags2};

/// `FS_XFLAG_*` other than those that have a counterpart among the flags of `chattr`.
const XFLAGS: [(u32, InodeFlags); 8] = [
    (0x1, InodeFlags::REALTIME),
    (0x2, InodeFlags::PREALLOC),
    (0x100, InodeFlags::RTINHERIT),
    (NOSYMLINKS, InodeFlags::NOSYMLINKS),
    (EXTSIZE, InodeFlags::EXTSIZE),
    (EXTSZINHERIT, InodeFlags::EXTSZINHERIT),
    (0x2000, InodeFlags::NODEFRAG),
    (0x4000, InodeFlags::FILESTREAM),
];
const NOSYMLINKS: u32 = 0x400;
const EXTSIZE: u32 = 0x800;
const EXTSZINHERIT: u32 = 0x1000;
const COWEXTSIZE: u32 = 0x1_0000;
/// Only shown.
const HASATTR: u32 = 0x8000_0000;
/// What can be set. The filestreams allocator is not used, whatever a directory says.
const SETTABLE: InodeFlags = InodeFlags::NOSYMLINKS
    .union(InodeFlags::EXTSIZE)
    .union(InodeFlags::EXTSZINHERIT)
    .union(InodeFlags::NODEFRAG)
    .union(InodeFlags::FILESTREAM);

/// The flags and hints that an inode has.
fn shown(inode: &crate::ondisk::Inode, geometry: &Geometry) -> ExtendedFlags {
    let set = XFLAGS
        .iter()
        .filter(|(_, flag)| inode.flags.contains(*flag));
    let mut xflags = set.fold(0, |xflags, (xflag, _)| xflags | xflag);
    if inode.flags2.contains(InodeFlags2::COWEXTSIZE) {
        xflags |= COWEXTSIZE;
    }
    if inode.attr_fork().is_some() {
        xflags |= HASATTR;
    }
    let bytes = |blocks: u32| blocks.saturating_mul(geometry.block_bytes());
    ExtendedFlags {
        xflags,
        extent_size_bytes: bytes(inode.extent_size),
        extents: u32::try_from(inode.data_extents).unwrap_or(u32::MAX),
        cow_extent_size_bytes: bytes(inode.cow_extent_size),
    }
}

/// The flags and hints that an inode has.
pub(super) fn get(inode: &Inode) -> ExtendedFlags {
    shown(&inode.state.read().inode, inode.context().geometry())
}

/// Refuses hints and flags that the inode cannot have.
pub(super) fn validate(inode: &Inode, changes: &SetAttr) -> Result<()> {
    let geometry = inode.context().geometry();
    let stored = &inode.state.read().inode;
    let before = shown(stored, geometry);
    let after = after(&before, changes);
    let invalid = || Err(Condition::InvalidArgument.into());
    let flag = |xflag: u32| after.xflags & xflag != 0;
    let is_regular = inode.kind == FileKind::Regular;
    let is_dir = inode.kind == FileKind::Directory;
    let kept = HASATTR | 0x2;
    let settable = SETTABLE.bits();
    let fixed = XFLAGS
        .iter()
        .filter(|(_, flag)| flag.bits() & settable == 0)
        .fold(0, |sum, (xflag, _)| sum | xflag)
        & !kept;
    if (after.xflags ^ before.xflags) & fixed != 0 {
        return Err(refused("setting realtime flags"));
    }
    let known = XFLAGS
        .iter()
        .fold(COWEXTSIZE | HASATTR, |sum, (xflag, _)| sum | xflag);
    if after.xflags & !known != 0 {
        return Err(Condition::NotSupported.into());
    }
    let takes_cow = (is_regular || is_dir) && geometry.features.has_reflink();
    if flag(EXTSIZE) && !is_regular
        || flag(EXTSZINHERIT) && !is_dir
        || flag(COWEXTSIZE) && !takes_cow
    {
        return invalid();
    }
    let fits = |bytes: u32| {
        let blocks = u64::from(bytes / geometry.block_bytes());
        bytes.is_multiple_of(geometry.block_bytes())
            && blocks <= MAPPING_LEN_MAX.min(u64::from(geometry.ag_blocks) / 2)
    };
    let has_size = flag(EXTSIZE) || flag(EXTSZINHERIT);
    if has_size && !fits(after.extent_size_bytes)
        || flag(COWEXTSIZE) && !fits(after.cow_extent_size_bytes)
    {
        return invalid();
    }
    let changes_size = after.extent_size_bytes != before.extent_size_bytes && has_size
        || (after.xflags ^ before.xflags) & EXTSIZE != 0;
    if is_regular && changes_size && stored.data_extents > 0 {
        return invalid();
    }
    Ok(())
}

/// What an inode has after a change.
fn after(before: &ExtendedFlags, changes: &SetAttr) -> ExtendedFlags {
    ExtendedFlags {
        xflags: changes.xflags.unwrap_or(before.xflags),
        extent_size_bytes: changes
            .extent_size_bytes
            .unwrap_or(before.extent_size_bytes),
        cow_extent_size_bytes: changes
            .cow_extent_size_bytes
            .unwrap_or(before.cow_extent_size_bytes),
        ..*before
    }
}

/// Sets flags and hints. A hint of no bytes is none.
pub(super) fn set(edit: &mut InodeEdit, changes: &SetAttr, geometry: &Geometry) -> Result<()> {
    let is_asked = changes.xflags.is_some()
        || changes.extent_size_bytes.is_some()
        || changes.cow_extent_size_bytes.is_some();
    if !is_asked {
        return Ok(());
    }
    let inode = edit.inode();
    let mut after = after(&shown(inode, geometry), changes);
    if inode.kind != FileKind::Directory {
        // It says what a directory takes, and is lost elsewhere.
        after.xflags &= !NOSYMLINKS;
    }
    if after.extent_size_bytes == 0 {
        after.xflags &= !(EXTSIZE | EXTSZINHERIT);
    }
    if after.cow_extent_size_bytes == 0 {
        after.xflags &= !COWEXTSIZE;
    }
    let set = XFLAGS.iter().filter(|(xflag, _)| after.xflags & xflag != 0);
    let flags = set.fold(InodeFlags::empty(), |flags, (_, flag)| flags | *flag) & SETTABLE;
    let flags = inode.flags.difference(SETTABLE) | flags;
    let mut flags2 = inode.flags2;
    flags2.set(InodeFlags2::COWEXTSIZE, after.xflags & COWEXTSIZE != 0);
    let blocks = |bytes: u32, has_one: bool| {
        if has_one {
            bytes / geometry.block_bytes()
        } else {
            0
        }
    };
    let has_size = flags.intersects(InodeFlags::EXTSIZE | InodeFlags::EXTSZINHERIT);
    let extent_size = blocks(after.extent_size_bytes, has_size);
    let has_cow = flags2.contains(InodeFlags2::COWEXTSIZE);
    let cow_extent_size = blocks(after.cow_extent_size_bytes, has_cow);
    edit.change(|bytes| {
        let disk = core_mut(bytes)?;
        disk.core.flags.set(flags.bits());
        disk.core.extent_size.set(extent_size);
        disk.flags2.set(flags2.bits());
        disk.cow_extent_size.set(cow_extent_size);
        Some(())
    })
}
