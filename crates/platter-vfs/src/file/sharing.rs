//! Two files of which one gets contents of the other: clones, deduplication, exchanges.

use std::ops::Range;

use super::{FileBlocks, write_back};
use crate::ranges::{CloneRequest, Deduped};
use crate::writing::ListedInode;
use crate::{Condition, Error, Result};

/// Bytes that are compared at once.
const COMPARED_BYTES: usize = 128 << 10;

/// Calls `work` with the inode locks of two files held, which may be the same file, and both written back.
///
/// # Errors
/// Those of writeback and of `work`.
pub fn with_both_locked<F: FileBlocks + ListedInode, T>(
    one: &F,
    other: &F,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let is_first = one.id() <= other.id();
    let (first, second) = if is_first { (one, other) } else { (other, one) };
    let _first = first.inode_lock().write();
    let _second = (first.id() != second.id()).then(|| second.inode_lock().write_nth(1));
    for file in [first, second] {
        // Nothing is written of one in a snapshot.
        let is_read_only = matches!(
            file.check_write(),
            Err(Error::Condition(Condition::ReadOnly))
        );
        if !is_read_only {
            write_back(file)?;
        }
    }
    work()
}

/// The whole blocks of `source` that `target` is to share at byte `to`. Both are locked.
///
/// # Errors
/// Those of [`CloneRequest::blocks`].
pub fn shared_blocks<F: FileBlocks + ListedInode>(
    target: &F,
    source: &F,
    range: &Range<u64>,
    to: u64,
    is_dedupe: bool,
) -> Result<Range<u64>> {
    let request = CloneRequest {
        range: range.clone(),
        to,
        same_file: source.id() == target.id(),
        source_bytes: source.data().size_bytes(),
        target_bytes: target.data().size_bytes(),
        block_bytes: 1 << target.block_bits(),
        is_dedupe,
    };
    request.blocks()
}

/// Calls `share` if `source` has in a range what `target` has from byte `to` on. Both are locked, and may share it.
///
/// # Errors
/// Those of reading and of `share`.
pub fn dedupe<F: FileBlocks>(
    target: &F,
    source: &F,
    range: &Range<u64>,
    to: u64,
    share: impl FnOnce() -> Result<()>,
) -> Result<Deduped> {
    let len_bytes = range.end - range.start;
    let mut buffers = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let mut at = 0;
    while at < len_bytes {
        let left = usize::try_from(len_bytes - at).unwrap_or(usize::MAX);
        let count = left.min(COMPARED_BYTES);
        let (first, second) = (&mut buffers.0[..count], &mut buffers.1[..count]);
        source.pages().read_at(source, range.start + at, first)?;
        target.pages().read_at(target, to + at, second)?;
        if first != second {
            return Ok(Deduped::Differs);
        }
        at += count as u64;
    }
    share()?;
    Ok(Deduped::Shared(len_bytes))
}
