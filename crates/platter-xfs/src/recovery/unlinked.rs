//! Inodes without a name: those that were open, or not yet freed, when the machine stopped.
//! Spec: `xfs/allocation_groups`, "Unlinked Inode List"; `xfs/ondisk_inode`.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Corruption, Locus};
use platter_vfs::{Error, Result, Unsupported};

use super::counters::read_headers;
use super::realtime::RtFreed;
use crate::ag::{GroupRule, Groups, inodes, refcount, rmap, space};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::extent::ExtentDevice;
use crate::ondisk::inode::{Fork, ForkFormat, ForkKind, InodeFlags2, mark_free};
use crate::ondisk::{AgBlock, AgInode, AgNr, FsBlock, Geometry, InodeNr, Mapping};

/// Whether an unlinked list of any group has inodes.
pub(super) fn has_unlinked(device: &dyn BlockDevice, geometry: &Geometry) -> Result<bool> {
    for ag in geometry.groups() {
        let (_, agi) = read_headers(device, geometry, ag)?;
        if agi.has_unlinked() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What became of the inodes in the unlinked lists.
#[derive(Debug, Default)]
pub(super) struct Processed {
    /// Inodes that were freed.
    pub(super) freed: u64,
    /// Of each list that could not be followed to its end, why not.
    pub(super) corruptions: Vec<Corruption>,
}

/// Frees the inodes in the unlinked lists of all groups, with their blocks. Where one is corrupt, the rest of its list is
/// dropped, as by Linux where it cannot read one (`xlog_recover_clear_agi_bucket`).
pub(super) fn process(
    device: &Arc<dyn BlockDevice>,
    geometry: &Geometry,
    rt_freed: &mut Vec<RtFreed>,
) -> Result<Processed> {
    let mut groups = Groups::new(Arc::clone(device), geometry);
    let mut processed = Processed::default();
    for ag in geometry.groups() {
        let heads = groups.get(ag)?.agi().unlinked;
        for head in heads {
            let mut next = head;
            while let Some(inode) = next {
                // An inode that cannot be freed leaves nothing half changed, unless it changes more than is kept here.
                groups.write_all()?;
                next = match free_first(&mut groups, ag, inode, rt_freed) {
                    Ok(after) => {
                        processed.freed += 1;
                        after
                    }
                    Err(Error::Corrupt(corruption)) => {
                        processed.corruptions.push(*corruption);
                        groups = Groups::new(Arc::clone(device), geometry);
                        None
                    }
                    Err(error) => return Err(error),
                };
            }
        }
        inodes::clear_unlinked(&mut groups.get(ag)?);
        groups.checkpoint()?;
    }
    groups.write_all()?;
    Ok(processed)
}

/// Frees what copy on write left staged in all groups.
pub(super) fn free_staged(device: &Arc<dyn BlockDevice>, geometry: &Geometry) -> Result<()> {
    if !geometry.features.has_reflink() {
        return Ok(());
    }
    let mut groups = Groups::new(Arc::clone(device), geometry);
    for ag in geometry.groups() {
        refcount::free_staged(&mut groups.get(ag)?)?;
        groups.checkpoint()?;
    }
    groups.write_all()
}

/// Frees the first inode of what is left of a list. Returns the one after it, which in a loop is free already.
fn free_first(
    groups: &mut Groups,
    ag: AgNr,
    inode: AgInode,
    rt_freed: &mut Vec<RtFreed>,
) -> Result<Option<AgInode>> {
    let broken = || Corrupt::new(Locus::group(ag.0.into()), GroupRule::UnlinkedList);
    let number = groups.geometry().inode_nr(ag, inode).ok_or_else(broken)?;
    let edit = InodeEdit::read(groups, number)?;
    if edit.inode().links != 0 {
        return Err(broken().into());
    }
    let next = edit.inode().next_unlinked;
    rt_freed.extend(free(groups, number, edit)?);
    Ok(next)
}

/// Frees one inode and its blocks. Returns those on the realtime device, which are not free yet.
fn free(groups: &mut Groups, number: InodeNr, mut edit: InodeEdit) -> Result<Vec<RtFreed>> {
    let inode = edit.inode();
    let features = &groups.geometry().features;
    let has_rt_trees = features.has_rmapbt() || features.has_rtgroups() && features.has_reflink();
    let is_realtime = inode.is_realtime();
    if is_realtime && has_rt_trees || inode.flags2.contains(InodeFlags2::METADATA) {
        return Err(Unsupported {
            filesystem: "xfs",
            feature:
                "an unlinked metadata inode, or a realtime one with B-trees of realtime groups"
                    .to_owned(),
            reason: Some("mount read-only with norecovery"),
        }
        .into());
    }
    let shares = inode.flags2.contains(InodeFlags2::REFLINK);
    let device = if is_realtime {
        ExtentDevice::Realtime
    } else {
        ExtentDevice::Data
    };
    let rt_freed = free_fork(groups, number, (device, &inode.data_fork()), shares)?;
    if let Some(fork) = inode.attr_fork() {
        free_fork(groups, number, (ExtentDevice::Data, &fork), false)?;
    }
    edit.change(|bytes| {
        mark_free(bytes);
        Some(())
    })?;
    edit.store(groups)?;
    let (ag, inode) = groups.geometry().split_inode(number);
    inodes::free(&mut groups.get(ag)?, inode)?;
    Ok(rt_freed)
}

/// Frees the blocks of a fork, whose B-tree is on the data device. Returns those on the realtime device, which are not
/// free yet.
fn free_fork(
    groups: &mut Groups,
    number: InodeNr,
    (device, fork): (ExtentDevice, &Fork<'_>),
    shares: bool,
) -> Result<Vec<RtFreed>> {
    if !matches!(fork.format, ForkFormat::Extents | ForkFormat::Btree) {
        return Ok(Vec::new());
    }
    let geometry = groups.geometry().clone();
    let mut edit = ForkEdit::open_on(device, fork, number, &geometry)?;
    let (mut mappings, tree) = edit.contents(groups)?;
    let rt_freed = match device {
        ExtentDevice::Data => Vec::new(),
        ExtentDevice::Realtime => {
            let of = |mapping: Mapping| RtFreed {
                start: mapping.start,
                count: mapping.count,
            };
            mappings.drain(..).map(of).collect()
        }
    };
    let owner = |start| Owner {
        is_attr_fork: fork.kind == ForkKind::Attr,
        ..Owner::special(start, 1, RmapOwner(number.get()))
    };
    let mappings = mappings.iter().map(|mapping| {
        let (ag, start) = geometry.split(FsBlock(mapping.start));
        let blocks = Owner {
            count: u32::try_from(mapping.count).unwrap_or(u32::MAX),
            offset: mapping.offset.0,
            is_unwritten: mapping.is_unwritten,
            ..owner(start)
        };
        (ag, blocks)
    });
    let tree = tree.iter().map(|block| {
        let (ag, start) = geometry.split(*block);
        let blocks = Owner {
            is_btree: true,
            ..owner(start)
        };
        (ag, blocks)
    });
    for (ag, owner) in mappings.chain(tree) {
        let mut group = groups.get(ag)?;
        space::fill_free_list(&mut group)?;
        rmap::remove(&mut group, &owner)?;
        let unreferenced: Vec<(AgBlock, u32)> = if shares && !owner.is_btree {
            refcount::decrease(&mut group, owner.start, owner.count)?
        } else {
            vec![(owner.start, owner.count)]
        };
        for (start, count) in unreferenced {
            space::free_extent(&mut group, start, count)?;
        }
        groups.checkpoint()?;
    }
    Ok(rt_freed)
}
