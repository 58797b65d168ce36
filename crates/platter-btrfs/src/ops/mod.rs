//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file; this one holds the objects they work on.

mod contents;
mod link;
mod stub;
mod names;
mod subvolumes;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_cache::{Mapping, MemoryBudget};
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::shown_numbers::ShownNumbers;
use platter_vfs::{
    Attr, Condition, DirCursor, DirSink, Error, ExtentSink, InodeId, Name, Result, SeekTarget,
    Timestamp,
};

use crate::context::{FsContext, Subvolume};
use crate::data::{DataReader, DecompressedCache};
use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT};
use crate::tree::Tree;
use crate::xattr;
use stub::{StubDir, Stubs};

pub use link::LinkRule;

/// The part of the budget, and at most so many bytes, that inodes take which are kept in
/// memory though no caller uses them.
const RECENT_PART: u64 = 8;
const RECENT_BYTES_MAX: u64 = 32 << 20;
/// What a file has in memory besides its object and its pages.
const BESIDE_INODE_BYTES: usize = 512;

/// A mounted filesystem as its inodes see it.
pub struct SuperBlock {
    /// The filesystem below.
    pub context: FsContext,
    /// How data is read.
    pub data: DataReader,
    /// The extents that were decompressed last.
    pub decompressed: DecompressedCache,
    budget: Arc<MemoryBudget>,
    inodes: InodeCache<BtrfsInode>,
    /// The filesystem is no longer in use: inodes do not keep it alive through the cache.
    is_closed: AtomicBool,
    numbers: ShownNumbers,
    stubs: Stubs,
    root: InodeId,
    /// The times of directories that are not stored.
    mounted_at: Timestamp,
}

/// One inode in use.
pub struct BtrfsInode {
    fs: Arc<SuperBlock>,
    id: InodeId,
    subvolume: Subvolume,
    item: InodeItem,
    pages: Mapping<Error>,
    /// Last, so that the inode is not loaded again before this object is gone.
    _seat: Seat<Self>,
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
        mounted_at: Timestamp,
    ) -> Arc<Self> {
        let others = others.iter().map(|subvolume| subvolume.id.0);
        let numbers = ShownNumbers::new(root.id.0, others.filter(|id| *id != root.id.0));
        Arc::new(Self {
            context,
            data: DataReader::default(),
            decompressed: DecompressedCache::default(),
            inodes: InodeCache::sparing(recent_max(&budget), BtrfsInode::is_cheap),
            budget,
            is_closed: AtomicBool::new(false),
            numbers,
            stubs: Stubs::default(),
            root: root_of(root),
            mounted_at,
        })
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
        self.is_closed.store(true, Ordering::Release);
        self.inodes.release_all();
    }

    fn load(self: &Arc<Self>, id: InodeId) -> Result<Option<Arc<BtrfsInode>>> {
        let loaded = self.inodes.get_or_load(id, |seat| self.read(id, seat));
        if self.is_closed.load(Ordering::Acquire) {
            self.inodes.release(id);
        }
        match loaded {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::Condition(Condition::Stale)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(self: &Arc<Self>, id: InodeId, seat: Seat<BtrfsInode>) -> Result<BtrfsInode> {
        let subvolume = self.context.subvolume(TreeId(id.tree))?;
        let subvolume = subvolume.ok_or(Condition::Stale)?;
        if !(FIRST_FREE_OBJECT..=LAST_FREE_OBJECT).contains(&id.number) {
            return Err(Condition::Stale.into());
        }
        let item = inode::find(&self.context, subvolume.tree(), id.number)?;
        // One without names is an orphan that is to be deleted.
        let item = item.filter(|item| item.links > 0);
        Ok(BtrfsInode {
            fs: Arc::clone(self),
            id,
            subvolume,
            item: item.ok_or(Condition::Stale)?,
            pages: Mapping::new(Arc::clone(&self.budget)),
            _seat: seat,
        })
    }

    /// The inode that an entry of a directory names.
    fn named(self: &Arc<Self>, tree: Tree, id: InodeId) -> Result<Arc<dyn platter_vfs::Inode>> {
        let found = self.find(id)?;
        Ok(found.ok_or_else(|| inode::missing(tree, id.number))?)
    }
}

/// The root directory of a subvolume.
fn root_of(subvolume: &Subvolume) -> InodeId {
    InodeId {
        tree: subvolume.id.0,
        number: subvolume.root_dir(),
    }
}

/// How many inodes are kept though no caller uses them.
fn recent_max(budget: &MemoryBudget) -> usize {
    let bytes = (budget.limit_bytes() / RECENT_PART).min(RECENT_BYTES_MAX);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    bytes / (size_of::<BtrfsInode>() + BESIDE_INODE_BYTES)
}

impl BtrfsInode {
    /// Whether it is as good when it is loaded again: it has no pages.
    fn is_cheap(&self) -> bool {
        self.pages.page_count() == 0
    }

    fn context(&self) -> &FsContext {
        &self.fs.context
    }

    fn tree(&self) -> Tree {
        self.subvolume.tree()
    }

    fn is_subvolume_root(&self) -> bool {
        self.id == root_of(&self.subvolume)
    }
}

impl platter_vfs::Inode for BtrfsInode {
    fn id(&self) -> InodeId {
        self.id
    }

    fn attr(&self) -> Result<Attr> {
        let shown = self.fs.shown(self.id);
        Ok(inode::attr(
            &self.item,
            shown,
            self.context().sector_bytes(),
        ))
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

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.refuse_without_contents()?;
        self.contents().seek(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.contents().extents(range, sink)
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
}

impl fmt::Debug for BtrfsInode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("BtrfsInode")
            .field("id", &self.id)
            .field("kind", &self.item.kind)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SuperBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SuperBlock")
            .field("context", &self.context)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
