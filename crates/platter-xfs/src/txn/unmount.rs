//! Ending a log: an unmount record at its head, and nothing after it that could be taken for a record; and the UUID that
//! the last record bears.
//! Spec: `xfs/journaling_log`, "Log Records".

use platter_ondisk::{Corrupt, Uuid};
use platter_vfs::Result;
use zerocopy::{FromZeros, IntoBytes};

use super::log_device::LogDevice;
use super::replay::{LogPosition, ReplayRule};
use crate::ondisk::Lsn;
use crate::ondisk::log::operation::{UNMOUNT_TID, unmount_data};
use crate::ondisk::log::record::{
    DiskRecordHeader, HEADER_COVERS_BYTES, RECORD_BYTES_MAX, RECORD_MAGIC, RECORDS_IN_FLIGHT_MAX,
    SECTOR_BYTES, pack, sector_cycle,
};
use crate::ondisk::log::{Client, LogByteOrder, OpFlags, Operation, RecordHeader};

/// Writes an unmount record to the head of a log whose transactions are all in their place, and makes it
/// durable.
pub fn write_unmount_record(log: &LogDevice, position: &LogPosition) -> Result<()> {
    clear_stale_records(log, position)?;
    let mut body = Vec::new();
    let data = unmount_data();
    let unmount = Operation {
        tid: UNMOUNT_TID,
        client: Client::Log,
        flags: OpFlags::UNMOUNT,
        data: &data,
    };
    unmount.encode(&mut body);
    write_record(log, position, &mut body, 1)?;
    log.flush()
}

/// Makes the last record of a clean log bear another UUID, durably: Linux mounts a filesystem whose UUID that record has, or
/// any one where it has none. Nothing is written to a log without records.
pub fn set_last_uuid(log: &LogDevice, position: &LogPosition, uuid: Uuid) -> Result<()> {
    let Some(header) = last_record(log, position)? else {
        return Ok(());
    };
    let mut record = log.read(position.last, header.sectors())?;
    header.set_uuid(&mut record, uuid);
    // The first sector is all that changes; devices with longer ones take whole units.
    record.truncate(log.record_unit_bytes() as usize);
    log.write(position.last, &record)?;
    log.flush()
}

/// Refuses a clean log whose last record bears the UUID of another filesystem, as Linux does; it may bear none.
///
/// # Errors
/// [`ReplayRule::RecordUuid`]; those of the device.
pub fn check_last_uuid(log: &LogDevice, position: &LogPosition) -> Result<()> {
    let header = last_record(log, position)?;
    if header.is_some_and(|header| !header.uuid.is_nil() && header.uuid != log.uuid()) {
        return Err(Corrupt::new(log.locus(position.last), ReplayRule::RecordUuid).into());
    }
    Ok(())
}

/// Whether the last record bears the UUID of the filesystem, or there is none.
pub fn has_own_last_uuid(log: &LogDevice, position: &LogPosition) -> Result<bool> {
    let header = last_record(log, position)?;
    Ok(header.is_none_or(|header| header.uuid == log.uuid()))
}

/// The header of the last record; `None` in a log without records.
fn last_record(log: &LogDevice, position: &LogPosition) -> Result<Option<RecordHeader>> {
    let first = log.read(position.last, 1)?;
    if !RecordHeader::has_magic(&first) {
        return Ok(None);
    }
    let header = RecordHeader::decode(&first, log.locus(position.last))?;
    Ok(Some(header))
}

/// Writes one record to the head, padded to the log's unit.
fn write_record(
    log: &LogDevice,
    position: &LogPosition,
    body: &mut Vec<u8>,
    operations: u32,
) -> Result<()> {
    let unit = log.record_unit_bytes();
    let size = if unit > HEADER_COVERS_BYTES {
        RECORD_BYTES_MAX
    } else {
        HEADER_COVERS_BYTES
    };
    let lsn = position.head_lsn();
    let mut header = RecordHeader {
        cycle: position.cycle,
        version: log.version(),
        len: 0,
        lsn,
        tail_lsn: lsn,
        crc: 0,
        prev_block: position.last,
        operations,
        byte_order: LogByteOrder::LinuxLittle,
        uuid: log.uuid(),
        size,
    };
    let header_len = header.header_sectors() as usize * SECTOR_BYTES;
    let len = (header_len + body.len()).next_multiple_of(unit as usize) - header_len;
    body.resize(len, 0);
    header.len = u32::try_from(len).unwrap_or(RECORD_BYTES_MAX);
    let to_end = (log.sectors() - position.head) as usize;
    let mut sectors = header.encode();
    pack(&mut sectors, body, position.cycle, Some(to_end));
    sectors.extend_from_slice(body);
    log.write(position.head, &sectors)
}

/// Stamps the sectors after the head with the cycle number before, as far as records may have been in flight:
/// what a crash left of those has the cycle number of the records to come. Durable, and nothing is written
/// where no such sector is.
pub fn clear_stale_records(log: &LogDevice, position: &LogPosition) -> Result<()> {
    let count = sectors_to_clear(log, position);
    let sector_at = |index: u32| {
        let at = log.after(position.head, index);
        let wrapped = u32::from(at < position.head);
        let cycle = position.cycle.wrapping_sub(1).wrapping_add(wrapped);
        let mut sector = DiskRecordHeader::new_zeroed();
        sector.magic.set(RECORD_MAGIC);
        sector.cycle.set(cycle);
        sector.version.set(log.version());
        sector.lsn.set(Lsn::new(cycle, at).0);
        sector.tail_lsn.set(position.head_lsn().0);
        sector.byte_order.set(1);
        sector.uuid = log.uuid().into_bytes();
        sector
    };
    let bytes = log.read(position.head, count)?;
    let sectors = (0..).zip(bytes.chunks(SECTOR_BYTES));
    let is_stale = |(index, sector)| sector_cycle(sector) != sector_at(index).cycle.get();
    if !sectors.into_iter().any(is_stale) {
        return Ok(());
    }
    let mut bytes = Vec::with_capacity(bytes.len());
    for index in 0..count {
        bytes.extend_from_slice(sector_at(index).as_bytes());
    }
    let before_end = (log.sectors() - position.head).min(count) as usize * SECTOR_BYTES;
    let (end, start) = bytes.split_at(before_end);
    if !start.is_empty() {
        // While the first sector has the cycle number of the next pass, recovery expects that of this pass in the last one.
        log.write(0, start)?;
        log.flush()?;
    }
    log.write(position.head, end)?;
    log.flush()
}

/// How many sectors after the head records in flight can have reached: not those that recovery needs, should it
/// be interrupted.
fn sectors_to_clear(log: &LogDevice, position: &LogPosition) -> u32 {
    let record = RECORD_BYTES_MAX / 512 + RECORD_BYTES_MAX / HEADER_COVERS_BYTES;
    let needed = match position.tail {
        tail if tail == position.head => position.last,
        tail => tail,
    };
    let free = match log.distance(position.head, needed) {
        0 => log.sectors(),
        free => free,
    };
    (RECORDS_IN_FLIGHT_MAX * record).min(free)
}
