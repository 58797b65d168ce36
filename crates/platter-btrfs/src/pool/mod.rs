//! Commands on the devices of a filesystem that is not mounted: balance, devices that come and go, their sizes.
//!
//! All of them move chunks, each in a commit of its own: one that is interrupted leaves a
//! valid filesystem, and goes on when it is given again.

mod balance;
mod devices;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Condition, Result};

use crate::mount::MountOptions;
use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem, Profile};
use crate::ondisk::{DeviceId, LogicalAddr};
use crate::txn::{WriteContext, restripe, unused};

pub use balance::{BalanceArgs, BalanceFilter};

/// Listens to a command on devices: chunks that were moved, and how many there are. `Break` ends it after the last one.
pub type Moving<'m> = &'m mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// What a command on devices came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Chunks that were looked at.
    pub considered: u64,
    /// Chunks that were moved.
    pub moved: u64,
    /// Chunks that were removed, as nothing was in them.
    pub removed: u64,
    /// The listener ended it.
    pub is_cancelled: bool,
}

/// A filesystem whose devices are changed.
#[derive(Debug, Clone)]
pub struct PoolRequest {
    /// Its devices.
    pub devices: Vec<Arc<dyn BlockDevice>>,
    /// How it is opened.
    pub options: MountOptions,
    /// Where its caches take their memory.
    pub budget: Arc<MemoryBudget>,
    /// Time and random numbers.
    pub clock: Arc<dyn Clock>,
}

/// Moves the chunks that are `wanted`, each once, those that are added meanwhile as well.
fn move_chunks(
    fs: &WriteContext,
    moving: Moving<'_>,
    wanted: &dyn Fn(&ChunkItem, u64) -> Option<Profile>,
    limit: &dyn Fn(BlockGroupFlags) -> u64,
) -> Result<Moved> {
    fs.sync()?;
    let mut moved = Moved::default();
    let empty = remove_unused(fs)?;
    moved.considered += empty;
    moved.removed += empty;
    let mut done: Vec<(LogicalAddr, BlockGroupFlags)> = Vec::new();
    loop {
        let map = fs.blocks().store().map();
        let used = |chunk: &ChunkItem| {
            let group = fs.groups().find(chunk.start, 1);
            group.map_or(0, |group| group.space().used)
        };
        let left: Vec<_> = map
            .iter()
            .filter(|chunk| {
                let types = types_of(chunk);
                let of_types = done.iter().filter(|(_, it)| *it == types).count() as u64;
                !done.iter().any(|(start, _)| *start == chunk.start) && of_types < limit(types)
            })
            .filter_map(|chunk| Some((chunk, wanted(chunk, used(chunk))?)))
            .collect();
        let total = moved.considered + left.len() as u64;
        let Some((chunk, profile)) = left.first().copied() else {
            moved.considered = moved.considered.max(map.iter().count() as u64);
            moved.removed += remove_unused(fs)?;
            return Ok(moved);
        };
        if moving(moved.moved, total).is_break() {
            moved.is_cancelled = true;
            return Ok(moved);
        }
        restripe::move_chunk(fs, chunk.start, profile)?;
        done.push((chunk.start, types_of(chunk)));
        moved.moved += 1;
        moved.considered += 1;
    }
}

fn types_of(chunk: &ChunkItem) -> BlockGroupFlags {
    chunk.flags.intersection(BlockGroupFlags::TYPES)
}

/// Removes groups that nothing is in.
fn remove_unused(fs: &WriteContext) -> Result<u64> {
    let removed = unused::remove_groups(fs)? as u64;
    fs.sync()?;
    Ok(removed)
}

/// Refuses a number that no device has.
///
/// # Errors
/// `NotFound`.
fn check_device(fs: &WriteContext, device: DeviceId) -> Result<()> {
    let members = fs.blocks().store().members();
    if members.iter().any(|member| member.id == device) {
        Ok(())
    } else {
        Err(Condition::NotFound.into())
    }
}
