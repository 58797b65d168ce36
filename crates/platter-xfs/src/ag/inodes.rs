//! Inodes of an allocation group: freeing them. Spec: `xfs/allocation_groups`, "Inode B+trees".

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::Group;
use super::rules::GroupRule;
use crate::ondisk::AgInode;
use crate::ondisk::btree::{BtreeKind, DiskInodeChunk, InodeChunk};
use crate::tree::TreeRecord;

impl Group<'_> {
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
