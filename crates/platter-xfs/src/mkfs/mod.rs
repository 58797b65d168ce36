//! Making a filesystem: chooses its sizes, and writes the groups, the first inodes and an empty log.

mod options;
mod shape;
mod layout;
mod groups;
mod inodes;

use platter_block::{BlockDevice, Geometry as DeviceGeometry};
use platter_vfs::{Clock, Result};

use crate::ondisk::log::operation::{UNMOUNT_TID, unmount_data};
use crate::ondisk::log::record::{
    HEADER_COVERS_BYTES, LogByteOrder, RecordHeader, SECTOR_BYTES, pack,
};
use crate::ondisk::log::{Client, OpFlags, Operation};
use crate::ondisk::{AgNr, Lsn};
use crate::superblock as primary;
use layout::GroupLayout;
use shape::Shape;

pub use options::MkfsOptions;
pub use shape::LEN_BYTES_MIN;

/// Signatures of other filesystems lie within so many bytes of the start and the end.
const SIGNATURE_BYTES: u64 = 128 << 10;
/// Zeros that are written at once.
const ZEROS_BYTES: u64 = 1 << 20;

/// Refuses what [`mkfs`] would refuse for such a device, before anything is changed.
///
/// # Errors
/// Those of `mkfs`.
pub fn check(device: &DeviceGeometry, options: &MkfsOptions) -> Result<()> {
    Shape::choose(device, options)?.place()
}

/// The free space of a filesystem that is not mounted in bytes, according to its superblock.
///
/// # Errors
/// `Corrupt` without a valid superblock.
pub fn free_bytes(device: &dyn BlockDevice) -> Result<u64> {
    let superblock = primary::read(device)?;
    let blocks = superblock.free_data_blocks;
    Ok(blocks
        .checked_shl(superblock.block_bits.into())
        .unwrap_or(u64::MAX))
}

/// Makes a filesystem on the whole of `device`. `is_zero` says that it contains only zeros, as a new file
/// does: then no zeros are written.
///
/// The same options and time give the same bytes.
///
/// # Errors
/// `NoSpace` on a device that is too small, `Unsupported` for what cannot be made.
pub fn mkfs(
    device: &dyn BlockDevice,
    options: &MkfsOptions,
    is_zero: bool,
    clock: &dyn Clock,
) -> Result<()> {
    let mut shape = Shape::choose(&device.geometry(), options)?;
    shape.place()?;
    let layouts = shape.geometry.groups();
    let layouts: Vec<_> = layouts
        .map(|ag| GroupLayout::place(&shape, ag))
        .collect::<Result<_>>()?;
    shape.count(&layouts);
    if !is_zero {
        clear(device, &shape, &layouts)?;
    }
    write_log(device, &shape)?;
    for (ag, layout) in (0..).map(AgNr).zip(&layouts) {
        groups::write(device, &shape, ag, layout)?;
    }
    inodes::write(device, &shape, options, clock.now())?;
    // The primary superblock last: before it, there is no filesystem.
    device.flush()?;
    device.write_at(0, &shape.superblock.encode())?;
    device.flush()?;
    Ok(())
}

/// Overwrites the superblock that was there, the signatures of other filesystems, and the log.
fn clear(device: &dyn BlockDevice, shape: &Shape, layouts: &[GroupLayout]) -> Result<()> {
    let geometry = &shape.geometry;
    let len = device.geometry().len_bytes;
    fill_zero(device, 0..SIGNATURE_BYTES.min(len))?;
    device.flush()?;
    fill_zero(device, len.saturating_sub(SIGNATURE_BYTES)..len)?;
    for (ag, layout) in (0..).map(AgNr).zip(layouts) {
        if let Some(log) = &layout.log {
            let at = |block| geometry.ag_offset(ag) + (u64::from(block) << geometry.block_bits);
            fill_zero(device, at(log.start)..at(log.end))?;
        }
    }
    Ok(())
}

/// Writes zeros, where there may be anything else.
fn fill_zero(device: &dyn BlockDevice, range: std::ops::Range<u64>) -> Result<()> {
    let zeros = vec![0; usize::try_from(ZEROS_BYTES).unwrap_or_default()];
    let mut at = range.start;
    while let Some(data) = device.next_data(at)? {
        at = data.start.max(at);
        let end = data.end.min(range.end);
        if at >= end {
            break;
        }
        while at < end {
            let step = (end - at).min(ZEROS_BYTES);
            device.write_at(at, &zeros[..usize::try_from(step).unwrap_or_default()])?;
            at += step;
        }
    }
    Ok(())
}

/// A log that an unmount has ended.
fn write_log(device: &dyn BlockDevice, shape: &Shape) -> Result<()> {
    let Some(start) = shape.superblock.log_start else {
        return Ok(());
    };
    let stripe = shape.superblock.log_stripe_unit;
    let sector = u32::try_from(SECTOR_BYTES).unwrap_or_default();
    let size = stripe.max(HEADER_COVERS_BYTES);
    let header_bytes = size.div_ceil(HEADER_COVERS_BYTES) * sector;
    let len = stripe.saturating_sub(header_bytes).max(sector);
    let header = RecordHeader {
        cycle: 1,
        version: 2,
        len,
        lsn: Lsn::new(1, 0),
        tail_lsn: Lsn::new(1, 0),
        crc: 0,
        prev_block: u32::MAX,
        operations: 1,
        byte_order: LogByteOrder::LinuxLittle,
        uuid: shape.superblock.uuid,
        size,
    };
    let mut body = Vec::new();
    Operation {
        tid: UNMOUNT_TID,
        client: Client::Log,
        flags: OpFlags::UNMOUNT,
        data: &unmount_data(),
    }
    .encode(&mut body);
    body.resize(len as usize, 0);
    let mut record = header.encode();
    pack(&mut record, &mut body, 1, None);
    record.extend_from_slice(&body);
    device.write_at(shape.geometry.byte_offset(start), &record)?;
    Ok(())
}
