//! Inserting extents, and converting them between written and unwritten.

use std::ops::Range;

use platter_vfs::Result;

use super::splice::{self, coalesce, splice_credits};
use super::{ExtentMap, Progress, path};
use crate::mapping::change::MapChange;
use crate::ondisk::FileBlock;
use crate::ondisk::extent::{Extent, ExtentRule};

/// Maps blocks that are a hole. The extent does not exceed the maximum length.
pub(in crate::mapping) fn insert(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    extent: Extent,
) -> Result<()> {
    let path = path::descend(map, change.fs, extent.first)?;
    let before = path.before();
    let is_hole = before.is_none_or(|(_, before)| before.end() <= extent.first)
        && path.next().is_none_or(|next| extent.end() <= next);
    if !is_hole {
        return Err(map.corrupt(None, ExtentRule::Order).into());
    }
    let at = path.leaf.at;
    let mut old = at..at;
    let mut new = vec![extent];
    if let Some((at, before)) = before {
        old.start = at;
        new.insert(0, before);
    }
    if let Some(after) = path.after() {
        old.end += 1;
        new.push(after);
    }
    coalesce(&mut new);
    splice::splice(map, change, path, old, new)
}

/// Marks the extents of a range as written or unwritten. Holes are skipped.
pub(in crate::mapping) fn convert(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    range: Range<FileBlock>,
    unwritten: bool,
) -> Result<Progress> {
    let mut block = range.start;
    while block < range.end {
        let path = path::descend(map, change.fs, block)?;
        let found = path.before().filter(|(_, extent)| block < extent.end());
        let Some((at, extent)) = found else {
            let Some(next) = path.next() else {
                break;
            };
            block = next;
            continue;
        };
        let part = extent.within(&(block..range.end));
        let Some(part) = part.filter(|_| extent.unwritten != unwritten) else {
            block = extent.end();
            continue;
        };
        if !change.ensure(splice_credits(path.depth())) {
            return Ok(Progress::More(block));
        }
        let mut old = at..at + 1;
        let mut new = parted(&extent, &part, unwritten);
        if let Some(before) = at.checked_sub(1) {
            new.splice(0..0, path.extents().get(before).copied());
            old.start = before;
        }
        if let Some(after) = path.after() {
            new.push(after);
            old.end += 1;
        }
        coalesce(&mut new);
        block = part.end();
        splice::splice(map, change, path, old, new)?;
    }
    Ok(Progress::Done)
}

/// Returns the extents that replace `extent` when `part` of it is converted.
fn parted(extent: &Extent, part: &Extent, unwritten: bool) -> Vec<Extent> {
    let mut parts = Vec::with_capacity(5);
    parts.extend(extent.within(&(FileBlock(0)..part.first)));
    let middle = part.first.0.saturating_add(Extent::count_max(unwritten));
    for range in [part.first..FileBlock(middle), FileBlock(middle)..part.end()] {
        parts.extend(part.within(&range).map(|part| Extent { unwritten, ..part }));
    }
    parts.extend(extent.within(&(part.end()..FileBlock::MAX)));
    parts
}
