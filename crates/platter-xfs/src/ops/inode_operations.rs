//! What [`platter_vfs::Inode`] asks for.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::file::{self, WriteTo};
use platter_vfs::namei::{self, AttributedInode, NewInode};
use platter_vfs::ranges::{Deduped, Exchange};
use platter_vfs::whole_file::{Unmade, create_whole_files};
use platter_vfs::{
    AccessTimes, Attr, Context, CreateKind, DirCursor, DirSink, ExtendedFlags, ExtentSink,
    FallocateMode, InodeId, Name, RenameMode, Result, SeekTarget, SetAttr, WholeFile, XattrMode,
};

use super::data::{self, eof_blocks, ranges};
use super::{Inode, hints, link, names, sync, whole_file, xattrs};
use crate::xattr::Attributes;

impl platter_vfs::Inode for Inode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        Ok(names::lookup(self, name)?)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        names::list(self, from, sink)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        link::target(self)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.refuse_without_contents()?;
        self.pages.read_at(self, offset, buf)
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        data::seek(self, offset, target)
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        data::extents(self, range, sink)
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let _stay = self.order.read();
        let state = self.state.read();
        Attributes::open(self.context(), &state.inode)?.get(name)
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let _stay = self.order.read();
        let state = self.state.read();
        Attributes::open(self.context(), &state.inode)?.names()
    }

    fn will_need(&self, range: Range<u64>) {
        data::announce(self, range);
    }

    fn note_access(&self, times: AccessTimes) -> Result<()> {
        let superblock = &self.superblock;
        namei::update_access_time(self, times, &superblock.writers, &*superblock.clock)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        file::write(self, offset, data, WriteTo::Cache)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        let _writer = self.superblock.writers.enter();
        file::append(self, data)
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        file::write(self, offset, data, WriteTo::Device)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        if mode == FallocateMode::PunchHole {
            eof_blocks::punch(self, &range)?;
        }
        file::fallocate(self, range, mode)
    }

    fn closed(&self) {
        eof_blocks::close(self);
    }

    fn extended_flags(&self) -> Result<ExtendedFlags> {
        Ok(hints::get(self))
    }

    fn copy_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<u64> {
        ranges::copy(self, source, range, to)
    }

    fn clone_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        ranges::clone(self, source, range, to)
    }

    fn dedupe_range(
        &self,
        source: &dyn platter_vfs::Inode,
        range: Range<u64>,
        to: u64,
    ) -> Result<Deduped> {
        let _writer = self.superblock.writers.enter();
        ranges::dedupe(self, source, range, to)
    }

    fn exchange_range(&self, other: &dyn platter_vfs::Inode, exchange: &Exchange) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        ranges::exchange(self, other, exchange)
    }

    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let _writer = self.superblock.writers.enter();
        namei::set_attr(self, context, changes)
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        xattrs::set(self, context, name, value, mode)
    }

    fn remove_xattr(&self, context: &Context, name: &[u8]) -> Result<()> {
        let _writer = self.superblock.writers.enter();
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
        let _writer = self.superblock.writers.enter();
        let new = NewInode {
            context,
            kind: &kind,
            permissions,
        };
        Ok(namei::create(self, name, new)?)
    }

    fn create_whole(&self, files: &[WholeFile<'_>]) -> Result<(), Unmade> {
        create_whole_files(self, files, |files| {
            whole_file::create_together(self, files)
        })
    }

    fn create_unnamed(
        &self,
        context: &Context,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let _writer = self.superblock.writers.enter();
        let new = NewInode {
            context,
            kind: &CreateKind::Regular,
            permissions,
        };
        Ok(namei::create_unnamed(self, new)?)
    }

    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        namei::link(self, context, name, target)
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.superblock.writers.enter();
        namei::unlink(self, name)
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        let _writer = self.superblock.writers.enter();
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
        let _writer = self.superblock.writers.enter();
        namei::rename(self, context, name, (new_parent, new_name), mode)
    }
}
