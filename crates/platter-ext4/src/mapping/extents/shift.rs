//! Shifting extents within the file, for collapsing and inserting ranges.

use platter_vfs::{Condition, Error, Result};

use super::splice::{self, coalesce, splice_credits};
use super::{ExtentMap, Progress, path};
use crate::mapping::change::MapChange;
use crate::ondisk::FileBlock;
use crate::ondisk::extent::{Extent, ExtentRule};

/// Shifts extents that begin at or after `from` down by `count` blocks, which are a hole. With
/// [`Progress::More`], those that begin before the returned block were shifted.
pub(in crate::mapping) fn shift_down(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    from: FileBlock,
    count: u32,
) -> Result<Progress> {
    let mut next = Some(from);
    while let Some(block) = next {
        let path = path::descend(map, change.fs, block)?;
        if !change.ensure(splice_credits(path.depth())) {
            return Ok(Progress::More(block));
        }
        next = path.bound.filter(|&bound| bound > block);
        let extents = path.extents();
        let at = extents.partition_point(|extent| extent.first < block);
        let (stay, moved) = extents.split_at(at);
        if moved.is_empty() {
            continue;
        }
        let last = stay.last();
        let mut new: Vec<Extent> = last.into_iter().copied().collect();
        for extent in moved {
            let first = extent.first.0.checked_sub(count).map(FileBlock);
            let is_free =
                first.is_some_and(|first| new.last().is_none_or(|before| before.end() <= first));
            let Some(first) = first.filter(|_| is_free) else {
                return Err(map.corrupt(None, ExtentRule::Order).into());
            };
            new.push(Extent { first, ..*extent });
        }
        let old = at - stay.len().min(1)..extents.len();
        coalesce(&mut new);
        splice::splice(map, change, path, old, new)?;
    }
    Ok(Progress::Done)
}

/// Splits the extent that contains `at`, so that one begins there.
pub(in crate::mapping) fn part(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    at: FileBlock,
) -> Result<()> {
    let path = path::descend(map, change.fs, at)?;
    let Some((old, extent)) = path.before() else {
        return Ok(());
    };
    let parts = [FileBlock(0)..at, at..FileBlock::MAX];
    let parts: Vec<Extent> = parts
        .iter()
        .filter_map(|part| extent.within(part))
        .collect();
    if parts.len() < 2 {
        return Ok(());
    }
    splice::splice(map, change, path, old..old + 1, parts)
}

/// Shifts extents that begin at or after `from` up by `count` blocks; an extent that contains
/// `from` is split there. With [`Progress::More`], those that begin at or after the returned
/// block were shifted.
///
/// # Errors
/// `NoSpace` before anything is changed.
pub(in crate::mapping) fn shift_up(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    from: FileBlock,
    before: FileBlock,
    count: u32,
) -> Result<Progress> {
    let mut end = before;
    while let Some(last) = end.0.checked_sub(1).filter(|_| from < end) {
        let path = path::descend(map, change.fs, FileBlock(last))?;
        if !change.ensure(splice_credits(path.depth())) {
            return Ok(Progress::More(end));
        }
        let (Some(leaf_first), true) = (path.leaf.node.first(), path.leaf.at > 0) else {
            break;
        };
        let extents = path.extents().get(..path.leaf.at).unwrap_or_default();
        let at = extents.partition_point(|extent| extent.end() <= from);
        let mut new = Vec::new();
        for extent in extents.get(at..).unwrap_or_default() {
            new.extend(extent.within(&(FileBlock(0)..from)));
            let Some(moved) = extent.within(&(from..FileBlock::MAX)) else {
                continue;
            };
            let first = moved.first.checked_add(count);
            let first = first.filter(|first| first.checked_add(moved.count).is_some());
            let Some(first) = first else {
                return Err(map.corrupt(None, ExtentRule::Length).into());
            };
            new.push(Extent { first, ..moved });
        }
        let old = at..path.leaf.at;
        if !new.is_empty() {
            match splice::splice(map, change, path, old, new) {
                Err(Error::Condition(Condition::NoSpace)) if end < before => {
                    return Ok(Progress::More(end));
                }
                spliced => spliced?,
            }
        }
        end = leaf_first;
    }
    Ok(Progress::Done)
}
