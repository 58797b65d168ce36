//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file; this one holds the objects they work on.

mod state;
mod sync;
mod properties;
mod attr;
mod contents;
mod blocks;
mod clone;
mod encoded;
mod evict;
mod inline;
mod placing;
mod prealloc;
mod link;
mod xattrs;
mod create;
mod whole;
mod stub;
mod subvolumes;
mod rename;
mod names;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use platter_cache::{Mapping, MemoryBudget};
use platter_vfs::file::{self, FileData, WriteTo};
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::lock_rank::{LockRank, RankedRwLock};
use platter_vfs::namei::{self, NewInode};
use platter_vfs::shown_numbers::ShownNumbers;
use platter_vfs::writing::{DirtyList, InodeLists, ListedInode, RangeSet, WriteGate};
use platter_vfs::{
    AccessTimes, Attr, Clock, Condition, Context, CreateKind, Deduped, DirCursor, DirSink, Error,
    ExtentSink, FallocateMode, FileKind, InodeId, Name, RenameMode, Result, SeekTarget, SetAttr,
    Timestamp, Unmade, WholeFile, XattrMode,
};

use crate::compress::Compressor;
use crate::context::{FsContext, Subvolume};
use crate::data::{DataReader, DecompressedCache};
use crate::inode;
use crate::log::write::LogNotes;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT};
use crate::ondisk::{LogicalAddr, TreeId};
use crate::tree::Tree;
use crate::txn::WriteContext;
use crate::verity::{MerkleCache, Verity};
use crate::xattr;
use inline::InlineRule;
use placing::Ahead;
use properties::KnownProperty;
use stub::{StubDir, Stubs};
use subvolumes::delete::DeadSubvolume;
use subvolumes::in_use::{InUse, SubvolumesInUse, root_of};

pub use link::LinkRule;
pub use properties::DataPolicy;
pub use subvolumes::MountedSubvolumes;

/// The part of the budget, and at most so many bytes, that inodes take which are kept in
/// memory though no caller uses them.
const RECENT_PART: u64 = 8;
const RECENT_BYTES_MAX: u64 = 32 << 20;
/// What a file has in memory besides its object and its pages.
const INODE_OVERHEAD_BYTES: usize = 512;

/// A filesystem below its inodes, which is read or written.
#[derive(Debug)]
enum Below {
    Reading(Box<FsContext>),
    Writing(Box<WriteContext>),
}

/// A mounted filesystem as its inodes see it.
pub struct SuperBlock {
    below: Below,
    /// How data is read.
    pub data: DataReader,
    /// The extents that were decompressed last.
    pub decompressed: DecompressedCache,
    /// The blocks of Merkle trees that were verified last.
    merkle: MerkleCache,
    compressor: Compressor,
    policy: DataPolicy,
    budget: Arc<MemoryBudget>,
    inodes: InodeCache<BtrfsInode>,
    /// Closed when the filesystem is no longer in use: inodes do not keep it alive through the cache.
    writes: WriteGate,
    numbers: ShownNumbers,
    stubs: Stubs,
    root: InodeId,
    /// The times of directories that are not stored.
    mounted_at: Timestamp,
    /// Held while a thread moves a name from one directory to another (`s_vfs_rename_mutex`).
    // Lock rank 2.1.
    renames: Mutex<()>,
    /// The time of every change.
    clock: Arc<dyn Clock>,
    /// Inodes with contents that are not on the devices yet.
    dirty: DirtyList<BtrfsInode>,
    /// The numbers of the next inodes, of subvolumes that got some.
    // Lock rank leaf.
    next_numbers: Mutex<BTreeMap<TreeId, u64>>,
    /// The checksums of what was written and has no items yet, by where it begins.
    // Lock rank leaf.
    checksums: Mutex<BTreeMap<LogicalAddr, Vec<u8>>>,
    /// What the log trees of the running transaction have.
    log_notes: LogNotes,
    /// Handles that were begun.
    changes: AtomicU32,
    /// Subvolumes with inodes in memory.
    in_use: SubvolumesInUse,
    /// Held while a subvolume is made, deleted, or changed as a whole.
    // Lock rank 2.3.
    subvolume_changes: Mutex<()>,
    /// The last number that a subvolume got.
    // Lock rank leaf.
    last_subvolume: Mutex<TreeId>,
    /// Deleted subvolumes whose trees are to be dropped.
    // Lock rank leaf.
    dead: Mutex<VecDeque<DeadSubvolume>>,
    /// Held while a thread drops a part of one.
    // Lock rank 2.4.
    dropping: Mutex<()>,
    /// Syncs drop them.
    drops_in_sync: AtomicBool,
}

/// One inode in use.
pub struct BtrfsInode {
    fs: Arc<SuperBlock>,
    id: InodeId,
    kind: FileKind,
    subvolume: Arc<InUse>,
    /// The inode lock (`i_rwsem`).
    // Lock rank 2.2.
    order: RankedRwLock<()>,
    /// Never held over a call of the page cache, nor by a thread that begins a handle.
    // Lock rank 7.
    state: RankedRwLock<InodeState>,
    pages: Mapping<Error>,
    data: FileData<Ahead>,
    inline: InlineRule,
    /// Of a file with fs-verity that was read, how it is verified.
    verity: OnceLock<Box<Verity>>,
    /// What the property `btrfs.compression` asks for, if that was looked up.
    // Lock rank leaf.
    property: Mutex<KnownProperty>,
    lists: InodeLists,
    /// What is reserved for the truncation that was prepared.
    kept_bytes: AtomicU64,
    /// The last transaction in which it may have lost extents.
    lost_extents: AtomicU64,
    /// Whether its deletion was begun.
    is_deleted: AtomicBool,
    /// Last, so that the inode is not loaded again before this object is gone.
    _seat: Seat<Self>,
}

/// What the trees hold of an inode.
#[derive(Debug)]
struct InodeState {
    item: InodeItem,
    /// Sectors that are dirty, and for which space is reserved.
    delayed: RangeSet<u64>,
    /// Those of them for which no space for data is reserved, as they are written where they are.
    written_over: RangeSet<u64>,
    /// It was created without a name, and may still get its first.
    may_get_first_name: bool,
}

impl SuperBlock {
    /// The filesystem whose root is that of `root`. The subvolumes that there are show their inodes in
    /// this order.
    #[must_use]
    pub fn new(
        context: FsContext,
        root: &Subvolume,
        others: &[Subvolume],
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let below = Below::Reading(Box::new(context));
        let policy = DataPolicy::default();
        Self::over(below, root, others, budget, (clock, policy))
    }

    /// As [`new`](Self::new), of a filesystem that is written.
    #[must_use]
    pub fn writable(
        writing: WriteContext,
        root: &Subvolume,
        others: &[Subvolume],
        budget: Arc<MemoryBudget>,
        clock: Arc<dyn Clock>,
        policy: DataPolicy,
    ) -> Arc<Self> {
        let below = Below::Writing(Box::new(writing));
        Self::over(below, root, others, budget, (clock, policy))
    }

    fn over(
        below: Below,
        root: &Subvolume,
        others: &[Subvolume],
        budget: Arc<MemoryBudget>,
        (clock, policy): (Arc<dyn Clock>, DataPolicy),
    ) -> Arc<Self> {
        let others = others.iter().map(|subvolume| subvolume.id.0);
        let numbers = ShownNumbers::new(root.id.0, others.filter(|id| *id != root.id.0));
        Arc::new(Self {
            below,
            data: DataReader::default(),
            decompressed: DecompressedCache::default(),
            merkle: MerkleCache::default(),
            compressor: Compressor::default(),
            policy,
            inodes: InodeCache::sparing(recent_max(&budget), BtrfsInode::is_cheap),
            budget,
            writes: WriteGate::default(),
            numbers,
            stubs: Stubs::default(),
            root: root_of(root),
            mounted_at: clock.now(),
            renames: Mutex::default(),
            clock,
            dirty: DirtyList::default(),
            next_numbers: Mutex::default(),
            checksums: Mutex::default(),
            log_notes: LogNotes::default(),
            changes: AtomicU32::new(0),
            in_use: SubvolumesInUse::default(),
            subvolume_changes: Mutex::default(),
            last_subvolume: Mutex::new(TreeId(0)),
            dead: Mutex::default(),
            dropping: Mutex::default(),
            drops_in_sync: AtomicBool::new(false),
        })
    }

    /// The filesystem below.
    #[must_use]
    pub fn context(&self) -> &FsContext {
        match &self.below {
            Below::Reading(context) => context,
            Below::Writing(writing) => writing.context(),
        }
    }

    /// What transactions are made of; `None` where nothing is written.
    #[must_use]
    pub fn writing(&self) -> Option<&WriteContext> {
        match &self.below {
            Below::Reading(_) => None,
            Below::Writing(writing) => Some(writing),
        }
    }

    /// A count that grows with each change, and may wrap.
    pub(crate) fn change_count(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Writes data that was allocated, whole sectors, and keeps its checksums.
    fn write_data(&self, address: LogicalAddr, bufs: &[IoSlice<'_>]) -> Result<()> {
        let writing = self.writing().ok_or(Condition::ReadOnly)?;
        let sector_bytes = self.context().sector_bytes() as usize;
        self.writes.write(|| {
            if let Some(error) = writing.failure() {
                return Err(error);
            }
            writing.write_data(address, bufs)
        })?;
        let is_whole = |buf: &IoSlice<'_>| buf.len().is_multiple_of(sector_bytes);
        let found = if bufs.iter().all(is_whole) {
            let each = bufs.iter().map(|buf| writing.checksums_of(buf));
            each.collect::<Vec<_>>().concat()
        } else {
            let joined = bufs.iter().flat_map(|buf| buf.iter().copied());
            writing.checksums_of(&joined.collect::<Vec<u8>>())
        };
        self.checksums.lock().insert(address, found);
        Ok(())
    }

    /// Takes the checksums of data that was written.
    fn take_checksums(&self, address: LogicalAddr, len_bytes: u64) -> Vec<u8> {
        let sector = u64::from(self.context().sector_bytes());
        let each = self.context().superblock.checksum_kind.len_bytes();
        let place = |bytes: u64| usize::try_from(bytes / sector).unwrap_or(usize::MAX) * each;
        let end = address.0.saturating_add(len_bytes);
        let (mut at, mut taken) = (address.0, Vec::new());
        let mut written = self.checksums.lock();
        // What was written by one request may be mapped in several parts.
        while at < end {
            let before = written.range(..=LogicalAddr(at)).next_back();
            let Some((start, mut found)) = before.map(|(start, _)| *start).and_then(|start| {
                let found = written.remove(&start)?;
                Some((start, found))
            }) else {
                break;
            };
            let (from, to) = (place(at - start.0), place(end - start.0));
            if from >= found.len() {
                written.insert(start, found);
                break;
            }
            if to < found.len() {
                written.insert(LogicalAddr(end), found.split_off(to));
            }
            let part = found.split_off(from);
            if !found.is_empty() {
                written.insert(start, found);
            }
            at += (part.len() / each) as u64 * sector;
            taken.extend(part);
        }
        taken
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.root
    }

    /// The number that is shown for an inode.
    #[must_use]
    pub fn shown(&self, id: InodeId) -> u64 {
        self.numbers.shown(id)
    }

    /// The inode that is shown with a number.
    #[must_use]
    pub fn shown_as(&self, number: u64) -> Option<InodeId> {
        self.numbers.inode(number)
    }

    /// The inode with this identity; `None` if there is none.
    pub fn find(self: &Arc<Self>, id: InodeId) -> Result<Option<Arc<dyn platter_vfs::Inode>>> {
        if let Some(place) = self.stubs.place(id) {
            return Ok(Some(Arc::new(StubDir::new(Arc::clone(self), id, place))));
        }
        let found = self.load(id)?;
        Ok(found.map(|inode| -> Arc<dyn platter_vfs::Inode> { inode }))
    }

    /// Drops what the cache keeps alive. Nothing is kept from now on.
    pub fn close(&self) {
        self.writes.close();
        drop(self.dirty.take());
        self.inodes.release_all();
    }

    fn load(self: &Arc<Self>, id: InodeId) -> Result<Option<Arc<BtrfsInode>>> {
        let loaded = self.inodes.get_or_load(id, |seat| self.read(id, seat));
        if self.writes.is_closed() {
            self.inodes.release(id);
        }
        match loaded {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::Condition(Condition::Stale)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(self: &Arc<Self>, id: InodeId, seat: Seat<BtrfsInode>) -> Result<BtrfsInode> {
        let subvolume = self.use_subvolume(TreeId(id.tree))?;
        if !(FIRST_FREE_OBJECT..=LAST_FREE_OBJECT).contains(&id.number) {
            return Err(Condition::Stale.into());
        }
        if let Some(writing) = self.writing() {
            writing.follow(subvolume.id())?;
        }
        let item = inode::find(self.context(), subvolume.tree(), id.number)?;
        // One without names is an orphan that is to be deleted.
        let item = item.filter(|item| item.links > 0);
        Ok(self.object(id, subvolume, item.ok_or(Condition::Stale)?, seat))
    }

    /// What the inodes of a subvolume share.
    fn use_subvolume(&self, id: TreeId) -> Result<Arc<InUse>> {
        if let Some(known) = self.in_use.get(id) {
            return if known.is_deleted() {
                Err(Condition::Stale.into())
            } else {
                Ok(known)
            };
        }
        let context = self.context();
        loop {
            let changes = context.root_item_changes();
            let subvolume = context.subvolume(id)?.ok_or(Condition::Stale)?;
            let shared = self.in_use.get_or_add(&subvolume);
            shared.set_read_only(subvolume.is_read_only());
            // A thread that changes it from now on finds what the inodes share.
            if context.root_item_changes() == changes {
                return Ok(shared);
            }
        }
    }

    /// The object of an inode.
    fn object(
        self: &Arc<Self>,
        id: InodeId,
        subvolume: Arc<InUse>,
        item: InodeItem,
        seat: Seat<BtrfsInode>,
    ) -> BtrfsInode {
        BtrfsInode {
            fs: Arc::clone(self),
            id,
            kind: item.kind,
            subvolume,
            order: RankedRwLock::new(LockRank::InodeOrder, ()),
            data: FileData::new(item.size_bytes, false),
            inline: InlineRule::default(),
            verity: OnceLock::new(),
            property: Mutex::default(),
            state: RankedRwLock::new(LockRank::InodeState, InodeState::new(item)),
            pages: Mapping::new(Arc::clone(&self.budget)),
            lists: InodeLists::default(),
            kept_bytes: AtomicU64::new(0),
            lost_extents: AtomicU64::new(item.transaction.0),
            is_deleted: AtomicBool::new(false),
            _seat: seat,
        }
    }

    /// The inode that an entry of a directory names.
    fn named(self: &Arc<Self>, tree: Tree, id: InodeId) -> Result<Arc<dyn platter_vfs::Inode>> {
        let found = self.find(id)?;
        Ok(found.ok_or_else(|| inode::missing(tree, id.number))?)
    }
}

/// How many inodes are kept though no caller uses them.
fn recent_max(budget: &MemoryBudget) -> usize {
    let bytes = (budget.limit_bytes() / RECENT_PART).min(RECENT_BYTES_MAX);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    bytes / (size_of::<BtrfsInode>() + INODE_OVERHEAD_BYTES)
}

impl BtrfsInode {
    /// Whether it is as good when it is loaded again: it has no pages.
    fn is_cheap(&self) -> bool {
        self.pages.page_count() == 0
    }

    fn context(&self) -> &FsContext {
        self.fs.context()
    }

    fn tree(&self) -> Tree {
        self.subvolume.tree()
    }

    /// Has what is only in the cache written, so that the extents are those of all contents.
    fn write_back_contents(&self) -> Result<()> {
        if self.kind == FileKind::Regular && self.can_change() {
            file::write_back(self)?;
        }
        Ok(())
    }

    fn is_subvolume_root(&self) -> bool {
        self.id == self.subvolume.root()
    }
}

impl platter_vfs::Inode for BtrfsInode {
    fn id(&self) -> InodeId {
        self.id
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        self.lookup_name(name)
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

    fn read_once(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.refuse_without_contents()?;
        self.pages.read_once(self, offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.refuse_without_contents()?;
        self.write_back_contents()?;
        self.contents().seek(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.write_back_contents()?;
        self.contents().extents(range, sink)
    }

    fn written_extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.write_back_contents()?;
        self.contents().written(range, sink)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        xattr::get(self.context(), self.tree(), self.id.number, name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        xattr::list(self.context(), self.tree(), self.id.number)
    }

    fn will_need(&self, range: Range<u64>) {
        self.announce(range);
    }

    fn note_access(&self, times: AccessTimes) -> Result<()> {
        self.update_access_time(times)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        file::write(self, offset, data, WriteTo::Cache)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        file::append(self, data)
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        file::write(self, offset, data, WriteTo::Device)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        file::fallocate(self, range, mode)
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
        self.clone_from(source, range, to)
    }

    fn dedupe_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<Deduped> {
        self.dedupe_from(source, range, to)
    }

    fn set_attr(&self, _: &Context, changes: &SetAttr) -> Result<Attr> {
        self.set_attributes(changes)
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.set_named_xattr(context, name, value, mode)
    }

    fn remove_xattr(&self, _: &Context, name: &[u8]) -> Result<()> {
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
        let new = NewInode {
            context,
            kind: &kind,
            permissions,
        };
        Ok(namei::create(self, name, new)?)
    }

    fn create_whole(&self, files: &[WholeFile<'_>]) -> Result<(), Unmade> {
        self.create_whole_files(files)
    }

    fn create_unnamed(
        &self,
        context: &Context,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let new = NewInode {
            context,
            kind: &CreateKind::Regular,
            permissions,
        };
        Ok(namei::create_unnamed(self, new)?)
    }

    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        if target.tree != self.id.tree {
            return Err(Condition::CrossDevice.into());
        }
        namei::link(self, context, name, target)
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        namei::unlink(self, name)
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        if self.kind == FileKind::Directory && !name.is_dot_or_dotdot() && self.remove_stub(name)? {
            return Ok(());
        }
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
        if new_parent.tree != self.id.tree && !self.moves_subvolumes(name, new_name, mode)? {
            return Err(Condition::CrossDevice.into());
        }
        namei::rename(self, context, name, (new_parent, new_name), mode)
    }
}

impl ListedInode for BtrfsInode {
    fn id(&self) -> InodeId {
        self.id
    }

    fn lists(&self) -> &InodeLists {
        &self.lists
    }
}

impl Drop for BtrfsInode {
    fn drop(&mut self) {
        if self.fs.writing().is_none() {
            return;
        }
        let is_gone = self.state.read().item.links == 0;
        if is_gone && self.can_change() {
            // What could not be deleted is left to the next mount, as after a crash.
            let _ = self.evict();
        }
        self.release_all();
    }
}

impl fmt::Debug for BtrfsInode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BtrfsInode")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SuperBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SuperBlock")
            .field("below", &self.below)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
