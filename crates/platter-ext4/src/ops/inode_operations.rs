//! What [`platter_vfs::Inode`] asks for: each operation records the corruption that it finds, and those that
//! change something wait for a thaw, and are durable where the inode is synchronous.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::file::{self, WriteTo};
use platter_vfs::namei::{self, AttributedInode, NewInode};
use platter_vfs::whole_file::create_whole_files;
use platter_vfs::{
    AccessTimes, Attr, Context, CreateKind, DirCursor, DirSink, ExtentSink, FallocateMode, InodeId,
    Name, RenameMode, Result, SeekTarget, SetAttr, Unmade, WholeFile, XattrMode,
};

use super::{Ext4Inode, data, link, names, whole_file, xattrs};
use crate::ondisk::InodeFlags;

/// The flags with which changes of a directory's names are durable at once.
const SYNC_NAMES: InodeFlags = InodeFlags::SYNC.union(InodeFlags::DIR_SYNC);

fn has_any(node: &Ext4Inode, flags: InodeFlags) -> bool {
    node.state.read().inode.flags.intersects(flags)
}

/// Makes a change, durably where it `is_synchronous`. The commit may fail after the change.
fn change<T>(
    node: &Ext4Inode,
    is_synchronous: bool,
    change: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let writer = node.sb.writers.enter();
    let changed = node.sb.recorded(change())?;
    drop(writer);
    if is_synchronous {
        node.sb.recorded(data::sync(node, false))?;
    }
    Ok(changed)
}

impl platter_vfs::Inode for Ext4Inode {
    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.attributes())
    }

    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        Ok(self.sb.recorded(names::lookup(self, name))?)
    }

    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.sb.recorded(names::list(self, from, sink))
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.sb.recorded(link::target(self))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        data::refuse_without_contents(self)?;
        self.sb.recorded(self.pages.read_at(self, offset, buf))
    }

    fn note_access(&self, times: AccessTimes) -> Result<()> {
        let sb = &self.sb;
        sb.recorded(namei::update_access_time(
            self,
            times,
            &sb.writers,
            &*sb.clock,
        ))
    }

    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.sb.recorded(data::seek(self, offset, target))
    }

    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.sb.recorded(data::extents(self, range, sink))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.sb.writers.enter();
        let written = file::write(self, offset, data, WriteTo::Cache);
        self.sb.recorded(written)
    }

    fn append(&self, data: &[u8]) -> Result<u64> {
        let _writer = self.sb.writers.enter();
        self.sb.recorded(file::append(self, data))
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _writer = self.sb.writers.enter();
        let written = file::write(self, offset, data, WriteTo::Device);
        self.sb.recorded(written)
    }

    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        change(self, has_any(self, InodeFlags::SYNC), || {
            file::fallocate(self, range, mode)
        })
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.sb.recorded(xattrs::get(self, name))
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.sb.recorded(xattrs::list(self))
    }

    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        change(self, has_any(self, InodeFlags::SYNC), || {
            namei::set_attr(self, context, changes)
        })
    }

    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let set = || xattrs::set(self, context, name, value, mode);
        change(self, has_any(self, InodeFlags::SYNC), set)
    }

    fn remove_xattr(&self, context: &Context, name: &[u8]) -> Result<()> {
        change(self, has_any(self, InodeFlags::SYNC), || {
            xattrs::remove(self, context, name)
        })
    }

    fn will_need(&self, range: Range<u64>) {
        data::announce(self, range);
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.sb.recorded(data::sync(self, data_only))
    }

    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let new = NewInode {
            context,
            kind: &kind,
            permissions,
        };
        let created = change(self, has_any(self, SYNC_NAMES), || {
            namei::create(self, name, new)
        })?;
        Ok(created)
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
        let _writer = self.sb.writers.enter();
        let new = NewInode {
            context,
            kind: &CreateKind::Regular,
            permissions,
        };
        Ok(self.sb.recorded(namei::create_unnamed(self, new))?)
    }

    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        change(self, has_any(self, SYNC_NAMES), || {
            namei::link(self, context, name, target)
        })
    }

    fn unlink(&self, _: &Context, name: Name<'_>) -> Result<()> {
        change(self, has_any(self, SYNC_NAMES), || {
            namei::unlink(self, name)
        })
    }

    fn remove_dir(&self, _: &Context, name: Name<'_>) -> Result<()> {
        change(self, has_any(self, SYNC_NAMES), || {
            namei::remove_dir(self, name)
        })
    }

    fn rename(
        &self,
        context: &Context,
        name: Name<'_>,
        new_parent: InodeId,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let other = if new_parent == platter_vfs::Inode::id(self) {
            None
        } else {
            self.sb.recorded(self.sb.in_use(new_parent))?
        };
        // One transaction changes both directories.
        let is_synchronous =
            has_any(self, SYNC_NAMES) || other.is_some_and(|other| has_any(&other, SYNC_NAMES));
        let rename = || namei::rename(self, context, name, (new_parent, new_name), mode);
        change(self, is_synchronous, rename)
    }
}
