//! Contents of regular files, read and written through the page cache.

mod blocks;
mod delayed;
mod steps;
mod eof_blocks;
mod unwritten;
mod evict;
mod ranges;

use std::io::IoSliceMut;
use std::ops::Range;

use platter_cache::AddressSpace;
use platter_vfs::{Error, ExtentSink, Result, SeekTarget, Unsupported, file};

use super::{Inode, InodeState};
use crate::context::FsContext;
use crate::file::Contents;

pub(super) use blocks::Placement;
pub(super) use delayed::Delayed;
pub(super) use eof_blocks::{FileGrowth, GrowingFiles};

/// The error for what is not written.
pub(super) fn refused(feature: &str) -> Error {
    Unsupported {
        filesystem: "xfs",
        feature: feature.to_owned(),
        reason: Some("it can be read"),
    }
    .into()
}

impl InodeState {
    fn contents<'s>(&'s self, context: &'s FsContext) -> Contents<'s> {
        Contents {
            context,
            inode: &self.inode,
            map: &self.map,
            dirty: Some(self.delayed.dirty()),
        }
    }
}

impl Inode {
    /// Only regular files have contents to read.
    pub(super) fn refuse_without_contents(&self) -> Result<()> {
        self.kind.refuse_without_contents()
    }

    pub(super) fn seek_contents(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        self.refuse_without_contents()?;
        let state = self.state.read();
        let contents = state.contents(self.context());
        file::seek(&contents, offset, target, self.data.size_bytes())
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
        let range = range.start..range.end.min(self.data.size_bytes());
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
        self.data.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let _stay = self.data.mapping.read();
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        // What is being truncated is not the file's any more, though the inode may still say so.
        let len = len.min(self.data.size_bytes().saturating_sub(offset));
        let (sources, device) = {
            let state = self.state.read();
            let sources = state.contents(self.context()).sources(offset, len)?;
            (sources, state.map.device())
        };
        let device = self.context().device_of(device)?;
        sources.read(&**device, bufs)
    }
}
