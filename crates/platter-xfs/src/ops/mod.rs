//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file; this one holds the object they work on.

mod data;
mod link;
mod names;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_cache::{Mapping, MemoryBudget};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::lock_rank::{LockRank, RankedRwLock};
use platter_vfs::{
    Attr, DirCursor, DirSink, Error, ExtentSink, FileKind, InodeId, Name, Result, SeekTarget,
};

use crate::context::FsContext;
use crate::inode::{self, InodeNumberRule};
use crate::mapping::ForkMap;
use crate::ondisk::{InodeFlags2, InodeNr};
use crate::xattr::Attributes;
pub(crate) use link::stored_target;

/// The part of the budget, and so many bytes beside it at most, that unused inodes take which are
/// kept in memory: their pages are kept with them.
const RECENT_PART: u64 = 8;
const RECENT_BYTES_MAX: u64 = 32 << 20;
/// What a file takes in memory beside its object and its pages.
const BESIDE_INODE_BYTES: usize = 704;

/// A mounted filesystem as its inodes see it.
pub struct SuperBlock {
    /// The filesystem below.
    pub context: FsContext,
    budget: Arc<MemoryBudget>,
    inodes: InodeCache<Inode>,
    /// The filesystem is no longer in use: inodes do not keep it alive through the cache.
    is_closed: AtomicBool,
}

/// One inode in use.
pub struct Inode {
    superblock: Arc<SuperBlock>,
    number: InodeNr,
    kind: FileKind,
    /// Never held over a call of the page cache.
    state: RankedRwLock<InodeState>,
    pages: Mapping<Error>,
    /// Last, so that the inode is not loaded again before this object is gone.
    _seat: Seat<Self>,
}

/// What the disk holds of an inode.
struct InodeState {
    inode: crate::ondisk::Inode,
    map: ForkMap,
}

impl SuperBlock {
    /// The filesystem of a context.
    #[must_use]
    pub fn new(context: FsContext, budget: Arc<MemoryBudget>) -> Arc<Self> {
        Arc::new(Self {
            context,
            inodes: InodeCache::sparing(recent_max(&budget), Inode::is_cheap),
            budget,
            is_closed: AtomicBool::new(false),
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
        self.is_closed.store(true, Ordering::Release);
        self.inodes.release_all();
    }

    fn load(self: &Arc<Self>, number: InodeNr) -> Result<Arc<Inode>, LoadError> {
        let id = number.id();
        let inode = self
            .inodes
            .get_or_load(id, |seat| self.read(number, seat))?;
        if self.is_closed.load(Ordering::Acquire) {
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
        let map = ForkMap::of_data(context, &inode)?;
        Ok(Inode {
            superblock: Arc::clone(self),
            number,
            kind: inode.kind,
            state: RankedRwLock::new(LockRank::InodeState, InodeState { inode, map }),
            pages: Mapping::new(Arc::clone(&self.budget)),
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

/// How many unused inodes are kept.
fn recent_max(budget: &MemoryBudget) -> usize {
    let bytes = (budget.limit_bytes() / RECENT_PART).min(RECENT_BYTES_MAX);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    bytes / (size_of::<Inode>() + BESIDE_INODE_BYTES)
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

impl platter_vfs::Inode for Inode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        let state = self.state.read();
        Ok(inode::attr(&state.inode, self.context().geometry()))
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
        let state = self.state.read();
        Attributes::open(self.context(), &state.inode)?.get(name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let state = self.state.read();
        Attributes::open(self.context(), &state.inode)?.names()
    }

    fn will_need(&self, range: Range<u64>) {
        self.announce(range);
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
