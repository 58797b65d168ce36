//! Removing extents, from the end of a range to its start, in steps that fit a handle.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::ops::Range;

use platter_vfs::Result;

use super::path::{self, Path};
use super::splice::{self, splice_credits};
use super::{ExtentMap, Progress};
use crate::mapping::Backing;
use crate::mapping::change::{MapChange, SPACE_CREDITS};
use crate::ondisk::extent::Extent;
use crate::ondisk::{BlockNr, FileBlock, GroupNr};

/// What one step removes from a leaf.
struct Cut {
    /// The removed parts, each within one group, from the last to the first.
    pieces: Vec<Extent>,
    /// The first removed block.
    first: FileBlock,
    /// The extents of the leaf that are removed or shortened.
    old: Range<usize>,
    /// The handle has no credits for more.
    is_full: bool,
}

/// Unmaps and frees the blocks of a range. With [`Progress::More`], the blocks before the
/// returned one are left.
pub(in crate::mapping) fn remove(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    range: Range<FileBlock>,
) -> Result<Progress> {
    let mut groups = BTreeSet::new();
    let mut is_changed = false;
    let mut end = range.end;
    while let Some(last) = end.0.checked_sub(1).filter(|_| range.start < end) {
        let path = path::descend(map, change.fs, FileBlock(last))?;
        let (Some(leaf_first), true) = (path.leaf.node.first(), path.leaf.at > 0) else {
            break;
        };
        let used = (&mut groups, is_changed);
        let cut = plan(change, &path, &(range.start..end), used);
        let is_full = cut.is_full;
        let rest = cut.first;
        if !cut.pieces.is_empty() {
            take_out(map, change, path, end, cut)?;
            is_changed = true;
        }
        if is_full {
            return Ok(Progress::More(rest));
        }
        end = leaf_first;
    }
    Ok(Progress::Done)
}

/// Removes the planned extents from a leaf.
///
/// # Errors
/// Nothing was changed, or the handle was aborted.
fn take_out(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    path: Path,
    end: FileBlock,
    cut: Cut,
) -> Result<()> {
    let extents = path.extents().get(cut.old.clone()).unwrap_or_default();
    let head = extents.first();
    let head = head.and_then(|extent| extent.within(&(FileBlock(0)..cut.first)));
    let tail = extents.last();
    let tail = tail.and_then(|extent| extent.within(&(end..FileBlock::MAX)));
    let left: Vec<_> = head.into_iter().chain(tail).collect();
    let pieces = cut.pieces.iter();
    let mut freed: Vec<_> = pieces
        .map(|piece| (piece.start, u64::from(piece.count)))
        .collect();
    if left.is_empty() && cut.old.len() == path.extents().len() {
        freed.extend(emptied(&path).map(|node| (node, 1)));
    }
    change.check_freeable(&mut freed)?;
    splice::splice(map, change, path, cut.old, left)?;
    free_pieces(map, change, &cut.pieces).map_err(|error| change.handle.abort(error))
}

/// Returns the nodes that become empty with the leaf of a path.
fn emptied(path: &Path) -> impl Iterator<Item = BlockNr> {
    let above = path.above.iter().rev();
    let above = above.take_while(|level| level.node.len() == 1);
    let empty = once(&path.leaf).chain(above);
    empty.map_while(|level| level.place)
}

/// Frees the blocks of removed parts. A cluster with other blocks of the file is freed with the
/// last of them.
fn free_pieces(map: &ExtentMap, change: &mut MapChange<'_, '_>, pieces: &[Extent]) -> Result<()> {
    let ratio = change.fs.geometry.cluster_blocks;
    let mut edges = BTreeMap::new();
    for piece in pieces {
        let start = piece.first.0.next_multiple_of(ratio);
        let end = piece.end().0 - piece.end().0 % ratio;
        if let Some(whole) = piece.within(&(FileBlock(start)..FileBlock(end))) {
            change.free_data(whole.start, u64::from(whole.count))?;
        }
        let last = BlockNr(piece.start.0 + u64::from(piece.count) - 1);
        for (block, place) in [(piece.first.0, piece.start), (piece.end().0 - 1, last)] {
            if block < start || block >= end {
                edges.insert(block / ratio, place);
            }
        }
    }
    for (cluster, place) in edges {
        if !is_cluster_mapped(map, change, cluster * ratio)? {
            change.free_data(place, 1)?;
        }
    }
    Ok(())
}

/// Whether any block of the logical cluster that begins at `first` is mapped.
fn is_cluster_mapped(map: &ExtentMap, change: &MapChange<'_, '_>, first: u32) -> Result<bool> {
    let run = map.lookup(change.fs, FileBlock(first))?;
    let end = first.saturating_add(change.fs.geometry.cluster_blocks);
    Ok(run.backing != Backing::Hole || run.end() < FileBlock(end))
}

/// Plans the removal of the part of a range, which ends at the path's block, that is in the leaf
/// and fits the handle, of which the groups are counted already. The first part of a handle that changed nothing always
/// fits.
fn plan(
    change: &mut MapChange<'_, '_>,
    path: &Path,
    range: &Range<FileBlock>,
    (groups, is_changed): (&mut BTreeSet<GroupNr>, bool),
) -> Cut {
    let mut cut = Cut {
        pieces: Vec::new(),
        first: range.end,
        old: path.leaf.at..path.leaf.at,
        is_full: false,
    };
    let mut credits = splice_credits(path.depth());
    for (at, extent) in path.extents().iter().enumerate().take(path.leaf.at).rev() {
        let Some(mut part) = extent.within(range) else {
            break;
        };
        while part.count > 0 {
            let (count, group) = change.last_piece(part.start, part.count);
            let is_new = !groups.contains(&group);
            credits += if is_new { SPACE_CREDITS } else { 0 };
            if !change.ensure(credits) && (is_changed || !cut.pieces.is_empty()) {
                cut.is_full = true;
                return cut;
            }
            groups.insert(group);
            part.count -= count;
            cut.pieces.push(Extent {
                first: FileBlock(part.first.0 + part.count),
                count,
                start: BlockNr(part.start.0 + u64::from(part.count)),
                unwritten: part.unwritten,
            });
            cut.first = FileBlock(part.first.0 + part.count);
            cut.old.start = at;
        }
    }
    cut
}
