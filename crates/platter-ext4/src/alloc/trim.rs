//! Discarding free clusters (`FITRIM`).

use std::ops::Range;

use platter_vfs::{Error, Result};

use super::group::count;
use super::{Allocator, slot};
use crate::FsContext;
use crate::ondisk::{BlockNr, GroupNr};

/// Clusters discarded at once, with the group's lock held.
const DISCARD_CLUSTERS_MAX: u32 = 8192;

/// Discards the free blocks among `blocks` on the device, in runs of at least `need` clusters.
/// Returns their number.
///
/// Blocks freed by a transaction count as free only after its commit, so no durable metadata
/// refers to a discarded block; while the lock of its group is held, it is not allocated. A
/// group with a corrupt bitmap is skipped.
pub fn trim(space: &Allocator, fs: &FsContext, blocks: Range<BlockNr>, need: u32) -> Result<u64> {
    let ratio = u64::from(space.geometry.cluster_blocks);
    let mut trimmed = 0;
    for (group, within) in space.clusters_of(blocks) {
        if !space.slot(group).may_hold(need) {
            continue;
        }
        match trim_group(space, fs, group, within, need) {
            Ok(clusters) => trimmed += u64::from(clusters) * ratio,
            Err(error @ Error::Corrupt(_)) => space.pass_by(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(trimmed)
}

fn trim_group(
    space: &Allocator,
    fs: &FsContext,
    group: GroupNr,
    within: Range<u32>,
    need: u32,
) -> Result<u32> {
    let (mut at, mut trimmed) = (within.start, 0);
    // The end of the last discarded run, which may continue there.
    let mut last_end = None;
    while at < within.end {
        let held = slot::clusters(space, fs, group)?;
        let goes_on = last_end == Some(at) && held.free.is_free(at..at + 1);
        let start = if goes_on {
            at
        } else {
            let Some(run) = held.free.first_run(at, need.max(1)) else {
                break;
            };
            run.start
        };
        let run = start..held.free.run_end(start, within.end);
        if run.start >= within.end || !goes_on && count(&run) < need {
            break;
        }
        let end = run.end.min(run.start.saturating_add(DISCARD_CLUSTERS_MAX));
        let blocks = space.blocks_of(group, &(run.start..end));
        let geometry = &space.geometry;
        let bytes = geometry.offset_bytes(blocks.start)..geometry.offset_bytes(blocks.end);
        fs.device().discard(bytes)?;
        drop(held);
        trimmed += end - run.start;
        (at, last_end) = (end, Some(end));
    }
    Ok(trimmed)
}
