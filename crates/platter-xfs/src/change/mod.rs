//! A change of the filesystem: a transaction with the groups and the inodes that it changes. All of it is
//! committed, or nothing.
//!
//! An operation begins one, locks the states of its inodes, [enters](Begun::enter) the groups, and commits.

mod cost;
mod claim;
mod inodes;
mod release;

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use platter_cache::buffer::BlockSize;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use crate::ag::Groups;
use crate::context::FsContext;
use crate::fork::InodeEdit;
use crate::inode::{self, InodeNumberRule};
use crate::ondisk::{BasicBlock, Geometry, InodeNr};
use crate::space::{Claim, Holds};
use crate::txn::{BlockType, Transaction};

pub use claim::Goal;
pub use cost::Cost;
pub use inodes::NewInode;
pub use release::{Unmapped, free_mapping, owner_of};

/// A transaction that has its space in the log; locks of inodes and groups may be taken.
#[derive(Debug)]
pub struct Begun<'f> {
    context: &'f FsContext,
    transaction: Transaction<'f>,
}

/// A change of the filesystem, which holds the lock of the groups.
#[derive(Debug)]
pub struct Change<'f> {
    context: &'f FsContext,
    transaction: Transaction<'f>,
    /// The groups.
    pub groups: Groups,
    /// Inodes as they are after the change.
    inodes: BTreeMap<InodeNr, Vec<u8>>,
    /// Claims whose blocks are taken.
    claims: Vec<Claim>,
    /// Reserved blocks that were taken, or are not needed any more.
    kept_reservations: u64,
    holds: MutexGuard<'f, Holds>,
}

impl<'f> Begun<'f> {
    /// Begins a transaction. The caller holds no lock that another transaction may wait for.
    ///
    /// # Errors
    /// `ReadOnly` where nothing is written.
    pub fn begin(context: &'f FsContext, cost: &Cost) -> Result<Self> {
        let log = context.log().ok_or(Condition::ReadOnly)?;
        let bytes = cost.log_bytes(context.geometry());
        let transaction = Transaction::begin(context.mount(), log, bytes, 1)?;
        Ok(Self {
            context,
            transaction,
        })
    }

    /// Locks the groups, to change them.
    #[must_use]
    pub fn enter(self) -> Change<'f> {
        let holds = self.context.space().lock();
        let claims = holds.claims.clone();
        let buffers = self.context.shared_buffers();
        Change {
            groups: Groups::of_mount(buffers, self.context.geometry(), claims),
            context: self.context,
            transaction: self.transaction,
            inodes: BTreeMap::new(),
            claims: Vec::new(),
            kept_reservations: 0,
            holds,
        }
    }
}

impl<'f> Change<'f> {
    /// The filesystem.
    #[must_use]
    pub fn context(&self) -> &'f FsContext {
        self.context
    }

    /// Sizes and counts.
    #[must_use]
    pub fn geometry(&self) -> &'f Geometry {
        self.context.geometry()
    }

    /// An inode in use as it is after the changes so far.
    pub fn inode(&self, number: InodeNr) -> Result<InodeEdit> {
        let image = self.image(number)?;
        InodeEdit::of_image(image, number, self.geometry())
    }

    fn image(&self, number: InodeNr) -> Result<Vec<u8>> {
        if let Some(image) = self.inodes.get(&number) {
            return Ok(image.clone());
        }
        let place = inode::place_in_log(self.context, number)?;
        self.transaction.inode(&place)
    }

    /// Stores an inode.
    pub fn put(&mut self, edit: InodeEdit) {
        let number = edit.inode().number;
        self.inodes.insert(number, edit.into_image());
    }

    /// Takes the blocks of a claim out of free space; without an owner yet.
    pub fn take_claim(&mut self, claim: Claim) -> Result<()> {
        self.groups.get(claim.ag)?.fill_free_list()?;
        self.groups.unclaim(claim.ag, claim.start, claim.count);
        let mut group = self.groups.get(claim.ag)?;
        group.take_range(claim.start, claim.count)?;
        self.claims.push(claim);
        Ok(())
    }

    /// So many blocks that were reserved are taken, or not needed any more: they count as free again, less
    /// what the change takes.
    pub fn keep_reserved(&mut self, count: u64) {
        self.kept_reservations = self.kept_reservations.saturating_add(count);
    }

    /// Commits the change. Returns the number of its checkpoint.
    ///
    /// # Errors
    /// Those of the rules that what was changed has to satisfy, in which case nothing was changed; those of
    /// the log.
    pub fn commit(mut self) -> Result<u64> {
        let geometry = self.geometry();
        let (blocks, counts) = self.groups.take_changes()?;
        for (at, len) in blocks.freed {
            let size = BlockSize::new(len).ok_or(Condition::InvalidArgument)?;
            self.transaction.cancel(BasicBlock::of_byte(at), size);
        }
        for (at, bytes) in blocks.changed {
            let place = BasicBlock::of_byte(at);
            let what = BlockType::of_block(geometry, place, &bytes);
            let what = what.ok_or(Condition::InvalidArgument)?;
            let size = u32::try_from(bytes.len()).ok().and_then(BlockSize::new);
            let size = size.ok_or(Condition::InvalidArgument)?;
            if blocks.fresh.contains(&at) {
                self.transaction.create(place, size, &what, bytes);
            } else {
                self.transaction.edit(place, size, &what, |old| {
                    old.copy_from_slice(&bytes);
                    Ok(())
                })?;
            }
        }
        for (number, image) in std::mem::take(&mut self.inodes) {
            let place = inode::place_in_log(self.context, number)?;
            self.transaction.edit_inode(&place, |old| {
                if old.len() != image.len() {
                    let locus = Locus::inode(number.get());
                    return Err(Corrupt::new(locus, InodeNumberRule::OutOfRange).into());
                }
                old.copy_from_slice(&image);
                Ok(())
            })?;
        }
        let sequence = self.transaction.commit()?;
        let mount = self.context.mount();
        let reserved = i64::try_from(self.kept_reservations).unwrap_or(i64::MAX);
        mount.free_blocks().add(counts.free_blocks + reserved);
        mount.inodes().add(counts.inodes);
        mount.free_inodes().add(counts.free_inodes);
        if counts.tree_blocks != 0 {
            let floor = self.context.space().add_to_floor(counts.tree_blocks);
            mount.free_blocks().set_exact_below(floor);
        }
        for claim in self.claims {
            self.holds.unclaim(claim);
        }
        self.holds.note_freed(sequence, self.groups.take_freed());
        Ok(sequence)
    }
}
