//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file; this one holds the object they work on.

mod errors;
mod sync;
mod attr;
mod unmount;
mod data;
mod names;
mod link;
mod new_inode;
mod quotas;
mod create;
mod whole_file;
mod remove;
mod rename;
mod xattrs;

pub use errors::OnError;
pub use link::LinkRule;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use platter_block::lock::RwLock;
use platter_block::lock::{Mutex, rank};
use platter_cache::{Mapping, MemoryBudget};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::file::{self, FileData, WriteTo};
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::namei::{self, AttributedInode, NewInode};
use platter_vfs::whole_file::create_whole_files;
use platter_vfs::writing::{
    DirtyList, FreezeGate, InodeLists, ListedInode, UnflushedWrites, UnstoredInodes, WriteGate,
};
use platter_vfs::{
    AccessTimes, Attr, Clock, Condition, Context, CreateKind, DirCursor, DirSink, Error,
    ExtentSink, FallocateMode, FileKind, InodeId, Name, RenameMode, Result, SeekTarget, SetAttr,
    Unmade, WholeFile, XattrMode,
};

use crate::FsContext;
use crate::alloc::{self, Allocator};
use crate::file::Contents;
use crate::inode::{self, InodeNumberRule, STORE_CREDITS};
use crate::mapping::BlockMap;
use crate::ondisk::jbd2::Sequence;
use crate::ondisk::{Inode, InodeNr};
use crate::orphan::{self, OrphanRegister, Orphans};
use crate::quota::Charge;
use crate::quota_file::QuotaFiles;
use crate::txn::{Handle, Log};
use crate::xattr;
use data::{Delayed, FileState};
use errors::ErrorNotes;

/// What a file has in memory in addition to its object and its pages: its places in tables, and the runs of
/// blocks that it remembers.
const INODE_OVERHEAD_BYTES: usize = 704;

/// A mounted filesystem as its inodes see it.
pub struct SuperBlock {
    /// The filesystem below.
    pub fs: FsContext,
    /// Its space; absent where nothing may be changed.
    pub space: Option<Arc<Allocator>>,
    /// Its quota files, where usage is counted and may change.
    quota_files: Option<QuotaFiles>,
    /// What a crash left half done.
    pub orphans: CachePadded<Orphans>,
    /// Serialises cross-directory renames (`s_vfs_rename_mutex`).
    renames: CachePadded<Mutex<(), { rank(2, 1) }>>,
    /// The time of every change, and random numbers.
    pub clock: Arc<dyn Clock>,
    /// What a crash would leave half done. Absent where nothing may be changed.
    register: OnceLock<OrphanRegister>,
    budget: Arc<MemoryBudget>,
    nodes: CachePadded<InodeCache<Ext4Inode>>,
    /// Inodes with contents that are not on the device yet.
    dirty: CachePadded<DirtyList<Ext4Inode>>,
    /// Writes over blocks that were a file's before, of all files.
    overwrites: CachePadded<UnflushedWrites>,
    /// Directories that the running transaction stores when it closes.
    unstored: CachePadded<UnstoredInodes<Ext4Inode>>,
    on_error: OnError,
    error_notes: ErrorNotes,
    /// Passed by changes before they take a lock, and shut while the filesystem is frozen.
    pub writers: FreezeGate,
    /// Closed when the filesystem is no longer in use: inodes do not keep it alive through the cache.
    writes: WriteGate,
}

platter_cache::layout!(
    /// Of a mounted filesystem.
    pub LAYOUT: SuperBlock {
        ReadOnly: space, quota_files, clock, budget, on_error;
        Rare: register, error_notes;
        Hot: orphans, renames, nodes, dirty, overwrites, unstored;
        Apart: fs, writers, writes;
    }
);

/// One inode in use.
pub struct Ext4Inode {
    sb: Arc<SuperBlock>,
    number: InodeNr,
    kind: FileKind,
    /// The inode lock (`i_rwsem`): exclusive to change names, size or mapping; shared to keep them
    /// stable.
    order: RwLock<(), { rank(2, 2) }>,
    /// Never held during a call of the page cache, nor when a handle is begun.
    state: RwLock<InodeState, { rank(7, 0) }>,
    pages: Mapping<Error>,
    data: FileState,
    /// The lists of the filesystem that it is on.
    lists: InodeLists,
    /// Whether its deletion was begun.
    is_deleted: AtomicBool,
    /// Last, so that no thread loads the inode again before this object is gone.
    _seat: Seat<Self>,
}

/// The on-disk state of an inode, as of the running transaction.
struct InodeState {
    inode: Inode,
    map: BlockMap,
    /// What of the contents has no place on the device yet.
    delayed: Delayed,
    /// It was made without a name, and may still get its first.
    may_get_first_name: bool,
    /// The last transaction that changed the inode.
    sync: Sequence,
    /// The last transaction that changed what is needed to reach its contents.
    data_sync: Sequence,
    /// What it counts for in the quota files.
    charge: Charge,
    /// Reserved space of its owners that is in use since it was stored last.
    claimed_bytes: u64,
}

impl SuperBlock {
    /// A mounted filesystem.
    #[must_use]
    pub fn new(
        fs: FsContext,
        space: Option<Arc<Allocator>>,
        quota_files: Option<QuotaFiles>,
        orphans: Orphans,
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
        on_error: OnError,
    ) -> Arc<Self> {
        let sb = Arc::new(Self {
            fs,
            space,
            quota_files,
            orphans: orphans.into(),
            renames: CachePadded::default(),
            clock,
            register: OnceLock::new(),
            nodes: InodeCache::within(&budget, INODE_OVERHEAD_BYTES, Ext4Inode::is_cheap).into(),
            budget,
            dirty: CachePadded::default(),
            overwrites: CachePadded::default(),
            unstored: CachePadded::default(),
            on_error,
            error_notes: ErrorNotes::default(),
            writers: FreezeGate::default(),
            writes: WriteGate::default(),
        });
        if let Some(log) = sb.fs.log() {
            let client = Arc::downgrade(&sb);
            log.attach(client);
        }
        sb
    }

    /// Records what a crash would leave half done in `register`. Once only, before the first change.
    pub fn note_orphans_in(&self, register: OrphanRegister) {
        let first = self.register.set(register);
        debug_assert!(first.is_ok(), "a filesystem has one register of orphans");
    }

    /// What is free.
    ///
    /// # Errors
    /// `ReadOnly` where nothing may be changed.
    pub fn space(&self) -> Result<&Arc<Allocator>> {
        Ok(self.space.as_ref().ok_or(Condition::ReadOnly)?)
    }

    /// What a crash would leave half done.
    ///
    /// # Errors
    /// `ReadOnly` where nothing may be changed.
    pub fn register(&self) -> Result<&OrphanRegister> {
        Ok(self.register.get().ok_or(Condition::ReadOnly)?)
    }

    /// Returns the inode with this number; `None` if it is not in use, or not accessible to callers.
    pub fn find(self: &Arc<Self>, number: InodeNr) -> Result<Option<Arc<Ext4Inode>>> {
        match self.load(number) {
            Ok(node) => Ok(Some(node)),
            Err(LoadError::Unfit(_)) => Ok(None),
            Err(LoadError::Failed(error)) => Err(error),
        }
    }

    /// Whether the bitmap marks an inode as in use.
    pub fn is_in_use(&self, number: InodeNr) -> Result<bool> {
        match &self.space {
            Some(space) => space.is_inode_in_use(&self.fs, number),
            None => alloc::is_inode_in_use(&self.fs, number),
        }
    }

    /// The inode that an entry of a directory names.
    fn named(self: &Arc<Self>, number: InodeNr) -> Result<Arc<Ext4Inode>> {
        self.load(number).map_err(|error| match error {
            LoadError::Failed(error) => error,
            LoadError::Unfit(rule) => {
                Corrupt::new(Locus::inode(u64::from(number.get())), rule).into()
            }
        })
    }

    fn load(self: &Arc<Self>, number: InodeNr) -> Result<Arc<Ext4Inode>, LoadError> {
        let id = number.id();
        let node = self.nodes.get_or_load(id, |seat| self.read(number, seat))?;
        self.count_owners_of(&node);
        if self.is_closed() {
            self.nodes.release(id);
        }
        Ok(node)
    }

    fn read(
        self: &Arc<Self>,
        number: InodeNr,
        seat: Seat<Ext4Inode>,
    ) -> Result<Ext4Inode, LoadError> {
        let fs = &self.fs;
        if inode::is_reserved(fs, number) {
            return Err(LoadError::Unfit(InodeNumberRule::Reserved));
        }
        let Some(mut inode) = inode::find(fs, number)? else {
            return Err(LoadError::Unfit(match fs.geometry.group_of_inode(number) {
                Some(_) => InodeNumberRule::Deleted,
                None => InodeNumberRule::OutOfRange,
            }));
        };
        if let Some(rule) = inode::unfit_to_name(&inode) {
            return Err(LoadError::Unfit(rule));
        }
        let mut map = BlockMap::decode(fs, &inode)?;
        if self.orphans.is_truncated(number) {
            orphan::finish_truncation(fs, &mut inode, &mut map)?;
        }
        Ok(self.node(inode, map, seat))
    }

    /// The object of an inode.
    fn node(self: &Arc<Self>, inode: Inode, map: BlockMap, seat: Seat<Ext4Inode>) -> Ext4Inode {
        // Changes of an earlier object of this inode may be among the latest.
        let latest = self.fs.log().map_or(Sequence(0), Log::latest);
        let is_journaled = self.fs.journals_data(&inode);
        let may_be_unflushed = !self.overwrites.is_flushed();
        let register = self.register.get();
        let is_orphan = register.is_some_and(|register| register.contains(inode.number));
        let is_truncation_left = is_orphan && inode.links > 0;
        let charge = xattr::charge_of(&self.fs, &inode);
        Ext4Inode {
            sb: Arc::clone(self),
            number: inode.number,
            kind: inode.kind,
            order: RwLock::new(()),
            pages: Mapping::with_min_order(Arc::clone(&self.budget), self.fs.folio_order()),
            data: FileState {
                file: FileData::new(inode.size_bytes, may_be_unflushed),
                is_journaled: AtomicBool::new(is_journaled),
                is_truncation_left: AtomicBool::new(is_truncation_left),
            },
            lists: InodeLists::default(),
            is_deleted: AtomicBool::new(false),
            state: RwLock::new(InodeState {
                inode,
                map,
                delayed: Delayed::default(),
                may_get_first_name: false,
                sync: latest,
                data_sync: latest,
                charge,
                claimed_bytes: 0,
            }),
            _seat: seat,
        }
    }
}

impl Ext4Inode {
    /// Whether it is as good when it is loaded again: it has no pages.
    fn is_cheap(&self) -> bool {
        self.pages.page_count() == 0
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

impl Ext4Inode {
    fn fs(&self) -> &FsContext {
        &self.sb.fs
    }

    /// The size as readers see it.
    fn size_bytes(&self) -> u64 {
        self.data.file.size_bytes()
    }

    /// Changes the inode, and up to `credits` other blocks, in one transaction.
    ///
    /// `change` asks for all it needs before its first change: an error it returns says that nothing
    /// was changed, or that the handle was aborted.
    fn change<R>(
        &self,
        credits: u32,
        change: impl FnOnce(&mut Handle<'_>, &mut InodeState) -> Result<R>,
    ) -> Result<R> {
        let fs = self.fs();
        // What cannot be stored is not changed either.
        inode::read_slot(fs, self.number)?;
        let mut handle = fs.begin(credits.saturating_add(STORE_CREDITS))?;
        let mut state = self.state.write();
        let result = change(&mut handle, &mut state)?;
        state.store(fs, &mut handle)?;
        Ok(result)
    }
}

impl ListedInode for Ext4Inode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn lists(&self) -> &InodeLists {
        &self.lists
    }
}

impl Drop for Ext4Inode {
    fn drop(&mut self) {
        let Ok(space) = self.sb.space() else {
            return;
        };
        self.data.close(space);
        let is_gone = self.state.read().inode.links == 0;
        if is_gone && self.sb.can_write() && !self.sb.is_closed() {
            // What could not be freed is left to the next mount, as after a crash.
            let _ = self.evict();
        }
    }
}

impl InodeState {
    fn contents<'c>(&'c self, fs: &'c FsContext) -> Contents<'c> {
        Contents {
            fs,
            inode: &self.inode,
            map: &self.map,
        }
    }

    /// Takes the inode as it is now into its table. Without that, the changes that led to it must
    /// not become durable.
    fn store(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        self.sync = handle.transaction();
        // What is shown is what will be found again.
        let inode = &mut self.inode;
        inode.modified = inode.storable(inode.modified);
        inode.changed = inode.storable(inode.changed);
        self.store_charge(fs, handle)?;
        inode::store(fs, handle, &self.inode).map_err(|error| handle.abort(error))
    }

    /// As [`store`](Self::store), after a change of size or map.
    fn store_data(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        self.data_sync = handle.transaction();
        self.store(fs, handle)
    }
}

impl platter_vfs::Inode for Ext4Inode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        Ok(self.sb.recorded(self.lookup_name(name))?)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.sb.recorded(self.list_names(from, sink))
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.sb.recorded(self.link_target())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.refuse_without_contents()?;
        self.sb.recorded(self.pages.read_at(self, offset, buf))
    }

    fn note_access(&self, times: AccessTimes) -> Result<()> {
        let sb = &self.sb;
        sb.recorded(namei::update_access_time(
            self,
            times,
            &sb.writers,
            &*sb.clock,
        ))
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.sb.recorded(self.seek_contents(offset, target))
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.sb.recorded(self.list_extents(range, sink))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.sb.writers.enter();
        let written = file::write(self, offset, data, WriteTo::Cache);
        self.sb.recorded(written)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(file::append(self, data))
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.sb.writers.enter();
        let written = file::write(self, offset, data, WriteTo::Device);
        self.sb.recorded(written)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(file::fallocate(self, range, mode))
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.sb.recorded(self.xattr(name))
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.sb.recorded(self.xattr_names())
    }

    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(namei::set_attr(self, context, changes))
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _writer = self.sb.writers.enter();
        let set = self.set_named_xattr(context, name, value, mode);
        self.sb.recorded(set)
    }

    fn remove_xattr(&self, context: &Context, name: &[u8]) -> Result<()> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(self.remove_named_xattr(context, name))
    }

    fn will_need(&self, range: Range<u64>) {
        self.announce(range);
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.sb.recorded(self.sync_contents(data_only))
    }

    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let _writer = self.sb.writers.enter();
        let new = NewInode {
            context,
            kind: &kind,
            permissions,
        };
        Ok(self.sb.recorded(namei::create(self, name, new))?)
    }

    fn create_whole(&self, files: &[WholeFile<'_>]) -> Result<(), Unmade> {
        create_whole_files(self, files, |files| self.create_together(files))
    }

    fn create_unnamed(
        &self,
        context: &Context,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let _writer = self.sb.writers.enter();
        let new = NewInode {
            context,
            kind: &CreateKind::Regular,
            permissions,
        };
        Ok(self.sb.recorded(namei::create_unnamed(self, new))?)
    }

    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(namei::link(self, context, name, target))
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(namei::unlink(self, name))
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(namei::remove_dir(self, name))
    }

    fn rename(
        &self,
        context: &Context,
        name: Name<'_>,
        new_parent: InodeId,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let _writer = self.sb.writers.enter();
        let moved = namei::rename(self, context, name, (new_parent, new_name), mode);
        self.sb.recorded(moved)
    }
}

impl fmt::Debug for SuperBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SuperBlock")
            .field("device", &self.fs.device().name())
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Ext4Inode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ext4Inode")
            .field("number", &self.number)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
