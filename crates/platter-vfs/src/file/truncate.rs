//! Files that become shorter or longer.

use super::fallocate::write_back_partial_clusters;
use super::write::{clear_tail, rewrite_tail};
use super::{FileBlocks, blocks_of};
use crate::{Condition, Error, Result};

/// Makes the file `size` bytes long. The caller holds the inode lock.
///
/// # Errors
/// `FileTooLarge`, `NoSpace`; else the driver's.
pub fn resize<F: FileBlocks>(file: &F, size: u64) -> Result<()> {
    file.check_write()?;
    if file.resize_inline(size)? {
        return Ok(());
    }
    if size > file.data().size_bytes() {
        lengthen(file, size)
    } else {
        shorten(file, size)
    }
}

pub(super) fn lengthen<F: FileBlocks>(file: &F, size: u64) -> Result<()> {
    if size > file.size_bytes_max() {
        return Err(Condition::FileTooLarge.into());
    }
    file.leave_inline()?;
    finish_truncation(file)?;
    clear_tail(file, size)?;
    // So that the new size does not become durable ahead of what was written before.
    if file.copies_on_write() || file.next_delayed(0).is_some() {
        file.pages().write_back(file, 0..u64::MAX)?;
    }
    file.set_larger_size(size)?;
    file.data().set_size(size);
    Ok(())
}

fn shorten<F: FileBlocks>(file: &F, size: u64) -> Result<()> {
    let old = file.data().size_bytes();
    write_back_partial_clusters(file, size..u64::MAX)?;
    file.write_back_shared_reservations(0..size)?;
    // Soon the cache has lost what is truncated: what can keep the new size from the disk does so now.
    let first = blocks_of(file, &(0..size)).end;
    file.prepare_truncate(first)?;
    let truncated = while_invalidating(file, || {
        file.data().set_size(size);
        file.pages().truncate(size);
        truncate_blocks(file, size, first)
    });
    if let Err(error) = truncated {
        end_failed(file, size, old, first, &error);
        return Err(error);
    }
    if size == 0 && old > 0 {
        file.data().set_replaced(true);
    }
    match rewrite_tail(file, size) {
        // The file is short already, and what is past its end becomes zeros before it grows.
        Err(Error::Condition(Condition::NoSpace | Condition::QuotaExceeded)) => Ok(()),
        rewritten => rewritten.map(drop),
    }
}

/// Runs `work`, which takes contents out of the cache, and then out of the mapping: syncs and snapshots wait for it.
pub(super) fn while_invalidating<F: FileBlocks, T>(file: &F, work: impl FnOnce() -> T) -> T {
    let _alone = file.data().invalidation.write();
    let _under_way = file.invalidations().begin();
    work()
}

fn truncate_blocks<F: FileBlocks>(file: &F, size: u64, first: u64) -> Result<()> {
    let _alone = file.data().mapping.write();
    file.truncate_blocks(size, first)
}

/// Frees what a truncation left mapped beyond the end: the file is about to become longer. The caller holds
/// the inode lock.
///
/// # Errors
/// Those of the device and of the driver.
pub fn finish_truncation<F: FileBlocks>(file: &F) -> Result<()> {
    if !file.is_truncation_left() {
        return Ok(());
    }
    file.pages().write_back(file, 0..u64::MAX)?;
    let size = file.data().size_bytes();
    truncate_blocks(file, size, blocks_of(file, &(0..size)).end)
}

/// Ends a truncation from `old` to `size` that failed: of the bytes between, and of the blocks from `first`
/// on, the cache has nothing any more. Where the disk does not have the new size either, it must not change
/// any more.
fn end_failed<F: FileBlocks>(file: &F, size: u64, old: u64, first: u64, error: &Error) {
    let left = {
        let _alone = file.data().mapping.write();
        file.release(first..u64::MAX);
        file.size_on_disk().clamp(size, old)
    };
    file.data().set_size(left);
    if left > size {
        file.abort(error);
    }
}
