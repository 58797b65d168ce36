//! Blocks that files give back.

use platter_vfs::Result;

use super::Change;
use crate::ag::Groups;
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::extent::Mapping;
use crate::ondisk::inode::InodeFlags2;
use crate::ondisk::{AgNr, FileBlock, ForkKind, FsBlock, Geometry, InodeNr};

/// How an unmapping ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmapped {
    /// All of it.
    All,
    /// What lies before this block is still mapped.
    Before(FileBlock),
}

/// The owner of the blocks of a mapping, and their group.
#[must_use]
pub fn owner_of(
    mapping: &Mapping,
    inode: InodeNr,
    kind: ForkKind,
    geometry: &Geometry,
) -> (AgNr, Owner) {
    let (ag, start) = geometry.split(FsBlock(mapping.start));
    let owner = Owner {
        offset: mapping.offset.0,
        is_attr_fork: kind == ForkKind::Attr,
        is_unwritten: mapping.is_unwritten,
        ..Owner::special(
            start,
            u32::try_from(mapping.count).unwrap_or(u32::MAX),
            RmapOwner(inode.get()),
        )
    };
    (ag, owner)
}

/// Frees the blocks of a mapping that is gone, unless others share them.
pub fn free_mapping(
    groups: &mut Groups,
    mapping: &Mapping,
    inode: InodeNr,
    (kind, is_shared): (ForkKind, bool),
) -> Result<()> {
    let (ag, owner) = owner_of(mapping, inode, kind, &groups.geometry().clone());
    let mut group = groups.get(ag)?;
    group.fill_free_list()?;
    group.remove_owner(&owner)?;
    let unreferenced = if is_shared {
        group.drop_references(owner.start, owner.count)?
    } else {
        vec![(owner.start, owner.count)]
    };
    for (start, count) in unreferenced {
        group.free_extent(start, count)?;
    }
    Ok(())
}

impl Change<'_> {
    /// Unmaps blocks of a file from the end on, at most so many mappings, and frees them. Stores the fork.
    pub fn unmap(
        &mut self,
        edit: &mut InodeEdit,
        kind: ForkKind,
        blocks: std::ops::Range<FileBlock>,
        mappings_max: u32,
    ) -> Result<Unmapped> {
        let geometry = self.geometry();
        let number = edit.inode().number;
        let is_shared =
            kind == ForkKind::Data && edit.inode().flags2.contains(InodeFlags2::REFLINK);
        let mut fork = ForkEdit::open(&edit.fork(kind)?, number, geometry)?;
        let mut end = blocks.end;
        let mut left = mappings_max;
        let mut outcome = Unmapped::All;
        while let Some(last) = fork.last_before(&mut self.groups, end)? {
            if last.end() <= blocks.start {
                break;
            }
            let Some(after) = left.checked_sub(1) else {
                outcome = Unmapped::Before(end.min(last.end()));
                break;
            };
            left = after;
            let first = last.offset.max(blocks.start);
            let count = last.end().min(end).0.saturating_sub(first.0);
            for gone in fork.unmap(&mut self.groups, first, count)? {
                free_mapping(&mut self.groups, &gone, number, (kind, is_shared))?;
            }
            end = first;
            if end <= blocks.start {
                break;
            }
        }
        fork.store(edit)?;
        edit.refresh(geometry)?;
        Ok(outcome)
    }
}
