//! Intents to map and unmap file blocks.

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Deferred, Finisher, broken, inode_nr, refused};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::extent::Mapping;
use crate::ondisk::log::intent::{BmapUpdate, MapExtent, RmapOp, RmapUpdate};
use crate::ondisk::{FileBlock, ForkKind, InodeNr};
use crate::recovery::rules::IntentRule;

impl Finisher {
    pub(super) fn bmap(&mut self, update: &BmapUpdate) -> Result<()> {
        let extent = &update.extent;
        let owner = inode_nr(extent.owner)?;
        self.split(extent.start, extent.len)?;
        let first = FileBlock(extent.offset);
        if first.checked_add(extent.len.into()).is_none() {
            return Err(broken(Locus::inode(extent.owner), IntentRule::Offset));
        }
        let kind = if extent.attr_fork {
            ForkKind::Attr
        } else {
            ForkKind::Data
        };
        let mut inode = InodeEdit::read(&self.groups, owner)?;
        let mut fork = self.fork(&inode, kind)?;
        if update.unmap {
            self.unmap(&mut fork, (owner, kind), first, extent.len.into())?;
        } else {
            let mapping = Mapping {
                offset: first,
                start: extent.start,
                count: extent.len.into(),
                is_unwritten: extent.unwritten,
            };
            self.map(&mut fork, (owner, kind), mapping)?;
        }
        fork.store(&mut inode)?;
        inode.store(&mut self.groups);
        Ok(())
    }

    /// A fork with mappings on the data device.
    pub(super) fn fork(&self, inode: &InodeEdit, kind: ForkKind) -> Result<ForkEdit> {
        let number = inode.inode().number;
        if inode.inode().is_realtime() && kind == ForkKind::Data {
            return Err(refused(format!(
                "an unfinished intent for realtime inode {number}"
            )));
        }
        ForkEdit::open(&inode.fork(kind)?, number, &self.geometry)
    }

    /// Maps file blocks; the reverse mapping follows.
    pub(super) fn map(
        &mut self,
        fork: &mut ForkEdit,
        owner: (InodeNr, ForkKind),
        mapping: Mapping,
    ) -> Result<()> {
        fork.map(&mut self.groups, mapping)?;
        self.defer_rmap(RmapOp::Map, owner, &mapping);
        Ok(())
    }

    /// Unmaps file blocks; the reverse mapping follows. The blocks stay in use.
    pub(super) fn unmap(
        &mut self,
        fork: &mut ForkEdit,
        owner: (InodeNr, ForkKind),
        first: FileBlock,
        count: u64,
    ) -> Result<()> {
        for gone in fork.unmap(&mut self.groups, first, count)? {
            self.defer_rmap(RmapOp::Unmap, owner, &gone);
        }
        Ok(())
    }

    fn defer_rmap(&mut self, op: RmapOp, (owner, kind): (InodeNr, ForkKind), mapping: &Mapping) {
        if !self.geometry.features.has_rmapbt() {
            return;
        }
        self.deferred.push_back(Deferred::Rmap(RmapUpdate {
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
}
