//! The inode object of the memory filesystem: reading, and the way to what changes.

use platter_vfs::inode::{InodeLock, RenameLock};
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use platter_cache::Mapping;

use super::Shared;
use super::change::NewNode;
use super::content::Content;
use super::node::{Body, LINKS_MAX, Node, Number, ROOT};
use super::{ranges, rename};
use platter_block::lock::{RwLock, rank};
use platter_vfs::file::{self, FileData, WriteTo};
use platter_vfs::namei::{self, AttributedInode, LinkState, NamedInode, NewInode, Rename};
use platter_vfs::writing::{InodeLists, ReturnsSpace};
use platter_vfs::{
    AccessTimes, Attr, Condition, Context, CreateKind, Deduped, DirCursor, DirEntry, DirSink,
    Error, Exchange, ExtendedFlags, ExtentSink, FallocateMode, FileKind, FileTimes, Inode, InodeId,
    Name, NameBuf, RenameMode, Result, Seat, SeekTarget, SetAttr, Timestamp, XattrMode,
};

/// Entries listed under one hold of the lock.
const LISTED_AT_ONCE: usize = 256;

/// An inode in use.
pub(super) struct MemInode {
    pub(super) shared: Arc<Shared>,
    pub(super) number: Number,
    /// The inode lock (`i_rwsem`).
    pub(super) lock: RwLock<(), { rank(2, 2) }>,
    pub(super) pages: Mapping<Error>,
    pub(super) data: FileData<()>,
    pub(super) lists: InodeLists,
    _seat: Seat<Self>,
}

impl MemInode {
    pub(super) fn new(
        shared: Arc<Shared>,
        number: Number,
        size_bytes: u64,
        seat: Seat<Self>,
    ) -> Self {
        Self {
            number,
            lock: RwLock::new(()),
            pages: Mapping::new(Arc::clone(&shared.budget)),
            data: FileData::new(size_bytes, false),
            lists: InodeLists::default(),
            shared,
            _seat: seat,
        }
    }

    pub(super) fn number(&self) -> Number {
        self.number
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Node) -> Result<T>) -> Result<T> {
        read(self.shared.nodes.read().get(self.number))
    }

    /// Refuses what has no contents.
    pub(super) fn must_be_regular(&self) -> Result<()> {
        self.read(|node| node.content().map(|_| ()))
    }

    /// Makes a file. Its object comes first, so that no thread can free it before it is returned.
    fn make(
        &self,
        context: &Context,
        name: Option<Name<'_>>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<Self>> {
        let now = self.now();
        let number = self.shared.nodes.write().reserve_number();
        self.shared.in_use.get_or_load(number.id(), |seat| {
            let new = NewNode {
                number,
                kind,
                permissions,
            };
            self.shared
                .nodes
                .write()
                .create(self.number, name, new, context, now)?;
            Ok(MemInode::new(Arc::clone(&self.shared), number, 0, seat))
        })
    }

    /// Takes it off the list of dirty inodes if it lost its last name: its contents need not be written.
    fn drop_unnamed(&self) {
        if self.link_state().links == 0 {
            self.shared.dirty.remove(self);
        }
    }

    /// The object of an inode that a name names: that may be removed concurrently.
    fn named(&self, number: Number) -> Result<Arc<Self>> {
        match self.shared.object(number) {
            Err(Error::Condition(Condition::Stale)) => Err(Condition::NotFound.into()),
            object => object,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }
}

impl Drop for MemInode {
    fn drop(&mut self) {
        if self.shared.nodes.read().get(self.number).links == 0 {
            self.shared.nodes.write().free(self.number);
        } else if self.pages.is_dirty() {
            // The filesystem was dropped, and no list keeps the inode. Errors have no one to go to.
            let _ = file::write_back(self);
        }
    }
}

impl fmt::Debug for MemInode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("MemInode").field(&self.number.0).finish()
    }
}

impl NamedInode for MemInode {
    type Slot = NameBuf;
    type Vacancy = ();
    type Space = Shared;

    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn kind(&self) -> FileKind {
        self.shared.nodes.read().get(self.number).kind()
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.lock
    }

    fn rename_lock(&self) -> &RenameLock {
        &self.shared.renames
    }

    fn link_state(&self) -> LinkState {
        self.shared.nodes.read().get(self.number).link_state()
    }

    fn space(&self) -> Result<&Shared> {
        if self.shared.nodes.read().read_only {
            return Err(Condition::ReadOnly.into());
        }
        Ok(&self.shared)
    }

    fn links_max(&self) -> u32 {
        LINKS_MAX
    }

    fn in_use(&self, id: InodeId) -> Result<Option<Arc<Self>>> {
        match self.shared.object(Number(id.number)) {
            Err(Error::Condition(Condition::Stale)) => Ok(None),
            object => object.map(Some),
        }
    }

    fn child(&self, name: Name<'_>) -> Result<(Arc<Self>, NameBuf)> {
        let found = self.read(|node| {
            let found = node.directory()?.get(name);
            Ok(found.ok_or(Condition::NotFound)?)
        })?;
        Ok((self.named(found)?, name.to_owned()))
    }

    fn vacancy(&self, name: Name<'_>) -> Result<()> {
        let is_there = self.read(|node| Ok(node.directory()?.get(name).is_some()))?;
        if is_there || name.is_dot_or_dotdot() {
            return Err(Condition::Exists.into());
        }
        Ok(())
    }

    fn is_root(&self) -> bool {
        self.number == ROOT
    }

    fn parent(&self) -> Result<Arc<Self>> {
        let parent = self.read(|node| Ok(node.directory()?.parent))?;
        self.named(parent)
    }

    fn own_ancestor(&self) -> Error {
        Condition::InvalidArgument.into()
    }

    fn is_empty_directory(&self) -> Result<bool> {
        self.read(|node| Ok(node.directory()?.is_empty()))
    }

    fn create_child(&self, name: Name<'_>, (): (), new: NewInode<'_>) -> Result<Arc<Self>> {
        self.make(new.context, Some(name), new.kind.clone(), new.permissions)
    }

    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>> {
        self.make(new.context, None, new.kind.clone(), new.permissions)
    }

    fn link_child(&self, _: &Context, name: Name<'_>, (): (), target: &Arc<Self>) -> Result<()> {
        let now = self.now();
        {
            let mut nodes = self.shared.nodes.write();
            nodes.get_mut(target.number).may_get_first_name = false;
            nodes.add_name(self.number, name, target.number, now);
        }
        if target.pages.is_dirty() {
            target.add_to_dirty();
        }
        Ok(())
    }

    fn remove_child(&self, name: &NameBuf, victim: &Arc<Self>) -> Result<()> {
        let now = self.now();
        let mut nodes = self.shared.nodes.write();
        nodes.unlink(self.number, name.as_name(), victim.number, now);
        drop(nodes);
        victim.drop_unnamed();
        Ok(())
    }

    fn rename_child(rename: &Rename<'_, Self>) -> Result<()> {
        let dir = rename.from.dir;
        let now = dir.now();
        rename::rename(&mut dir.shared.nodes.write(), rename, now)?;
        if let Some(there) = &rename.there {
            there.drop_unnamed();
        }
        Ok(())
    }
}

impl ReturnsSpace for Shared {
    fn returned(&self) -> u64 {
        0
    }

    fn return_freed(&self) -> Result<()> {
        Ok(())
    }
}

impl AttributedInode for MemInode {
    fn inode_lock(&self) -> &InodeLock {
        &self.lock
    }

    fn attributes(&self) -> Attr {
        let mut attr = self.shared.nodes.read().get(self.number).attr(self.number);
        if attr.kind == FileKind::Regular {
            attr.size_bytes = self.data.size_bytes();
        }
        attr
    }

    fn prepare_change(&self, changes: &SetAttr) -> Result<()> {
        changes
            .size_bytes
            .map_or(Ok(()), |_| self.must_be_regular())
    }

    fn change_attributes(&self, _: &Context, changes: &SetAttr) -> Result<()> {
        let now = self.now();
        self.shared
            .nodes
            .write()
            .set_attr(self.number, changes, now)
    }

    fn change_size(&self, size_bytes: u64) -> Result<()> {
        file::resize(self, size_bytes)
    }
}

impl Inode for MemInode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
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
        Ok(self.named(found)?)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let mut from = from;
        loop {
            // The sink runs without the lock, since it may well ask for the inodes that are listed.
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
        self.must_be_regular()?;
        self.pages.read_at(self, offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.must_be_regular()?;
        file::seek(self, offset, target, self.data.size_bytes())
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.must_be_regular()?;
        file::extents(self, range, sink)
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
        if !self.read(|node| Ok(is_due(node)))? {
            return Ok(());
        }
        // Reading goes on while the filesystem is frozen.
        if let Some(_writer) = self.shared.writers.try_enter() {
            self.shared.must_be_writable()?;
            self.shared.nodes.write().get_mut(self.number).accessed = now;
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
        let new = NewInode {
            context,
            kind: &kind,
            permissions,
        };
        let _writer = self.shared.begin()?;
        Ok(namei::create(self, name, new)?)
    }

    fn create_unnamed(&self, context: &Context, permissions: u32) -> Result<Arc<dyn Inode>> {
        let new = NewInode {
            context,
            kind: &CreateKind::Regular,
            permissions,
        };
        let _writer = self.shared.begin()?;
        Ok(namei::create_unnamed(self, new)?)
    }

    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        let _writer = self.shared.begin()?;
        namei::link(self, context, name, target)
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.shared.begin()?;
        namei::unlink(self, name)
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.shared.begin()?;
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
        let _writer = self.shared.begin()?;
        namei::rename(self, context, name, (new_parent, new_name), mode)
    }

    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let _writer = self.shared.begin()?;
        namei::set_attr(self, context, changes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.shared.begin()?;
        file::write(self, offset, data, WriteTo::Cache)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        let _writer = self.shared.begin()?;
        file::append(self, data)
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.shared.begin()?;
        file::write(self, offset, data, WriteTo::Device)
    }

    fn extended_flags(&self) -> Result<ExtendedFlags> {
        self.read(|node| {
            let extents = node.content().map_or(0, Content::pages_held);
            Ok(ExtendedFlags {
                extents: u32::try_from(extents).unwrap_or(u32::MAX),
                ..node.extended
            })
        })
    }

    fn clone_range(&self, source: &dyn Inode, range: Range<u64>, to: u64) -> Result<()> {
        let _writer = self.shared.begin()?;
        ranges::clone(self, source, range, to)
    }

    fn dedupe_range(&self, source: &dyn Inode, range: Range<u64>, to: u64) -> Result<Deduped> {
        let _writer = self.shared.begin()?;
        ranges::dedupe(self, source, range, to)
    }

    fn exchange_range(&self, other: &dyn Inode, exchange: &Exchange) -> Result<()> {
        let _writer = self.shared.begin()?;
        ranges::exchange(self, other, exchange)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let _writer = self.shared.begin()?;
        file::fallocate(self, range, mode)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        if self.must_be_regular().is_err() {
            return Ok(());
        }
        file::sync_data(self, data_only)
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _writer = self.shared.begin()?;
        let now = self.now();
        self.shared
            .nodes
            .write()
            .set_xattr(self.number, context, (name, value), mode, now)
    }

    fn remove_xattr(&self, context: &Context, name: &[u8]) -> Result<()> {
        let now = self.now();
        let _writer = self.shared.begin()?;
        let mut nodes = self.shared.nodes.write();
        nodes.remove_xattr(self.number, context, name, now)
    }
}
