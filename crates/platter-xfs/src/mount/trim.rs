//! Discarding free space (`FITRIM`).

use std::ops::{ControlFlow, Range};

use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, Result, Trim};

use crate::btree::Tree;
use crate::context::FsContext;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent};
use crate::ondisk::{AgBlock, AgNr};

/// Discards free space that nothing in the log still refers to. Returns how many bytes.
pub(super) fn trim(context: &FsContext, asked: &Trim) -> Result<u64> {
    let log = context.log().ok_or(Condition::ReadOnly)?;
    let geometry = context.geometry();
    if asked.start_bytes >= geometry.len_bytes() {
        return Err(Condition::InvalidArgument.into());
    }
    log.force_freed()?;
    let wanted = asked.start_bytes..asked.start_bytes.saturating_add(asked.len_bytes);
    let mut trimmed = 0;
    for ag in geometry.groups() {
        let start = geometry.ag_offset(ag);
        let end = start.saturating_add(u64::from(geometry.ag_len(ag)) << geometry.block_bits);
        if end <= wanted.start || start >= wanted.end {
            continue;
        }
        // The blocks stay free while this thread has the group.
        let mut held = context.space().lock(ag);
        held.finish(log);
        let busy = held.busy();
        let claims = &held.holds().claims;
        let free = free_blocks(context, ag)?;
        let free = free.within(0..u32::MAX).collect::<Vec<_>>();
        for extent in free {
            let unclaimed: Vec<_> = claims.gaps(extent).collect();
            for unused in unclaimed.into_iter().flat_map(|part| busy.gaps(part)) {
                trimmed += discard(context, ag, &unused, &wanted, asked.min_bytes)?;
            }
        }
    }
    Ok(trimmed)
}

fn free_blocks(context: &FsContext, ag: AgNr) -> Result<RangeSet<u32>> {
    let agf = context.agf(ag)?;
    let mut free = RangeSet::default();
    Tree::of_group(context, BtreeKind::Bno, ag, agf.bno).leaves(&mut |leaf| {
        for record in leaf.records::<DiskFreeExtent>() {
            let start = record.start.get();
            let end = start.saturating_add(record.count.get()).min(agf.length);
            if start < end {
                free.insert(start..end);
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(free)
}

fn discard(
    context: &FsContext,
    ag: AgNr,
    blocks: &Range<u32>,
    wanted: &Range<u64>,
    min_bytes: u64,
) -> Result<u64> {
    let geometry = context.geometry();
    let at = |block| geometry.byte_offset(geometry.fs_block(ag, AgBlock(block)));
    let len = u64::from(blocks.end - blocks.start) << geometry.block_bits;
    let start = at(blocks.start).max(wanted.start);
    let end = (at(blocks.start) + len).min(wanted.end);
    if start >= end || end - start < min_bytes.max(1) {
        return Ok(0);
    }
    context.device().discard(start..end)?;
    Ok(end - start)
}
