//! Discarding of space that nothing is in (`FITRIM`).

use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_vfs::{Result, Trim};

use super::{Handle, WriteContext, chunks, trees};
use crate::block_group::BlockGroup;
use crate::chunk::{Members, discard};
use crate::ondisk::DeviceId;
use crate::ondisk::chunk_item::STRIPE_BYTES;
use crate::ondisk::superblock::SUPERBLOCK_OFFSETS;

/// The most that is discarded while others wait to allocate space in a block group.
const GROUP_BYTES: u64 = 64 << 20;
/// The most that is discarded while others wait to allocate chunks.
const DEVICE_BYTES: u64 = 1 << 30;

/// Discards free space of block groups in a range of logical addresses, and all that no chunk has of the devices, as the
/// kernel does. Returns how many bytes.
///
/// # Errors
/// Those of the devices. That the mount ends.
pub(crate) fn trim(fs: &WriteContext, asked: &Trim) -> Result<u64> {
    // What was freed is free after it.
    fs.sync()?;
    let mut discarded = 0;
    for group in fs.groups.iter() {
        discarded += trim_group(fs, &group, asked)?;
    }
    let members = fs.blocks().store().members();
    let ids: Vec<DeviceId> = members.iter().map(|member| member.id).collect();
    drop(members);
    for id in ids {
        discarded += trim_device(fs, id, asked.min_bytes)?;
    }
    Ok(discarded)
}

fn trim_group(fs: &WriteContext, group: &BlockGroup, asked: &Trim) -> Result<u64> {
    let end = asked.start_bytes.saturating_add(asked.len_bytes);
    let wanted = asked.start_bytes.max(group.start().0)..end.min(group.end().0);
    if wanted.is_empty() {
        return Ok(0);
    }
    // The trees that free space is read from are those of the transaction before.
    let handle = fs.begin_unreserved(0)?;
    if group.is_removed() {
        return Ok(0);
    }
    group.load(&|group: &BlockGroup| trees::read_free_space(fs, group))?;
    drop(handle);
    let store = fs.blocks().store();
    let clipped = |range: &Range<u64>| range.start.max(wanted.start)..range.end.min(wanted.end);
    let mut discarded = 0;
    let mut next = Some(wanted.start);
    while let Some(from) = next {
        let _thawed = begin_piece(fs)?;
        next = group.visit_free(from, GROUP_BYTES, &mut |piece, whole| {
            let (piece, whole) = (clipped(piece), clipped(whole));
            let is_long = whole.end.saturating_sub(whole.start) >= asked.min_bytes;
            if is_long && !piece.is_empty() {
                discarded += discard(store, &piece)?;
            }
            Ok(())
        })?;
    }
    Ok(discarded)
}

/// Discards what no chunk has of a device.
fn trim_device(fs: &WriteContext, id: DeviceId, min_bytes: u64) -> Result<u64> {
    let (mut discarded, mut from) = (0, 0);
    loop {
        let _thawed = begin_piece(fs)?;
        // No chunk is allocated meanwhile, and a device that is removed or made smaller waits for the members.
        let _turn = fs.chunks.turn.lock();
        let members = fs.blocks().store().members();
        let Some((device, range)) = unused_piece(fs, &members, id, from, min_bytes) else {
            return Ok(discarded);
        };
        from = range.end;
        discarded += range.end - range.start;
        device.discard(range)?;
    }
}

/// Begins a piece, for which a freeze and an unmount wait.
///
/// # Errors
/// That the mount ends.
fn begin_piece(fs: &WriteContext) -> Result<Handle<'_>> {
    let handle = fs.begin_unreserved(0)?;
    fs.refuse_moving()?;
    Ok(handle)
}

/// The first piece of a device from `from` on that no chunk has; `None` if there is none. The device may have another
/// length than before, or be gone.
fn unused_piece(
    fs: &WriteContext,
    members: &Members,
    id: DeviceId,
    from: u64,
    min_bytes: u64,
) -> Option<(Arc<dyn BlockDevice>, Range<u64>)> {
    let member = members.iter().find(|member| member.id == id)?;
    let device = Arc::clone(member.device.as_ref()?);
    let len_bytes = device.geometry().len_bytes;
    let total = member.total_bytes.unwrap_or_default().min(len_bytes);
    let mut free = chunks::free_of_device(fs, member, total);
    for offset in SUPERBLOCK_OFFSETS {
        free.exclude(&(offset..offset + STRIPE_BYTES));
    }
    let mut long = free.since(from);
    let range = long.find(|range| range.end - range.start >= min_bytes.max(1))?;
    let start = range.start.max(from);
    Some((
        device,
        start..range.end.min(start.saturating_add(DEVICE_BYTES)),
    ))
}
