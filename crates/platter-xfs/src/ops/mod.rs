//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file; this one holds the object they work on.

mod sync;
mod attr_fork;
mod parents;
mod state;
mod data;
mod link;
mod names;
mod remove;
mod rename;
mod xattrs;
mod hints;
mod attr;
mod create;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use platter_block::lock::RwLock;
use platter_block::lock::{Mutex, rank};
use platter_cache::page::PAGE_BYTES;
use platter_cache::xarray::Order;
use platter_cache::{Mapping, MemoryBudget};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::file::{self, FileData, WriteTo};
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::namei::{self, AttributedInode, NewInode};
use platter_vfs::ranges::{Deduped, Exchange};
use platter_vfs::writing::{
    DirtyList, FreezeGate, InodeLists, ListedInode, UnflushedWrites, WriteGate,
};
use platter_vfs::{
    AccessTimes, Attr, Clock, Context, CreateKind, DirCursor, DirSink, Error, ExtendedFlags,
    ExtentSink, FallocateMode, FileKind, InodeId, Name, RenameMode, Result, SeekTarget, SetAttr,
    XattrMode,
};

use crate::context::FsContext;
use crate::inode::{self, InodeNumberRule};
use crate::mapping::ForkMap;
use crate::ondisk::{InodeFlags2, InodeNr};
use crate::preallocation::Preallocation;
use crate::txn::Log;
use crate::xattr::Attributes;
use data::{Delayed, FileGrowth, GrowingFiles, Placement};
pub(crate) use link::stored_target;

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
    /// Files that may have blocks beyond their end.
    growing: GrowingFiles,
    /// Writes over blocks that were a file's before, of all files.
    overwrites: UnflushedWrites,
    /// Passed by changes before they take a lock, and shut while the filesystem is frozen.
    pub(crate) writers: FreezeGate,
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
    /// Whether its deletion was begun.
    is_deleted: AtomicBool,
    /// Last, so that the inode is not loaded again before this object is gone.
    _seat: Seat<Self>,
}

/// What the disk holds of an inode.
struct InodeState {
    inode: crate::ondisk::Inode,
    map: ForkMap,
    /// What of the contents has no place on the device yet.
    delayed: Delayed,
    /// It was created without a name, and may still get its first.
    may_get_first_name: bool,
    /// The last checkpoint that has a change of the inode.
    sync: u64,
    /// The last checkpoint that has a change of what leads to its contents.
    data_sync: u64,
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
            overwrites: UnflushedWrites::default(),
            writers: FreezeGate::default(),
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

    fn read(self: &Arc<Self>, number: InodeNr, seat: Seat<Inode>) -> Result<Inode, LoadError> {
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

    /// The object of an inode.
    fn object(self: &Arc<Self>, inode: crate::ondisk::Inode, seat: Seat<Inode>) -> Result<Inode> {
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
        Ok(Inode {
            superblock: Arc::clone(self),
            number: inode.number,
            kind: inode.kind,
            order: RwLock::new(()),
            data: FileData::new(inode.size_bytes, may_be_unflushed),
            lists: InodeLists::default(),
            growth: FileGrowth::default(),
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
        })
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
            let _ = self.evict();
        }
        self.release_all();
    }
}

impl platter_vfs::Inode for Inode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        Ok(self.lookup_name(name)?)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.list_names(from, sink)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.link_target()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.refuse_without_contents()?;
        self.pages.read_at(self, offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.seek_contents(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.list_extents(range, sink)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _stay = self.order.read();
        let state = self.state.read();
        Attributes::open(self.context(), &state.inode)?.get(name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let _stay = self.order.read();
        let state = self.state.read();
        Attributes::open(self.context(), &state.inode)?.names()
    }

    fn will_need(&self, range: Range<u64>) {
        self.announce(range);
    }

    fn note_access(&self, times: AccessTimes) -> Result<()> {
        let superblock = &self.superblock;
        namei::update_access_time(self, times, &superblock.writers, &*superblock.clock)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        file::write(self, offset, data, WriteTo::Cache)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        let _writer = self.superblock.writers.enter();
        file::append(self, data)
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        file::write(self, offset, data, WriteTo::Device)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        file::fallocate(self, range, mode)
    }

    fn closed(&self) {
        self.close_writer();
    }

    fn extended_flags(&self) -> Result<ExtendedFlags> {
        Ok(self.extended())
    }

    fn copy_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<u64> {
        self.copy_from(source, range, to)
    }

    fn clone_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        self.clone_from(source, range, to)
    }

    fn dedupe_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<Deduped> {
        let _writer = self.superblock.writers.enter();
        self.dedupe_from(source, range, to)
    }

    fn exchange_range(&self, other: &dyn platter_vfs::Inode, exchange: &Exchange) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        self.exchange_with(other, exchange)
    }

    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let _writer = self.superblock.writers.enter();
        namei::set_attr(self, context, changes)
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        self.set_named_xattr(context, name, value, mode)
    }

    fn remove_xattr(&self, _: &Context, name: &[u8]) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        self.remove_named_xattr(name)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.sync_contents(data_only)
    }

    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let _writer = self.superblock.writers.enter();
        let new = NewInode {
            context,
            kind: &kind,
            permissions,
        };
        Ok(namei::create(self, name, new)?)
    }

    fn create_unnamed(
        &self,
        context: &Context,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let _writer = self.superblock.writers.enter();
        let new = NewInode {
            context,
            kind: &CreateKind::Regular,
            permissions,
        };
        Ok(namei::create_unnamed(self, new)?)
    }

    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        namei::link(self, context, name, target)
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        namei::unlink(self, name)
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        namei::remove_dir(self, name)
    }

    fn rename(
        &self,
        context: &Context,
        name: Name<'_>,
        new_parent: InodeId,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        namei::rename(self, context, name, (new_parent, new_name), mode)
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
