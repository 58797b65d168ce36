//! A filesystem in memory with the whole of POSIX: the model that drivers are compared with, and
//! what front ends are tested on.

mod content;
mod directory;
mod node;
mod change;
mod ranges;
mod inode;
mod rename;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use platter_ondisk::Uuid;

use self::content::BLOCK_BYTES;
use self::directory::Directory;
use self::inode::MemInode;
use self::node::{Body, Node, Nodes, Number, ROOT};
use crate::lock_rank::{LockRank, RankedRwLock};
use crate::{
    Clock, Condition, Context, CreateKind, Description, Filesystem, Inode, InodeCache, InodeId,
    PathWalk, Result, StatFs,
};

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
    /// One lock for everything: this is a model, and plainly correct goes before fast.
    nodes: RankedRwLock<Nodes>,
    /// Held while a thaw is announced, or waited for.
    thawing: Mutex<()>,
    thawed: Condvar,
    /// Serialises cross-directory renames.
    renames: Mutex<()>,
    in_use: InodeCache<MemInode>,
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
            frozen: false,
            label: Vec::new(),
        };
        Self {
            shared: Arc::new(Shared {
                clock,
                limits,
                nodes: RankedRwLock::new(LockRank::InodeState, nodes),
                thawing: Mutex::new(()),
                thawed: Condvar::new(),
                renames: Mutex::new(()),
                in_use: InodeCache::new(0),
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

    /// Refuses changes from now on, or takes them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.shared.nodes.write().read_only = read_only;
    }
}

impl Shared {
    fn wait_for_thaw(&self) {
        let mut thawing = self.thawing.lock();
        while self.nodes.read().frozen {
            self.thawed.wait(&mut thawing);
        }
    }

    /// The object of an inode that has a name or is in use.
    fn object(self: &Arc<Self>, number: Number) -> Result<Arc<MemInode>> {
        self.in_use.get_or_load(number.id(), |seat| {
            if self.nodes.read().by_number.contains_key(&number) {
                Ok(MemInode::new(Arc::clone(self), number, seat))
            } else {
                Err(Condition::Stale.into())
            }
        })
    }
}

impl Filesystem for MemFs {
    fn describe(&self) -> Description {
        Description {
            kind: "memory",
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
        Ok(())
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        let mut nodes = self.shared.nodes.write();
        if nodes.read_only {
            return Err(Condition::ReadOnly.into());
        }
        nodes.label = label.to_vec();
        Ok(())
    }

    fn freeze(&self) -> Result<()> {
        let mut nodes = self.shared.nodes.write();
        if std::mem::replace(&mut nodes.frozen, true) {
            return Err(Condition::Busy.into());
        }
        Ok(())
    }

    fn thaw(&self) -> Result<()> {
        let mut nodes = self.shared.nodes.write();
        if !std::mem::replace(&mut nodes.frozen, false) {
            return Err(Condition::InvalidArgument.into());
        }
        drop(nodes);
        let _announced = self.shared.thawing.lock();
        self.shared.thawed.notify_all();
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        self.set_read_only(true);
        Ok(())
    }
}
