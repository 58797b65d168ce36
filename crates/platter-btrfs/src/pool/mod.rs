//! Commands on the devices of a filesystem that is written: balance, devices that come and go, their sizes.
//!
//! All of them move chunks, each in commits of its own: one that is interrupted leaves a
//! valid filesystem, and goes on when it is given again. Other threads may use the filesystem meanwhile.

mod filters;
mod balance;
mod devices;
mod replace;

use std::ops::RangeInclusive;

use platter_vfs::devices::{Moved, Moving};
use platter_vfs::{Condition, Error, Result, Unsupported};

use crate::ondisk::chunk_item::{BlockGroupFlags, ChunkItem, Profile};
use crate::ondisk::{DeviceId, LogicalAddr};
use crate::txn::{WriteContext, compact, unused};

pub(crate) use balance::balance;
pub use balance::{BalanceArgs, BalanceFilter};
pub(crate) use devices::{add_device, only_device, remove_device, resize_device};
pub(crate) use replace::replace_device;

/// Moves the chunks that are `wanted`, each once, those that are added meanwhile as well: what is in one to other chunks
/// that are `usable`, where these have the space, else the chunk as a whole. It begins with the lowest
/// address. Of types that have fewer chunks than their limits say, none is moved.
fn move_chunks(
    fs: &WriteContext,
    moving: Moving<'_>,
    wanted: &dyn Fn(&ChunkItem, u64) -> Option<Profile>,
    usable: &dyn Fn(&ChunkItem) -> bool,
    limit: &dyn Fn(BlockGroupFlags) -> RangeInclusive<u64>,
) -> Result<Moved> {
    fs.sync()?;
    let mut moved = Moved::default();
    let used = |chunk: &ChunkItem| {
        let group = fs.groups().find(chunk.start, 1);
        group.map_or(0, |group| group.space().used)
    };
    let mut there: Vec<(BlockGroupFlags, u64)> = Vec::new();
    let map = fs.blocks().store().map();
    for chunk in map.iter().filter(|it| wanted(it, used(it)).is_some()) {
        let types = types_of(chunk);
        match there.iter_mut().find(|(it, _)| *it == types) {
            Some((_, count)) => *count += 1,
            None => there.push((types, 1)),
        }
    }
    drop(map);
    let is_enough = |types| {
        let found = there.iter().find(|(it, _)| *it == types);
        let count = found.map_or(0, |(_, count)| *count);
        count >= *limit(types).start()
    };
    let empty = remove_unused(fs)?;
    moved.considered += empty;
    moved.removed += empty;
    let mut done: Vec<(LogicalAddr, BlockGroupFlags)> = Vec::new();
    loop {
        let map = fs.blocks().store().map();
        let left: Vec<_> = map
            .iter()
            .filter(|chunk| {
                let types = types_of(chunk);
                let of_types = done.iter().filter(|(_, it)| *it == types).count() as u64;
                let is_done = done.iter().any(|(start, _)| *start == chunk.start);
                !is_done && of_types < *limit(types).end() && is_enough(types)
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
            moved.considered = total.max(map.iter().count() as u64);
            return Ok(moved);
        }
        let (start, types) = (chunk.start, types_of(chunk));
        let flags = chunk.flags.difference(BlockGroupFlags::PROFILES) | profile.flags();
        let others = map
            .iter()
            .filter(|it| it.start != start && it.flags == flags);
        let others = others.filter(|it| usable(it)).map(|it| it.start).collect();
        drop(left);
        drop(map);
        let what = compact::move_chunk(fs, start, profile, &others)?;
        done.push((start, types));
        moved.moved += u64::from(what != compact::Moved::Gone);
        moved.removed += u64::from(what == compact::Moved::Emptied);
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
pub(crate) fn check_device(fs: &WriteContext, device: DeviceId) -> Result<()> {
    let members = fs.blocks().store().members();
    if members.iter().any(|member| member.id == device) {
        return Ok(());
    }
    let ids: Vec<_> = members.iter().map(|it| it.id.to_string()).collect();
    let text = format!("has no device {device}; there are: {}", ids.join(", "));
    Err(Condition::NotFound.because(text))
}

pub(crate) fn unsupported(feature: String, reason: Option<&'static str>) -> Error {
    let unsupported = Unsupported {
        filesystem: "btrfs",
        feature,
        reason,
    };
    unsupported.into()
}
