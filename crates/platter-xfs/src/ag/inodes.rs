//! Inodes of an allocation group: allocating and freeing them. Spec: `xfs/allocation_groups`, "Inode B+trees".

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::Group;
use super::rules::GroupRule;
use crate::ondisk::btree::{BtreeKind, DiskInodeChunk, InodeChunk, Owner, RmapOwner};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::{AgBlock, AgInode};
use crate::tree::TreeRecord;

impl Group<'_> {
    /// Allocates an inode of a chunk that exists, near another one; `None` if none is free.
    pub fn alloc_inode(&mut self, near: AgInode) -> Result<Option<AgInode>> {
        if self.agi.free_count == 0 {
            return Ok(None);
        }
        self.fill_free_list()?;
        let broken = Corrupt::new(Locus::group(self.ag.0.into()), GroupRule::NotFreeInode);
        let is_sparse = self.geometry.features.has_sparse_inodes();
        let Some(old) = self.find_chunk(near)? else {
            return Err(broken.into());
        };
        if !old.is_consistent() {
            return Err(broken.into());
        }
        let index = (old.free & old.existing()).trailing_zeros();
        let new = InodeChunk {
            free: old.free & !1_u64.checked_shl(index).ok_or(broken)?,
            free_count: old.free_count.checked_sub(1).ok_or(broken)?,
            ..old
        };
        let record = new.encode(is_sparse);
        let order = TreeRecord::order(&record, BtreeKind::Inobt);
        self.replace(BtreeKind::Inobt, order, record)?;
        if self.agi.finobt.is_some() {
            if new.free_count == 0 {
                self.remove::<DiskInodeChunk>(BtreeKind::Finobt, order)?;
            } else {
                self.replace(BtreeKind::Finobt, order, record)?;
            }
        }
        self.agi.free_count = self.agi.free_count.saturating_sub(1);
        Ok(Some(AgInode(old.start.0.saturating_add(index))))
    }

    /// A chunk with a free inode: that of `near`, or one before or after it.
    fn find_chunk(&self, near: AgInode) -> Result<Option<InodeChunk>> {
        let is_sparse = self.geometry.features.has_sparse_inodes();
        let tree = if self.agi.finobt.is_some() {
            BtreeKind::Finobt
        } else {
            BtreeKind::Inobt
        };
        let decoded = |record: DiskInodeChunk| InodeChunk::decode(&record, is_sparse);
        let has_free = |chunk: &InodeChunk| chunk.free_count > 0;
        let mut order = (u64::from(near.0) + 1, 0, 0);
        while let Some(record) = self.lookup_lt::<DiskInodeChunk>(tree, order)? {
            let chunk = decoded(record);
            if has_free(&chunk) {
                return Ok(Some(chunk));
            }
            order = (chunk.start.0.into(), 0, 0);
        }
        let mut order = (u64::from(near.0) + 1, 0, 0);
        while let Some(record) = self.lookup_ge::<DiskInodeChunk>(tree, order)? {
            let chunk = decoded(record);
            if has_free(&chunk) {
                return Ok(Some(chunk));
            }
            order = (u64::from(chunk.start.0) + 1, 0, 0);
        }
        Ok(None)
    }

    /// Allocates the blocks of a new chunk, all inodes of which are free. Returns the first; `None` if there
    /// are no such blocks. The inodes are still to be initialised.
    pub fn alloc_chunk(&mut self) -> Result<Option<AgBlock>> {
        let blocks = self.geometry.chunk_blocks();
        if self.available() < blocks {
            return Ok(None);
        }
        let sector_bits = self.geometry.sector_units_bits();
        let bounds = self.geometry.inode_blocks(self.ag, sector_bits);
        let align = self.geometry.inode_alignment.max(1);
        let Some(start) = self.alloc_aligned(blocks, align, &bounds)? else {
            return Ok(None);
        };
        self.add_owner(&Owner::special(start, blocks, RmapOwner::INODES))?;
        let chunk = InodeChunk {
            start: self.geometry.first_ag_inode(start),
            holes: 0,
            count: CHUNK_INODES,
            free_count: CHUNK_INODES,
            free: u64::MAX,
        };
        let record = chunk.encode(self.geometry.features.has_sparse_inodes());
        self.insert(BtreeKind::Inobt, record)?;
        if self.agi.finobt.is_some() {
            self.insert(BtreeKind::Finobt, record)?;
        }
        self.agi.count = self.agi.count.saturating_add(CHUNK_INODES);
        self.agi.free_count = self.agi.free_count.saturating_add(CHUNK_INODES);
        self.agi.newest = Some(chunk.start);
        Ok(Some(start))
    }

    /// The first inode of a list of unlinked inodes.
    #[must_use]
    pub fn unlinked_head(&self, bucket: usize) -> Option<AgInode> {
        self.agi.unlinked.get(bucket).copied().flatten()
    }

    /// Makes an inode the first one of a list of unlinked inodes.
    pub fn set_unlinked_head(&mut self, bucket: usize, head: Option<AgInode>) {
        if let Some(slot) = self.agi.unlinked.get_mut(bucket) {
            *slot = head;
        }
    }

    /// Marks an inode free in the inode B-trees and the header.
    pub fn free_inode(&mut self, inode: AgInode) -> Result<()> {
        self.fill_free_list()?;
        let broken = Corrupt::new(Locus::group(self.ag.0.into()), GroupRule::Inode);
        let is_sparse = self.geometry.features.has_sparse_inodes();
        let order = (u64::from(inode.0) + 1, 0, 0);
        let record: Option<DiskInodeChunk> = self.lookup_lt(BtreeKind::Inobt, order)?;
        let old = record.map(|record| InodeChunk::decode(&record, is_sparse));
        let old = old.ok_or(broken)?;
        let index = inode.0 - old.start.0;
        if index >= 64 || !old.is_consistent() || !old.is_allocated(index) {
            return Err(broken.into());
        }
        let free_count = self.agi.free_count.checked_add(1).ok_or(broken)?;
        let new = InodeChunk {
            free: old.free | (1 << index),
            free_count: old.free_count + 1,
            ..old
        };
        let record = new.encode(is_sparse);
        let order = TreeRecord::order(&record, BtreeKind::Inobt);
        self.replace(BtreeKind::Inobt, order, record)?;
        if self.agi.finobt.is_some() {
            if old.free_count == 0 {
                self.insert(BtreeKind::Finobt, record)?;
            } else {
                self.replace(BtreeKind::Finobt, order, record)?;
            }
        }
        self.agi.free_count = free_count;
        Ok(())
    }

    /// Empties the lists of unlinked inodes.
    pub fn clear_unlinked(&mut self) {
        self.agi.unlinked.fill(None);
    }
}
