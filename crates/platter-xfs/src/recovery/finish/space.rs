//! Intents about blocks: to free them, and to change their owners and reference counts.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Deferred, Finisher, broken};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::log::intent::{PhysExtent, RefcountOp, RmapOp, RmapUpdate};
use crate::recovery::rules::IntentRule;

impl Finisher {
    pub(super) fn free(&mut self, start: u64, len: u32) -> Result<()> {
        let (ag, start) = self.split(start, len)?;
        let mut group = self.groups.get(ag)?;
        group.fill_free_list()?;
        // The intent does not say whose the blocks are, and the mapping may be gone already.
        group.remove_any_owner(start, len)?;
        group.free_extent(start, len)
    }

    pub(super) fn rmap(&mut self, update: &RmapUpdate) -> Result<()> {
        let extent = &update.extent;
        let (ag, start) = self.split(extent.start, extent.len)?;
        let owner = Owner {
            start,
            count: extent.len,
            owner: RmapOwner(extent.owner),
            offset: extent.offset,
            is_attr_fork: extent.attr_fork,
            is_btree: update.bmbt_block,
            is_unwritten: extent.unwritten,
        };
        let mut group = self.groups.get(ag)?;
        if group.agf().rmap.is_none() {
            return Err(broken(Locus::group(ag.0.into()), IntentRule::Feature));
        }
        group.fill_free_list()?;
        match update.op {
            RmapOp::Map | RmapOp::MapShared | RmapOp::Alloc => group.add_owner(&owner),
            RmapOp::Unmap | RmapOp::UnmapShared | RmapOp::Free => group.remove_owner(&owner),
            RmapOp::Convert | RmapOp::ConvertShared => group.convert_owner(&owner),
        }
    }

    pub(super) fn refcount(&mut self, update: &PhysExtent) -> Result<()> {
        let (ag, start) = self.split(update.start, update.len)?;
        let mut group = self.groups.get(ag)?;
        if group.agf().refcount.is_none() {
            return Err(broken(Locus::group(ag.0.into()), IntentRule::Feature));
        }
        match update.op {
            RefcountOp::Increase => group.add_references(start, update.len),
            RefcountOp::Decrease => {
                let gone = group.drop_references(start, update.len)?;
                let free = |(start, count)| Deferred::Free(ag, start, count);
                self.deferred.extend(gone.into_iter().map(free));
                Ok(())
            }
            RefcountOp::AllocCow => group.stage(start, update.len),
            RefcountOp::FreeCow => group.unstage(start, update.len),
        }
    }
}
