//! The inode object of the memory filesystem: reading, and the way to what changes.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use parking_lot::RwLockWriteGuard;

use super::Shared;
use super::change::NewNode;
use super::node::{Body, Node, Nodes, Number};
use crate::lock_rank::Ranked;
use crate::{
    AccessTimes, Attr, Condition, Context, CreateKind, DirCursor, DirEntry, DirSink, ExtentSink,
    FallocateMode, FileTimes, Inode, InodeId, Name, RenameMode, Result, Seat, SeekTarget, SetAttr,
    Timestamp, XattrMode,
};

/// Entries listed under one hold of the lock.
const LISTED_AT_ONCE: usize = 256;

/// An inode somebody holds.
pub(super) struct MemInode {
    shared: Arc<Shared>,
    number: Number,
    _seat: Seat<Self>,
}

impl MemInode {
    pub(super) fn new(shared: Arc<Shared>, number: Number, seat: Seat<Self>) -> Self {
        Self {
            shared,
            number,
            _seat: seat,
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Node) -> Result<T>) -> Result<T> {
        read(self.shared.nodes.read().get(self.number))
    }

    /// All nodes, to change them.
    fn change(&self) -> Result<Ranked<RwLockWriteGuard<'_, Nodes>>> {
        let nodes = self.shared.nodes.write();
        if nodes.read_only {
            return Err(Condition::ReadOnly.into());
        }
        Ok(nodes)
    }

    /// Makes a file. Its object comes first, so that nobody can free it before it is handed out.
    fn make(
        &self,
        context: &Context,
        name: Option<Name<'_>>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn Inode>> {
        let now = self.now();
        let number = self.change()?.reserve_number();
        let object = self.shared.in_use.get_or_load(number.id(), |seat| {
            let new = NewNode {
                number,
                kind,
                permissions,
            };
            self.change()?
                .create(self.number, name, new, context, now)?;
            Ok::<_, crate::Error>(MemInode::new(Arc::clone(&self.shared), number, seat))
        })?;
        Ok(object)
    }

    /// Frees an inode that lost its last name, unless somebody holds it.
    fn let_go(&self, gone: Option<Number>) {
        if let Some(number) = gone {
            drop(self.shared.object(number));
        }
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }
}

impl Drop for MemInode {
    fn drop(&mut self) {
        let mut nodes = self.shared.nodes.write();
        if nodes.get(self.number).links == 0 {
            nodes.free(self.number);
        }
    }
}

impl fmt::Debug for MemInode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("MemInode").field(&self.number.0).finish()
    }
}

impl Inode for MemInode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        self.read(|node| Ok(node.attr(self.number)))
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        let found = self.read(|node| {
            let directory = node.directory()?;
            match name.as_bytes() {
                b"." => Ok(self.number),
                b".." => Ok(directory.parent),
                _ => Ok(directory.get(name).ok_or(Condition::NotFound)?),
            }
        })?;
        // A name that goes away right now may leave nothing behind.
        match self.shared.object(found) {
            Err(crate::Error::Condition(Condition::Stale)) => Err(Condition::NotFound.into()),
            object => Ok(object?),
        }
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let mut from = from;
        loop {
            // The sink runs without the lock, since it may well ask for the inodes it is told of.
            let listed = self.read(|node| {
                let directory = node.directory()?;
                if node.links == 0 {
                    return Ok(Vec::new());
                }
                Ok(directory.list(self.number, from, LISTED_AT_ONCE))
            })?;
            if listed.is_empty() {
                return Ok(());
            }
            for line in listed {
                let kind = self
                    .shared
                    .nodes
                    .read()
                    .by_number
                    .get(&line.number)
                    .map(Node::kind);
                let entry = DirEntry {
                    name: line.name.as_name(),
                    id: line.number.id(),
                    kind,
                    next: line.next,
                };
                from = line.next;
                if sink(entry) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
        }
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.read(|node| match &node.body {
            Body::Symlink(target) => Ok(target.clone()),
            Body::Regular(_) | Body::Directory(_) | Body::Special(..) => {
                Err(Condition::InvalidArgument.into())
            }
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read(|node| Ok(node.content()?.read(offset, buf)))
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.read(|node| node.content()?.seek(offset, target))
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.read(|node| {
            node.content()?.extents(&range, sink);
            Ok(())
        })
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.read(|node| {
            let value = node.xattrs.get(name).ok_or(Condition::NoAttribute)?;
            Ok(value.clone())
        })
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.read(|node| Ok(node.xattrs.keys().cloned().collect()))
    }

    fn note_access(&self, times: AccessTimes) -> Result<()> {
        let now = self.now();
        let is_due = |node: &Node| {
            let times_now = FileTimes {
                accessed: node.accessed,
                modified: node.modified,
                changed: node.changed,
            };
            times.is_due(&times_now, now)
        };
        if self.read(|node| Ok(is_due(node)))? {
            self.change()?.get_mut(self.number).accessed = now;
        }
        Ok(())
    }

    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn Inode>> {
        self.make(context, Some(name), kind, permissions)
    }

    fn create_unnamed(&self, context: &Context, permissions: u32) -> Result<Arc<dyn Inode>> {
        self.make(context, None, CreateKind::Regular, permissions)
    }

    fn link(&self, _: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        let now = self.now();
        self.change()?
            .link(self.number, name, Number(target.number), now)
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let now = self.now();
        let gone = self.change()?.unlink(self.number, name, now)?;
        self.let_go(gone);
        Ok(())
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let now = self.now();
        let gone = self.change()?.remove_dir(self.number, name, now)?;
        self.let_go(gone);
        Ok(())
    }

    fn rename(
        &self,
        context: &Context,
        name: Name<'_>,
        new_parent: InodeId,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let now = self.now();
        let (from, to) = ((self.number, name), (Number(new_parent.number), new_name));
        let gone = self.change()?.rename(context, from, to, mode, now)?;
        self.let_go(gone);
        Ok(())
    }

    fn set_attr(&self, _: &Context, changes: &SetAttr) -> Result<Attr> {
        let now = self.now();
        self.change()?.set_attr(self.number, changes, now)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let now = self.now();
        self.change()?.write(self.number, offset, data, now)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let now = self.now();
        self.change()?.fallocate(self.number, &range, mode, now)
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let now = self.now();
        self.change()?
            .set_xattr(self.number, context, (name, value), mode, now)
    }

    fn remove_xattr(&self, _: &Context, name: &[u8]) -> Result<()> {
        let now = self.now();
        self.change()?.remove_xattr(self.number, name, now)
    }
}
