//! The attribute fork of an inode that has none yet. Spec: `xfs/ondisk_inode`, `xfs/extended_attributes`.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result};

use super::link;
use crate::ag::BlockRole;
use crate::change::Change;
use crate::directory::change::DirectoryChange;
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::da::DaLinks;
use crate::ondisk::features::Version;
use crate::ondisk::inode::{InodeRule, edit};
use crate::ondisk::{
    AgNr, BlockKind, FileBlock, ForkFormat, ForkKind, FsBlock, Site, attr, superblock,
};

/// Where Linux begins the fork in inodes of 512 bytes and more: after space for the root of a tree of 12
/// mappings.
const OFFSET: usize = 192;
/// The least that a fork takes: the root of a tree of two.
const FORK_BYTES_MIN: usize = 40;
const UNIT: usize = 8;

/// Adds an attribute fork, which is empty, to an inode. The data fork makes space.
pub(super) fn add(change: &mut Change<'_>, edit: &mut InodeEdit) -> Result<()> {
    let geometry = change.geometry();
    let fork = edit.fork(ForkKind::Data)?;
    let number = edit.inode().number;
    let literal = fork.bytes.len();
    let most = literal.saturating_sub(FORK_BYTES_MIN) / UNIT * UNIT;
    let size = usize::try_from(edit.inode().size_bytes).unwrap_or(usize::MAX);
    let used = match fork.format {
        ForkFormat::Device => UNIT,
        ForkFormat::Local => size,
        ForkFormat::Extents | ForkFormat::Btree | ForkFormat::MetaBtree => 0,
    };
    let offset = if fork.format == ForkFormat::Device {
        UNIT
    } else {
        used.next_multiple_of(UNIT).max(OFFSET.min(most))
    };
    if offset > most {
        // What leaves no space in the inode gets a block of its own.
        if edit.inode().kind == FileKind::Directory {
            change.put(edit.clone());
            let mut directory = DirectoryChange::open(change, edit.clone(), None)?;
            directory.leave_inode()?;
            directory.finish()?;
            *edit = change.inode(number)?;
        } else {
            link::leave_inode(change, edit)?;
        }
        return add(change, edit);
    }
    let mapped = match fork.format {
        ForkFormat::Extents | ForkFormat::Btree => Some(ForkEdit::open(&fork, number, geometry)?),
        ForkFormat::Device | ForkFormat::Local | ForkFormat::MetaBtree => None,
    };
    let broken = || Corrupt::new(Locus::inode(number.get()), InodeRule::ForkOffset);
    let units = u8::try_from(offset / UNIT).map_err(|_| broken())?;
    edit.change(|bytes| edit::set_attr_fork(bytes, units))?;
    if let Some(mut fork) = mapped {
        fork.resize(&mut change.groups, offset)?;
        fork.store(edit)?;
    }
    edit.refresh(geometry)?;
    note_attributes(change)
}

/// Makes the first block of an attribute fork with blocks a leaf without attributes: nothing leads to the
/// others any more.
pub(super) fn empty(change: &mut Change<'_>, edit: &mut InodeEdit) -> Result<()> {
    let geometry = change.geometry();
    let number = edit.inode().number;
    let mut fork = ForkEdit::open(&edit.fork(ForkKind::Attr)?, number, geometry)?;
    let first = fork.lookup(&mut change.groups, FileBlock(0))?;
    let Some(first) = first.filter(|first| first.offset.0 == 0) else {
        return Ok(());
    };
    let at = FsBlock(first.start);
    let site = Site::new(geometry, geometry.basic_block(at), number.get());
    let broken = || Corrupt::new(Locus::inode(number.get()), InodeRule::ForkOffset);
    let links = DaLinks {
        next: None,
        previous: None,
    };
    let leaf = attr::build::leaf(&[], links, &site).ok_or_else(broken)?;
    let place = geometry.byte_offset(at);
    let role = BlockRole {
        kind: BlockKind::AttrLeaf,
        owner: number.get(),
    };
    change.groups.blocks_mut().create_as(place, role, leaf);
    Ok(())
}

/// Says in the superblock that inodes have attributes (`XFS_SB_VERSION_ATTRBIT`).
fn note_attributes(change: &mut Change<'_>) -> Result<()> {
    if change.geometry().features.version.contains(Version::ATTR) {
        return Ok(());
    }
    let len = change.geometry().sector_bytes();
    // The superblock is changed by the thread that has the first group.
    change.groups.get(AgNr(0))?;
    let mut sector = change.groups.blocks().read(0, len)?;
    superblock::add_version(&mut sector, Version::ATTR);
    change.groups.blocks_mut().write(0, sector);
    Ok(())
}
