//! Reading contents.

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};

use platter_cache::AddressSpace;
use platter_vfs::{Condition, Error, FileKind, Result};

use super::Node;

/// Extents that one hint announces to the device at most.
const ANNOUNCED_EXTENTS_MAX: u32 = 64;

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

    /// Tells the device what of it will be read. A hint: what fails here fails when it is read.
    pub(super) fn announce(&self, range: Range<u64>) {
        if self.refuse_without_contents().is_err() {
            return;
        }
        let range = range.start..range.end.min(self.size_bytes());
        let mut left = ANNOUNCED_EXTENTS_MAX;
        let core = self.core.read();
        let _ = core.contents(self.volume()).extents(range, &mut |extent| {
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
