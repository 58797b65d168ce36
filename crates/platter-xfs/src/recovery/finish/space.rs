//! Intents about blocks: to free them, and to change their owners and reference counts.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Deferred, Finisher, broken};
use crate::ag::{refcount, rmap, space};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::log::intent::{PhysExtent, RefcountOp, RmapOp, RmapUpdate};
use crate::recovery::rules::IntentRule;

/// Frees an extent.
pub(super) fn free(finisher: &mut Finisher, start: u64, len: u32) -> Result<()> {
    let (ag, start) = finisher.split(start, len)?;
    let mut group = finisher.groups.get(ag)?;
    space::fill_free_list(&mut group)?;
    // The intent does not say whose the blocks are, and the mapping may be gone already.
    rmap::remove_any(&mut group, start, len)?;
    space::free_extent(&mut group, start, len)
}

/// Finishes a change of the reverse mapping.
pub(super) fn rmap(finisher: &mut Finisher, update: &RmapUpdate) -> Result<()> {
    let extent = &update.extent;
    let (ag, start) = finisher.split(extent.start, extent.len)?;
    let owner = Owner {
        start,
        count: extent.len,
        owner: RmapOwner(extent.owner),
        offset: extent.offset,
        is_attr_fork: extent.attr_fork,
        is_btree: update.bmbt_block,
        is_unwritten: extent.unwritten,
    };
    let mut group = finisher.groups.get(ag)?;
    if group.agf().rmap.is_none() {
        return Err(broken(Locus::group(ag.0.into()), IntentRule::Feature));
    }
    space::fill_free_list(&mut group)?;
    match update.op {
        RmapOp::Map | RmapOp::MapShared | RmapOp::Alloc => rmap::add(&mut group, &owner),
        RmapOp::Unmap | RmapOp::UnmapShared | RmapOp::Free => rmap::remove(&mut group, &owner),
        RmapOp::Convert | RmapOp::ConvertShared => rmap::convert(&mut group, &owner),
    }
}

/// Finishes a change of reference counts.
pub(super) fn refcount(finisher: &mut Finisher, update: &PhysExtent) -> Result<()> {
    let (ag, start) = finisher.split(update.start, update.len)?;
    let mut group = finisher.groups.get(ag)?;
    if group.agf().refcount.is_none() {
        return Err(broken(Locus::group(ag.0.into()), IntentRule::Feature));
    }
    match update.op {
        RefcountOp::Increase => refcount::increase(&mut group, start, update.len),
        RefcountOp::Decrease => {
            let gone = refcount::decrease(&mut group, start, update.len)?;
            let free = |(start, count)| Deferred::Free(ag, start, count);
            finisher.deferred.extend(gone.into_iter().map(free));
            Ok(())
        }
        RefcountOp::AllocCow => refcount::stage(&mut group, start, update.len),
        RefcountOp::FreeCow => refcount::unstage(&mut group, start, update.len),
    }
}
