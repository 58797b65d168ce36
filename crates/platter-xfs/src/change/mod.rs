//! A change of the filesystem: a transaction with the groups and the inodes that it changes. All of it is
//! committed, or nothing.
//!
//! A change is work on copies, which can be begun again: it is where another thread has a group that it may not wait
//! for, and where it takes more of the log than it reserved.

mod cost;
mod claim;
mod inodes;
mod release;

use std::collections::BTreeSet;
use std::sync::Arc;

use platter_cache::Buffer;
use platter_cache::buffer::BlockSize;
use platter_vfs::{Condition, Error, Result};

use crate::ag::{GroupCounts, Groups};
use crate::context::FsContext;
use crate::fork::InodeEdit;
use crate::inode;
use crate::ondisk::inode::edit;
use crate::ondisk::{AgNr, BasicBlock, FsSize, Geometry, Growth, Inode, InodeNr};
use crate::sorted::SortedMap;
use crate::txn::{BlockType, FoundInode, InodePlace, Log, NewBytes, NewImage, Transaction};

pub use claim::{Goal, claim, unclaim};
pub use cost::Cost;
pub use inodes::NewInode;
pub use release::{Unmapped, add_owner, free_mapping, owner_of, unmap, withhold_parts};

/// A change of the filesystem, which has the groups that it looks at.
#[derive(Debug)]
pub struct Change<'f> {
    context: &'f FsContext,
    transaction: Transaction<'f>,
    /// The groups.
    pub groups: Groups,
    /// Inodes as they are after the change.
    inodes: SortedMap<InodeNr, NewImage>,
    /// Inodes that were committed.
    committed: Vec<(InodeNr, Option<Arc<Inode>>)>,
    /// Those of whose data forks mappings were changed.
    remapped: BTreeSet<InodeNr>,
    /// Reserved blocks that were taken, or are not needed any more.
    kept_reservations: u64,
    /// Bytes of the log that it takes, if that is more than it reserved.
    log_bytes: Option<u64>,
    /// How far the filesystem reaches with it, if that is further.
    grown: Option<Grown>,
}

/// A filesystem that reaches further.
#[derive(Debug)]
struct Grown {
    geometry: Geometry,
    /// What new groups have.
    counts: GroupCounts,
}

/// What a change needs that was found when it was tried before.
#[derive(Debug, Default)]
struct Need {
    groups: BTreeSet<AgNr>,
    log_bytes: u64,
    /// What the work gave back before, which it does once.
    kept_reservations: u64,
    /// Whether it was begun again for blocks that were freed.
    freed: Freed,
}

/// Blocks that were freed in checkpoints that are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Freed {
    /// Not missed.
    #[default]
    Left,
    /// Missed: their checkpoints are to be made durable.
    Wanted,
    /// Some were freed before the change began: they were waited for.
    Waited,
}

/// A change that was committed.
#[derive(Debug)]
pub struct Committed<S, R> {
    /// What the work returned.
    pub result: R,
    /// The number of the checkpoint.
    pub sequence: u64,
    /// What was locked for the work, and still is.
    pub locked: S,
    /// The inodes that were changed.
    pub changed: ChangedInodes,
}

/// Inodes that were changed by what was committed.
#[derive(Debug)]
pub struct ChangedInodes {
    /// What they say; `None` of one that is free.
    inodes: Vec<(InodeNr, Option<Arc<Inode>>)>,
    /// Those of whose data forks mappings were changed.
    remapped: BTreeSet<InodeNr>,
}

impl ChangedInodes {
    /// What an inode says; `None` if it was not changed, or is free.
    #[must_use]
    pub fn get(&self, number: InodeNr) -> Option<&Arc<Inode>> {
        let mut inodes = self.inodes.iter();
        let (_, inode) = inodes.find(|(changed, _)| *changed == number)?;
        inode.as_ref()
    }

    /// Whether mappings of the data fork of an inode were changed.
    #[must_use]
    pub fn is_remapped(&self, number: InodeNr) -> bool {
        self.remapped.contains(&number)
    }
}

impl FsContext {
    /// Changes the filesystem: reserves space in the log, calls `lock`, does the `work`, and commits. The work may
    /// be done several times, the last time for good: what it changes outside the change comes after all that it
    /// does with groups. The caller holds no lock that a change takes.
    ///
    /// # Errors
    /// Those of the work, and of the rules that what was changed has to satisfy, in which case nothing was changed;
    /// those of the log. `ReadOnly` where nothing is written.
    pub fn change<'f, S, R>(
        &'f self,
        cost: &Cost,
        lock: impl Fn() -> S,
        work: impl Fn(&mut Change<'f>, &mut S) -> Result<R>,
    ) -> Result<Committed<S, R>> {
        let begin = |log, bytes| Transaction::begin(self.mount(), log, bytes, 1);
        self.change_in(cost, begin, lock, work)
    }

    /// As [`change`](Self::change), while the filesystem is frozen or its mount ends: does not wait for the thaw.
    ///
    /// # Errors
    /// Those of [`change`](Self::change).
    pub fn change_frozen<'f, R>(
        &'f self,
        cost: &Cost,
        work: impl Fn(&mut Change<'f>) -> Result<R>,
    ) -> Result<R> {
        let begin = |log, bytes| Transaction::begin_frozen(log, bytes, 1);
        let changed = self.change_in(cost, begin, || (), |change, ()| work(change))?;
        Ok(changed.result)
    }

    fn change_in<'f, S, R>(
        &'f self,
        cost: &Cost,
        begin: impl Fn(&'f Log, u64) -> Result<Transaction<'f>>,
        lock: impl Fn() -> S,
        work: impl Fn(&mut Change<'f>, &mut S) -> Result<R>,
    ) -> Result<Committed<S, R>> {
        let log = self.log().ok_or(Condition::ReadOnly)?;
        let usual = cost.log_bytes(self.geometry()).min(log.usual_max());
        let mut need = Need {
            kept_reservations: self.reserve_blocks(cost.blocks)?,
            ..Need::default()
        };
        loop {
            if need.freed == Freed::Wanted {
                need.freed = Freed::Waited;
                log.force_freed().inspect_err(|_| {
                    self.return_reserved(need.kept_reservations);
                })?;
                self.space().finish(self.geometry().groups(), log);
            }
            let begun = begin(log, usual.max(need.log_bytes));
            let transaction = begun.inspect_err(|_| {
                self.return_reserved(need.kept_reservations);
            })?;
            let mut locked = lock();
            let mut change = Change::new(self, transaction, &need);
            let done = change.groups.lock_all(&need.groups);
            let done = done.and_then(|()| work(&mut change, &mut locked));
            let done = done.and_then(|result| Ok((result, change.commit()?)));
            match done {
                Ok((result, sequence)) => {
                    return Ok(Committed {
                        result,
                        sequence,
                        locked,
                        changed: ChangedInodes {
                            inodes: change.committed,
                            remapped: change.remapped,
                        },
                    });
                }
                Err(error) if change.takes_more(&mut need, &error) => self.space().note_conflict(),
                Err(error) => {
                    self.return_reserved(change.kept_reservations);
                    return Err(error);
                }
            }
        }
    }

    /// Reserves free blocks that files may have. Without a reserve pool, a change takes what the groups have. Returns
    /// how many were reserved.
    ///
    /// # Errors
    /// `NoSpace`.
    fn reserve_blocks(&self, count: u32) -> Result<u64> {
        if count == 0 || !self.space().has_pool() {
            return Ok(0);
        }
        let floor = self.space().floor();
        if !self.mount().free_blocks().try_sub(count.into(), floor) {
            return Err(Condition::NoSpace.into());
        }
        Ok(count.into())
    }

    /// Blocks that were reserved are free again.
    pub(crate) fn return_reserved(&self, count: u64) {
        if count > 0 {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.mount().free_blocks().add(count);
        }
    }
}

impl<'f> Change<'f> {
    fn new(context: &'f FsContext, transaction: Transaction<'f>, need: &Need) -> Self {
        let buffers = context.shared_buffers();
        let mut groups = Groups::of_mount(buffers, context.geometry(), context.space());
        if need.freed == Freed::Waited {
            groups.note_waited();
        }
        Self {
            groups,
            context,
            transaction,
            inodes: SortedMap::default(),
            committed: Vec::new(),
            remapped: BTreeSet::new(),
            kept_reservations: need.kept_reservations,
            log_bytes: None,
            grown: None,
        }
    }

    /// Whether the change failed for want of what it can have when it is begun again.
    fn takes_more(&self, need: &mut Need, error: &Error) -> bool {
        need.kept_reservations = self.kept_reservations;
        let is_full = matches!(error, Error::Condition(Condition::NoSpace));
        if is_full && need.freed == Freed::Left && self.groups.has_left_busy() {
            need.freed = Freed::Wanted;
            return true;
        }
        if let Some(bytes) = self.log_bytes {
            need.log_bytes = need.log_bytes.max(bytes);
            return true;
        }
        let missing = self.groups.missing();
        missing.is_some_and(|missing| {
            need.groups.extend(missing);
            true
        })
    }

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

    /// An inode in use as it is after the changes so far. The group of one without a name is locked: others that
    /// are on its list change what it has of the list.
    pub fn inode(&mut self, number: InodeNr) -> Result<InodeEdit> {
        if let Some(changed) = self.inodes.get(number) {
            return further_edit(changed, number, self.geometry());
        }
        let place = inode::place_in_log(self.context, number)?;
        self.unchanged_inode(&place)
    }

    /// The same, of an inode whose place is known.
    pub fn inode_at(&mut self, place: &InodePlace) -> Result<InodeEdit> {
        if let Some(changed) = self.inodes.get(place.number) {
            return further_edit(changed, place.number, self.geometry());
        }
        self.unchanged_inode(place)
    }

    fn unchanged_inode(&mut self, place: &InodePlace) -> Result<InodeEdit> {
        let (geometry, number) = (self.geometry(), place.number);
        let mut found = self.transaction.find_inode(place)?;
        if edit::links(found.image()) == Some(0) {
            let (ag, _) = geometry.split_inode(number);
            if !self.groups.has(ag) {
                self.groups.get(ag)?;
                found = self.transaction.find_inode(place)?;
            }
        }
        InodeEdit::of_found(found, number, geometry)
    }

    /// An inode that the change has not changed.
    fn find_inode(&self, number: InodeNr) -> Result<FoundInode> {
        let place = inode::place_in_log(self.context, number)?;
        self.transaction.find_inode(&place)
    }

    /// Stores an inode.
    pub fn put(&mut self, edit: InodeEdit) {
        let number = edit.inode().number;
        if edit.is_remapped() {
            self.remapped.insert(number);
        }
        self.put_image(number, edit.into_image());
    }

    fn put_image(&mut self, number: InodeNr, new: NewImage) {
        match self.inodes.get_mut(number) {
            Some(changed) => {
                let before = changed.before.take();
                *changed = NewImage { before, ..new };
            }
            None => {
                self.inodes.insert(number, new);
            }
        }
    }

    /// Whether mappings of the data fork of an inode were changed.
    #[must_use]
    pub fn is_remapped(&self, number: InodeNr) -> bool {
        self.remapped.contains(&number)
    }

    /// So many blocks that were reserved are taken, or not needed any more: they count as free again, less
    /// what the change takes.
    pub fn keep_reserved(&mut self, count: u64) {
        self.kept_reservations = self.kept_reservations.saturating_add(count);
    }

    /// Logs the superblock even if nothing in it changes.
    pub fn touch_superblock(&mut self) -> Result<()> {
        // It is changed by the thread that has the first group.
        self.groups.get(AgNr(0))?;
        let geometry = self.geometry();
        let len = geometry.sector_bytes();
        let sector = self.groups.blocks().read(0, len)?;
        let what = BlockType::of_header(geometry, BasicBlock(0), &sector);
        let what = what.ok_or(Condition::InvalidArgument)?;
        let size = BlockSize::new(len).ok_or(Condition::InvalidArgument)?;
        self.transaction.touch(BasicBlock(0), size, &what)
    }

    /// Makes the filesystem reach further once this is committed, with new groups that have so much. Their headers are
    /// durable, and no other transaction runs.
    pub fn grow(&mut self, size: FsSize, counts: GroupCounts) {
        let geometry = Geometry {
            growth: Growth::new(size),
            ..self.geometry().clone()
        };
        self.grown = Some(Grown { geometry, counts });
    }

    /// Commits the change. Returns the number of its checkpoint.
    fn commit(&mut self) -> Result<u64> {
        let grown = self.grown.take();
        let geometry = grown.as_ref().map_or(self.geometry(), |it| &it.geometry);
        let (blocks, mut counts) = self.groups.take_changes()?;
        self.transaction
            .expect_replaced(blocks.changed.len(), self.inodes.len());
        for (at, len) in blocks.freed {
            let size = BlockSize::new(len).ok_or(Condition::InvalidArgument)?;
            self.transaction.cancel(BasicBlock::of_byte(at), size);
        }
        for (at, block) in blocks.changed {
            let place = BasicBlock::of_byte(at);
            let what = match block.role {
                Some(role) => Some(BlockType::new(role.kind, role.owner)),
                None => BlockType::of_header(geometry, place, &block.bytes),
            };
            let what = what.ok_or(Condition::InvalidArgument)?;
            let len = u32::try_from(block.bytes.len()).ok();
            let size = len.and_then(BlockSize::new);
            let size = size.ok_or(Condition::InvalidArgument)?;
            if block.is_fresh {
                self.transaction.create(place, size, &what, block.bytes);
            } else {
                let before = match block.before {
                    None if grown.is_some() && block.role.is_none() => {
                        Some(self.header_before(place, size, &block.bytes)?)
                    }
                    before => before,
                };
                let new = NewBytes {
                    bytes: block.bytes,
                    before,
                    within: block.within,
                };
                self.transaction.replace(place, size, &what, new)?;
            }
        }
        for (number, new) in self.inodes.take() {
            let place = match &new.before {
                Some(found) => found.place(),
                None => inode::place_in_log(self.context, number)?,
            };
            self.transaction.replace_inode(&place, new)?;
        }
        self.log_bytes = self.transaction.missing_bytes();
        if self.log_bytes.is_some() {
            return Err(Condition::Busy.into());
        }
        let (log, size) = (self.transaction.log(), self.geometry().growth.size());
        if let Some(grown) = &grown {
            // The last group has its new length in what is verified from here on.
            log.grow(grown.geometry.growth.size());
        }
        let ended = self.transaction.end();
        if ended.is_err() && grown.is_some() {
            log.grow(size);
        }
        let sequence = ended?;
        self.committed = self.transaction.take_committed();
        if let Some(grown) = &grown {
            // Headers of the last group are read by threads that have the group, as this one does.
            self.context.mount().grow(grown.geometry.growth.size());
            counts.free_blocks += grown.counts.free_blocks;
            counts.kept += grown.counts.kept;
        }
        self.count(counts);
        if grown.is_some() {
            self.context.space().note_returned();
        }
        self.groups.committed(sequence);
        Ok(sequence)
    }

    /// The version before of a header, which has the length of before.
    fn header_before(&self, at: BasicBlock, size: BlockSize, bytes: &[u8]) -> Result<Buffer> {
        let what = BlockType::of_header(self.geometry(), at, bytes);
        let what = what.ok_or(Condition::InvalidArgument)?;
        what.verifier(self.geometry(), |verifier| {
            Ok(self.context.buffers().read((at.0, size), verifier)?)
        })
    }

    /// Adds what changed to the counters of the mount.
    fn count(&self, counts: GroupCounts) {
        let (mount, space) = (self.context.mount(), self.context.space());
        let reserved = i64::try_from(self.kept_reservations).unwrap_or(i64::MAX);
        let keep = || {
            space.add_to_floor(counts.kept);
            mount.free_blocks().set_exact_below(|| space.floor());
        };
        // Blocks that are free and kept are kept first: other threads reserve those above the floor.
        if counts.kept > 0 {
            keep();
        }
        mount.free_blocks().add(counts.free_blocks + reserved);
        mount.inodes().add(counts.inodes);
        mount.free_inodes().add(counts.free_inodes);
        if counts.kept < 0 {
            keep();
        }
    }
}

/// An inode that a change has changed, to be changed further.
fn further_edit(changed: &NewImage, number: InodeNr, geometry: &Geometry) -> Result<InodeEdit> {
    let image = changed.image.clone();
    match &changed.decoded {
        Some(inode) => Ok(InodeEdit::of_version(image, Arc::clone(inode))),
        None => InodeEdit::of_image(image, number, geometry),
    }
}
