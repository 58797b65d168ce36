//! A filesystem in memory with all POSIX operations: the model that drivers are compared with, and what the shared
//! layers and the front ends are tested on. Names and contents go through the shared layers, as those of drivers do.
#![forbid(unsafe_code)]

mod disk;
mod content;
mod directory;
mod node;
mod change;
mod inode;
mod data;
mod ranges;
mod rename;
mod hooks;
#[cfg(test)]
mod contents_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use platter_block::lock::{Mutex, rank};
use platter_cache::MemoryBudget;
use platter_ondisk::Uuid;

pub use self::hooks::{HookedInode, HookedRoot, Hooks};

use self::content::Content;
use self::directory::Directory;
use self::disk::{BLOCK_BYTES, Disk};
use self::inode::MemInode;
use self::node::{Body, Node, Nodes, Number, ROOT};
use platter_block::lock::RwLock;
use platter_vfs::file::write_back_files;
use platter_vfs::writing::{DirtyList, FreezeGate, Invalidations, Writer};
use platter_vfs::{
    Clock, Condition, Context, CreateKind, Description, Filesystem, Inode, InodeCache, InodeId,
    PathWalk, Result, StatFs,
};

/// Memory of the page cache.
const CACHE_BYTES: u64 = 64 << 20;

/// `f_type` of tmpfs.
const MAGIC: u32 = 0x0102_1994;

/// A filesystem that lives in memory and is gone when dropped.
#[derive(Debug)]
pub struct MemFs {
    shared: Arc<Shared>,
}

/// How much a [`MemFs`] takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemFsLimits {
    /// File contents, in pages of 4096 bytes.
    pub pages: u64,
    /// Inodes, the root included.
    pub inodes: u64,
}

impl Default for MemFsLimits {
    fn default() -> Self {
        Self {
            pages: 1 << 20,
            inodes: 1 << 20,
        }
    }
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    limits: MemFsLimits,
    /// One lock for everything but file contents: this is a model, and plainly correct goes before fast.
    nodes: RwLock<Nodes, { rank(7, 0) }>,
    disk: Arc<Disk>,
    budget: Arc<MemoryBudget>,
    writers: FreezeGate,
    /// Serialises cross-directory renames.
    renames: Mutex<(), { rank(2, 1) }>,
    in_use: InodeCache<MemInode>,
    /// Inodes with contents that are only in the page cache.
    dirty: DirtyList<MemInode>,
    /// Truncations and punches that are between the cache and the mapping.
    invalidations: Invalidations,
    /// The filesystem was dropped: inodes that are still in use write themselves back.
    is_closed: AtomicBool,
}

impl MemFs {
    /// An empty filesystem whose root belongs to the superuser and has mode 0755.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, limits: MemFsLimits) -> Self {
        let now = clock.now();
        let mut root = Node::new(Body::Directory(Directory::new(ROOT)), now);
        (root.permissions, root.links) = (0o755, 2);
        let nodes = Nodes {
            by_number: HashMap::from([(ROOT, root)]),
            next_number: ROOT.0 + 1,
            pages_free: limits.pages,
            inodes_free: limits.inodes.saturating_sub(1),
            read_only: false,
            label: Vec::new(),
        };
        Self {
            shared: Arc::new(Shared {
                clock,
                limits,
                nodes: RwLock::new(nodes),
                disk: Arc::default(),
                budget: Arc::new(MemoryBudget::new(CACHE_BYTES)),
                writers: FreezeGate::default(),
                renames: Mutex::new(()),
                in_use: InodeCache::new(0),
                dirty: DirtyList::default(),
                invalidations: Invalidations::default(),
                is_closed: AtomicBool::new(false),
            }),
        }
    }

    /// Makes a file at `path`, of whose directories all must be there, for the superuser.
    pub fn plant(&self, path: &[u8], kind: CreateKind, permissions: u32) -> Result<Arc<dyn Inode>> {
        let located = PathWalk::new(self).resolve_parent(path)?;
        let name = located.name_to_create()?;
        located
            .parent
            .create(&Context::root(), name, kind, permissions)
    }

    /// Makes every write of contents fail from now on, as a broken disk does, or none any more.
    pub fn fail_writes(&self, fails: bool) {
        self.shared.disk.fail_writes(fails);
    }

    /// Refuses changes from now on, or takes them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.shared.nodes.write().read_only = read_only;
    }
}

impl Shared {
    /// Begins a change, once the filesystem is not frozen.
    fn begin(&self) -> Result<Writer<'_>> {
        let writer = self.writers.enter();
        self.must_be_writable()?;
        Ok(writer)
    }

    fn must_be_writable(&self) -> Result<()> {
        if self.nodes.read().read_only {
            return Err(Condition::ReadOnly.into());
        }
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The object of an inode that has a name or is in use.
    fn object(self: &Arc<Self>, number: Number) -> Result<Arc<MemInode>> {
        self.in_use.get_or_load(number.id(), |seat| {
            let size_bytes = match self.nodes.read().by_number.get(&number) {
                Some(node) => node.content().map_or(0, Content::size_bytes),
                None => return Err(Condition::Stale.into()),
            };
            Ok(MemInode::new(Arc::clone(self), number, size_bytes, seat))
        })
    }

    /// Waits for the changes in progress, keeps others out, and writes back.
    fn freeze(&self) -> Result<()> {
        self.writers.freeze()?;
        let written = self.write_dirty();
        if written.is_err() {
            self.writers.thaw()?;
        }
        written
    }

    /// Writes the inodes back that are dirty now.
    fn write_dirty(&self) -> Result<()> {
        let written = self.dirty.write_back(write_back_files);
        self.invalidations.wait();
        written
    }
}

impl Drop for MemFs {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Release);
        // The list keeps inodes, and they keep the filesystem.
        let dirty = self.shared.dirty.take();
        write_back_files(&dirty);
    }
}

impl Filesystem for MemFs {
    fn describe(&self) -> Description {
        Description {
            kind: "memory".into(),
            uuid: Uuid::nil(),
            label: self.shared.nodes.read().label.clone(),
            features: Vec::new(),
            details: Vec::new(),
        }
    }

    fn is_read_only(&self) -> bool {
        self.shared.nodes.read().read_only
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        Ok(self.shared.object(ROOT)?)
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        Ok(self.shared.object(Number(id.number))?)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let nodes = self.shared.nodes.read();
        Ok(StatFs {
            block_bytes: BLOCK_BYTES,
            blocks: self.shared.limits.pages,
            blocks_free: nodes.pages_free,
            blocks_available: nodes.pages_free,
            inodes: self.shared.limits.inodes,
            inodes_free: nodes.inodes_free,
            name_len_max: 255,
            id: 0,
            magic: MAGIC,
        })
    }

    fn sync(&self) -> Result<()> {
        self.shared.write_dirty()
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        let _writer = self.shared.begin()?;
        self.shared.nodes.write().label = label.to_vec();
        Ok(())
    }

    fn freeze(&self) -> Result<()> {
        self.shared.freeze()
    }

    fn thaw(&self) -> Result<()> {
        self.shared.writers.thaw()
    }

    fn unmount(&self) -> Result<()> {
        self.set_read_only(true);
        // Those that wait for the thaw are refused.
        let _ = self.thaw();
        self.freeze()?;
        self.thaw()
    }
}
