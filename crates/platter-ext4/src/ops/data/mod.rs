//! Contents of regular files: read through the page cache, and written through it.

mod delayed;
mod evict;
mod fallocate;
mod inline;
mod steps;
mod sync;
mod truncate;
mod write;
mod writeback;
#[cfg(test)]
mod tests;

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use platter_cache::AddressSpace;
use platter_cache::page::ErrorCursor;
use platter_vfs::{Condition, Error, ExtentSink, FileKind, Result, SeekTarget};

use super::Node;
use crate::alloc::Space;
use writeback::Placement;

pub(super) use delayed::Delayed;

/// Extents that one hint announces to the device at most.
const ANNOUNCED_EXTENTS_MAX: u32 = 64;

/// What is known of a file's contents beside its map.
#[derive(Debug, Default)]
pub(super) struct FileState {
    /// Held by who gives dirty blocks a place, until the map has it: behind locks of the page cache,
    /// and before a handle.
    placement: Mutex<Placement>,
    /// Writes over blocks that were the file's before, and those of them that were flushed.
    written: AtomicU64,
    flushed: AtomicU64,
    /// Up to which error of writing back whoever synced the file was told.
    told: Mutex<Option<ErrorCursor>>,
}

impl FileState {
    /// Gives back what is kept for the file to grow into.
    pub(super) fn close(&self, space: &Space) {
        self.placement.lock().close(space);
    }

    /// Notes that data lies on the device that no transaction will have flushed.
    fn note_written(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }
}

impl Node {
    /// Only regular files have contents to read, and without a key encrypted ones are refused.
    pub(super) fn refuse_without_contents(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular if self.core.read().inode.is_encrypted() => {
                Err(Condition::NoKey.into())
            }
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Condition::IsDirectory.into()),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => Err(Condition::InvalidArgument.into()),
        }
    }

    /// See [`platter_vfs::Inode::seek`].
    pub(super) fn seek_contents(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.refuse_without_contents()?;
        let core = self.core.read();
        let contents = core.contents(self.volume());
        contents.seek(offset, target, self.size_bytes(), core.delayed.dirty())
    }

    /// See [`platter_vfs::Inode::extents`].
    pub(super) fn list_extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        let core = self.core.read();
        let contents = core.contents(self.volume());
        contents.extents(range, core.delayed.dirty(), sink)
    }

    /// Tells the device what of it will be read. A hint: what fails here fails when it is read.
    pub(super) fn announce(&self, range: Range<u64>) {
        if self.refuse_without_contents().is_err() {
            return;
        }
        let range = range.start..range.end.min(self.size_bytes());
        let mut left = ANNOUNCED_EXTENTS_MAX;
        let core = self.core.read();
        let contents = core.contents(self.volume());
        let _ = contents.extents(range, core.delayed.dirty(), &mut |extent| {
            if let (Some(start), false) = (extent.device_offset, extent.unwritten) {
                let length = extent.file.end - extent.file.start;
                self.volume().device().will_need(start..start + length);
            }
            left -= 1;
            if left == 0 {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
    }
}

/// What the page cache fills a file's pages from.
impl AddressSpace for Node {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let core = self.core.read();
        core.contents(self.volume()).read_folios(offset, bufs)
    }
}
