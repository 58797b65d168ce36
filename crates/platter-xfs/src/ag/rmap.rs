//! The reverse mapping: owners of blocks. Spec: `xfs/rmapbt`.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::Group;
use super::record::TreeRecord;
use super::rules::GroupRule;
use crate::ondisk::AgBlock;
use crate::ondisk::btree::{BtreeKind, DiskOwner, Owner};

const KIND: BtreeKind = BtreeKind::Rmap;

impl Group<'_> {
    /// Removes an owner's blocks, which are one record or a part of one. Without a reverse mapping, does
    /// nothing.
    pub fn remove_owner(&mut self, gone: &Owner) -> Result<()> {
        if self.agf.rmap.is_none() {
            return Ok(());
        }
        let end = gone.start.0 + gone.count;
        let fits = |found: &Owner| {
            let is_same = found.owner == gone.owner
                && found.is_attr_fork == gone.is_attr_fork
                && found.is_btree == gone.is_btree;
            let shift = gone.start.0.checked_sub(found.start.0);
            let has_offset = found.owner.is_inode() && !found.is_btree;
            let is_at = shift.is_some_and(|shift| {
                !has_offset || found.offset.saturating_add(shift.into()) == gone.offset
            });
            is_same && is_at && found.start.0 + found.count >= end
        };
        let found = self.owner_before(gone, fits)?;
        let locus = Locus::group(self.ag.0.into());
        let found = found.ok_or_else(|| Corrupt::new(locus, GroupRule::Owner))?;
        self.cut_owner(&found, gone.start, gone.count)
    }

    /// Removes blocks from whatever record has them; true if one had.
    pub fn remove_any_owner(&mut self, start: AgBlock, count: u32) -> Result<bool> {
        if self.agf.rmap.is_none() {
            return Ok(false);
        }
        let order = (u64::from(start.0), u64::MAX, u64::MAX);
        let Some(found) = self.lookup_lt::<DiskOwner>(KIND, order)? else {
            return Ok(false);
        };
        let found = Owner::decode(&found);
        if found.start.0 + found.count < start.0 + count {
            return Ok(false);
        }
        self.cut_owner(&found, start, count)?;
        Ok(true)
    }

    /// The last record at or before the blocks that fits; records of other owners may lie between where
    /// blocks are shared.
    fn owner_before(&self, gone: &Owner, fits: impl Fn(&Owner) -> bool) -> Result<Option<Owner>> {
        let mut order = (u64::from(gone.start.0), u64::MAX, u64::MAX);
        while let Some(record) = self.lookup_lt::<DiskOwner>(KIND, order)? {
            let found = Owner::decode(&record);
            if fits(&found) {
                return Ok(Some(found));
            }
            order = TreeRecord::order(&record, KIND);
        }
        Ok(None)
    }

    /// Takes blocks out of a record.
    fn cut_owner(&mut self, found: &Owner, start: AgBlock, count: u32) -> Result<()> {
        let order = |owner: &Owner| TreeRecord::order(&owner.encode(), KIND);
        let before = start.0 - found.start.0;
        let after = (found.start.0 + found.count) - (start.0 + count);
        let has_offset = found.owner.is_inode() && !found.is_btree;
        let rest = Owner {
            start: AgBlock(start.0 + count),
            count: after,
            offset: if has_offset {
                found.offset + u64::from(before) + u64::from(count)
            } else {
                found.offset
            },
            ..*found
        };
        if before > 0 {
            let kept = Owner {
                count: before,
                ..*found
            };
            self.replace(KIND, order(found), kept.encode())?;
        } else {
            self.remove::<DiskOwner>(KIND, order(found))?;
        }
        if after > 0 {
            self.insert(KIND, rest.encode())?;
        }
        Ok(())
    }

    /// Adds blocks of an owner that is no inode, as one record with those next to them.
    pub(super) fn add_owner(&mut self, new: &Owner) -> Result<()> {
        if self.agf.rmap.is_none() {
            return Ok(());
        }
        let mut merged = *new;
        let order = TreeRecord::order(&new.encode(), KIND);
        let end = new.start.0 + new.count;
        if let Some(left) = self.lookup_lt::<DiskOwner>(KIND, order)? {
            let left = Owner::decode(&left);
            if left.owner == new.owner && left.start.0 + left.count == new.start.0 {
                self.remove::<DiskOwner>(KIND, TreeRecord::order(&left.encode(), KIND))?;
                merged.start = left.start;
                merged.count += left.count;
            }
        }
        if let Some(right) = self.lookup_ge::<DiskOwner>(KIND, order)? {
            let right = Owner::decode(&right);
            if right.owner == new.owner && right.start.0 == end {
                self.remove::<DiskOwner>(KIND, TreeRecord::order(&right.encode(), KIND))?;
                merged.count += right.count;
            }
        }
        self.insert(KIND, merged.encode())
    }
}
