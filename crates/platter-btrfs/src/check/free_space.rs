//! The free space tree against the extents.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::ranges::Ranges;
use super::{Checker, Flow, FreeSpaceUseRule};
use crate::ondisk::features::CompatRo;
use crate::ondisk::free_space::{FreeSpaceFlags, FreeSpaceInfo, FreeSpaceRange};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// What the free space tree says.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    ranges: Ranges,
    groups: Vec<GroupInfo>,
}

/// The info item of a block group, and what followed it.
#[derive(Debug)]
struct GroupInfo {
    start: u64,
    end: u64,
    info: FreeSpaceInfo,
    /// Free extents that were found.
    extents: u64,
    /// The end of the last one.
    last_end: u64,
}

/// Records an item of the free space tree.
pub(super) fn note_item(checker: &mut Checker<'_>, key: Key, data: &[u8], locus: Locus) -> Flow {
    if key.kind == ItemKind::FREE_SPACE_INFO {
        if let Ok(info) = FreeSpaceInfo::decode(data, locus) {
            checker.free_space.groups.push(GroupInfo {
                start: key.object,
                end: key.object.saturating_add(key.offset),
                info,
                extents: 0,
                last_end: 0,
            });
        }
        return Ok(());
    }
    let is_bitmap = key.kind == ItemKind::FREE_SPACE_BITMAP;
    if !is_bitmap && key.kind != ItemKind::FREE_SPACE_EXTENT {
        return Ok(());
    }
    let sector = checker.format.sector_bytes;
    let Ok(range) = FreeSpaceRange::decode(key, sector, locus) else {
        return Ok(());
    };
    let end = range.start.0.saturating_add(range.len_bytes);
    let free = &mut checker.free_space;
    let group = free.groups.last_mut();
    let Some(group) = group.filter(|it| it.start <= range.start.0 && end <= it.end) else {
        return checker.found(locus, FreeSpaceUseRule::Outside);
    };
    let uses_bitmaps = group.info.flags.contains(FreeSpaceFlags::USING_BITMAPS);
    if is_bitmap {
        let sector = u64::from(sector);
        for (start, end) in runs(data) {
            let at = |bit: u64| {
                range
                    .start
                    .0
                    .saturating_add(bit.saturating_mul(sector))
                    .min(end_of(range))
            };
            let (start, end) = (at(start), at(end));
            group.extents += u64::from(start != group.last_end);
            group.last_end = end;
            free.ranges.add(start..end);
        }
    } else {
        group.extents += 1;
        free.ranges.add(range.start.0..end);
    }
    if uses_bitmaps != is_bitmap {
        checker.found(locus, FreeSpaceUseRule::Form)?;
    }
    Ok(())
}

/// Compares the free space tree with the extents.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let compat_ro = checker.context.superblock.features.compat_ro;
    let locus = Locus::tree(TreeId::FREE_SPACE.0);
    if !compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
        return Ok(());
    }
    if !compat_ro.contains(CompatRo::FREE_SPACE_TREE_VALID) {
        return checker.noticed(locus, FreeSpaceUseRule::Stale);
    }
    let mut free = std::mem::take(&mut checker.free_space);
    free.ranges.sort();
    for group in &free.groups {
        let locus = locus.at_block(group.start).in_group(group.start);
        let known = checker.devices.group_of(group.start);
        let is_known = known.is_some_and(|it| {
            it.start.0 == group.start && it.start.0.saturating_add(it.len_bytes) == group.end
        });
        if !is_known {
            // mkfs.btrfs does not remove those of its first block groups.
            checker.noticed(locus, FreeSpaceUseRule::NoGroup)?;
        } else if group.extents != u64::from(group.info.extent_count) {
            checker.found(locus, FreeSpaceUseRule::Count)?;
        }
    }
    let groups: Vec<_> = checker.devices.groups.clone();
    for group in groups {
        let start = group.start.0;
        let end = start.saturating_add(group.len_bytes);
        let has_info = free
            .groups
            .binary_search_by_key(&(start, end), |info| (info.start, info.end))
            .is_ok();
        if !has_info {
            let locus = locus.at_block(start).in_group(start);
            checker.found(locus, FreeSpaceUseRule::NoInfo)?;
        }
    }
    compare(checker, TreeId::FREE_SPACE, &free.ranges, None)
}

/// Compares what is stored as free with what no extent uses, in one block group or in all.
pub(super) fn compare(
    checker: &mut Checker<'_>,
    tree: TreeId,
    free: &Ranges,
    only: Option<LogicalAddr>,
) -> Flow {
    if checker.is_blind {
        return Ok(());
    }
    let mut wrong = Vec::new();
    for group in &checker.devices.groups {
        if only.is_some_and(|only| only != group.start) {
            continue;
        }
        let start = group.start.0;
        let end = start.saturating_add(group.len_bytes);
        let mut at = start;
        let extents = checker.extents.within(&(start..end)).iter();
        let used = extents.map(|extent| extent.start..extent.end());
        for used in used.chain(std::iter::once(end..end)) {
            if at < used.start
                && let Some(gap) = free.first_missing(&(at..used.start))
            {
                wrong.push((start, gap.start, FreeSpaceUseRule::Missing));
            }
            if free.overlap(&used) > 0 {
                wrong.push((start, used.start, FreeSpaceUseRule::Allocated));
            }
            at = at.max(used.end);
        }
    }
    for (group, at, rule) in wrong {
        let locus = Locus::tree(tree.0).in_group(group).at_block(at);
        checker.found(locus, rule)?;
    }
    Ok(())
}

fn end_of(range: FreeSpaceRange) -> u64 {
    range.start.0.saturating_add(range.len_bytes)
}

/// The runs of bits that are set, from the lowest bit of the first byte on.
pub(super) fn runs(bitmap: &[u8]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (index, byte) in (0u64..).zip(bitmap) {
        for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
            let at = index * 8 + bit;
            match runs.last_mut() {
                Some((_, end)) if *end == at => *end = at + 1,
                Some(_) | None => runs.push((at, at + 1)),
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_runs() {
        assert_eq!(runs(&[0b1000_0110, 0b11, 0]), [(1, 3), (7, 10)]);
        assert_eq!(runs(&[0; 4]), []);
    }
}
