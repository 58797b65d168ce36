//! Contents of regular files: read through the page cache, and written through it.

mod delayed;
mod evict;
mod fallocate;
mod gather;
mod inline;
mod steps;
mod sync;
mod truncate;
mod write;
mod writeback;
#[cfg(test)]
pub(super) mod tests;

use std::io::IoSliceMut;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use platter_cache::{AddressSpace, Buffer};
use platter_vfs::writing::FileSync;
use platter_vfs::{Condition, Error, ExtentSink, FileKind, Result, SeekTarget};

use super::{Core, Node};
use crate::alloc::Space;
use crate::mapping::Backing;
use crate::ondisk::BlockNr;
use writeback::Placement;

pub(super) use delayed::Delayed;
pub(super) use evict::DELETE_CREDITS;
pub(super) use write::WriteTo;
pub(super) use writeback::ZEROS;

/// Extents that one hint announces to the device at most.
const ANNOUNCED_EXTENTS_MAX: u32 = 64;

/// What is known of a file's contents beside its map.
#[derive(Debug, Default)]
pub(super) struct FileState {
    /// Held by who gives dirty blocks a place, until the map has it: behind locks of the page cache,
    /// and before a handle.
    placement: Mutex<Placement>,
    /// Held shared while blocks are read or written that the map named, alone while blocks leave the
    /// map: from then on they may become another file's. Behind locks of the page cache, and before
    /// the placement.
    places: RwLock<()>,
    /// Writes over blocks that were the file's before, and the errors that a sync reported.
    sync: FileSync,
    /// Contents went through the journal, and may not be home yet.
    is_journaled: AtomicBool,
    /// How often the file was cut off.
    cuts: AtomicU64,
    /// Not all blocks behind the end could be freed when it was cut off last. Changes with the inode's
    /// state locked.
    is_cut_left: AtomicBool,
    /// The file was cut off to be written anew: it is written as soon as it can be, since many
    /// programs expect to find its new contents after a crash.
    is_replaced: AtomicBool,
}

/// Where a file ended at some moment: of no account once it was cut off since then.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileEnd {
    /// In bytes.
    offset: u64,
    cuts: u64,
}

impl FileEnd {
    /// The end of contents that may reach less far.
    fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }
}

impl FileState {
    /// Of a file whose contents may be on their way through the journal, or written by an earlier
    /// object of it and not flushed, and which may have blocks behind its end that wait to be freed.
    pub(super) fn new(is_journaled: bool, may_be_unflushed: bool, is_cut_left: bool) -> Self {
        Self {
            is_journaled: AtomicBool::new(is_journaled),
            sync: FileSync::new(may_be_unflushed),
            is_cut_left: AtomicBool::new(is_cut_left),
            ..Self::default()
        }
    }

    /// Whether blocks behind the end wait to be freed, so that the inode stays among the orphans.
    pub(super) fn is_cut_left(&self) -> bool {
        self.is_cut_left.load(Ordering::Acquire)
    }

    /// Gives back what is kept for the file to grow into.
    pub(super) fn close(&self, space: &Space) {
        self.placement.lock().close(space);
    }
}

impl Node {
    /// Where the file ends now.
    pub(super) fn end(&self) -> FileEnd {
        // The other way round than it is cut off.
        let cuts = self.data.cuts.load(Ordering::Acquire);
        let offset = self.size_bytes();
        FileEnd { offset, cuts }
    }

    /// Has the file end at `size`, which may be earlier than it did. The caller has the inode locked,
    /// with that size in it.
    fn cut_off(&self, size: u64) {
        self.size_bytes.store(size, Ordering::Release);
        self.data.cuts.fetch_add(1, Ordering::AcqRel);
    }

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
            if let (Some(place), false) = (extent.place, extent.unwritten) {
                let length = extent.file.end - extent.file.start;
                self.volume()
                    .device()
                    .will_need(place.offset..place.offset + length);
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
        let _stay = self.data.places.read();
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = self.size_bytes().min(offset + len);
        let (sources, away) = {
            let core = self.core.read();
            // What is being cut off is not the file's any more, though the inode may still say so.
            let sources = core.contents(self.volume()).sources(offset, len, end)?;
            let is_journaled = self.data.is_journaled.load(Ordering::Acquire);
            let away = if is_journaled {
                self.contents_away(&core, offset..end)?
            } else {
                Vec::new()
            };
            (sources, away)
        };
        sources.read(&**self.volume().device(), bufs)?;
        for (at, bytes) in away {
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

impl Node {
    /// Blocks of a range of contents that are newer in the journal than on the device, with their
    /// first byte in the file.
    fn contents_away(&self, core: &Core, range: Range<u64>) -> Result<Vec<(u64, Buffer)>> {
        let bits = self.volume().geometry.block_bits;
        let mut away = Vec::new();
        let Some(log) = self.volume().log().filter(|_| !range.is_empty()) else {
            return Ok(away);
        };
        let blocks = self.blocks_of(range)?;
        core.contents(self.volume()).runs(blocks, &mut |run| {
            if let Backing::Written(start) = run.backing {
                let end = BlockNr(start.0 + u64::from(run.count));
                for (block, bytes) in log.data_away(start..end) {
                    let at = u64::from(run.first.0) + block - start.0;
                    away.push((at << bits, bytes));
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(away)
    }
}

/// Copies bytes into a row of buffers, from byte `at` of the row on.
fn copy_into(bufs: &mut [IoSliceMut<'_>], at: u64, mut bytes: &[u8]) {
    let mut skip = usize::try_from(at).unwrap_or(usize::MAX);
    for buf in bufs {
        let Some(target) = buf.get_mut(skip..) else {
            skip -= buf.len();
            continue;
        };
        let count = target.len().min(bytes.len());
        target[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        skip = 0;
    }
}
