//! Blocks that are claimed for a file before they are mapped, and where they are best placed.

use std::ops::Range;

use platter_vfs::Result;
use platter_vfs::file::{Allocation, Backing, BlockRuns, FileRun};

use super::super::Inode;
use super::super::state::InodeState;
use crate::change::{self, Goal};
use crate::ondisk::extent::MAPPING_LEN_MAX;
use crate::ondisk::{AgBlock, AgNr, FsBlock};
use crate::space::Claim;

/// Where a file got blocks last: a block of it, and where that is.
#[derive(Debug, Default)]
pub struct Placement {
    pub(super) last: Option<(u64, FsBlock)>,
}

/// Blocks that were claimed and are not mapped yet.
#[derive(Debug)]
pub struct Claimed {
    pub(super) run: FileRun,
    /// Absent once it is mapped.
    pub(super) claim: Option<Claim>,
    /// Blocks of the claim that follow those of the run, for the end of the file.
    pub(super) ahead: u64,
}

impl Allocation for Claimed {
    fn run(&self) -> FileRun {
        self.run
    }
}

/// Claims blocks for the first of a range, and up to so many after all of it.
pub(super) fn claim(
    file: &Inode,
    blocks: &Range<u64>,
    ahead: u64,
    placement: &Placement,
) -> Result<Claimed> {
    let context = file.context();
    let at = {
        let state = file.state.read();
        goal(file, &state, blocks.start, placement)?
    };
    let (group, _) = context.geometry().split_inode(file.number);
    let wanted = blocks.end - blocks.start;
    let most = (wanted + ahead).min(MAPPING_LEN_MAX);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let claim = change::claim(context, most, &Goal { at, group })?;
    let start = context.geometry().fs_block(claim.ag, claim.start);
    let count = wanted.min(claim.count.into());
    Ok(Claimed {
        ahead: u64::from(claim.count) - count,
        run: FileRun {
            first: blocks.start,
            count,
            backing: Backing::Written(context.geometry().byte_offset(start)),
        },
        claim: Some(claim),
    })
}

/// Where a block is best placed: after the block before it, or as far from the last one as in the file.
fn goal(
    file: &Inode,
    state: &InodeState,
    block: u64,
    placement: &Placement,
) -> Result<Option<FsBlock>> {
    if let Some(before) = block.checked_sub(1) {
        let run = state.run(file.context(), before)?;
        if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
            return Ok(Some(block_at(file, start + (1 << file.block_bits()))));
        }
    }
    Ok(placement.last.and_then(|(last, place)| {
        let ahead = block.checked_sub(last)?;
        place.0.checked_add(ahead).map(FsBlock)
    }))
}

/// The block of the filesystem at a byte of the device.
pub(super) fn block_at(file: &Inode, offset: u64) -> FsBlock {
    let geometry = file.context().geometry();
    let block = offset >> file.block_bits();
    let ag_blocks = u64::from(geometry.ag_blocks).max(1);
    let ag = AgNr(u32::try_from(block / ag_blocks).unwrap_or(u32::MAX));
    let within = u32::try_from(block % ag_blocks).unwrap_or(u32::MAX);
    geometry.fs_block(ag, AgBlock(within))
}
