//! Inodes that are allocated and freed, and the lists of those without a name.
//! Spec: `xfs/allocation_groups`, "Inode B+trees", "Unlinked Inode List".

use std::collections::HashSet;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, FileKind, Result};

use super::Change;
use crate::ag::{GroupRule, inodes};
use crate::fork::InodeEdit;
use crate::inode;
use crate::ondisk::agi::UNLINKED_BUCKETS;
use crate::ondisk::btree::InodeChunk;
use crate::ondisk::inode::edit::{self, FreshInode};
use crate::ondisk::inode::free::{initialise, next_unlinked};
use crate::ondisk::inode::mark_free;
use crate::ondisk::log::InodeCreate;
use crate::ondisk::{AgBlock, AgInode, AgNr, InodeNr};
use crate::space::Claim;
use crate::txn::NewImage;

/// Where an inode goes, and what it is.
#[derive(Debug, Clone, Copy)]
pub struct NewInode<'a> {
    /// The directory.
    pub parent: InodeNr,
    /// Its kind.
    pub kind: FileKind,
    /// The generation where there was none: of a chunk that is allocated, and of a free inode that is corrupt.
    pub generation: u32,
    /// Its core.
    pub fresh: &'a FreshInode,
}

impl Change<'_> {
    /// Allocates an inode: near its directory, a directory in the next group.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn alloc_inode(&mut self, new: &NewInode<'_>) -> Result<InodeEdit> {
        let geometry = self.geometry();
        let (own_ag, near) = geometry.split_inode(new.parent);
        let first = if new.kind == FileKind::Directory {
            self.context.mount().next_directory_group()
        } else {
            own_ag
        };
        let count = geometry.ag_count();
        for step in 0..count {
            let ag = AgNr(first.0.wrapping_add(step) % count);
            let near = if ag == own_ag { near } else { AgInode(0) };
            let Some(inode) = self.alloc_inode_in(ag, near, new.generation)? else {
                self.groups.leave(ag);
                continue;
            };
            let number = geometry.inode_nr(ag, inode);
            let number = number
                .ok_or_else(|| Corrupt::new(Locus::group(ag.0.into()), GroupRule::NotFreeInode))?;
            let (mut image, found) = if let Some(changed) = self.inodes.get(number) {
                (changed.image.clone(), None)
            } else {
                let place = inode::place_in_log(self.context, number)?;
                self.transaction.unused_inode(&place, new.generation)?
            };
            if edit::is_in_use(&image) {
                let locus = Locus::inode(number.get());
                return Err(Corrupt::new(locus, GroupRule::NotFreeInode).into());
            }
            edit::make(&mut image, new.fresh, geometry, number);
            return InodeEdit::of_new(image, found, number, geometry);
        }
        Err(Condition::NoSpace.into())
    }

    fn alloc_inode_in(
        &mut self,
        ag: AgNr,
        near: AgInode,
        generation: u32,
    ) -> Result<Option<AgInode>> {
        if let Some(inode) = inodes::alloc(&mut self.groups.get(ag)?, near)? {
            return Ok(Some(inode));
        }
        if !self.may_add_chunk() {
            return Ok(None);
        }
        if let Some(log) = self.context.log() {
            self.groups.finish_freed(ag, log)?;
        }
        let chunk_blocks = self.geometry().chunk_blocks();
        let mut group = self.groups.get(ag)?;
        let mut allocated = inodes::alloc_chunk(&mut group)?.map(|block| (block, chunk_blocks));
        if allocated.is_none() {
            allocated = inodes::alloc_sparse_chunk(&mut group)?;
        }
        let Some((block, len)) = allocated else {
            self.groups.note_full();
            return Ok(None);
        };
        self.initialise_chunk(ag, (block, len), generation);
        let first = self.geometry().first_ag_inode(block);
        inodes::alloc(&mut self.groups.get(ag)?, first)
    }

    /// Whether the part of the space that inodes may take has space for a chunk.
    fn may_add_chunk(&self) -> bool {
        let Some(most) = self.context.inodes_max() else {
            return true;
        };
        let before = self.context.mount().inodes().sum() + self.groups.changed_counts().inodes;
        let after = before + i64::from(self.geometry().chunk_inodes());
        u64::try_from(after).is_ok_and(|after| after <= most)
    }

    fn initialise_chunk(&mut self, ag: AgNr, (first, len): (AgBlock, u32), generation: u32) {
        let geometry = self.geometry();
        let create = InodeCreate {
            ag,
            block: first,
            count: len * geometry.inodes_per_block(),
            len,
            generation,
        };
        let cluster = geometry.cluster_blocks().min(len);
        let mut inode = vec![0; geometry.inode_bytes() as usize];
        let mut clusters = Vec::new();
        for start in (0..len).step_by(cluster as usize) {
            let block = AgBlock(first.0.saturating_add(start));
            let mut bytes = Vec::with_capacity((cluster * geometry.block_bytes()) as usize);
            let number = geometry.first_ag_inode(block).0;
            let count = cluster * geometry.inodes_per_block();
            for number in number..number.saturating_add(count) {
                match geometry.inode_nr(ag, AgInode(number)) {
                    Some(number) => initialise(&mut inode, geometry, number, generation),
                    None => inode.fill(0),
                }
                bytes.extend_from_slice(&inode);
            }
            let at = geometry.basic_block(geometry.fs_block(ag, block));
            clusters.push((at, bytes));
        }
        self.transaction.create_inodes(&create, clusters);
    }

    /// Frees an inode without a name that has no blocks any more, with its chunk if that has no other. It is in no
    /// list.
    pub fn free_inode(&mut self, edit: InodeEdit) -> Result<()> {
        let number = edit.inode().number;
        let mut new = edit.into_image();
        mark_free(&mut new.image);
        new.decoded = None;
        self.put_image(number, new);
        let (ag, inode) = self.geometry().split_inode(number);
        let mut group = self.groups.get(ag)?;
        let chunk = inodes::free_of_chunk(&mut group, inode)?;
        if inodes::is_unused(&group, &chunk) {
            self.free_chunk(ag, &chunk)?;
        }
        Ok(())
    }

    /// Frees a chunk of inodes none of which is in use. What the log holds of them is not replayed.
    fn free_chunk(&mut self, ag: AgNr, chunk: &InodeChunk) -> Result<()> {
        let geometry = self.geometry();
        let extents = inodes::chunk_extents(&self.groups.get(ag)?, chunk);
        for &(start, count) in &extents {
            // What the log has of the inodes concerns all that comes to these blocks before that leaves it.
            self.groups.withhold(Claim { ag, start, count })?;
            let cluster = geometry.cluster_blocks().min(count);
            let starts = (start.0..start.0.saturating_add(count)).step_by(cluster as usize);
            let clusters = starts.map(|block| {
                let place = geometry.basic_block(geometry.fs_block(ag, AgBlock(block)));
                (place, cluster << geometry.block_bits)
            });
            let inodes = count * geometry.inodes_per_block();
            let first = geometry.first_ag_inode(start).0;
            let numbers = (first..first.saturating_add(inodes)).map(AgInode);
            let numbers = numbers.filter_map(|inode| geometry.inode_nr(ag, inode));
            let numbers: Vec<InodeNr> = numbers.collect();
            for number in &numbers {
                self.inodes.remove(*number);
            }
            self.transaction.free_inodes(clusters.collect(), numbers)?;
        }
        inodes::free_chunk(&mut self.groups.get(ag)?, chunk)
    }

    /// Puts an inode without a name on its list.
    pub fn add_unlinked(&mut self, edit: &mut InodeEdit) -> Result<()> {
        let (ag, inode) = self.geometry().split_inode(edit.inode().number);
        let bucket = bucket_of(inode);
        let mut group = self.groups.get(ag)?;
        let head = inodes::unlinked_head(&group, bucket);
        if head == Some(inode) {
            // It would be its own successor.
            return Err(Corrupt::new(Locus::group(ag.0.into()), GroupRule::UnlinkedList).into());
        }
        inodes::set_unlinked_head(&mut group, bucket, Some(inode));
        edit.change(|bytes| edit::set_next_unlinked(bytes, head))
    }

    /// Takes an inode off its list of inodes without a name.
    pub fn remove_unlinked(&mut self, edit: &mut InodeEdit) -> Result<()> {
        let geometry = self.geometry();
        let number = edit.inode().number;
        let (ag, inode) = geometry.split_inode(number);
        let bucket = bucket_of(inode);
        let broken = || Corrupt::new(Locus::group(ag.0.into()), GroupRule::UnlinkedList);
        let next = edit.inode().next_unlinked;
        edit.change(|bytes| edit::set_next_unlinked(bytes, None))?;
        let mut group = self.groups.get(ag)?;
        let head = inodes::unlinked_head(&group, bucket);
        if head == Some(inode) {
            inodes::set_unlinked_head(&mut group, bucket, next);
            return Ok(());
        }
        let mut at = head;
        let mut seen = HashSet::new();
        loop {
            let before = at
                .filter(|at| seen.insert(*at))
                .and_then(|at| geometry.inode_nr(ag, at))
                .ok_or_else(broken)?;
            let (mut image, found) = if let Some(changed) = self.inodes.get(before) {
                (changed.image.clone(), None)
            } else {
                let found = self.find_inode(before)?;
                (found.image().to_vec(), Some(found))
            };
            let link = next_unlinked(&image).map(AgInode);
            let link = link.and_then(AgInode::non_null);
            if link == Some(inode) {
                edit::set_next_unlinked(&mut image, next).ok_or_else(broken)?;
                let new = NewImage {
                    image,
                    decoded: None,
                    before: found,
                };
                self.put_image(before, new);
                return Ok(());
            }
            at = link;
        }
    }

    /// The inodes in the lists of a group, as far as they can be followed.
    pub fn unlinked(&mut self, ag: AgNr) -> Result<Vec<InodeNr>> {
        let geometry = self.geometry();
        let broken = || Corrupt::new(Locus::group(ag.0.into()), GroupRule::UnlinkedList);
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        for bucket in 0..UNLINKED_BUCKETS {
            let mut next = inodes::unlinked_head(&self.groups.get(ag)?, bucket);
            while let Some(inode) = next {
                let number = geometry.inode_nr(ag, inode).ok_or_else(broken)?;
                if !seen.insert(number) {
                    return Err(broken().into());
                }
                found.push(number);
                next = self.inode(number)?.inode().next_unlinked;
            }
        }
        Ok(found)
    }
}

fn bucket_of(inode: AgInode) -> usize {
    inode.0 as usize % UNLINKED_BUCKETS
}
