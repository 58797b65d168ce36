//! Realtime extents that recovery frees: their bits in the bitmaps, the summaries of these, and the count of the
//! superblock, which the bitmaps have the last word on.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};
use zerocopy::FromBytes;

use super::rules::IntentRule;
use crate::context::FsContext;
use crate::ondisk::realtime::RtBlockKind;
use crate::ondisk::{DiskSuperblock, FsBlock, Geometry, RtBlock, Superblock, SuperblockRule};
use crate::realtime::{self, FreeRuns, Section, WORD_BITS};

/// For the blocks that are read.
const CACHE_BYTES: u64 = 1 << 20;

/// Blocks of the realtime device that are free from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RtFreed {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

/// Frees extents, and counts those that are free.
pub(crate) fn free_extents(
    data: &Arc<dyn BlockDevice>,
    primary: Superblock,
    freed: &[RtFreed],
) -> Result<()> {
    let geometry = Geometry::new(&primary);
    if geometry.rt_blocks == 0 && freed.is_empty() {
        return Ok(());
    }
    let budget = Arc::new(MemoryBudget::new(CACHE_BYTES));
    let context = FsContext::new(Arc::clone(data), None, primary, budget);
    match free_all(&context, freed) {
        Ok(free) => store_count(&**data, &geometry, free),
        // Nothing depends on the count, and what can be read stays readable.
        Err(Error::Corrupt(_)) if freed.is_empty() => Ok(()),
        Err(error) => Err(error),
    }
}

fn broken(rule: IntentRule) -> Error {
    Corrupt::new(Locus::UNKNOWN, rule).into()
}

/// The freed extents of each group, in order.
fn by_group(geometry: &Geometry, freed: &[RtFreed]) -> Result<BTreeMap<u64, Vec<Range<u64>>>> {
    let unit = u64::from(geometry.rt_extent_blocks.max(1));
    let mut groups: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
    for one in freed {
        let start = RtBlock(one.start);
        if !geometry.contains_rt(start, one.count) {
            return Err(broken(IntentRule::Extent));
        }
        let (group, within) = geometry.split_rt(start);
        let blocks = within..within + one.count;
        groups.entry(group).or_default().push(blocks);
    }
    for runs in groups.values_mut() {
        runs.sort_unstable_by_key(|run| run.start);
        let overlaps = |pair: &[Range<u64>]| pair[0].end > pair[1].start;
        if runs.windows(2).any(overlaps) {
            return Err(broken(IntentRule::DoubleFree));
        }
        // One extent may be of two mappings, one written and one unwritten.
        realtime::join(runs);
        for run in runs {
            if !run.start.is_multiple_of(unit) || !run.end.is_multiple_of(unit) {
                return Err(broken(IntentRule::Extent));
            }
            *run = run.start / unit..run.end / unit;
        }
    }
    Ok(groups)
}

/// Returns the number of free extents.
fn free_all(context: &FsContext, freed: &[RtFreed]) -> Result<u64> {
    let superblock = &context.superblock;
    let mut freed = by_group(context.geometry(), freed)?;
    let has_groups = superblock.features.has_rtgroups();
    let count = if has_groups {
        superblock.rt_group_count
    } else {
        1
    };
    let mut free = 0_u64;
    for group in 0..count {
        let section = if has_groups {
            realtime::of_group(context, group)?
        } else {
            realtime::whole(superblock)
        };
        let section = section.ok_or_else(|| broken(IntentRule::Bitmap))?;
        if section.bitmap_blocks > context.geometry().data_blocks() {
            return Err(broken(IntentRule::Bitmap));
        }
        let extents = freed.remove(&u64::from(group)).unwrap_or_default();
        free = free.saturating_add(free_in(context, &section, &extents)?);
    }
    Ok(free)
}

/// Frees extents of a section, which ascend. Returns the number of all that are free.
fn free_in(context: &FsContext, section: &Section, extents: &[Range<u64>]) -> Result<u64> {
    let per_block = section.words * WORD_BITS;
    let runs = FreeRuns::of_bitmap(section, |block| {
        let found = section.read(context, RtBlockKind::Bitmap, block)?;
        let mut found = found.ok_or_else(|| broken(IntentRule::Bitmap))?;
        let (first, end) = (block * per_block, (block + 1) * per_block);
        let mut has_changed = false;
        let begun = extents.partition_point(|run| run.end <= first);
        let extents = extents.get(begun..).unwrap_or_default();
        for run in extents.iter().take_while(|run| run.start < end) {
            for bit in run.start.max(first)..run.end.min(end) {
                let within = bit - first;
                let word = usize::try_from(within / WORD_BITS).ok();
                let word = word.and_then(|word| found.words.get_mut(word));
                let mask = 1 << (within % WORD_BITS);
                let word = word.filter(|word| **word & mask == 0);
                *word.ok_or_else(|| broken(IntentRule::DoubleFree))? |= mask;
                has_changed = true;
            }
        }
        if has_changed {
            write(context, section, found.at, &found.words)?;
        }
        Ok(found.words)
    })?;
    if !extents.is_empty() {
        for block in 0..section.summary_blocks {
            let found = section.read(context, RtBlockKind::Summary, block)?;
            let found = found.ok_or_else(|| broken(IntentRule::Bitmap))?;
            let counts = runs.summary(section, block);
            if counts != found.words {
                write(context, section, found.at, &counts)?;
            }
        }
    }
    Ok(runs.free)
}

/// Stores the words of a block.
fn write(context: &FsContext, section: &Section, at: FsBlock, words: &[u32]) -> Result<()> {
    let geometry = context.geometry();
    let place = geometry.byte_offset(at);
    let mut bytes = vec![0; geometry.block_bytes() as usize];
    context.device().read_at(place, &mut bytes)?;
    section.store(&mut bytes, words);
    Ok(context.device().write_at(place, &bytes)?)
}

/// Stores the number of free extents in the primary superblock.
fn store_count(device: &dyn BlockDevice, geometry: &Geometry, free: u64) -> Result<()> {
    let mut sector = vec![0; geometry.sector_bytes() as usize];
    device.read_at(0, &mut sector)?;
    let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(&mut sector) else {
        return Err(Corrupt::new(Locus::group(0), SuperblockRule::SectorSize).into());
    };
    if disk.free_rt_extents.get() == free {
        return Ok(());
    }
    disk.free_rt_extents.set(free);
    if geometry.features.is_v5() {
        DiskSuperblock::seal(&mut sector);
    }
    Ok(device.write_at(0, &sector)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn extents_are_whole_however_they_are_mapped() {
        let mut geometry = sample_geometry();
        (geometry.rt_blocks, geometry.rt_extent_blocks) = (1000, 4);
        let freed = |parts: &[(u64, u64)]| {
            let freed: Vec<_> = parts
                .iter()
                .map(|&(start, count)| RtFreed { start, count })
                .collect();
            by_group(&geometry, &freed)
        };
        let groups = freed(&[(9, 3), (40, 4), (8, 1), (12, 4)]).unwrap();
        assert_eq!(groups, BTreeMap::from([(0, vec![2..4, 10..11])]));
        let rule = |parts| match freed(parts).unwrap_err() {
            Error::Corrupt(corrupt) => corrupt.to_string(),
            other @ (Error::Condition(_)
            | Error::Refused(_)
            | Error::Unsupported(_)
            | Error::Io(_)) => {
                panic!("{other}")
            }
        };
        let of = |wanted| broken(wanted).to_string();
        assert!(of(IntentRule::Extent).contains(&rule(&[(8, 3)])));
        assert!(of(IntentRule::Extent).contains(&rule(&[(998, 4)])));
        assert!(of(IntentRule::DoubleFree).contains(&rule(&[(8, 4), (8, 1)])));
    }
}
