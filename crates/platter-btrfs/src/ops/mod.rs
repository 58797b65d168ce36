//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file of functions; this one holds the objects they work on.

mod state;
mod ordered_data;
mod file_extents;
mod properties;
mod attr;
pub(crate) mod dead_subvolumes;
pub(crate) mod sync;
mod contents;
mod inline;
mod prealloc;
mod delalloc;
mod blocks;
mod reflink;
mod encoded;
mod defragment;
mod evict;
pub(crate) mod orphans;
mod symlink;
mod xattrs;
mod free_objectids;
mod entries;
mod create;
mod remove;
mod whole_file;
mod stub;
mod subvolumes;
mod iget;
mod names;
mod rename;
mod namei;
mod inode_operations;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use platter_block::lock::{Mutex, RwLock, rank};
use platter_cache::{Mapping, MemoryBudget};
use platter_vfs::file::{self, FileData, write_back_files};
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::shown_numbers::ShownNumbers;
use platter_vfs::writing::{
    DirtyList, FreezeGate, InodeLists, Invalidations, ListedInode, RangeSet, UnflushedWrites,
    WriteGate,
};
use platter_vfs::{Clock, Condition, Error, FileKind, InodeId, Result, Timestamp};

use crate::compress::Compressor;
use crate::context::{FsContext, Subvolume};
use crate::data::{DataReader, DecompressedCache};
use crate::log::write::LogNotes;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::{Features, TreeId};
use crate::tree::Tree;
use crate::txn::{Handle, WriteContext, quotas};
use crate::verity::{MerkleCache, Verity};
use dead_subvolumes::DeadSubvolumes;
use delalloc::Ahead;
use free_objectids::FreeObjectIds;
use inline::InlineRule;
use ordered_data::OrderedChecksums;
use properties::KnownProperty;
use state::Purpose;
use stub::Stubs;
use subvolumes::in_use::{InUse, SubvolumesInUse, root_of};

pub use properties::DataPolicy;
pub use subvolumes::MountedSubvolumes;
pub use symlink::LinkRule;

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
    /// Passed by changes before they take a lock, and shut while the filesystem is frozen.
    pub(crate) writers: FreezeGate,
    /// Closed when the filesystem is no longer in use: inodes do not keep it alive through the cache.
    writes: WriteGate,
    numbers: ShownNumbers,
    stubs: Stubs,
    root: InodeId,
    /// The times of directories that are not stored.
    mounted_at: Timestamp,
    /// Held while a thread moves a name from one directory to another (`s_vfs_rename_mutex`).
    renames: Mutex<(), { rank(2, 1) }>,
    /// The time of every change.
    clock: Arc<dyn Clock>,
    /// Inodes with contents that are not on the devices yet.
    dirty: DirtyList<BtrfsInode>,
    /// Truncations and punches that are between the cache and the tree.
    invalidations: Invalidations,
    /// What was written in place, which no transaction has flushed.
    overwrites: UnflushedWrites,
    /// The numbers of new inodes.
    free_objectids: FreeObjectIds,
    /// The checksums of what was written and has no items yet.
    checksums: OrderedChecksums,
    /// What the log trees of the running transaction have.
    log_notes: LogNotes,
    /// Handles that were begun.
    changes: AtomicU32,
    /// Subvolumes with inodes in memory.
    in_use: SubvolumesInUse,
    /// Held while a subvolume is made, deleted, or changed as a whole.
    subvolume_changes: Mutex<(), { rank(2, 3) }>,
    /// The highest number of a subvolume that was made in this mount, or whose tree is to be dropped.
    last_subvolume: Mutex<TreeId, { rank(8, 5) }>,
    /// Deleted subvolumes whose trees are to be dropped.
    pub(crate) dead_subvolumes: DeadSubvolumes,
}

/// One inode in use.
pub struct BtrfsInode {
    fs: Arc<SuperBlock>,
    id: InodeId,
    kind: FileKind,
    subvolume: Arc<InUse>,
    /// The inode lock (`i_rwsem`).
    order: RwLock<(), { rank(2, 2) }>,
    /// Never held over a call of the page cache, nor by a thread that begins a handle.
    state: RwLock<InodeState, { rank(7, 0) }>,
    pages: Mapping<Error>,
    data: FileData<Ahead>,
    inline: InlineRule,
    /// Of a file with fs-verity that was read, how it is verified.
    verity: OnceLock<Box<Verity>>,
    /// What the property `btrfs.compression` asks for, if that was looked up.
    property: Mutex<KnownProperty>,
    lists: InodeLists,
    /// What is reserved for the truncation that was prepared.
    kept_bytes: AtomicU64,
    /// Bytes of data that are reserved to be allocated where contents become zero.
    kept_data_bytes: AtomicU64,
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
            inodes: InodeCache::within(&budget, INODE_OVERHEAD_BYTES, BtrfsInode::is_cheap),
            budget,
            writers: FreezeGate::default(),
            writes: WriteGate::default(),
            numbers,
            stubs: Stubs::default(),
            root: root_of(root),
            mounted_at: clock.now(),
            renames: Mutex::default(),
            clock,
            dirty: DirtyList::default(),
            invalidations: Invalidations::default(),
            overwrites: UnflushedWrites::default(),
            free_objectids: FreeObjectIds::default(),
            checksums: OrderedChecksums::default(),
            log_notes: LogNotes::default(),
            changes: AtomicU32::new(0),
            in_use: SubvolumesInUse::default(),
            subvolume_changes: Mutex::default(),
            last_subvolume: Mutex::new(TreeId(0)),
            dead_subvolumes: DeadSubvolumes::default(),
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

    /// The features as they are now.
    #[must_use]
    pub(crate) fn features(&self) -> Features {
        let writing = self.writing().map(WriteContext::features);
        writing.unwrap_or(self.context().superblock.features)
    }

    /// What transactions are made of; `None` where nothing is written.
    #[must_use]
    pub fn writing(&self) -> Option<&WriteContext> {
        match &self.below {
            Below::Reading(_) => None,
            Below::Writing(writing) => Some(writing),
        }
    }

    /// What transactions are made of.
    ///
    /// # Errors
    /// `ReadOnly`.
    fn transactions(&self) -> Result<&WriteContext> {
        Ok(self.writing().ok_or(Condition::ReadOnly)?)
    }

    /// Whether changes are possible.
    pub(crate) fn can_write(&self) -> bool {
        let writing = self.writing();
        writing.is_some_and(|writing| writing.failure().is_none()) && !self.writes.is_closed()
    }

    /// Begins a handle.
    fn begin(&self, credits: u32, purpose: Purpose) -> Result<Handle<'_>> {
        if self.writes.is_closed() {
            return Err(Condition::ReadOnly.into());
        }
        let writing = self.transactions()?;
        self.changes.fetch_add(1, Ordering::Relaxed);
        match purpose {
            Purpose::Change(tree) => {
                let begun = writing.begin_charged(tree, credits);
                if !self.leaves_more_when_written_back(&begun, tree) {
                    return begun;
                }
                writing.begin_charged(tree, credits)
            }
            Purpose::ChangeNow(tree) => writing.begin_charged(tree, credits),
            Purpose::Update => writing.begin(credits),
            Purpose::Free => writing.begin_freeing(credits),
        }
    }

    /// Writes all files back where limits of quota groups refused something, and files have reservations in these groups:
    /// what replaces other contents, or compresses, takes less of them then. Returns whether it did.
    fn leaves_more_when_written_back<T>(&self, refused: &Result<T>, tree: TreeId) -> bool {
        let is_over = matches!(refused, Err(Error::Condition(Condition::QuotaExceeded)));
        let has_reserved = |writing| quotas::has_reserved(writing, tree);
        if !is_over || !self.writing().is_some_and(has_reserved) {
            return false;
        }
        // An error is reported by the next sync of its file.
        let _ = self.dirty.write_back(write_back_files);
        true
    }

    /// Keeps the number of a subvolume whose tree is to be dropped from new ones: what is known of its tree, and of inodes
    /// in it, stays for as long as the mount.
    pub(crate) fn keep_number(&self, id: TreeId) {
        let mut last = self.last_subvolume.lock();
        *last = (*last).max(id);
    }

    /// A count that grows with each change, and may wrap.
    pub(crate) fn change_count(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
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

    /// Drops what the cache keeps alive.
    #[cfg(test)]
    pub(crate) fn forget_cached(&self) {
        self.inodes.release_all();
    }

    /// An inode that is in use.
    #[cfg(test)]
    pub(crate) fn loaded(&self, id: InodeId) -> Arc<BtrfsInode> {
        self.inodes.get(id).expect("the inode is in use")
    }

    /// Drops what the cache keeps alive. Nothing is kept from now on.
    pub fn close(&self) {
        self.writes.close();
        drop(self.dirty.take());
        self.inodes.release_all();
    }
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
            let _ = evict::evict(self);
        }
        blocks::release_all(self);
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
