//! Writing into the page cache, or past it. Space is reserved before a byte is accepted, so that writeback
//! never runs out of it.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::Mutex;
use platter_cache::AddressSpace;
use platter_cache::page::WritableSpace;

use super::map::is_written;
use super::sync::sync_data;
use super::truncate::finish_truncation;
use super::{FileBlocks, blocks_of, cached_unit_bytes};
use crate::{Condition, Error, Result, WriteTo};

/// So many bytes at once go to the device as they come, without a copy in the cache.
const BYPASS_BYTES_MIN: usize = 128 << 10;

/// Writes all of `data` at `offset`.
///
/// # Errors
/// `FileTooLarge`, `NoSpace`; else the driver's.
pub fn write<F: FileBlocks>(file: &F, offset: u64, data: &[u8], to: WriteTo) -> Result<()> {
    file.check_write()?;
    if data.is_empty() {
        return Ok(());
    }
    file.throttle();
    let _lock = file.inode_lock().write();
    write_locked(file, offset, data, to)
}

/// Writes all of `data` at the end of the file, wherever other writers have moved it (`O_APPEND`). Returns
/// the new end.
///
/// # Errors
/// As [`write()`].
pub fn append<F: FileBlocks>(file: &F, data: &[u8]) -> Result<u64> {
    file.check_write()?;
    file.throttle();
    let _lock = file.inode_lock().write();
    let end = file.data().size_bytes();
    if !data.is_empty() {
        write_locked(file, end, data, WriteTo::Cache)?;
    }
    Ok(end.saturating_add(data.len() as u64))
}

/// Writes with the inode lock held.
fn write_locked<F: FileBlocks>(file: &F, offset: u64, data: &[u8], to: WriteTo) -> Result<()> {
    let end = offset.checked_add(data.len() as u64);
    let end = end.filter(|&end| end <= file.size_bytes_max());
    let end = end.ok_or(Condition::FileTooLarge)?;
    if !file.write_inline(offset, data)? {
        file.leave_inline()?;
        if end > file.data().size_bytes() {
            finish_truncation(file)?;
        }
        clear_tail(file, offset)?;
        let bypass = bypass_len(file, offset, data.len(), to);
        let (bypass, cached) = data.split_at(bypass);
        for (offset, data) in [(offset, bypass), (offset + bypass.len() as u64, cached)] {
            if !data.is_empty() {
                write_reserved(file, offset, data, to)?;
            }
        }
        file.touch()?;
        if to == WriteTo::Device {
            // What was cached went into the cache. With its data in the journal, a file has none of its
            // own to write here.
            file.pages().write_back(file, offset..end)?;
        }
        if file.data().is_replaced() {
            // An error is reported by the next sync of the file.
            let _ = file.pages().write_back(file, 0..u64::MAX);
        }
    }
    if file.is_sync() {
        sync_data(file, false)?;
    }
    Ok(())
}

/// Has what lies between the end of the file and the end of its block written as zeros, to the device too, before a
/// write at `offset`: whatever the device holds there is about to become part of the file, and the size may be durable
/// before what is in the cache. The file does not become longer.
///
/// # Errors
/// Those of the device and of the driver.
pub fn clear_tail<F: FileBlocks>(file: &F, offset: u64) -> Result<()> {
    let size = file.data().size_bytes();
    if size >= offset || !rewrite_tail(file, size)? {
        return Ok(());
    }
    file.pages().write_back(file, size - 1..size)
}

/// Makes the block dirty in which a file of `size` bytes ends, if it ends in one that is written: writeback writes zeros
/// past the end. Returns whether it did.
pub(super) fn rewrite_tail<F: FileBlocks>(file: &F, size: u64) -> Result<bool> {
    let Some(last) = size.checked_sub(1) else {
        return Ok(false);
    };
    if size.is_multiple_of(1 << file.block_bits()) || !is_written(file, last >> file.block_bits())?
    {
        return Ok(false);
    }
    let mut byte = [0];
    file.pages().read_at(file, last, &mut byte)?;
    write_reserved(file, last, &byte, WriteTo::Cache)?;
    Ok(true)
}

/// How many of the first bytes of a write are so many whole pages and blocks that they are not worth a copy
/// in the cache, or have to be on the device anyway.
fn bypass_len<F: FileBlocks>(file: &F, offset: u64, len: usize, to: WriteTo) -> usize {
    let unit = cached_unit_bytes(file);
    let part = usize::try_from(len as u64 % unit).unwrap_or_default();
    let whole = len - part;
    let is_aligned = offset.is_multiple_of(unit);
    let is_worth_a_copy = to == WriteTo::Cache && whole < BYPASS_BYTES_MIN;
    if whole == 0 || is_worth_a_copy || !is_aligned || file.journaled_blocks_max().is_some() {
        return 0;
    }
    whole
}

/// Writes what has to become part of the file, with a reservation of space: into the cache, or past it.
pub(super) fn write_reserved<F: FileBlocks>(
    file: &F,
    offset: u64,
    data: &[u8],
    to: WriteTo,
) -> Result<()> {
    let end = offset + data.len() as u64;
    let bypasses = bypass_len(file, offset, data.len(), to) == data.len();
    if bypasses && file.size_on_disk() < file.data().size_bytes().min(offset) {
        // What is written past the cache moves the size on disk, and what lies before it would be a hole
        // after a crash.
        file.pages().write_back(file, 0..offset)?;
    }
    let blocks = blocks_of(file, &(offset..end));
    let call = WriteCall {
        file,
        copied_to: AtomicU64::new(offset),
        reserved: Mutex::new(file.reserve(blocks.clone())?),
    };
    let bypassed = bypasses.then(|| {
        file.pages().write_past(offset..end, || {
            let is_reserved = file.are_reserved(blocks);
            is_reserved.then(|| file.write_folios(offset, &[IoSlice::new(data)]))
        })
    });
    let written = match bypassed.flatten().flatten() {
        Some(Ok(())) => {
            call.extend(end);
            file.extend_on_disk(file.data().end().at(end))
        }
        Some(Err(error)) => {
            // Some of it may have become part of the file.
            file.data().extend(file.size_on_disk());
            Err(error)
        }
        None => {
            let written = file.pages().write_at(&call, offset, data);
            file.note_dirty();
            written
        }
    };
    if written.is_err() {
        let copied = call.copied_to.load(Ordering::Relaxed);
        let kept = blocks_of(file, &(offset..copied)).end;
        for blocks in call.reserved.into_inner() {
            let start = kept.max(blocks.start);
            if start < blocks.end {
                file.release(start..blocks.end);
            }
        }
    }
    written
}

/// A file that is being written, how far, and the blocks that were reserved for it.
struct WriteCall<'a, F> {
    file: &'a F,
    copied_to: AtomicU64,
    /// Blocks reserved for the write, which are released where it fails.
    reserved: Mutex<Vec<Range<u64>>>,
}

impl<F: FileBlocks> AddressSpace for WriteCall<'_, F> {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.file.read_folios(offset, bufs)
    }

    fn fill_range(&self, range: Range<u64>) -> Range<u64> {
        self.file.fill_range(range)
    }
}

impl<F: FileBlocks> WritableSpace for WriteCall<'_, F> {
    fn extend(&self, end: u64) {
        self.copied_to.store(end, Ordering::Relaxed);
        self.file.extend(end);
    }

    fn is_reserved(&self, range: Range<u64>) -> bool {
        self.file.are_reserved(blocks_of(self.file, &range))
    }

    fn reserve_again(&self, range: Range<u64>) -> Result<()> {
        let reserved = self.file.reserve(blocks_of(self.file, &range))?;
        self.reserved.lock().extend(reserved);
        Ok(())
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.file.write_folios(offset, bufs)
    }

    fn write_granule(&self) -> u64 {
        self.file.write_granule()
    }
}
