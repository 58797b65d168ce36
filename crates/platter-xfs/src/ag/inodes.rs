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

    /// Allocates the blocks of a part of a chunk, all inodes of which are free, where there is no space for a
    /// whole one. Returns the first block and their number; `None` if there are none, or chunks have no holes.
    pub fn alloc_sparse_chunk(&mut self) -> Result<Option<(AgBlock, u32)>> {
        let geometry = &self.geometry;
        let (align, blocks) = (geometry.inode_alignment, geometry.sparse_inode_alignment);
        let is_whole = blocks == 0 || blocks >= geometry.chunk_blocks();
        if !geometry.features.has_sparse_inodes() || align != geometry.chunk_blocks() || is_whole {
            return Ok(None);
        }
        if self.available() < blocks {
            return Ok(None);
        }
        let bounds = geometry.inode_blocks(self.ag, geometry.sector_units_bits());
        // The numbers of the whole chunk lie within the group.
        let end = bounds
            .end
            .saturating_sub(bounds.end.checked_rem(align).unwrap_or_default());
        let Some(start) = self.alloc_aligned(blocks, blocks, &(bounds.start.max(align)..end))?
        else {
            return Ok(None);
        };
        self.add_owner(&Owner::special(start, blocks, RmapOwner::INODES))?;
        self.add_sparse(start, blocks)?;
        Ok(Some((start, blocks)))
    }

    /// Adds inodes of a part of a chunk to its record, or makes one.
    fn add_sparse(&mut self, start: AgBlock, blocks: u32) -> Result<()> {
        const INODES_PER_HOLE: u32 = 4;
        let geometry = &self.geometry;
        let broken = Corrupt::new(Locus::group(self.ag.0.into()), GroupRule::Inode);
        let whole = geometry.chunk_blocks();
        let skipped = start.0.checked_rem(whole).ok_or(broken)?;
        let first = geometry.first_ag_inode(AgBlock(start.0 - skipped));
        let count = blocks * geometry.inodes_per_block();
        let units = (1_u32 << (count / INODES_PER_HOLE).min(16)) - 1;
        let units = units << (skipped * geometry.inodes_per_block() / INODES_PER_HOLE);
        let mask = u16::try_from(units).map_err(|_| broken)?;
        let order = (u64::from(first.0), 0, 0);
        let found: Option<DiskInodeChunk> = self.lookup_ge(BtreeKind::Inobt, order)?;
        let old = found.map(|record| InodeChunk::decode(&record, true));
        let old = old.filter(|old| old.start == first);
        if old.is_some_and(|old| old.holes & mask != mask || !old.is_consistent()) {
            return Err(broken.into());
        }
        let new = InodeChunk {
            start: first,
            holes: old.map_or(u16::MAX, |old| old.holes) & !mask,
            count: old.map_or(0, |old| old.count) + count,
            free_count: old.map_or(0, |old| old.free_count) + count,
            free: old.map_or(u64::MAX, |old| old.free),
        };
        let record = new.encode(true);
        let was_free = old.is_some_and(|old| old.free_count > 0);
        for (tree, is_there) in [
            (BtreeKind::Inobt, old.is_some()),
            (BtreeKind::Finobt, was_free),
        ] {
            if tree == BtreeKind::Finobt && self.agi.finobt.is_none() {
                continue;
            }
            if is_there {
                self.replace(tree, order, record)?;
            } else {
                self.insert(tree, record)?;
            }
        }
        self.agi.count = self.agi.count.saturating_add(count);
        self.agi.free_count = self.agi.free_count.saturating_add(count);
        self.agi.newest = Some(first);
        Ok(())
    }

    /// The chunk of an inode, if none of its inodes is in use and its blocks hold no other's.
    pub fn unused_chunk(&self, inode: AgInode) -> Result<Option<InodeChunk>> {
        if self.geometry.inodes_per_block() > CHUNK_INODES {
            return Ok(None);
        }
        let is_sparse = self.geometry.features.has_sparse_inodes();
        let order = (u64::from(inode.0) + 1, 0, 0);
        let record: Option<DiskInodeChunk> = self.lookup_lt(BtreeKind::Inobt, order)?;
        let chunk = record.map(|record| InodeChunk::decode(&record, is_sparse));
        Ok(chunk.filter(|chunk| {
            inode.0 - chunk.start.0 < CHUNK_INODES
                && chunk.is_consistent()
                && chunk.free == u64::MAX
                && chunk.count == chunk.free_count
        }))
    }

    /// The blocks of a chunk: the first of each run, and how many they are.
    #[must_use]
    pub fn chunk_extents(&self, chunk: &InodeChunk) -> Vec<(AgBlock, u32)> {
        let per_block = self.geometry.inodes_per_block();
        let runs = chunk.runs().into_iter();
        let extents = runs.map(|(index, count)| {
            let first = AgInode(chunk.start.0.saturating_add(index));
            let start = self.geometry.locate_ag_inode(first).0;
            (start, count.checked_div(per_block).unwrap_or_default())
        });
        extents.collect()
    }

    /// Frees a chunk that is [unused](Self::unused_chunk), with its blocks.
    pub fn free_chunk(&mut self, chunk: &InodeChunk) -> Result<()> {
        let broken = Corrupt::new(Locus::group(self.ag.0.into()), GroupRule::Inode);
        let order = (u64::from(chunk.start.0), 0, 0);
        self.remove::<DiskInodeChunk>(BtreeKind::Inobt, order)?;
        if self.agi.finobt.is_some() {
            self.remove::<DiskInodeChunk>(BtreeKind::Finobt, order)?;
        }
        let count = self.agi.count.checked_sub(chunk.count);
        self.agi.count = count.ok_or(broken)?;
        let free_count = self.agi.free_count.checked_sub(chunk.free_count);
        self.agi.free_count = free_count.ok_or(broken)?;
        for (start, count) in self.chunk_extents(chunk) {
            self.remove_owner(&Owner::special(start, count, RmapOwner::INODES))?;
            self.free_extent(start, count)?;
        }
        Ok(())
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
