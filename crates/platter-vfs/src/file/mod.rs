//! The contents of regular files over a driver's block mapping, as `fs/iomap` and `mm/page-writeback.c`
//! have them: buffered and direct writing with delayed allocation, writeback by runs, truncation, space
//! that is allocated, punched out or moved, and what backs a file.
//!
//! A driver implements [`FileMap`] to read, [`FileBlocks`] to write, and for both [`BlockRuns`].

mod data;
mod map;
mod extents;
mod fallocate;
mod request;
mod seek;
mod sources;
mod sync;
mod gather;
mod sharing;
mod truncate;
mod write;
mod writeback;
#[cfg(test)]
mod tests;

use crate::inode::InodeLock;
use std::io::IoSlice;
use std::ops::Range;

use platter_cache::Mapping;
use platter_cache::page::{PAGE_BYTES, WritableSpace};

use crate::writing::Invalidations;
use crate::{Condition, Error, Result};

pub use crate::WriteTo;
pub use data::{FileData, FileEnd};
pub use extents::{announce, extents};
pub use fallocate::fallocate;
pub use gather::write_back_files;
pub use map::{Backing, BlockRuns, FileMap, FileRun, RunBudget, TooManyBlocks};
pub use request::{Request, ZEROS};
pub use seek::seek;
pub use sharing::{dedupe, shared_blocks, with_both_locked};
pub use sources::{Piece, Sources, copy_into};
pub use sync::{sync_data, write_back, write_back_unnamed};
pub use truncate::{finish_truncation, resize};
pub use write::{append, clear_tail, write};
pub use writeback::write_runs;

/// What is to be done with dirty pages' blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// They are not dirty, and have no contents.
    Nothing,
    /// They are mapped from this byte of the device on, and may be written there.
    Overwrite(u64),
    /// They are mapped from this byte of the device on, but read as zeros.
    Unwritten(u64),
    /// They have no blocks, or may not be written where they are (copy on write).
    New,
}

/// Blocks that were allocated in memory, and are not mapped yet.
pub trait Allocation {
    /// The blocks of the file, and where they are on the device. What has no place of its own there, because
    /// it goes into the inode, is a hole: nothing is written to the device, only mapped.
    fn run(&self) -> FileRun;

    /// What is written from there on in place of the bytes of the blocks, if they are stored in another
    /// form, such as compressed: as many bytes as it takes on the device.
    fn encoded(&self) -> Option<&[u8]> {
        None
    }
}

impl Allocation for FileRun {
    fn run(&self) -> FileRun {
        *self
    }
}

/// The contents of one regular file of a driver, and the changes of its block mapping.
///
/// Blocks are counted in [`block_bits`](BlockRuns::block_bits). A handle is never held.
///
/// # Locks
/// Writeback runs concurrently with writers, so it calls these methods without the inode lock, with the contents of
/// the pages locked and [`FileData::mapping`] held shared: [`run`](BlockRuns::run),
/// [`next_delayed`](BlockRuns::next_delayed), [`write_target`](Self::write_target),
/// [`overwrite`](Self::overwrite), [`convert_written`](Self::convert_written),
/// [`extend_on_disk`](Self::extend_on_disk), which runs without those locks, too; and with
/// [`FileData::placement`] held, [`allocate`](Self::allocate), [`write_device`](Self::write_device),
/// [`map_written`](Self::map_written), [`note_placed`](Self::note_placed) and
/// [`give_back`](Self::give_back). [`note_failure`](Self::note_failure), [`commit`](Self::commit) and all
/// that only ask are called with any locks or none. Everything else has the inode lock held exclusively; where
/// it says that the mapping is locked, [`FileData::mapping`] is held exclusively, too.
///
/// # Units of writeback
/// [`write_granule`](WritableSpace::write_granule) is a wish: pages of a unit that are dirty at the same
/// time are written by one request, but those that become dirty later come alone. What is stored as a unit
/// must be able to hold less.
pub trait FileBlocks: BlockRuns + WritableSpace<Error = Error> + Sync {
    /// Where the file got blocks last, and what is preallocated for it.
    type Placement;
    /// Blocks that were allocated and are not mapped yet.
    type Allocation: Allocation;

    /// Its pages.
    fn pages(&self) -> &Mapping<Error>;

    /// What is kept of it in addition to the mapping.
    fn data(&self) -> &FileData<Self::Placement>;

    /// The inode lock (`i_rwsem`).
    fn inode_lock(&self) -> &InodeLock;

    /// The files of its filesystem that the cache has less of than the mapping.
    fn invalidations(&self) -> &Invalidations;

    /// The unit in which space is allocated, in bytes: a block, or several.
    fn cluster_bytes(&self) -> u64 {
        1 << self.block_bits()
    }

    /// The largest size that the file can have.
    fn size_bytes_max(&self) -> u64;

    /// The size that the inode has on disk, as of the running transaction.
    fn size_on_disk(&self) -> u64;

    /// Whether contents may change.
    ///
    /// # Errors
    /// `ReadOnly`, `NotPermitted` for an immutable file, `IsDirectory` and `InvalidArgument` for what is no
    /// regular file.
    fn check_write(&self) -> Result<()>;

    /// Whether every write is made durable (`chattr +S`).
    fn is_sync(&self) -> bool;

    /// Whether it is append-only.
    fn is_append_only(&self) -> bool;

    /// Has other files written back while too much memory is dirty. No lock is held.
    fn throttle(&self);

    /// Says that the cache has contents that the device has not. No lock is held, or the inode lock.
    fn note_dirty(&self);

    /// Records that it could not be written back.
    fn note_failure(&self, error: &Error);

    /// Writes contents that the driver keeps in the inode. Returns whether it did; then nothing is left to
    /// do.
    fn write_inline(&self, offset: u64, data: &[u8]) -> Result<bool> {
        let _ = (offset, data);
        Ok(false)
    }

    /// Makes contents that are in the inode shorter or longer. Returns whether it did.
    fn resize_inline(&self, size: u64) -> Result<bool> {
        let _ = size;
        Ok(false)
    }

    /// Moves contents that are in the inode into blocks.
    fn leave_inline(&self) -> Result<()> {
        Ok(())
    }

    /// Whether all that is written gets other blocks than it had.
    fn copies_on_write(&self) -> bool {
        false
    }

    /// What is to be done with the first dirty blocks of a range, and how many those are. The mapping is
    /// locked.
    fn write_target(&self, blocks: Range<u64>) -> Result<(Target, u64)>;

    /// Marks blocks as about to be dirty, with a reservation of space where they have none. Returns those
    /// that were not marked.
    ///
    /// # Errors
    /// `NoSpace`, and nothing is reserved; `FileTooLarge`.
    fn reserve(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>>;

    /// Drops the marks and reservations of blocks that will not be written.
    fn release(&self, blocks: Range<u64>);

    /// Whether the blocks, which are about to become dirty, have what writing them back takes: a reservation, or a place
    /// that is written over. A writeback of what was dirty there before may have used what was reserved. Called with pages
    /// locked; the state of the inode may be locked for it.
    fn are_reserved(&self, blocks: Range<u64>) -> bool {
        let _ = blocks;
        debug_assert!(!self.copies_on_write(), "what is written back has a place");
        true
    }

    /// Allocates blocks in memory for the first of a range of dirty ones. `data` has all of their bytes, for
    /// a driver that chooses by them how they are stored ([`Allocation::encoded`]). Reservations of blocks
    /// that it does not need are dropped when the allocation is mapped.
    fn allocate(
        &self,
        blocks: Range<u64>,
        data: &Request<'_>,
        placement: &mut Self::Placement,
    ) -> Result<Self::Allocation>;

    /// Returns blocks that could not be mapped.
    fn give_back(&self, allocation: Self::Allocation) -> Result<()>;

    /// Maps blocks that were written, and has the size on disk reach to `end`. Data that is `journaled`
    /// becomes part of the same transaction. A driver that needs data for checksums, or to store it in the
    /// inode, keeps that in the allocation. An allocation that could not be mapped still holds its blocks.
    fn map_written(
        &self,
        allocation: &mut Self::Allocation,
        end: u64,
        journaled: Option<&Request<'_>>,
    ) -> Result<()>;

    /// Records in `placement` that blocks were mapped.
    fn note_placed(&self, placement: &mut Self::Placement, run: &FileRun);

    /// Has unwritten blocks, to which data was written, read as that, and the size on disk reach to
    /// `end`.
    fn convert_written(&self, run: &FileRun, end: u64) -> Result<()>;

    /// Writes data to byte `at` of the device.
    fn write_device(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<()>;

    /// Writes the bytes of a run over what the file has there, or has them journaled.
    fn overwrite(&self, request: &Request<'_>, run: &FileRun) -> Result<()>;

    /// The most blocks of contents that one transaction takes into the journal, if contents go there
    /// (`data=journal`).
    fn journaled_blocks_max(&self) -> Option<u64> {
        None
    }

    /// Extends the size on disk to `end`, up to which data is there, unless the file was
    /// [truncated](FileData::is_current) meanwhile. Of a file that is just being truncated, no more than
    /// what will be left.
    fn extend_on_disk(&self, end: FileEnd) -> Result<()>;

    /// Sets the times of a change of contents, unless they were set just now.
    fn touch(&self) -> Result<()>;

    /// Makes the file `size` bytes long, which is more than it was.
    fn set_larger_size(&self, size: u64) -> Result<()>;

    /// Makes what could keep a smaller size from the disk, with the blocks from `first` on freed, fail
    /// before the pages are gone.
    fn prepare_truncate(&self, first: u64) -> Result<()>;

    /// Makes what could keep a hole from the disk fail before the pages are gone. Returns the blocks to punch first: as
    /// many of the first of these as one step takes, which is to follow.
    fn prepare_punch(&self, blocks: Range<u64>) -> Result<Range<u64>> {
        Ok(blocks)
    }

    /// Whether a truncation left blocks mapped beyond the end.
    fn is_truncation_left(&self) -> bool;

    /// Sets the size, and frees the blocks from `first` on. The mapping is locked.
    fn truncate_blocks(&self, size: u64, first: u64) -> Result<()>;

    /// Ends all writing after a truncation that failed half way.
    fn abort(&self, error: &Error);

    /// Writes back what is dirty in `range` and shares reservations with other parts of the file, which might
    /// be freed: those of indirect blocks.
    fn write_back_shared_reservations(&self, range: Range<u64>) -> Result<()> {
        let _ = range;
        Ok(())
    }

    /// Whether the mapping can have unwritten blocks, and be shifted.
    fn has_unwritten(&self) -> bool {
        true
    }

    /// The first of the blocks of a range that other files use as well, and those that follow of the same kind; `None`
    /// if there are none.
    ///
    /// # Errors
    /// `NotSupported` where a range cannot be given blocks of its own.
    fn next_shared(&self, blocks: Range<u64>) -> Result<Option<Range<u64>>> {
        let _ = blocks;
        Err(Condition::NotSupported.into())
    }

    /// Frees the blocks of a range, and their reservations. The mapping is locked.
    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()>;

    /// Makes the blocks of a range read as zeros, and drops their reservations. The mapping is locked.
    fn convert_unwritten(&self, blocks: Range<u64>) -> Result<()>;

    /// Allocates all holes of a range as unwritten blocks, or none of them.
    fn allocate_unwritten(&self, blocks: Range<u64>) -> Result<()>;

    /// Frees the blocks of a range and moves those after it down, then sets the size. The mapping is locked.
    fn collapse_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()>;

    /// Whether all blocks can move up by `count`.
    fn may_shift_up(&self, count: u64) -> Result<bool>;

    /// Moves the blocks from the start of a range on up to its end, and sets the size before. The mapping
    /// is locked.
    fn insert_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()>;

    /// Makes the last change of the mapping durable.
    fn commit_mapping(&self) -> Result<()>;

    /// Makes data and mapping durable, and without `data_only` the inode.
    fn commit(&self, data_only: bool) -> Result<()>;
}

/// The unit in which contents are cached: a page, or a block that is larger.
pub(crate) fn cached_unit_bytes<F: FileBlocks + ?Sized>(file: &F) -> u64 {
    (1 << file.block_bits()).max(PAGE_BYTES as u64)
}

/// The blocks that a range of bytes touches: none if it is empty.
pub(crate) fn blocks_of<F: FileBlocks + ?Sized>(file: &F, bytes: &Range<u64>) -> Range<u64> {
    let bits = file.block_bits();
    let start = bytes.start >> bits;
    if bytes.is_empty() {
        return start..start;
    }
    // Not by adding: the end may be the largest number.
    let end = (bytes.end >> bits) + u64::from(bytes.end & ((1 << bits) - 1) != 0);
    start..end.max(start)
}
