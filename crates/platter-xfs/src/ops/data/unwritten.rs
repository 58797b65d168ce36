//! Unwritten blocks that are allocated before anything is written: those that are asked for, and those around what is
//! written where an inode has a hint of its extent size.

use std::ops::Range;

use platter_vfs::file::{Backing, FileBlocks};
use platter_vfs::{Condition, Error, Result};

use super::super::Inode;
use super::placement::{Placement, claim};
use super::steps::{self, Contents};
use crate::change::Cost;
use crate::ondisk::{FileBlock, InodeFlags};

/// What unwritten blocks are allocated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A caller asked for them: the last change says in the inode that blocks beyond its end are to stay.
    Asked,
    /// The extent size that the inode has as a hint.
    Hint,
}

/// Allocates unwritten blocks where the file has holes, none of which is dirty.
pub(super) fn fill_holes(file: &Inode, blocks: Range<u64>, purpose: Purpose) -> Result<()> {
    let placement = &mut *file.data.placement.lock();
    {
        let mut state = file.state.write();
        let mut holes = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let run = state.run(file.context(), at)?;
            let run = run.truncated(blocks.end - at);
            at = run.end();
            if run.backing == Backing::Hole {
                holes.extend(state.delayed.unreserved(run.first..run.end()));
            }
        }
        steps::reserve_blocks(file, &mut state, &holes, &[])?;
    }
    let filled = fill(file, blocks.clone(), purpose, placement);
    if filled.is_err() {
        file.release(blocks);
    }
    filled
}

/// Fills the holes around blocks that are to be allocated, to multiples of the extent size that the inode has as
/// a hint. Without space, no more than what is needed is allocated.
pub(super) fn follow_hint(file: &Inode, blocks: &Range<u64>) -> Result<()> {
    let parts: Vec<Range<u64>> = {
        let state = file.state.read();
        let hint = u64::from(state.inode.extent_size);
        if hint == 0 || !state.inode.flags.contains(InodeFlags::EXTSIZE) {
            return Ok(());
        }
        let start = blocks.start / hint * hint;
        let end = blocks.end.checked_next_multiple_of(hint);
        let end = end.unwrap_or(blocks.end).min(FileBlock::MAX.0);
        // What is dirty gets its blocks when it is written.
        state.delayed.dirty().gaps(start..end).collect()
    };
    for part in parts {
        match fill_holes(file, part, Purpose::Hint) {
            Err(Error::Condition(Condition::NoSpace)) => return Ok(()),
            filled => filled?,
        }
    }
    Ok(())
}

fn fill(
    file: &Inode,
    blocks: Range<u64>,
    purpose: Purpose,
    placement: &mut Placement,
) -> Result<()> {
    let is_asked = purpose == Purpose::Asked;
    let Some(mut hole) = first_hole(file, blocks.clone())? else {
        return if is_asked { keep(file) } else { Ok(()) };
    };
    loop {
        let mut claimed = claim(file, &hole, 0, placement)?;
        let next = first_hole(file, claimed.run.end()..blocks.end);
        let mapped = next.and_then(|next| {
            let contents = match next {
                None if is_asked => Contents::LastAsked,
                Some(_) | None => Contents::Unwritten,
            };
            steps::map_claimed(file, &mut claimed, 0, contents)?;
            Ok(next)
        });
        match mapped {
            Ok(next) => {
                file.note_placed(placement, &claimed.run);
                let Some(next) = next else { return Ok(()) };
                hole = next;
            }
            Err(error) => {
                file.give_back(claimed)?;
                return Err(error);
            }
        }
    }
}

/// The first hole of a range of blocks.
fn first_hole(file: &Inode, blocks: Range<u64>) -> Result<Option<Range<u64>>> {
    let mut at = blocks.start;
    while at < blocks.end {
        let run = file.state.read().run(file.context(), at)?;
        let run = run.truncated(blocks.end - at);
        at = run.end();
        if run.backing == Backing::Hole {
            return Ok(Some(run.first..at));
        }
    }
    Ok(None)
}

/// Says in the inode that blocks beyond its end were asked for, which stay.
fn keep(file: &Inode) -> Result<()> {
    if file.has_flag(InodeFlags::PREALLOC) {
        return Ok(());
    }
    file.change(Cost::default(), |_, edit, _| steps::set_preallocated(edit))
}
