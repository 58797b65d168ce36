//! Contents of regular files: read through the page cache, and written through it.

mod reserve;
mod steps;
mod inline;
mod truncate;
mod evict;
mod writeback;
mod blocks;
#[cfg(test)]
pub(super) mod tests;

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use platter_cache::{AddressSpace, Buffer};
use platter_vfs::file::{FileData, copy_into};
use platter_vfs::{Condition, Error, ExtentSink, FileKind, Result, SeekTarget, file};

use super::{Ext4Inode, InodeState};
use crate::alloc::Allocator;
use crate::mapping::Backing;
use crate::ondisk::{BlockNr, FileBlock};
use writeback::Placement;

pub(super) use evict::{DELETE_CREDITS, delete_bare, evict, is_bare, is_freeable};
pub(super) use writeback::leave_journal;

/// What is known of a file's contents in addition to its map.
#[derive(Debug)]
pub(super) struct FileState {
    /// What all drivers keep.
    pub(super) file: FileData<Placement>,
    /// Contents were journaled, and may not be checkpointed yet.
    pub(super) is_journaled: AtomicBool,
    /// Not all blocks after the end could be freed by the last truncation: they wait to be freed. Changes
    /// with the inode's state locked.
    pub(super) is_truncation_left: AtomicBool,
}

impl FileState {
    /// Whether blocks past the end wait to be freed, so that the inode stays among the orphans.
    pub(super) fn is_truncation_left(&self) -> bool {
        self.is_truncation_left.load(Ordering::Acquire)
    }

    /// Releases the preallocation of the file.
    pub(super) fn close(&self, space: &Allocator) {
        self.file.placement.lock().close(space);
    }
}

/// Writes the dirty pages of a file back.
pub(super) fn write_back(node: &Ext4Inode) -> Result<()> {
    file::write_back(node)
}

/// Makes the file `size` bytes long. The caller holds the inode lock.
pub(super) fn resize(node: &Ext4Inode, size: u64) -> Result<()> {
    file::resize(node, size)
}

/// See [`platter_vfs::Inode::sync`].
pub(super) fn sync(node: &Ext4Inode, data_only: bool) -> Result<()> {
    if node.kind == FileKind::Regular {
        file::sync_data(node, data_only)
    } else {
        blocks::commit_inode(node, data_only)
    }
}

/// Only regular files have contents to read, and without a key encrypted ones are refused.
pub(super) fn refuse_without_contents(node: &Ext4Inode) -> Result<()> {
    node.kind.refuse_without_contents()?;
    if node.is_encrypted {
        return Err(Condition::NoKey.into());
    }
    Ok(())
}

/// See [`platter_vfs::Inode::seek`].
pub(super) fn seek(node: &Ext4Inode, offset: u64, target: SeekTarget) -> Result<u64> {
    refuse_without_contents(node)?;
    let state = node.state.read();
    let contents = state.contents(node.fs());
    contents.seek(offset, target, node.size_bytes(), state.delayed.dirty())
}

/// See [`platter_vfs::Inode::extents`].
pub(super) fn extents(
    node: &Ext4Inode,
    range: Range<u64>,
    sink: &mut ExtentSink<'_>,
) -> Result<()> {
    let state = node.state.read();
    let contents = state.contents(node.fs());
    contents.extents(range, state.delayed.dirty(), sink)
}

/// Informs the device what will be read of the file. A hint: what fails here fails when it is read.
pub(super) fn announce(node: &Ext4Inode, range: Range<u64>) {
    if refuse_without_contents(node).is_err() {
        return;
    }
    let range = range.start..range.end.min(node.size_bytes());
    let state = node.state.read();
    let contents = state.contents(node.fs());
    contents.announce(range, state.delayed.dirty());
}

/// What the page cache fills a file's pages from.
impl AddressSpace for Ext4Inode {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let _stay = self.data.file.mapping.read();
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = self.size_bytes().min(offset + len);
        let (sources, newer) = {
            let state = self.state.read();
            // Data being truncated is not part of the file any more, though the inode may still include it.
            let sources = state.contents(self.fs()).sources(offset, len, end)?;
            let is_journaled = self.data.is_journaled.load(Ordering::Acquire);
            let newer = if is_journaled {
                uncheckpointed_contents(self, &state, offset..end)?
            } else {
                Vec::new()
            };
            (sources, newer)
        };
        sources.read(&**self.fs().device(), bufs)?;
        for (at, bytes) in newer {
            let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
            copy_into(
                bufs,
                at.saturating_sub(offset),
                &bytes[..left.min(bytes.len())],
            );
        }
        Ok(())
    }
}

/// Blocks of a range of contents that are newer in the journal than on the device, with their
/// first byte in the file.
fn uncheckpointed_contents(
    node: &Ext4Inode,
    state: &InodeState,
    range: Range<u64>,
) -> Result<Vec<(u64, Buffer)>> {
    let bits = node.fs().geometry.block_bits;
    let mut newer = Vec::new();
    let Some(log) = node.fs().log().filter(|_| !range.is_empty()) else {
        return Ok(newer);
    };
    let block = |nr| FileBlock(u32::try_from(nr).unwrap_or(u32::MAX));
    let blocks = block(range.start >> bits)..block(range.end.div_ceil(1 << bits));
    state.contents(node.fs()).runs(blocks, &mut |run| {
        if let Backing::Written(start) = run.backing {
            let end = BlockNr(start.0 + u64::from(run.count));
            for (block, bytes) in log.uncheckpointed_data(start..end) {
                let at = u64::from(run.first.0) + block - start.0;
                newer.push((at << bits, bytes));
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(newer)
}
