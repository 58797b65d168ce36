//! Contents of regular files, read through the page cache.

use std::io::IoSliceMut;
use std::ops::Range;

use platter_cache::AddressSpace;
use platter_vfs::{Condition, Error, ExtentSink, FileKind, Result, SeekTarget, file};

use super::{Inode, InodeState};
use crate::context::FsContext;
use crate::file::Contents;

impl InodeState {
    fn contents<'s>(&'s self, context: &'s FsContext) -> Contents<'s> {
        Contents {
            context,
            inode: &self.inode,
            map: &self.map,
        }
    }
}

impl Inode {
    /// Only regular files have contents to read.
    pub(super) fn refuse_without_contents(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Condition::IsDirectory.into()),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => Err(Condition::InvalidArgument.into()),
        }
    }

    pub(super) fn seek_contents(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.refuse_without_contents()?;
        let state = self.state.read();
        let contents = state.contents(self.context());
        file::seek(&contents, offset, target, state.inode.size_bytes)
    }

    pub(super) fn list_extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        let state = self.state.read();
        state.contents(self.context()).extents(range, sink)
    }

    /// Announces to the device what will be read. A hint: what fails here fails when it is read.
    pub(super) fn announce(&self, range: Range<u64>) {
        if self.refuse_without_contents().is_err() {
            return;
        }
        let state = self.state.read();
        let Ok(device) = self.context().device_of(state.map.device()) else {
            return;
        };
        let range = range.start..range.end.min(state.inode.size_bytes);
        let contents = state.contents(self.context());
        file::announce(&contents, range, &mut |place, len| {
            device.will_need(place.offset..place.offset + len);
        });
    }
}

/// What the page cache fills a file's pages from.
impl AddressSpace for Inode {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.state.read().inode.size_bytes
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let (sources, device) = {
            let state = self.state.read();
            let sources = state.contents(self.context()).sources(offset, len)?;
            (sources, state.map.device())
        };
        let device = self.context().device_of(device)?;
        sources.read(&**device, bufs)
    }
}
