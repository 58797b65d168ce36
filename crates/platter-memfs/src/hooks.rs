//! Inodes of which a test replaces single operations.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use platter_vfs::{
    Attr, Context, CreateKind, Defragment, Description, DirCursor, DirSink, ExtentSink,
    FallocateMode, Filesystem, Inode, InodeId, Name, Result, SeekTarget, SetAttr, StatFs,
};

use crate::MemFs;

/// Operations of an inode, each of which does what the inode does unless a test says otherwise.
#[expect(
    missing_docs,
    reason = "they are those of `Inode`, with the inode itself before"
)]
pub trait Hooks: fmt::Debug + Send + Sync + 'static {
    fn attr(&self, inode: &dyn Inode) -> Result<Attr> {
        inode.attr()
    }

    fn lookup(self: &Arc<Self>, inode: &dyn Inode, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        inode.lookup(name)
    }

    fn read_dir(&self, inode: &dyn Inode, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        inode.read_dir(from, sink)
    }

    fn read_at(&self, inode: &dyn Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        inode.read_at(offset, buf)
    }

    fn set_attr(&self, inode: &dyn Inode, context: &Context, changes: &SetAttr) -> Result<Attr> {
        inode.set_attr(context, changes)
    }

    fn fallocate(&self, inode: &dyn Inode, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        inode.fallocate(range, mode)
    }

    fn copy_range(
        &self,
        inode: &dyn Inode,
        source: &dyn Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<u64> {
        inode.copy_range(source, range, to)
    }

    fn defragment(&self, inode: &dyn Inode, request: &Defragment) -> Result<u64> {
        inode.defragment(request)
    }
}

/// An inode with [`Hooks`]. Operations that are not passed on do what [`Inode`] does by default.
#[derive(Debug)]
pub struct HookedInode<H> {
    inode: Arc<dyn Inode>,
    hooks: Arc<H>,
}

impl<H> HookedInode<H> {
    /// The inode with these hooks.
    #[must_use]
    pub fn new(inode: Arc<dyn Inode>, hooks: Arc<H>) -> Self {
        Self { inode, hooks }
    }
}

impl<H: Hooks> Inode for HookedInode<H> {
    fn id(&self) -> InodeId {
        self.inode.id()
    }

    fn attr(&self) -> Result<Attr> {
        self.hooks.attr(&*self.inode)
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn Inode>> {
        self.hooks.lookup(&*self.inode, name)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.hooks.read_dir(&*self.inode, from, sink)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.inode.read_link()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.hooks.read_at(&*self.inode, offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.inode.seek(offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.inode.extents(range, sink)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.inode.get_xattr(name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.inode.list_xattrs()
    }

    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn Inode>> {
        self.inode.create(context, name, kind, permissions)
    }

    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        self.hooks.set_attr(&*self.inode, context, changes)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        self.hooks.fallocate(&*self.inode, range, mode)
    }

    fn copy_range(&self, source: &dyn Inode, range: Range<u64>, to: u64) -> Result<u64> {
        self.hooks.copy_range(&*self.inode, source, range, to)
    }

    fn defragment(&self, request: &Defragment) -> Result<u64> {
        self.hooks.defragment(&*self.inode, request)
    }
}

/// The filesystem in memory, whose root directory has [`Hooks`].
#[derive(Debug)]
pub struct HookedRoot<H> {
    /// The filesystem without them.
    pub fs: Arc<MemFs>,
    /// Those of the root directory.
    pub hooks: Arc<H>,
}

impl<H: Hooks> Filesystem for HookedRoot<H> {
    fn describe(&self) -> Description {
        self.fs.describe()
    }

    fn is_read_only(&self) -> bool {
        self.fs.is_read_only()
    }

    fn root(&self) -> Result<Arc<dyn Inode>> {
        let hooks = Arc::clone(&self.hooks);
        Ok(Arc::new(HookedInode::new(self.fs.root()?, hooks)))
    }

    fn inode(&self, id: InodeId) -> Result<Arc<dyn Inode>> {
        self.fs.inode(id)
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.fs.stat_fs()
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()
    }

    fn unmount(&self) -> Result<()> {
        self.fs.unmount()
    }
}
