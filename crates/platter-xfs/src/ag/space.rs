//! Free space: freeing extents, taking blocks for trees, and the free list.
//! Spec: `xfs/allocation_groups`, "AG Free Space Management".

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::Group;
use super::record::TreeRecord;
use super::rules::GroupRule;
use crate::ondisk::AgBlock;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent, Owner, RmapOwner};

/// What the free list holds at least, and at most, before a change: enough for each tree to split on all
/// levels twice.
const FREE_LIST_MIN: usize = 6;
const FREE_LIST_MAX: usize = 40;

impl Group<'_> {
    fn space_broken(&self, rule: GroupRule) -> platter_vfs::Error {
        Corrupt::new(Locus::group(self.ag.0.into()), rule).into()
    }

    /// Adds an extent to the free space trees. Its owner must be gone already.
    pub fn free_extent(&mut self, start: AgBlock, count: u32) -> Result<()> {
        self.fill_free_list()?;
        self.add_free(start, count)
    }

    fn add_free(&mut self, start: AgBlock, count: u32) -> Result<()> {
        let end = start.checked_add(count).map(|end| end.0);
        let Some(end) = end.filter(|&end| count > 0 && start.0 > 0 && end <= self.agf.length)
        else {
            return Err(self.space_broken(GroupRule::DoubleFree));
        };
        let order = (u64::from(start.0), 0, 0);
        let left: Option<DiskFreeExtent> = self.lookup_lt(BtreeKind::Bno, order)?;
        let right: Option<DiskFreeExtent> = self.lookup_ge(BtreeKind::Bno, order)?;
        let end_of =
            |extent: &DiskFreeExtent| extent.start.get().saturating_add(extent.count.get());
        if left.as_ref().is_some_and(|left| end_of(left) > start.0)
            || right.as_ref().is_some_and(|right| right.start.get() < end)
        {
            return Err(self.space_broken(GroupRule::DoubleFree));
        }
        let left = left.filter(|left| end_of(left) == start.0);
        let right = right.filter(|right| right.start.get() == end);
        let first = left.map_or(start.0, |left| left.start.get());
        let last = right.map_or(end, |right| end_of(&right));
        let merged = DiskFreeExtent {
            start: first.into(),
            count: (last - first).into(),
        };
        for old in [left, right].into_iter().flatten() {
            self.remove::<DiskFreeExtent>(BtreeKind::Cnt, old.order(BtreeKind::Cnt))?;
        }
        match (left, right) {
            (Some(left), Some(right)) => {
                self.remove::<DiskFreeExtent>(BtreeKind::Bno, right.order(BtreeKind::Bno))?;
                self.replace(BtreeKind::Bno, left.order(BtreeKind::Bno), merged)?;
            }
            (Some(old), None) | (None, Some(old)) => {
                self.replace(BtreeKind::Bno, old.order(BtreeKind::Bno), merged)?;
            }
            (None, None) => self.insert(BtreeKind::Bno, merged)?,
        }
        self.insert(BtreeKind::Cnt, merged)?;
        self.agf.free_blocks += count;
        self.update_longest()
    }

    /// Takes one block out of the smallest free extent; without an owner yet.
    fn take_free(&mut self) -> Result<AgBlock> {
        let smallest: Option<DiskFreeExtent> = self.lookup_ge(BtreeKind::Cnt, (0, 0, 0))?;
        let Some(old) = smallest else {
            return Err(platter_vfs::Condition::NoSpace.into());
        };
        let block = AgBlock(old.start.get());
        self.remove::<DiskFreeExtent>(BtreeKind::Cnt, old.order(BtreeKind::Cnt))?;
        let order = old.order(BtreeKind::Bno);
        if old.count.get() > 1 {
            let rest = DiskFreeExtent {
                start: (block.0 + 1).into(),
                count: (old.count.get() - 1).into(),
            };
            self.replace(BtreeKind::Bno, order, rest)?;
            self.insert(BtreeKind::Cnt, rest)?;
        } else {
            self.remove::<DiskFreeExtent>(BtreeKind::Bno, order)?;
        }
        self.agf.free_blocks = self.agf.free_blocks.saturating_sub(1);
        self.update_longest()?;
        Ok(block)
    }

    fn update_longest(&mut self) -> Result<()> {
        let last: Option<DiskFreeExtent> =
            self.lookup_lt(BtreeKind::Cnt, (u64::MAX, u64::MAX, u64::MAX))?;
        self.agf.longest = last.map_or(0, |last| last.count.get());
        Ok(())
    }

    /// Brings the free list to a length that one change of all trees cannot exhaust or overrun.
    pub fn fill_free_list(&mut self) -> Result<()> {
        while self.free_list.len() < FREE_LIST_MIN {
            let block = self.take_free()?;
            self.free_list.push_back(block);
            self.add_owner(&tree_owner(block, RmapOwner::AG))?;
        }
        while self.free_list.len() > FREE_LIST_MAX {
            let Some(block) = self.free_list.pop_front() else {
                break;
            };
            self.remove_owner(&tree_owner(block, RmapOwner::AG))?;
            self.add_free(block, 1)?;
        }
        Ok(())
    }

    /// A block for a tree: from the free list for the trees that keep account of free space, else from
    /// free space.
    pub(super) fn alloc_tree_block(&mut self, kind: BtreeKind) -> Result<AgBlock> {
        let block = if let Some(owner) = owner_of(kind) {
            self.fill_free_list()?;
            let block = self.take_free()?;
            self.add_owner(&tree_owner(block, owner))?;
            block
        } else {
            let block = self.free_list.pop_front();
            block.ok_or_else(|| self.space_broken(GroupRule::FreeList))?
        };
        self.count_tree_block(kind, 1);
        // What the block held before does not matter, its LSN least of all.
        let at = self
            .geometry
            .byte_offset(self.geometry.fs_block(self.ag, block));
        self.blocks
            .write(at, vec![0; self.geometry.block_bytes() as usize]);
        Ok(block)
    }

    pub(super) fn free_tree_block(&mut self, kind: BtreeKind, block: AgBlock) -> Result<()> {
        self.count_tree_block(kind, -1);
        let at = self
            .geometry
            .byte_offset(self.geometry.fs_block(self.ag, block));
        self.blocks.forget(at);
        if let Some(owner) = owner_of(kind) {
            self.remove_owner(&tree_owner(block, owner))?;
            return self.free_extent(block, 1);
        }
        self.free_list.push_back(block);
        Ok(())
    }

    fn count_tree_block(&mut self, kind: BtreeKind, change: i32) {
        let add = |count: &mut u32| *count = count.saturating_add_signed(change);
        let counts_inodes = self.geometry.features.has_inobtcount();
        match kind {
            BtreeKind::Bno | BtreeKind::Cnt => add(&mut self.agf.btree_blocks),
            BtreeKind::Rmap => {
                add(&mut self.agf.btree_blocks);
                add(&mut self.agf.rmap_blocks);
            }
            BtreeKind::Refcount => add(&mut self.agf.refcount_blocks),
            BtreeKind::Inobt if counts_inodes => add(&mut self.agi.inode_btree_blocks),
            BtreeKind::Finobt if counts_inodes => add(&mut self.agi.free_btree_blocks),
            BtreeKind::Inobt
            | BtreeKind::Finobt
            | BtreeKind::Bmap
            | BtreeKind::RtRmap
            | BtreeKind::RtRefcount => {}
        }
    }
}

/// The owner of blocks that do not come from the free list.
fn owner_of(kind: BtreeKind) -> Option<RmapOwner> {
    match kind {
        BtreeKind::Inobt | BtreeKind::Finobt => Some(RmapOwner::INOBT),
        BtreeKind::Refcount => Some(RmapOwner::REFCOUNT),
        BtreeKind::Bno
        | BtreeKind::Cnt
        | BtreeKind::Rmap
        | BtreeKind::Bmap
        | BtreeKind::RtRmap
        | BtreeKind::RtRefcount => None,
    }
}

fn tree_owner(block: AgBlock, owner: RmapOwner) -> Owner {
    Owner {
        start: block,
        count: 1,
        owner,
        offset: 0,
        is_attr_fork: false,
        is_btree: false,
        is_unwritten: false,
    }
}
