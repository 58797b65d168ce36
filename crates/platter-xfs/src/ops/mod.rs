//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file of functions; this one holds the objects they work on.

mod inactivation;
mod sync;
mod link;
mod attr_fork;
mod parents;
mod delayed;
mod state;
mod space;
mod data;
mod names;
mod remove;
mod xattrs;
mod hints;
mod attr;
mod create;
mod whole_file;
mod rename;
mod namei;
mod inode_operations;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use platter_block::lock::{Mutex, RwLock, rank};
use platter_cache::page::PAGE_BYTES;
use platter_cache::xarray::Order;
use platter_cache::{Mapping, MemoryBudget};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::file::FileData;
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::writing::{
    DirtyList, FreezeGate, InodeLists, Invalidations, ListedInode, UnflushedWrites, WriteGate,
};
use platter_vfs::{Clock, Condition, Error, FileKind, InodeId, Result};

use crate::change::{Change, Cost};
use crate::context::FsContext;
use crate::directory::SoundBlock;
use crate::fork::InodeEdit;
use crate::inode::{self, InodeNumberRule};
use crate::mapping::ForkMap;
use crate::ondisk::{InodeFlags, InodeFlags2, InodeNr};
use crate::preallocation::Preallocation;
use crate::txn::{InodePlace, Log};
use data::{FileGrowth, GrowingFiles, Placement, evict, steps};
use delayed::Delayed;
use inactivation::{InactiveInodes, has_more_space};
use state::{InodeState, States};

pub(crate) use data::eof_blocks;
pub(crate) use inactivation::{free_inactive, free_waiting};
pub(crate) use link::stored_target;
pub(crate) use remove::finish_unlinked;

/// What a file takes in memory in addition to its object and its pages.
const INODE_OVERHEAD_BYTES: usize = 704;

/// A mounted filesystem as its inodes see it.
pub struct SuperBlock {
    /// The filesystem below.
    pub context: FsContext,
    budget: Arc<MemoryBudget>,
    inodes: InodeCache<Inode>,
    /// Held while a thread moves a name from one directory to another (`s_vfs_rename_mutex`).
    renames: Mutex<(), { rank(2, 1) }>,
    /// The time of every change, and random numbers.
    pub(crate) clock: Arc<dyn Clock>,
    /// Inodes with contents that are not on the device yet.
    dirty: DirtyList<Inode>,
    /// Truncations and punches that are between the cache and the mapping.
    invalidations: Invalidations,
    /// Files that may have blocks beyond their end.
    growing: GrowingFiles,
    /// Inodes about to be freed.
    inactive: InactiveInodes,
    /// Writes over blocks that were a file's before, of all files.
    overwrites: UnflushedWrites,
    /// Passed by changes before they take a lock, and shut while the filesystem is frozen.
    pub(crate) writers: FreezeGate,
    /// Held while the superblock is changed and then its copies.
    pub(crate) copies: Mutex<(), { rank(6, 1) }>,
    /// Closed when the filesystem is no longer in use: inodes do not keep it alive through the cache.
    writes: WriteGate,
}

/// One inode in use.
pub struct Inode {
    superblock: Arc<SuperBlock>,
    number: InodeNr,
    kind: FileKind,
    /// The inode lock (`i_rwsem`).
    order: RwLock<(), { rank(2, 2) }>,
    /// Never held over a call of the page cache, nor by a thread that begins a transaction.
    state: RwLock<InodeState, { rank(7, 0) }>,
    pages: Mapping<Error>,
    data: FileData<Placement>,
    lists: InodeLists,
    growth: FileGrowth,
    /// Where it lies, once that was looked up.
    place: OnceLock<InodePlace>,
    /// Of a directory: the block of entries that names were added to.
    sound: SoundBlock,
    /// Whether its deletion was begun.
    is_deleted: AtomicBool,
    /// Last, so that the inode is not loaded again before this object is gone.
    _seat: Seat<Self>,
}

impl SuperBlock {
    /// The filesystem of a context, whose files get so much beyond their end when they grow.
    #[must_use]
    pub fn new(
        context: FsContext,
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
        preallocation: Preallocation,
    ) -> Arc<Self> {
        Arc::new(Self {
            growing: GrowingFiles::new(preallocation),
            context,
            inodes: InodeCache::within(&budget, INODE_OVERHEAD_BYTES, Inode::is_cheap),
            budget,
            renames: Mutex::default(),
            clock,
            dirty: DirtyList::default(),
            invalidations: Invalidations::default(),
            inactive: InactiveInodes::default(),
            overwrites: UnflushedWrites::default(),
            writers: FreezeGate::default(),
            copies: Mutex::default(),
            writes: WriteGate::default(),
        })
    }

    /// The inode with this number; `None` if it is free, or cannot be named.
    pub fn find(self: &Arc<Self>, number: InodeNr) -> Result<Option<Arc<Inode>>> {
        match self.load(number) {
            Ok(inode) => Ok(Some(inode)),
            Err(LoadError::Unfit(_)) => Ok(None),
            Err(LoadError::Failed(error)) => Err(error),
        }
    }

    /// The inode that an entry of a directory names.
    fn named(self: &Arc<Self>, number: InodeNr) -> Result<Arc<Inode>> {
        self.load(number).map_err(|error| match error {
            LoadError::Failed(error) => error,
            LoadError::Unfit(rule) => Corrupt::new(Locus::inode(number.get()), rule).into(),
        })
    }

    /// Drops what the cache keeps alive. Nothing is kept from now on.
    pub fn close(&self) {
        self.writes.close();
        drop(self.dirty.take());
        drop(self.growing.close());
        self.inodes.release_all();
    }

    fn load(self: &Arc<Self>, number: InodeNr) -> Result<Arc<Inode>, LoadError> {
        let id = number.id();
        let inode = self
            .inodes
            .get_or_load(id, |seat| self.read(number, seat))?;
        if self.writes.is_closed() {
            self.inodes.release(id);
        }
        Ok(inode)
    }

    fn read(self: &Arc<Self>, number: InodeNr, seat: Seat<Inode>) -> Result<Arc<Inode>, LoadError> {
        let context = &self.context;
        if context.mount().locate_inode(number).is_none() {
            return Err(LoadError::Unfit(InodeNumberRule::OutOfRange));
        }
        let Some(inode) = inode::find(context, number)? else {
            return Err(LoadError::Unfit(InodeNumberRule::Deleted));
        };
        if inode.links == 0 {
            return Err(LoadError::Unfit(InodeNumberRule::Deleted));
        }
        if inode.flags2.contains(InodeFlags2::METADATA) {
            return Err(LoadError::Unfit(InodeNumberRule::Metadata));
        }
        Ok(self.object(inode, seat)?)
    }

    /// The object of an inode that was just made.
    fn adopt(self: &Arc<Self>, number: InodeNr, may_get_first_name: bool) -> Result<Arc<Inode>> {
        let id = number.id();
        let inode = self.inodes.get_or_load(id, |seat| {
            let inode = self.object(inode::read(&self.context, number)?, seat)?;
            inode.state.write().may_get_first_name = may_get_first_name;
            Ok::<_, Error>(inode)
        });
        if may_get_first_name {
            // Without a name, it goes with its last user.
            self.inodes.release(id);
        }
        inode
    }

    /// The object of an inode.
    fn object(
        self: &Arc<Self>,
        inode: Arc<crate::ondisk::Inode>,
        seat: Seat<Inode>,
    ) -> Result<Arc<Inode>> {
        let context = &self.context;
        let map = ForkMap::of_data(context, &inode)?;
        // Changes of an earlier object of this inode may be among the latest.
        let latest = context.log().map_or(0, Log::running);
        let may_be_unflushed = !self.overwrites.is_flushed();
        let pages = if context.log().is_some() {
            Mapping::with_min_order(Arc::clone(&self.budget), self.folio_order())
        } else {
            Mapping::new(Arc::clone(&self.budget))
        };
        Ok(Arc::new(Inode {
            superblock: Arc::clone(self),
            number: inode.number,
            kind: inode.kind,
            order: RwLock::new(()),
            data: FileData::new(inode.size_bytes, may_be_unflushed),
            lists: InodeLists::default(),
            growth: FileGrowth::default(),
            place: OnceLock::new(),
            sound: SoundBlock::default(),
            is_deleted: AtomicBool::new(false),
            state: RwLock::new(InodeState {
                inode,
                map,
                delayed: Delayed::default(),
                may_get_first_name: false,
                sync: latest,
                data_sync: latest,
            }),
            pages,
            _seat: seat,
        }))
    }

    /// Whether changes are possible.
    fn can_write(&self) -> bool {
        let log = self.context.log();
        log.is_some_and(|log| !log.is_shut_down())
    }

    /// Changes the filesystem as [`FsContext::change`] does, with the states of inodes locked.
    fn change<'f, R>(
        &'f self,
        cost: &Cost,
        inodes: &[&'f Inode],
        work: impl Fn(&mut Change<'f>, &mut States<'f>) -> Result<R>,
    ) -> Result<R> {
        match self.change_once(cost, inodes, &work) {
            Err(error) if has_more_space(self, &error) => self.change_once(cost, inodes, work),
            done => done,
        }
    }

    /// The same, without waiting for space that is being freed.
    fn change_once<'f, R>(
        &'f self,
        cost: &Cost,
        inodes: &[&'f Inode],
        work: impl Fn(&mut Change<'f>, &mut States<'f>) -> Result<R>,
    ) -> Result<R> {
        if self.writes.is_closed() {
            return Err(Condition::ReadOnly.into());
        }
        let forget = || inodes.iter().for_each(|inode| inode.sound.forget());
        let is_again = Cell::new(false);
        let lock = || {
            if is_again.replace(true) {
                forget();
            }
            States::lock(inodes)
        };
        let done = self.context.change(cost, lock, work);
        let done = done.inspect_err(|_| forget())?;
        let mut states = done.locked;
        states.committed(&self.context, done.sequence, &done.changed)?;
        Ok(done.result)
    }

    /// The pages of a block.
    fn folio_order(&self) -> Order {
        let pages = u64::from(self.context.geometry().block_bytes()) / PAGE_BYTES as u64;
        let bits = pages.max(1).ilog2();
        Order::new(u8::try_from(bits).unwrap_or_default()).unwrap_or_default()
    }
}

/// Why an inode could not be loaded.
enum LoadError {
    /// It must not be named.
    Unfit(InodeNumberRule),
    /// It could not be read.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for LoadError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Inode {
    /// Whether it is as good when it is loaded again: it has no pages.
    fn is_cheap(&self) -> bool {
        self.pages.page_count() == 0
    }

    fn context(&self) -> &FsContext {
        &self.superblock.context
    }

    /// Where it lies, which stays so as long as it is in use.
    fn place(&self) -> Result<InodePlace> {
        if let Some(place) = self.place.get() {
            return Ok(*place);
        }
        let place = inode::place_in_log(self.context(), self.number)?;
        Ok(*self.place.get_or_init(|| place))
    }

    fn has_flag(&self, flag: InodeFlags) -> bool {
        self.state.read().inode.flags.contains(flag)
    }

    /// Only regular files have contents to read.
    fn refuse_without_contents(&self) -> Result<()> {
        self.kind.refuse_without_contents()
    }

    /// Changes the inode in one transaction. An error says that nothing was changed. The work may be done several
    /// times, the last time for good.
    fn change<R>(
        &self,
        cost: Cost,
        work: impl Fn(&mut Change<'_>, &mut InodeEdit, &mut InodeState) -> Result<R>,
    ) -> Result<R> {
        let cost = cost.and(Cost {
            inodes: 1,
            ..Cost::default()
        });
        self.superblock.change(&cost, &[self], |change, states| {
            let mut edit = change.inode_at(&self.place()?)?;
            let result = work(change, &mut edit, states.of(self))?;
            change.put(edit);
            Ok(result)
        })
    }
}

impl ListedInode for Inode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn lists(&self) -> &InodeLists {
        &self.lists
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if self.context().log().is_none() {
            return;
        }
        let is_gone = self.state.read().inode.links == 0;
        if is_gone && self.superblock.can_write() && !self.superblock.writes.is_closed() {
            // What could not be freed is left to the next mount, as after a crash.
            let _ = evict::evict(self);
        }
        steps::release_all(self);
    }
}

impl fmt::Debug for SuperBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SuperBlock")
            .field("device", &self.context.device().name())
            .field("inodes", &self.inodes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Inode")
            .field("number", &self.number)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
