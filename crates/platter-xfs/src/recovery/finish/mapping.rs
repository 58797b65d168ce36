//! Intents to map and unmap file blocks.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Deferred, Finisher, broken, inode_nr, refused};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::extent::{ExtentDevice, Mapping};
use crate::ondisk::log::intent::{BmapUpdate, MapExtent, RmapOp, RmapUpdate};
use crate::ondisk::{FileBlock, ForkKind, InodeNr, RtBlock};
use crate::recovery::rules::IntentRule;

/// Finishes a change of a file's mappings.
pub(super) fn finish(finisher: &mut Finisher, update: &BmapUpdate) -> Result<()> {
    let extent = &update.extent;
    let owner = inode_nr(extent.owner)?;
    let first = FileBlock(extent.offset);
    if first.checked_add(extent.len.into()).is_none() {
        return Err(broken(Locus::inode(extent.owner), IntentRule::Offset));
    }
    let kind = if extent.attr_fork {
        ForkKind::Attr
    } else {
        ForkKind::Data
    };
    let mut inode = InodeEdit::read(&finisher.groups, owner)?;
    let is_realtime = inode.inode().is_realtime() && kind == ForkKind::Data;
    let is_inside = finisher
        .geometry
        .contains_rt(RtBlock(extent.start), extent.len.into());
    match (update.realtime, is_realtime) {
        (false, false) => {
            finisher.split(extent.start, extent.len)?;
        }
        (true, true) if is_inside => {}
        _ => return Err(broken(Locus::inode(extent.owner), IntentRule::Extent)),
    }
    let mut fork = fork(finisher, &inode, kind)?;
    if update.unmap {
        unmap(finisher, &mut fork, (owner, kind), first, extent.len.into())?;
    } else {
        let mapping = Mapping {
            offset: first,
            start: extent.start,
            count: extent.len.into(),
            is_unwritten: extent.unwritten,
        };
        map(finisher, &mut fork, (owner, kind), mapping)?;
    }
    fork.store(&mut inode)?;
    inode.store(&mut finisher.groups)?;
    Ok(())
}

/// A fork with mappings.
pub(super) fn fork(finisher: &Finisher, inode: &InodeEdit, kind: ForkKind) -> Result<ForkEdit> {
    let number = inode.inode().number;
    let fork = inode.fork(kind)?;
    if !inode.inode().is_realtime() || kind != ForkKind::Data {
        return ForkEdit::open(&fork, number, &finisher.geometry);
    }
    if finisher.geometry.features.has_rmapbt() {
        return Err(refused(format!(
            "an unfinished intent for realtime inode {number} with reverse mappings"
        )));
    }
    ForkEdit::open_on(ExtentDevice::Realtime, &fork, number, &finisher.geometry)
}

/// Maps file blocks; the reverse mapping follows.
pub(super) fn map(
    finisher: &mut Finisher,
    fork: &mut ForkEdit,
    owner: (InodeNr, ForkKind),
    mapping: Mapping,
) -> Result<()> {
    fork.map(&mut finisher.groups, mapping)?;
    defer_rmap(finisher, RmapOp::Map, owner, &mapping);
    Ok(())
}

/// Unmaps file blocks; the reverse mapping follows. The blocks stay in use.
pub(super) fn unmap(
    finisher: &mut Finisher,
    fork: &mut ForkEdit,
    owner: (InodeNr, ForkKind),
    first: FileBlock,
    count: u64,
) -> Result<()> {
    for gone in fork.unmap(&mut finisher.groups, first, count)? {
        defer_rmap(finisher, RmapOp::Unmap, owner, &gone);
    }
    Ok(())
}

fn defer_rmap(
    finisher: &mut Finisher,
    op: RmapOp,
    (owner, kind): (InodeNr, ForkKind),
    mapping: &Mapping,
) {
    if !finisher.geometry.features.has_rmapbt() {
        return;
    }
    finisher.deferred.push_back(Deferred::Rmap(RmapUpdate {
        op,
        extent: MapExtent {
            owner: owner.get(),
            start: mapping.start,
            offset: mapping.offset.0,
            len: u32::try_from(mapping.count).unwrap_or(u32::MAX),
            attr_fork: kind == ForkKind::Attr,
            unwritten: mapping.is_unwritten,
        },
        bmbt_block: false,
    }));
}
