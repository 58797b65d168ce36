//! Making a filesystem: chooses its sizes, and writes the groups, the first inodes and an empty log.

mod options;
mod shape;
mod layout;
mod groups;
mod inodes;

use std::ops::ControlFlow;

use platter_block::{BlockDevice, Geometry as DeviceGeometry};
use platter_vfs::{Clock, Result};

use crate::ondisk::log::operation::{UNMOUNT_TID, unmount_data};
use crate::ondisk::log::record::{
    HEADER_COVERS_BYTES, LogByteOrder, RecordHeader, SECTOR_BYTES, pack,
};
use crate::ondisk::log::{Client, OpFlags, Operation};
use crate::ondisk::superblock::SUPERBLOCK_MAGIC;
use crate::ondisk::{AgNr, Lsn, Superblock};
use crate::superblock as primary;
use shape::Shape;

pub use options::MkfsOptions;
pub use shape::{LEN_BYTES_MIN, UNSUPPORTED_LEN_BYTES_MIN};

/// Signatures of other filesystems lie within so many bytes of the start and the end.
const SIGNATURE_BYTES: u64 = 128 << 10;
/// Zeros that are written at once.
const ZEROS_BYTES: u64 = 1 << 20;

/// Refuses what [`mkfs`] would refuse for such a device, before anything is changed.
///
/// # Errors
/// Those of `mkfs`.
pub fn check(
    device: &DeviceGeometry,
    log: Option<&DeviceGeometry>,
    options: &MkfsOptions,
) -> Result<()> {
    Shape::choose(device, log, options)?.place()
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

/// What a filesystem is made on.
#[derive(Debug, Clone, Copy)]
pub struct Target<'t> {
    /// The device, all of which is used.
    pub device: &'t dyn BlockDevice,
    /// The device of the log, if the log is not to be on the first one.
    pub log: Option<&'t dyn BlockDevice>,
    /// They contain only zeros, as new files do: then no zeros are written.
    pub is_zero: bool,
}

/// Makes a filesystem. The same options and time give the same bytes.
///
/// # Errors
/// `NoSpace` on a device that is too small, `Unsupported` for what cannot be made.
pub fn mkfs(target: &Target<'_>, options: &MkfsOptions, clock: &dyn Clock) -> Result<()> {
    let device = target.device;
    let log = target.log.map(BlockDevice::geometry);
    let mut shape = Shape::choose(&device.geometry(), log.as_ref(), options)?;
    shape.place()?;
    groups::count(&mut shape)?;
    if !target.is_zero {
        clear(target, &shape)?;
    }
    write_log(target, &shape)?;
    let copy = shape.superblock.encode();
    for ag in shape.geometry.groups() {
        groups::write(device, &shape, ag, &copy)?;
    }
    inodes::write(device, &shape, options, clock.now())?;
    if let Some(log) = target.log {
        log.flush()?;
    }
    // The primary superblock last: before it, there is no filesystem.
    device.flush()?;
    device.write_at(0, &copy)?;
    device.flush()?;
    Ok(())
}

/// Writes the groups that a filesystem gets when it becomes as long as `superblock` says, each with a copy of the
/// superblock. Nothing refers to them yet. Calls `go_on` with how many are written of how many. Returns whether all are,
/// and durable: it may break that off.
pub(crate) fn write_new_groups(
    device: &dyn BlockDevice,
    superblock: Superblock,
    copy: &[u8],
    first: AgNr,
    go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<bool> {
    let shape = Shape::of_existing(superblock);
    let total = u64::from(shape.geometry.ag_count().saturating_sub(first.0));
    let groups = shape.geometry.groups().skip(first.0 as usize);
    for (ag, done) in groups.zip(0..) {
        if go_on(done, total).is_break() {
            return Ok(false);
        }
        groups::write(device, &shape, ag, copy)?;
    }
    device.flush()?;
    Ok(true)
}

/// Overwrites the superblocks that were there, the signatures of other filesystems, and the log.
fn clear(target: &Target<'_>, shape: &Shape) -> Result<()> {
    let device = target.device;
    let len = device.geometry().len_bytes;
    clear_old_copies(device)?;
    fill_zero(device, 0..SIGNATURE_BYTES.min(len))?;
    device.flush()?;
    fill_zero(device, len.saturating_sub(SIGNATURE_BYTES)..len)?;
    let log_bytes = u64::from(shape.superblock.log_blocks) << shape.geometry.block_bits;
    match (target.log, shape.superblock.log_start) {
        (Some(log), _) => fill_zero(log, 0..log_bytes),
        (None, Some(start)) => {
            let start = shape.geometry.byte_offset(start);
            fill_zero(device, start..start + log_bytes)
        }
        (None, None) => Ok(()),
    }
}

/// Overwrites the copies of the superblock of an XFS that was there, whose groups may have been others: a repair
/// would find them.
fn clear_old_copies(device: &dyn BlockDevice) -> Result<()> {
    let Ok(old) = primary::read(device) else {
        return Ok(());
    };
    let group_bytes = u64::from(old.ag_blocks) << old.block_bits;
    let end = device.geometry().len_bytes;
    let mut at = group_bytes;
    while group_bytes > 0 && at < end.saturating_sub(SECTOR_BYTES as u64) {
        let mut sector = [0; SECTOR_BYTES];
        device.read_at(at, &mut sector)?;
        if sector.starts_with(&SUPERBLOCK_MAGIC.to_be_bytes()) {
            device.write_at(at, &[0; SECTOR_BYTES])?;
        }
        at = at.saturating_add(group_bytes);
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
fn write_log(target: &Target<'_>, shape: &Shape) -> Result<()> {
    let (device, at) = match (target.log, shape.superblock.log_start) {
        (Some(log), _) => (log, 0),
        (None, Some(start)) => (target.device, shape.geometry.byte_offset(start)),
        (None, None) => return Ok(()),
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
    device.write_at(at, &record)?;
    Ok(())
}
