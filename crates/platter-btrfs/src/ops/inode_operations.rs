//! What [`platter_vfs::Inode`] asks for, by the family that does it.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::file::{self, WriteTo};
use platter_vfs::namei::{self, AttributedInode, NewInode};
use platter_vfs::ranges::copy_or_clone;
use platter_vfs::whole_file::create_whole_files;
use platter_vfs::{
    AccessTimes, Attr, Condition, Context, CreateKind, Deduped, Defragment, DirCursor, DirSink,
    ExtentSink, FallocateMode, FileKind, InodeId, Name, RenameMode, Result, SeekTarget, SetAttr,
    Unmade, WholeFile, XattrMode,
};

use super::state::SECTOR_BYTES;
use super::{
    BtrfsInode, contents, defragment, names, prealloc, reflink, subvolumes, symlink, sync,
    whole_file, xattrs,
};
use crate::xattr;

impl platter_vfs::Inode for BtrfsInode {
    fn id(&self) -> InodeId {
        self.id
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        names::lookup(self, name)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        names::list(self, from, sink)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        symlink::target(self)
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
        contents::announce(self, range);
    }

    fn note_access(&self, times: AccessTimes) -> Result<()> {
        namei::update_access_time(self, times, &self.fs.writers, &*self.fs.clock)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.fs.writers.enter();
        file::write(self, offset, data, WriteTo::Cache)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        let _writer = self.fs.writers.enter();
        file::append(self, data)
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.fs.writers.enter();
        file::write(self, offset, data, WriteTo::Device)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let _writer = self.fs.writers.enter();
        if mode == FallocateMode::PunchHole {
            prealloc::free_beyond_end(self, &range)?;
        }
        let change = || file::fallocate(self, range.clone(), mode);
        let is_zeroed = matches!(mode, FallocateMode::ZeroRange { .. });
        if is_zeroed && self.kind == FileKind::Regular {
            return prealloc::with_kept_data(self, &range, change);
        }
        change()
    }

    fn copy_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<u64> {
        copy_or_clone(self, source, range, to, SECTOR_BYTES)
    }

    fn clone_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<()> {
        let _writer = self.fs.writers.enter();
        reflink::clone(self, source, range, to)
    }

    fn dedupe_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<Deduped> {
        let _writer = self.fs.writers.enter();
        reflink::dedupe(self, source, range, to)
    }

    fn defragment(&self, request: &Defragment) -> Result<u64> {
        let _writer = self.fs.writers.enter();
        defragment::defragment_file(self, request)
    }

    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let _writer = self.fs.writers.enter();
        namei::set_attr(self, context, changes)
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _writer = self.fs.writers.enter();
        xattrs::set(self, context, name, value, mode)
    }

    fn remove_xattr(&self, context: &Context, name: &[u8]) -> Result<()> {
        let _writer = self.fs.writers.enter();
        xattrs::remove(self, context, name)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        sync::fsync(self, data_only)
    }

    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let _writer = self.fs.writers.enter();
        let new = NewInode {
            context,
            kind: &kind,
            permissions,
        };
        Ok(namei::create(self, name, new)?)
    }

    fn create_whole(&self, files: &[WholeFile<'_>]) -> Result<(), Unmade> {
        // What keeps several from being made at once is an error of the first alone, too.
        create_whole_files(self, files, |files| {
            whole_file::create_together(self, files).unwrap_or(0)
        })
    }

    fn create_unnamed(
        &self,
        context: &Context,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let _writer = self.fs.writers.enter();
        let new = NewInode {
            context,
            kind: &CreateKind::Regular,
            permissions,
        };
        Ok(namei::create_unnamed(self, new)?)
    }

    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        let _writer = self.fs.writers.enter();
        if target.tree != self.id.tree {
            return Err(Condition::CrossDevice.into());
        }
        namei::link(self, context, name, target)
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.fs.writers.enter();
        namei::unlink(self, name)
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.fs.writers.enter();
        if self.kind == FileKind::Directory
            && !name.is_dot_or_dotdot()
            && subvolumes::delete::remove_stub(self, name)?
        {
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
        let _writer = self.fs.writers.enter();
        if new_parent.tree != self.id.tree && !subvolumes::names::is_moved(self, name, mode)? {
            return Err(Condition::CrossDevice.into());
        }
        namei::rename(self, context, name, (new_parent, new_name), mode)
    }
}
