//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file; this one holds the object they work on.

mod errors;
mod delayed;
mod inode_quota;
mod state;
mod sync;
mod quotas;
mod xattrs;
mod data;
mod attr;
mod names;
mod link;
mod new_inode;
mod create;
mod whole_file;
mod remove;
mod rename;
mod namei;
mod inode_operations;

pub use errors::OnError;
pub use link::LinkRule;
pub use quotas::{project_of_space, remove_unused_owners};
pub use remove::{close_orphans, finish_orphans};
pub use sync::sync_fs;
pub(crate) use sync::{end_writing, write_unnamed};

use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use platter_block::lock::RwLock;
use platter_block::lock::{Mutex, rank};
use platter_cache::{Mapping, MemoryBudget};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::file::FileData;
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::writing::{
    DirtyList, FreezeGate, InodeLists, Invalidations, ListedInode, UnflushedWrites, UnstoredInodes,
    WriteGate, retry_no_space,
};
use platter_vfs::{Clock, Condition, Context, Error, FileKind, InodeId, Quotas, Result};

use crate::FsContext;
use crate::alloc::{self, Allocator, Reserve};
use crate::inode::{self, InodeNumberRule, STORE_CREDITS};
use crate::mapping::BlockMap;
use crate::ondisk::jbd2::Sequence;
use crate::ondisk::{Inode, InodeNr};
use crate::orphan::{self, OrphanRegister, Orphans};
use crate::quota_file::QuotaFiles;
use crate::txn::{Handle, Log};
use crate::xattr;
use data::FileState;
use delayed::Delayed;
use errors::ErrorNotes;
use inode_quota::InodeQuota;
use state::InodeState;

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
    /// Truncations and punches that are between the cache and the mapping.
    invalidations: CachePadded<Invalidations>,
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
        Hot: orphans, renames, nodes, dirty, invalidations, overwrites, unstored;
        Apart: fs, writers, writes;
    }
);

/// One inode in use.
pub struct Ext4Inode {
    sb: Arc<SuperBlock>,
    number: InodeNr,
    kind: FileKind,
    /// Whether it has contents that cannot be read without a key. As its kind, this never changes.
    is_encrypted: bool,
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
            invalidations: CachePadded::default(),
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

    /// The inode with this identity, also one in use that has no name.
    fn in_use(self: &Arc<Self>, id: InodeId) -> Result<Option<Arc<Ext4Inode>>> {
        if let Some(node) = self.nodes.get(id) {
            return Ok(Some(node));
        }
        let number = u32::try_from(id.number).ok().and_then(InodeNr::new);
        match number {
            Some(number) => self.find(number),
            None => Ok(None),
        }
    }

    /// Whether changes are possible: the filesystem is mounted for writing, and nothing ended that.
    fn can_write(&self) -> bool {
        self.fs.log().is_some_and(|log| log.failure().is_none())
    }

    /// Whether its mount has ended: nothing is written any more.
    fn is_closed(&self) -> bool {
        self.writes.is_closed()
    }

    /// Writes data that no transaction has to `offset` of the device, in bytes.
    ///
    /// # Errors
    /// `ReadOnly` when the mount has ended: its blocks may be another mount's by now. What ended all
    /// writing, if something did: that may be another host that mounted it.
    fn write_data(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.writes.write(|| {
            if let Some(error) = self.fs.log().and_then(Log::failure) {
                return Err(error);
            }
            Ok(self.fs.device().write_vectored_at(offset, bufs)?)
        })
    }

    /// Ends all writing, and returns when neither data nor a commit is under way. What was not
    /// written is lost, as by a power cut.
    pub(crate) fn cut(&self) {
        self.writes.close();
        if let Some(log) = self.fs.log() {
            log.cut();
        }
    }

    /// Ends all writing, and releases all unused inodes, now and from now on.
    pub fn close(&self) {
        self.cut();
        drop(self.dirty.take());
        self.unstored.clear();
        self.nodes.release_all();
    }

    /// The quotas, where usage is counted.
    pub fn quotas(&self) -> Option<&dyn Quotas> {
        self.fs.quotas().map(|_| self as &dyn Quotas)
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
        quotas::count_owners_of(self, &node);
        if self.is_closed() {
            self.nodes.release(id);
        }
        Ok(node)
    }

    fn read(
        self: &Arc<Self>,
        number: InodeNr,
        seat: Seat<Ext4Inode>,
    ) -> Result<Arc<Ext4Inode>, LoadError> {
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
    fn node(
        self: &Arc<Self>,
        inode: Inode,
        map: BlockMap,
        seat: Seat<Ext4Inode>,
    ) -> Arc<Ext4Inode> {
        // Changes of an earlier object of this inode may be among the latest.
        let latest = self.fs.log().map_or(Sequence(0), Log::latest);
        let is_journaled = self.fs.journals_data(&inode);
        let may_be_unflushed = !self.overwrites.is_flushed();
        let register = self.register.get();
        let is_orphan = register.is_some_and(|register| register.contains(inode.number));
        let is_truncation_left = is_orphan && inode.links > 0;
        let charge = xattr::charge_of(&self.fs, &inode);
        Arc::new(Ext4Inode {
            sb: Arc::clone(self),
            number: inode.number,
            kind: inode.kind,
            is_encrypted: inode.is_encrypted(),
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
                quota: InodeQuota::new(charge),
            }),
            _seat: seat,
        })
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
    /// Whether it is as good when it is loaded again: it has no pages.
    fn is_cheap(&self) -> bool {
        self.pages.page_count() == 0
    }

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

    /// Tries again what found no space, once what was freed before may be used. The caller has no
    /// handle.
    fn retry_after_enospc<R>(&self, attempt: impl FnMut() -> Result<R>) -> Result<R> {
        self.sb.space()?;
        retry_no_space(&*self.sb, attempt)
    }

    /// What space a user may take.
    fn reserve_of(&self, context: &Context) -> Reserve {
        let superblock = &self.fs().superblock;
        let credentials = &context.credentials;
        let is_privileged = credentials.is_superuser()
            || credentials.uid == superblock.reserved_uid
            || superblock.reserved_gid != 0 && credentials.is_in_group(superblock.reserved_gid);
        if is_privileged {
            Reserve::Privileged
        } else {
            Reserve::Ordinary
        }
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
            let _ = self.sb.recorded(data::evict(self));
        }
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
