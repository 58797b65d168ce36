//! Devices that are added and removed, and made longer or shorter.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Uuid;
use platter_vfs::devices::{Moved, Moving};
use platter_vfs::{Condition, Result};

use super::{check_device, move_chunks, unsupported};
use crate::chunk::{Member, Members};
use crate::ondisk::chunk_item::ChunkItem;
use crate::ondisk::dev_item::DevItem;
use crate::ondisk::{DeviceId, Generation};
use crate::txn::{ChunkShape, Placing, WriteContext, devices, restripe};

/// The shortest device.
const DEVICE_BYTES_MIN: u64 = 16 << 20;
/// The shortest length that a device is made, as in the kernel.
const SHRUNK_BYTES_MIN: u64 = 256 << 20;

/// Adds a device, whose contents are lost. Returns its number.
///
/// # Errors
/// `Unsupported` for a device that is too short.
pub(crate) fn add_device(
    fs: &WriteContext,
    device: &Arc<dyn BlockDevice>,
    uuid: Uuid,
) -> Result<u64> {
    let superblock = fs.superblock();
    let sector = superblock.sector_bytes;
    let len_bytes = device.geometry().len_bytes;
    let total_bytes = len_bytes - len_bytes % u64::from(sector);
    if total_bytes < DEVICE_BYTES_MIN {
        return Err(unsupported(
            format!("{}, a device of {len_bytes} bytes,", device.name()),
            Some("it is too short"),
        ));
    }
    let members = fs.blocks().store().members();
    let last = members.iter().map(|member| member.id.0).max();
    drop(members);
    let id = last.and_then(|last| last.checked_add(1));
    let id = id.ok_or(Condition::InvalidArgument)?;
    let item = DevItem {
        id: DeviceId(id),
        total_bytes,
        bytes_used: 0,
        generation: Generation(0),
        sector_bytes: sector,
        io: (sector, sector),
        kind: 0,
        start_offset: 0,
        hints: (0, 0, 0),
        uuid,
        fsid: superblock.metadata_uuid,
    };
    devices::add(fs, device, item)?;
    Ok(id)
}

/// The number of the only device.
///
/// # Errors
/// `Unsupported` where there are several.
pub(crate) fn only_device(members: &Members) -> Result<DeviceId> {
    let mut all = members.iter();
    if let (Some(only), None) = (all.next(), all.next()) {
        return Ok(only.id);
    }
    let reason = Some("name one with `device resize`");
    Err(unsupported(
        "changing the size of several devices".to_owned(),
        reason,
    ))
}

/// Moves what is on a device to the others, and removes it.
///
/// # Errors
/// `ENOSPC` where the others have no space, or are too few for a profile: what was moved before stays so.
pub(crate) fn remove_device(
    fs: &WriteContext,
    device: DeviceId,
    moving: Moving<'_>,
) -> Result<Moved> {
    check_device(fs, device)?;
    if fs.blocks().store().members().iter().count() < 2 {
        return Err(unsupported("removing the only device".to_owned(), None));
    }
    refuse_too_few(fs, device)?;
    let placing = Placing {
        without: vec![device],
        ..Placing::default()
    };
    let _placed = restripe::set_placing(fs, placing);
    let is_on = |chunk: &ChunkItem| chunk.stripes.iter().any(|stripe| stripe.device == device);
    let wanted = |chunk: &ChunkItem, _: u64| is_on(chunk).then_some(chunk.profile);
    let usable = |chunk: &ChunkItem| !is_on(chunk);
    let moved = move_chunks(fs, moving, &wanted, &usable, &|_| 0..=u64::MAX)?;
    if !moved.is_cancelled {
        if !devices::chunks_on(fs, device).is_empty() {
            return Err(Condition::Busy.into());
        }
        devices::remove(fs, device)?;
    }
    Ok(moved)
}

/// Refuses to remove a device whose chunks need more devices than are left.
fn refuse_too_few(fs: &WriteContext, device: DeviceId) -> Result<()> {
    let members = fs.blocks().store().members();
    let is_left = |it: &&Member| it.id != device && it.device.is_some();
    let left = members.iter().filter(is_left).count();
    drop(members);
    let profiles = devices::chunks_on(fs, device).into_iter();
    let profiles = profiles.map(|chunk| (ChunkShape::of(chunk.profile).devices_min, chunk.profile));
    let Some((least, profile)) = profiles.max_by_key(|(least, _)| *least) else {
        return Ok(());
    };
    if least <= left {
        return Ok(());
    }
    let text = format!(
        "{} needs {least} devices, and without device {device} there would be {left}; convert it \
         by balance first, or add a device",
        profile.name()
    );
    Err(Condition::NoSpace.because(text))
}

/// Changes the length of a device, whose file becomes longer with it. What is beyond a shorter one is moved.
///
/// # Errors
/// `ENOSPC` where there is no space for it, or for a length beyond the device.
pub(crate) fn resize_device(
    fs: &WriteContext,
    device: DeviceId,
    total_bytes: u64,
    moving: Moving<'_>,
) -> Result<Moved> {
    check_device(fs, device)?;
    let sector = u64::from(fs.superblock().sector_bytes);
    let total_bytes = total_bytes - total_bytes % sector;
    let (before, present) = {
        let members = fs.blocks().store().members();
        let member = members.iter().find(|member| member.id == device);
        let member = member.ok_or(Condition::NotFound)?;
        let present = member.device.clone();
        let missing = || Condition::NotFound.because(format!("device {device} is missing"));
        let present = present.ok_or_else(missing)?;
        (member.total_bytes.unwrap_or_default(), present)
    };
    if total_bytes > present.geometry().len_bytes {
        present.grow(total_bytes)?;
    }
    let len_bytes = present.geometry().len_bytes;
    if total_bytes > len_bytes {
        let text = format!(
            "{total_bytes} bytes are more than device {device} has, which is {len_bytes} bytes long"
        );
        return Err(Condition::NoSpace.because(text));
    }
    if total_bytes < before && total_bytes < SHRUNK_BYTES_MIN {
        let feature = format!("a device of {total_bytes} bytes");
        return Err(unsupported(feature, Some("256 MiB is the least")));
    }
    let mut moved = Moved::default();
    let limits = if total_bytes < before {
        vec![(device, total_bytes)]
    } else {
        Vec::new()
    };
    let placing = Placing {
        limits,
        ..Placing::default()
    };
    let _placed = restripe::set_placing(fs, placing);
    if total_bytes < before {
        let is_beyond = |chunk: &ChunkItem| devices::is_beyond(chunk, device, total_bytes);
        let wanted = |chunk: &ChunkItem, _: u64| is_beyond(chunk).then_some(chunk.profile);
        let usable = |chunk: &ChunkItem| !is_beyond(chunk);
        moved = move_chunks(fs, moving, &wanted, &usable, &|_| 0..=u64::MAX)?;
    }
    if !moved.is_cancelled && total_bytes != before {
        devices::set_size(fs, device, total_bytes)?;
    }
    Ok(moved)
}
