//! Short new files on their way to the device together: those that are allocated next to each other are
//! written by one request.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use platter_block::lock::{MutexGuard, RwLockReadGuard};
use platter_cache::page::{DirtyPages, LockedPages};

use super::sync::{end_write_back, write_back};
use super::{Allocation, Backing, FileBlocks, FileEnd, Request, Target, blocks_of};
use crate::writing::WRITEBACK_BATCH_MAX;
use crate::{Error, Result};

/// Pages of a file that is short.
const SHORT_PAGES_MAX: u64 = 16;

/// A file whose dirty pages were taken.
struct Taken<'f, F> {
    file: &'f F,
    /// Its end before that.
    end: FileEnd,
    pages: DirtyPages<Error>,
}

/// What became of the pages that were taken.
enum Outcome {
    Written,
    Failed(Error),
    /// They are not eligible for this, and to be written on their own.
    NotEligible,
}

/// A file with blocks for all its dirty pages, locked against other writers of new blocks.
struct Placed<'f, F: FileBlocks> {
    file: &'f F,
    offset: u64,
    end: u64,
    bufs: Vec<IoSlice<'f>>,
    allocation: F::Allocation,
    placement: MutexGuard<'f, F::Placement>,
    _mapping: RwLockReadGuard<'f, ()>,
}

/// Writes files back. Errors are reported by their next sync, and recorded.
pub fn write_back_files<F: FileBlocks>(files: &[Arc<F>]) {
    for files in files.chunks(WRITEBACK_BATCH_MAX) {
        for file in write_together(files) {
            let _ = write_back(file);
        }
    }
}

/// Writes those of some files that are short and new. Returns the others.
fn write_together<F: FileBlocks>(files: &[Arc<F>]) -> Vec<&F> {
    let mut others = Vec::new();
    let mut taken = Vec::new();
    for file in files {
        match take_short(&**file) {
            Some(file) => taken.push(file),
            None => others.push(&**file),
        }
    }
    let outcomes = write_taken(&taken);
    for (taken, outcome) in taken.into_iter().zip(outcomes) {
        let Taken { file, end, pages } = taken;
        let written = match outcome {
            Outcome::Written => {
                pages.end();
                if file.pages().is_unwritten() {
                    // Another thread writes the rest of it, which has to be waited for.
                    others.push(file);
                    continue;
                }
                Ok(())
            }
            Outcome::Failed(error) => {
                pages.fail(error.clone());
                Err(error)
            }
            Outcome::NotEligible => {
                drop(pages);
                others.push(file);
                continue;
            }
        };
        let _ = end_write_back(file, written, end);
    }
    others
}

fn write_taken<F: FileBlocks>(taken: &[Taken<'_, F>]) -> Vec<Outcome> {
    // All pages are locked before any mapping is, since threads with a locked page may wait for that.
    let locked: Vec<_> = taken.iter().map(|file| file.pages.lock()).collect();
    let mut placed: Vec<Option<Placed<'_, F>>> = taken
        .iter()
        .zip(&locked)
        .map(|(taken, pages)| place_short(taken.file, pages))
        .collect();
    let written = write_placed(&placed);
    let outcomes = placed.iter_mut().zip(written).map(|(placed, written)| {
        let Some(placed) = placed.take() else {
            return Outcome::NotEligible;
        };
        match placed.map(written) {
            Ok(()) => Outcome::Written,
            Err(error) => Outcome::Failed(error),
        }
    });
    outcomes.collect()
}

/// Writes neighbours by one request. Returns the result for each file.
fn write_placed<F: FileBlocks>(placed: &[Option<Placed<'_, F>>]) -> Vec<Result<()>> {
    let mut order: Vec<(Range<u64>, usize)> = placed
        .iter()
        .enumerate()
        .filter_map(|(file, placed)| Some((placed.as_ref()?.location()?, file)))
        .collect();
    order.sort_unstable_by_key(|(location, _)| location.start);
    let mut results: Vec<Result<()>> = placed.iter().map(|_| Ok(())).collect();
    for run in order.chunk_by(|(left, _), (right, _)| left.end == right.start) {
        let files = || run.iter().filter_map(|&(_, file)| placed[file].as_ref());
        let Some(first) = files().next() else {
            continue;
        };
        let requests: Vec<_> = files().map(|file| (file.request(), file)).collect();
        let bufs: Vec<_> = requests
            .iter()
            .flat_map(|(request, placed)| {
                request.stored(&placed.allocation, placed.file.block_bits())
            })
            .collect();
        if let Err(error) = first.file.write_device(run[0].0.start, &bufs) {
            for &(_, file) in run {
                results[file] = Err(error.clone());
            }
        }
    }
    results
}

/// Takes the dirty pages of a short new file.
fn take_short<F: FileBlocks>(file: &F) -> Option<Taken<'_, F>> {
    if file.next_delayed(0).is_none() || file.journaled_blocks_max().is_some() {
        return None;
    }
    let end = file.data().end();
    let pages = file.pages().take_dirty(SHORT_PAGES_MAX)?;
    file.data().set_replaced(false);
    Some(Taken { file, end, pages })
}

/// Allocates blocks for dirty pages that are new, if that can be done without waiting for other threads
/// that write the file: they may wait for those that write another one.
fn place_short<'f, F: FileBlocks>(
    file: &'f F,
    pages: &'f LockedPages<'_, Error>,
) -> Option<Placed<'f, F>> {
    let mapping = file.data().mapping.try_read()?;
    let mut placement = file.data().placement.try_lock()?;
    let pieces = pages.pieces(file.data().size_bytes());
    let offset = pieces.first()?.0;
    let mut end = offset;
    for (at, bytes) in &pieces {
        if *at != end {
            return None;
        }
        end += bytes.len() as u64;
    }
    let blocks = blocks_of(file, &(offset..end));
    let (target, count) = file.write_target(blocks.clone()).ok()?;
    if target != Target::New || blocks.start + count != blocks.end {
        return None;
    }
    let bufs: Vec<_> = pieces
        .into_iter()
        .map(|(_, bytes)| IoSlice::new(bytes))
        .collect();
    let request = Request {
        offset,
        end,
        bufs: &bufs,
    };
    let allocation = file.allocate(blocks, &request, &mut placement).ok()?;
    let run = allocation.run();
    if run.count < count || !matches!(run.backing, Backing::Written(_)) {
        let _ = file.give_back(allocation);
        return None;
    }
    Some(Placed {
        file,
        offset,
        end,
        bufs,
        allocation,
        placement,
        _mapping: mapping,
    })
}

impl<F: FileBlocks> Placed<'_, F> {
    fn request(&self) -> Request<'_> {
        Request {
            offset: self.offset,
            end: self.end,
            bufs: &self.bufs,
        }
    }

    /// The bytes on the device.
    fn location(&self) -> Option<Range<u64>> {
        let run = self.allocation.run();
        let Backing::Written(start) = run.backing else {
            return None;
        };
        let encoded = self.allocation.encoded();
        let len = encoded.map_or(run.count << self.file.block_bits(), |it| it.len() as u64);
        Some(start..start + len)
    }

    /// Maps the blocks once the bytes are there.
    fn map(mut self, written: Result<()>) -> Result<()> {
        let (run, end) = (self.allocation.run(), self.end);
        let mapped = written.and_then(|()| self.file.map_written(&mut self.allocation, end, None));
        match mapped {
            Ok(()) => {
                self.file.note_placed(&mut self.placement, &run);
                Ok(())
            }
            Err(error) => {
                self.file.give_back(self.allocation)?;
                Err(error)
            }
        }
    }
}
