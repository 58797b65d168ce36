//! Contents of regular files, read and written through the page cache.

mod placement;
pub(super) mod steps;
pub(crate) mod eof_blocks;
mod unwritten;
pub(super) mod evict;
mod blocks;
pub(super) mod ranges;

use std::io::IoSliceMut;
use std::ops::Range;

use platter_cache::AddressSpace;
use platter_vfs::{Error, ExtentSink, Result, SeekTarget, Unsupported, file};

use super::Inode;

pub(super) use eof_blocks::{FileGrowth, GrowingFiles};
pub(super) use placement::Placement;

/// The error for what is not written.
pub(super) fn refused(feature: &str) -> Error {
    Unsupported {
        filesystem: "xfs",
        feature: feature.to_owned(),
        reason: Some("it can be read"),
    }
    .into()
}

/// Where data or a hole begins, from an offset on.
pub(super) fn seek(file: &Inode, offset: u64, target: SeekTarget) -> Result<u64> {
    file.refuse_without_contents()?;
    let state = file.state.read();
    let contents = state.contents(file.context());
    file::seek(&contents, offset, target, file.data.size_bytes())
}

/// Passes the extents of a range on.
pub(super) fn extents(file: &Inode, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
    let state = file.state.read();
    state.contents(file.context()).extents(range, sink)
}

/// Announces to the device what will be read. A hint: what fails here fails when it is read.
pub(super) fn announce(file: &Inode, range: Range<u64>) {
    if file.refuse_without_contents().is_err() {
        return;
    }
    let state = file.state.read();
    let Ok(device) = file.context().device_of(state.map.device()) else {
        return;
    };
    let range = range.start..range.end.min(file.data.size_bytes());
    let contents = state.contents(file.context());
    file::announce(&contents, range, &mut |place, len| {
        device.will_need(place.offset..place.offset + len);
    });
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
