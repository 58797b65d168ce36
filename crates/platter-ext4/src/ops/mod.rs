//! The operations of a mounted filesystem's inodes: what [`platter_vfs::Inode`] asks for.
//!
//! Each family has a file; this one holds the object they work on.

mod data;
mod link;
mod names;
mod xattrs;

pub use link::LinkRule;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_cache::{Mapping, MemoryBudget};
use platter_ondisk::Locus;
use platter_vfs::inode_cache::{InodeCache, Seat};
use platter_vfs::{Attr, DirCursor, DirSink, Error, ExtentSink, InodeId, Name, Result, SeekTarget};

use crate::Volume;
use crate::file::Contents;
use crate::inode::{self, InodeNumberRule};
use crate::mapping::BlockMap;
use crate::ondisk::corrupt::Corrupt;
use crate::ondisk::{Inode, InodeNr};
use crate::orphan::{self, Orphans};

/// Inodes that are kept in memory though nobody uses them.
const RECENT_INODES_MAX: usize = 4096;

/// A mounted filesystem as its inodes see it.
pub struct Tree {
    /// The filesystem below.
    pub volume: Volume,
    /// What a crash left half done.
    pub orphans: Orphans,
    budget: Arc<MemoryBudget>,
    nodes: InodeCache<Node>,
    /// The filesystem is no longer in use: inodes do not keep it alive through the cache.
    is_closed: AtomicBool,
}

/// One inode in use.
pub struct Node {
    tree: Arc<Tree>,
    inode: Inode,
    map: BlockMap,
    pages: Mapping<Error>,
    /// Last, so that nobody loads the inode again before this object is gone.
    _seat: Seat<Self>,
}

impl Tree {
    /// The tree of a volume.
    #[must_use]
    pub fn new(volume: Volume, orphans: Orphans, budget: Arc<MemoryBudget>) -> Arc<Self> {
        Arc::new(Self {
            volume,
            orphans,
            budget,
            nodes: InodeCache::new(RECENT_INODES_MAX),
            is_closed: AtomicBool::new(false),
        })
    }

    /// The inode with this number; `None` if it is not in use, or nobody may name it.
    pub fn find(self: &Arc<Self>, number: InodeNr) -> Result<Option<Arc<Node>>> {
        match self.load(number) {
            Ok(node) => Ok(Some(node)),
            Err(LoadError::Unfit(_)) => Ok(None),
            Err(LoadError::Failed(error)) => Err(error),
        }
    }

    /// The inode that an entry of a directory names.
    fn named(self: &Arc<Self>, number: InodeNr) -> Result<Arc<Node>> {
        self.load(number).map_err(|error| match error {
            LoadError::Failed(error) => error,
            LoadError::Unfit(rule) => {
                Corrupt::new(Locus::inode(u64::from(number.get())), rule).into()
            }
        })
    }

    fn load(self: &Arc<Self>, number: InodeNr) -> Result<Arc<Node>, LoadError> {
        let id = number.id();
        let node = self.nodes.get_or_load(id, |seat| self.read(number, seat))?;
        if self.is_closed.load(Ordering::Relaxed) {
            self.nodes.release(id);
        }
        Ok(node)
    }

    fn read(self: &Arc<Self>, number: InodeNr, seat: Seat<Node>) -> Result<Node, LoadError> {
        let volume = &self.volume;
        if inode::is_reserved(volume, number) {
            return Err(LoadError::Unfit(InodeNumberRule::Reserved));
        }
        let Some(mut inode) = inode::find(volume, number)? else {
            return Err(LoadError::Unfit(
                match volume.geometry.group_of_inode(number) {
                    Some(_) => InodeNumberRule::Deleted,
                    None => InodeNumberRule::OutOfRange,
                },
            ));
        };
        if let Some(rule) = inode::unfit_to_name(&inode) {
            return Err(LoadError::Unfit(rule));
        }
        let mut map = BlockMap::decode(volume, &inode)?;
        if self.orphans.is_truncated(number) {
            orphan::finish_truncation(volume, &mut inode, &mut map)?;
        }
        Ok(Node {
            tree: Arc::clone(self),
            inode,
            map,
            pages: Mapping::new(Arc::clone(&self.budget)),
            _seat: seat,
        })
    }

    /// Lets go of all inodes that nobody uses, now and from now on.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.nodes.release_all();
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

impl Node {
    fn volume(&self) -> &Volume {
        &self.tree.volume
    }

    fn contents(&self) -> Contents<'_> {
        Contents {
            volume: self.volume(),
            inode: &self.inode,
            map: &self.map,
        }
    }
}

impl platter_vfs::Inode for Node {
    fn id(&self) -> InodeId {
        self.inode.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        Ok(inode::attr(&self.inode, &self.volume().geometry))
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
        self.pages.read_at(&self.contents(), offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.refuse_without_contents()?;
        self.contents().seek(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.contents().extents(range, sink)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr(name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.xattr_names()
    }

    fn will_need(&self, range: Range<u64>) {
        self.announce(range);
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tree")
            .field("device", &self.volume.device().name())
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Node")
            .field("number", &self.inode.number)
            .field("kind", &self.inode.kind)
            .finish_non_exhaustive()
    }
}
