//! Unused blocks of an offline filesystem, which may be overwritten.

use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::Result;

use super::{MountOptions, Opened, superblock_offset};
use crate::FsContext;
use crate::alloc::{self, Allocator};
use crate::ondisk::BlockNr;

/// The blocks of a device that its filesystem does not use; valid until the filesystem is written.
#[derive(Debug)]
pub struct Unused {
    fs: FsContext,
    space: Allocator,
}

impl Unused {
    /// Looks at a filesystem; `None` if it has a journal to replay, which may use other blocks.
    pub fn of(
        device: &Arc<dyn BlockDevice>,
        options: &MountOptions,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Option<Self>> {
        let opened = Opened::read(&**device, superblock_offset(options), options)?;
        if opened.needs_recovery() {
            return Ok(None);
        }
        let fs = opened.fs(device, budget);
        let space = Allocator::open(&fs)?;
        Ok(Some(Self { fs, space }))
    }

    /// Whether nothing uses any of these bytes, which are whole blocks.
    #[must_use]
    pub fn contains(&self, bytes: &Range<u64>) -> bool {
        let block_bytes = u64::from(self.fs.geometry.block_bytes);
        let is_whole =
            bytes.start.is_multiple_of(block_bytes) && bytes.end.is_multiple_of(block_bytes);
        let mut blocks = bytes.start / block_bytes..bytes.end / block_bytes;
        is_whole && blocks.all(|block| alloc::is_free(&self.space, &self.fs, BlockNr(block)))
    }
}
