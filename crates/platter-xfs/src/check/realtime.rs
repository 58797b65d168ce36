//! The realtime section: its bitmaps and summaries against what files use.

use std::collections::HashMap;
use std::ops::Range;

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::{Checker, Flow, RealtimeRule, TotalsRule, locus_of};
use crate::ondisk::extent::ExtentDevice;
use crate::ondisk::inode::InodeRule;
use crate::ondisk::realtime::{DiskRtSuperblock, RtBlockKind};
use crate::ondisk::{Inode, InodeNr, RtBlock};
use crate::realtime::{self, FreeRuns, Section, WORD_BITS, expected_words};

/// Extents in use: first block, blocks, owner.
#[derive(Debug, Default)]
pub(super) struct RtExtents(Vec<(u64, u64, InodeNr)>);

impl RtExtents {
    /// The owners of extents, which are sorted, that begin in an extent of another owner, unless both may share blocks.
    fn conflicts(&self, may_share: impl Fn(InodeNr) -> bool) -> Vec<InodeNr> {
        let (mut end, mut unshared_end) = (0, 0);
        let mut found = Vec::new();
        for &(start, count, inode) in &self.0 {
            let shares = may_share(inode);
            let conflicting_end = if shares { unshared_end } else { end };
            if start < conflicting_end {
                found.push(inode);
            }
            let last = start.saturating_add(count);
            end = end.max(last);
            if !shares {
                unshared_end = unshared_end.max(last);
            }
        }
        found
    }
}

/// Claims blocks of the realtime device.
pub(super) fn claim(checker: &mut Checker<'_>, inode: &Inode, start: RtBlock, count: u64) {
    checker.rt_extents.0.push((start.0, count, inode.number));
}

/// Checks the realtime section.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let context = checker.context;
    let superblock = &context.superblock;
    let root = Locus::group(0);
    if superblock.rt_blocks == 0 {
        if superblock.free_rt_extents != 0 {
            checker.found(root, TotalsRule::FreeRtExtents)?;
        }
        return Ok(());
    }
    let mut used = extents_in_use(checker)?;
    let has_groups = superblock.features.has_rtgroups();
    let mut groups = 1;
    if has_groups {
        check_superblock(checker)?;
        // The superblock is in the first extent.
        let first = used.entry(0).or_default();
        first.insert(0, 0..1);
        realtime::join(first);
        groups = superblock.rt_group_count;
    }
    let mut free = 0_u64;
    for group in 0..groups {
        checker
            .report
            .progress("realtime", group.into(), groups.into())?;
        let section = if has_groups {
            section_of_group(checker, group)?
        } else {
            realtime::whole(superblock)
        };
        let Some(section) = section else {
            return Ok(());
        };
        let used = used.remove(&u64::from(group)).unwrap_or_default();
        if !check_bitmap(checker, &section, &used)? {
            return Ok(());
        }
        let per_block = section.words * WORD_BITS;
        let runs = FreeRuns::between(&used, section.extents, per_block);
        free = free.saturating_add(runs.free);
        check_summary(checker, &section, &runs)?;
    }
    if free != superblock.free_rt_extents {
        checker.found(root, TotalsRule::FreeRtExtents)?;
    }
    Ok(())
}

/// Realtime extents in use by group, in order; without groups, all are those of the first.
fn extents_in_use(checker: &mut Checker<'_>) -> Flow<HashMap<u64, Vec<Range<u64>>>> {
    let geometry = checker.context.geometry();
    let mut claims = std::mem::take(&mut checker.rt_extents);
    claims.0.sort_unstable();
    let features = geometry.features;
    let has_sharing = features.has_rtgroups() && features.has_reflink();
    for inode in claims.conflicts(|inode| has_sharing && checker.sharing.contains(&inode)) {
        checker.found(locus_of(inode), RealtimeRule::Multiple)?;
    }
    let unit = u64::from(geometry.rt_extent_blocks.max(1));
    let mut used: HashMap<u64, Vec<Range<u64>>> = HashMap::new();
    for (start, count, _) in claims.0 {
        let (group, within) = geometry.split_rt(RtBlock(start));
        let extents = within / unit..within.saturating_add(count).div_ceil(unit);
        used.entry(group).or_default().push(extents);
    }
    for runs in used.values_mut() {
        realtime::join(runs);
    }
    Ok(used)
}

/// The superblock at the start of a realtime device with groups, if the device was named.
fn check_superblock(checker: &mut Checker<'_>) -> Flow {
    let context = checker.context;
    let Ok(device) = context.device_of(ExtentDevice::Realtime) else {
        return Ok(());
    };
    let locus = Locus::UNKNOWN.at_offset(0);
    let mut block = vec![0; context.geometry().block_bytes() as usize];
    let read = device.read_at(0, &mut block).map_err(Into::into);
    let Some(()) = checker.tolerate("realtime superblock", locus, read)? else {
        return Ok(());
    };
    let disk = match DiskRtSuperblock::decode(&block) {
        Ok(disk) => disk,
        Err(rule) => return checker.found(locus, rule),
    };
    let superblock = &context.superblock;
    for rule in disk.differs_from(superblock) {
        checker.found(locus, rule)?;
    }
    Ok(())
}

/// The section of a group; `None` if it has none, which is reported.
fn section_of_group(checker: &mut Checker<'_>, group: u32) -> Flow<Option<Section>> {
    let superblock = &checker.context.superblock;
    let root = locus_of(superblock.metadir_inode.unwrap_or(superblock.root_inode));
    let found = realtime::of_group(checker.context, group);
    let Some(found) = checker.tolerate("realtime section", root, found)? else {
        return Ok(None);
    };
    let Some(section) = found else {
        if !checker.misses_entries {
            checker.found(root, RealtimeRule::Hole)?;
        }
        return Ok(None);
    };
    let sizes = [
        (section.bitmap, section.bitmap_blocks),
        (section.summary, section.summary_blocks),
    ];
    for (number, blocks) in sizes {
        let bytes = blocks << superblock.block_bits;
        let inode = checker.inode(number);
        if inode.is_some_and(|inode| inode.size_bytes != bytes) {
            checker.found(locus_of(number), InodeRule::Size)?;
        }
    }
    Ok(Some(section))
}

/// Compares a bitmap with the extents in use. Returns whether all of it could be read.
fn check_bitmap(checker: &mut Checker<'_>, section: &Section, used: &[Range<u64>]) -> Flow<bool> {
    let mut is_same = true;
    // No bit is set after the last extent.
    let mut used = used.to_vec();
    used.push(section.extents..u64::MAX);
    for block in 0..section.bitmap_blocks {
        if block % 256 == 0 {
            checker
                .report
                .progress("realtime", block, section.bitmap_blocks)?;
        }
        let stored = words(checker, section, RtBlockKind::Bitmap, block)?;
        let Some(stored) = stored else {
            return Ok(false);
        };
        is_same &= stored == expected_words(block, section.words, &used);
    }
    if !is_same && !checker.is_blind {
        checker.found(locus_of(section.bitmap), RealtimeRule::Bitmap)?;
    }
    Ok(!checker.is_blind)
}

fn check_summary(checker: &mut Checker<'_>, section: &Section, runs: &FreeRuns) -> Flow {
    let mut is_same = true;
    for block in 0..section.summary_blocks {
        let stored = words(checker, section, RtBlockKind::Summary, block)?;
        let Some(stored) = stored else {
            return Ok(());
        };
        is_same &= stored == runs.summary(section, block);
    }
    if !is_same {
        checker.found(locus_of(section.summary), RealtimeRule::Summary)?;
    }
    Ok(())
}

/// The words of a block of a bitmap or summary; `None` if it cannot be read, which is reported.
fn words(
    checker: &mut Checker<'_>,
    section: &Section,
    kind: RtBlockKind,
    block: u64,
) -> Flow<Option<Vec<u32>>> {
    let number = section.file(kind);
    // A corrupt one was reported.
    if checker.inode(number).is_none() {
        return Ok(None);
    }
    let read = section.read(checker.context, kind, block);
    let Some(found) = checker.tolerate("realtime section", locus_of(number), read)? else {
        return Ok(None);
    };
    let Some(found) = found else {
        checker.found(locus_of(number), RealtimeRule::Hole)?;
        return Ok(None);
    };
    let locus = checker.locus_at(found.at).of_inode(number.get());
    checker.note_lsn(found.lsn, locus);
    Ok(Some(found.words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_the_flag_share_realtime_extents() {
        let number = |number| InodeNr::new(number).unwrap();
        let [one, two, fixed] = [131, 132, 133].map(number);
        let conflicts = |extents: &[(u64, u64, InodeNr)]| {
            RtExtents(extents.to_vec()).conflicts(|inode| inode != fixed)
        };
        // Also within one file.
        let shared = [(0, 8, one), (2, 4, two), (4, 8, two), (5, 1, one)];
        assert_eq!(conflicts(&shared), []);
        assert_eq!(conflicts(&[(0, 8, one), (8, 4, fixed), (12, 2, two)]), []);
        assert_eq!(conflicts(&[(0, 8, one), (7, 4, fixed)]), [fixed]);
        let overlaid = [(0, 8, fixed), (2, 2, one), (4, 6, two), (9, 1, fixed)];
        assert_eq!(conflicts(&overlaid), [one, two, fixed]);
    }
}
