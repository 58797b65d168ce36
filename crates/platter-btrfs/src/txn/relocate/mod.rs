//! Extents that move to other addresses: all that refers to them changes in one commit, when no handle is open.
//!
//! Blocks that lead to them are copied once each, however many trees share them, and so stay shared. The extent tree
//! says what refers to a block; nothing changes unless all of it is found, and is as it has to be.

mod graph;
mod replace;

use std::collections::BTreeMap;

use platter_vfs::Result;

use super::{WriteContext, convert, ended, space, trees};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::{Generation, LogicalAddr};
use graph::{Graph, Unmoved};

/// Data with a copy.
#[derive(Debug)]
pub(crate) struct CopiedData {
    /// Where it lies.
    pub(crate) from: LogicalAddr,
    /// Where the copy lies, which was allocated.
    pub(crate) to: LogicalAddr,
    /// The length of both.
    pub(crate) len_bytes: u64,
    /// The checksums of sectors, by their addresses in the copy.
    pub(crate) checksums: BTreeMap<u64, Vec<u8>>,
    /// The copy has references, and an item.
    pub(crate) is_referred_to: bool,
}

/// What is to move.
#[derive(Debug)]
pub(crate) enum Moving {
    /// Tree blocks of subvolumes.
    Blocks(Vec<LogicalAddr>),
    /// Data, whose copies are referred to instead.
    Data(Vec<CopiedData>),
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All of it has moved, but for what had been freed.
    Moved,
    /// Nothing has moved: too many blocks lead to it.
    TooMany,
    /// Nothing has moved: there are references that cannot be changed.
    Refused,
    /// Nothing has moved in this commit. The next one may.
    Later,
}

/// What a commit is to move, and what the last one did.
#[derive(Debug, Default)]
pub(super) struct Relocation {
    planned: Option<Planned>,
    done: Option<(Moving, Outcome)>,
}

#[derive(Debug)]
struct Planned {
    moving: Moving,
    blocks_max: u32,
    reserved_bytes: u64,
}

/// Moves extents by a commit that copies at most so many tree blocks, which are [reserved](reserve_blocks). One thread
/// does so at a time; it has no handle.
///
/// # Errors
/// Those of a commit.
pub(crate) fn commit(
    fs: &WriteContext,
    moving: Moving,
    blocks_max: u32,
) -> Result<(Moving, Outcome)> {
    let reserved_bytes = u64::from(blocks_max) * fs.node_bytes();
    let mut handle = fs.begin_unreserved(blocks_max)?;
    // The credits are left to the commit.
    let credits = std::mem::take(&mut handle.credits);
    fs.transactions
        .change(credits, |running| running.blocks += credits);
    fs.relocation.lock().planned = Some(Planned {
        moving,
        blocks_max,
        reserved_bytes,
    });
    let generation = handle.generation();
    drop(handle);
    fs.commit(generation)?;
    let done = fs.relocation.lock().done.take();
    done.ok_or_else(ended)
}

/// Reserves tree blocks for [`commit`]. Returns whether there is space for them.
pub(crate) fn reserve_blocks(fs: &WriteContext, blocks: u32) -> bool {
    let bytes = u64::from(blocks) * fs.node_bytes();
    space::try_reserve(fs, BlockGroupFlags::METADATA, bytes)
}

/// Moves what the running transaction is to move. No handle is open. Unless `is_unshared`, blocks of this
/// transaction may be shared, and nothing is moved.
pub(super) fn apply(fs: &WriteContext, generation: Generation, is_unshared: bool) -> Result<()> {
    let Some(planned) = fs.relocation.lock().planned.take() else {
        return Ok(());
    };
    let Planned {
        mut moving,
        blocks_max,
        reserved_bytes,
    } = planned;
    let outcome = if is_unshared {
        move_now(fs, generation, &mut moving, blocks_max)?
    } else {
        Outcome::Later
    };
    fs.reservations.release_metadata(reserved_bytes);
    fs.relocation.lock().done = Some((moving, outcome));
    Ok(())
}

fn move_now(
    fs: &WriteContext,
    generation: Generation,
    moving: &mut Moving,
    blocks_max: u32,
) -> Result<Outcome> {
    convert::run_references(fs, generation)?;
    trees::store_roots(fs, generation)?;
    convert::run_references(fs, generation)?;
    match Graph::find(fs, generation, moving, blocks_max as usize) {
        Ok(graph) => {
            let is_data = matches!(moving, Moving::Data(_));
            if is_data {
                fs.context.reads.begin_move(generation);
            }
            replace::all(fs, generation, &graph, moving)?;
            if is_data {
                // The checksums of the old addresses go next, and then their space.
                fs.context.reads.end_move();
            }
            Ok(Outcome::Moved)
        }
        Err(Unmoved::TooMany) => Ok(Outcome::TooMany),
        // A commit does not fail for what it has not begun to change.
        Err(Unmoved::Refused) => Ok(Outcome::Refused),
    }
}
