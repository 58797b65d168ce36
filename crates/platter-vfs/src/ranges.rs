//! Ranges of bytes that two files exchange, share or copy.

use std::ops::{ControlFlow, Range};

use crate::{Condition, Error, Inode, Place, Result};

/// Bytes copied at once through the page cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes that one call copies through the page cache at most: a front end's thread is busy meanwhile.
const COPIED_BYTES_MAX: u64 = 32 << 20;

/// What [`Inode::dedupe_range`] came to, as `FIDEDUPERANGE` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deduped {
    /// So many bytes are equal, and lie in one place now.
    Shared(u64),
    /// The contents differ; nothing changed.
    Differs,
}

/// What [`Inode::exchange_range`] exchanges, as in
/// `struct xfs_exchange_range`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Where it begins in this file.
    pub offset: u64,
    /// Where it begins in the other file.
    pub other_offset: u64,
    /// How long it is; `None` for up to the ends of both files, whose sizes are exchanged, too.
    pub len_bytes: Option<u64>,
    /// Leave out what is a hole or unwritten in the other file.
    pub written_only: bool,
    /// Check only whether it can be done.
    pub dry_run: bool,
}

/// The bytes of `source` that a copy of `range` to `to` in `target` takes, which may be fewer: those
/// up to the end of the source.
///
/// # Errors
/// `InvalidArgument` where a file would be copied onto the range itself; `FileTooLarge` beyond the
/// last byte that a file may have.
pub fn copied_range<T: Inode + ?Sized>(
    target: &T,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
) -> Result<Range<u64>> {
    let end = range.end.min(source.attr()?.size_bytes);
    let range = range.start..end.max(range.start);
    let len = range.end - range.start;
    let new_end = to.checked_add(len).ok_or(Condition::FileTooLarge)?;
    let overlaps = range.start < new_end && to < range.end;
    if source.id() == target.id() && overlaps {
        return Err(Condition::InvalidArgument.into());
    }
    Ok(range)
}

/// Copies a range through the page caches of both files; see [`Inode::copy_range`].
///
/// # Errors
/// Those of [`copied_range`]; those of reading and writing, if nothing was copied.
pub fn copy_through_cache<T: Inode + ?Sized>(
    target: &T,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
) -> Result<u64> {
    let range = copied_range(target, source, range, to)?;
    let end = range.end.min(range.start.saturating_add(COPIED_BYTES_MAX));
    let len = usize::try_from(end - range.start).unwrap_or(CHUNK_BYTES);
    let mut buffer = vec![0; len.min(CHUNK_BYTES)];
    let mut copied = 0;
    while range.start + copied < end {
        let left = usize::try_from(end - range.start - copied).unwrap_or(CHUNK_BYTES);
        let chunk = &mut buffer[..left.min(CHUNK_BYTES)];
        let step = source.read_at(range.start + copied, chunk).and_then(|len| {
            target.write_at(to + copied, &chunk[..len])?;
            Ok(len as u64)
        });
        match step {
            // The source became shorter.
            Ok(0) => break,
            Ok(bytes) => copied += bytes,
            Err(error) if copied == 0 => return Err(error),
            // The next call reports it.
            Err(_) => break,
        }
    }
    Ok(copied)
}

/// As [`copy_through_cache`], but has the files share what is whole blocks of the range.
///
/// # Errors
/// Those of [`copied_range`], of [`Inode::clone_range`], and of reading and writing, if nothing was copied.
pub fn copy_or_clone<T: Inode + ?Sized>(
    target: &T,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
    block_bytes: u64,
) -> Result<u64> {
    let range = copied_range(target, source, range, to)?;
    let mut whole = range.clone();
    let new_end = to + (range.end - range.start);
    if range.end < source.attr()?.size_bytes || new_end < target.attr()?.size_bytes {
        whole.end = range.end - range.end % block_bytes;
    }
    let is_aligned = range.start.is_multiple_of(block_bytes) && to.is_multiple_of(block_bytes);
    if is_aligned && whole.start < whole.end {
        match target.clone_range(source, whole.clone(), to) {
            Ok(()) => return Ok(whole.end - whole.start),
            // Attributes that only one has, or a size that changed meanwhile.
            Err(Error::Condition(Condition::InvalidArgument)) => {}
            Err(error) => return Err(error),
        }
    }
    copy_through_cache(target, source, range, to)
}

/// A run of bytes of a range: where it ends, and the place of its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    end: u64,
    place: Place,
    encoded: bool,
}

/// Where a range lies, counted from its beginning; `None` where some of it is at no known place.
fn places(inode: &dyn Inode, range: &Range<u64>) -> Result<Option<Vec<Piece>>> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut is_known = true;
    let mut at = range.start;
    inode.written_extents(range.clone(), &mut |extent| {
        let start = extent.file.start.max(range.start);
        let end = extent.file.end.min(range.end);
        let place = extent
            .physical
            .filter(|_| !extent.delayed && !extent.inline);
        let Some(mut place) = place.filter(|_| start == at && start < end) else {
            is_known = false;
            return ControlFlow::Break(());
        };
        at = end;
        if !extent.encoded {
            place.offset += start - extent.file.start;
        }
        let end = end - range.start;
        let follows = |last: &Piece, start: u64| {
            let goes_on = last.place.member == place.member && !extent.encoded && !last.encoded;
            goes_on && last.place.offset + (last.end - start) == place.offset
        };
        let before = pieces.len().checked_sub(2).and_then(|it| pieces.get(it));
        let last_start = before.map_or(0, |before| before.end);
        match pieces.last_mut() {
            Some(last) if follows(last, last_start) => last.end = end,
            _ => pieces.push(Piece {
                end,
                place,
                encoded: extent.encoded,
            }),
        }
        ControlFlow::Continue(())
    })?;
    Ok((is_known && at == range.end).then_some(pieces))
}

/// Whether any of a range is kept inside metadata, where nothing is shared.
fn is_inline(inode: &dyn Inode, range: &Range<u64>) -> Result<bool> {
    let mut is_inline = false;
    inode.written_extents(range.clone(), &mut |extent| {
        is_inline |= extent.inline;
        ControlFlow::Continue(())
    })?;
    Ok(is_inline)
}

/// Whether sharing a range would save space: it is not shared yet, and is not kept inside metadata.
///
/// # Errors
/// Those of reading.
pub fn is_worth_sharing(
    target: &dyn Inode,
    source: &dyn Inode,
    range: &Range<u64>,
    to: u64,
) -> Result<bool> {
    let new_end = to.checked_add(range.end.saturating_sub(range.start));
    let into = to..new_end.ok_or(Condition::FileTooLarge)?;
    if is_inline(target, &into)? || is_inline(source, range)? {
        return Ok(false);
    }
    let here = places(target, &into)?;
    Ok(here.is_none() || here != places(source, range)?)
}

/// Has a file share a range, if it has the same bytes there, and that is [worth it](is_worth_sharing). Returns whether it
/// shares it now and did not before. A file that takes no changes, or whose attributes keep it from that, does not.
///
/// # Errors
/// Those of [`Inode::dedupe_range`], but for these.
pub fn share_equal(
    target: &dyn Inode,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
) -> Result<bool> {
    if !is_worth_sharing(target, source, &range, to)? {
        return Ok(false);
    }
    match target.dedupe_range(source, range, to) {
        Ok(deduped) => Ok(matches!(deduped, Deduped::Shared(_))),
        Err(Error::Condition(
            Condition::ReadOnly | Condition::InvalidArgument | Condition::NotPermitted,
        )) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A request to share blocks of one file with another, as the kernel checks it before any driver does.
#[derive(Debug, Clone)]
pub struct CloneRequest {
    /// The range of the source.
    pub range: Range<u64>,
    /// Where it goes in the target.
    pub to: u64,
    /// Both are one file.
    pub same_file: bool,
    /// The size of the source.
    pub source_bytes: u64,
    /// The size of the target.
    pub target_bytes: u64,
    /// What is shared is whole blocks of this size.
    pub block_bytes: u64,
    /// Only equal contents are shared, which end in both files or in neither.
    pub is_dedupe: bool,
}

impl CloneRequest {
    /// The whole blocks of the source that are to be shared.
    ///
    /// # Errors
    /// `InvalidArgument` where the range does not begin at a block in both files, does not end at one
    /// or at the end of the source, would leave a part of a block in the middle of the target, or
    /// overlaps itself. `FileTooLarge` beyond the last byte that a file may have.
    pub fn blocks(&self) -> Result<Range<u64>> {
        let invalid = || Condition::InvalidArgument.into();
        let Range { start, end } = self.range;
        let is_aligned = |offset: u64| offset.is_multiple_of(self.block_bytes);
        if start >= end || end > self.source_bytes || !is_aligned(start) || !is_aligned(self.to) {
            return Err(invalid());
        }
        let new_end = self.to.checked_add(end - start);
        let new_end = new_end.ok_or(Condition::FileTooLarge)?;
        let ends_in_target = if self.is_dedupe {
            new_end == self.target_bytes
        } else {
            new_end >= self.target_bytes
        };
        let ends_files = end == self.source_bytes && ends_in_target;
        if !is_aligned(end) && !ends_files || self.is_dedupe && new_end > self.target_bytes {
            return Err(invalid());
        }
        let end = end
            .checked_next_multiple_of(self.block_bytes)
            .ok_or(Condition::FileTooLarge)?;
        let new_end = self.to.checked_add(end - start);
        let new_end = new_end.ok_or(Condition::FileTooLarge)?;
        if self.same_file && start < new_end && self.to < end {
            return Err(invalid());
        }
        Ok(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(range: Range<u64>, to: u64, target_bytes: u64) -> Option<Range<u64>> {
        let request = CloneRequest {
            range,
            to,
            same_file: false,
            source_bytes: 10_000,
            target_bytes,
            block_bytes: 4096,
            is_dedupe: false,
        };
        request.blocks().ok()
    }

    #[test]
    fn clone_takes_whole_blocks_or_the_end_of_the_source() {
        assert_eq!(blocks(4096..8192, 0, 100_000), Some(4096..8192));
        assert_eq!(blocks(8192..10_000, 0, 1808), Some(8192..12_288));
        assert_eq!(blocks(8192..10_000, 0, 1809), None, "a part of a block");
        assert_eq!(blocks(8192..9000, 0, 0), None, "no end of the source");
        assert_eq!(blocks(4096..12_288, 0, 0), None, "beyond the source");
        assert_eq!(blocks(1..4097, 0, 0), None);
        assert_eq!(blocks(0..4096, 1, 0), None);
        assert_eq!(blocks(0..0, 0, 0), None);
        assert_eq!(blocks(0..4096, u64::MAX - 4095, 0), None);
    }

    #[test]
    fn clone_onto_itself_is_refused() {
        let within = |to| CloneRequest {
            range: 0..10_000,
            to,
            same_file: true,
            source_bytes: 10_000,
            target_bytes: 10_000,
            block_bytes: 4096,
            is_dedupe: false,
        };
        assert!(within(8192).blocks().is_err());
        assert_eq!(within(12_288).blocks().unwrap(), 0..12_288);
    }

    #[test]
    fn dedupe_ends_both_files_or_none() {
        let dedupe = |target_bytes| CloneRequest {
            range: 8192..10_000,
            to: 0,
            same_file: false,
            source_bytes: 10_000,
            target_bytes,
            block_bytes: 4096,
            is_dedupe: true,
        };
        assert_eq!(dedupe(1808).blocks().unwrap(), 8192..12_288);
        assert!(dedupe(1000).blocks().is_err());
        assert!(dedupe(4096).blocks().is_err());
    }
}
