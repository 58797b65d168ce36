//! `FITRIM`: which free space is asked to be discarded.

use platter_vfs::{Condition, Result, Trim};

use crate::alloc;
use crate::ondisk::BlockNr;
use crate::ops::SuperBlock;

/// Discards free space. Returns bytes.
pub(super) fn trim(sb: &SuperBlock, asked: &Trim) -> Result<u64> {
    let fs = &sb.fs;
    let geometry = &fs.geometry;
    let space = sb.space()?;
    let bits = geometry.block_bits;
    let start = asked.start_bytes >> bits;
    let need = (asked.min_bytes >> bits) / u64::from(geometry.cluster_blocks);
    let need = u32::try_from(need).unwrap_or(u32::MAX);
    if need > geometry.clusters_per_group
        || start >= geometry.blocks_count
        || asked.len_bytes < u64::from(geometry.block_bytes)
    {
        return Err(Condition::InvalidArgument.into());
    }
    // What was freed before the call is discarded, too.
    if let Some(log) = fs.log() {
        log.commit_all()?;
    }
    let end = start.saturating_add(asked.len_bytes >> bits);
    let blocks = start.max(geometry.first_data_block.0)..end.min(geometry.blocks_count);
    if blocks.is_empty() {
        return Ok(0);
    }
    let trimmed = alloc::trim(space, fs, BlockNr(blocks.start)..BlockNr(blocks.end), need)?;
    Ok(trimmed << bits)
}
