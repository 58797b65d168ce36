//! Finding the live part of the log: from the tail, the oldest record that recovery needs, to the head,
//! where the next one would go.
//!
//! Each pass over the log stamps its sectors with the next cycle number, so the head is where cycle
//! numbers drop. A crash leaves holes and torn records up to the number of records in flight before it.
//! Spec: `xfs/journaling_log`, "Log Records".

use platter_ondisk::Corrupt;
use platter_vfs::Result;

use super::records;
use super::rules::ReplayRule;
use crate::ondisk::Lsn;
use crate::ondisk::log::operation::is_unmount;
use crate::ondisk::log::record::{
    RECORD_BYTES_MAX, RECORDS_IN_FLIGHT_MAX, SECTOR_BYTES, sector_cycle,
};
use crate::ondisk::log::{LogRule, RecordHeader};
use crate::txn::LogDevice;

/// Sectors of the longest record, without its header.
const RECORD_SECTORS_MAX: u32 = RECORD_BYTES_MAX / 512;
/// Sectors read at once when searching.
const CHUNK_SECTORS: u32 = 256;

/// Whether the log holds anything to recover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// It ends with an unmount record, or was never written.
    Clean,
    /// Transactions may not have reached their place.
    Dirty,
}

/// The live part of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Whether there is anything to recover.
    pub state: LogState,
    /// The oldest record that recovery needs.
    pub tail: u32,
    /// Where the next record goes.
    pub head: u32,
    /// The cycle number of the next record.
    pub cycle: u32,
    /// The last record; zero in a log without one.
    pub last: u32,
    /// Whether records that were being written when the log ended are left out.
    pub torn: bool,
}

/// Finds the live part of a log.
pub fn find_position(log: &LogDevice, has_checksums: bool) -> Result<LogPosition> {
    let Some(candidate) = candidate_head(log)? else {
        return Ok(LogPosition {
            state: LogState::Clean,
            tail: 0,
            head: 0,
            cycle: 1,
            last: 0,
            torn: false,
        });
    };
    let whole = end_of_whole_records(log, candidate)?;
    let (head, last, at) = verified_head(log, whole, has_checksums)?;
    let wrapped = head <= at;
    let position = LogPosition {
        state: LogState::Dirty,
        tail: last.tail_lsn.block(),
        head,
        cycle: last.cycle.wrapping_add(u32::from(wrapped)),
        last: at,
        torn: head != candidate % log.sectors(),
    };
    if position.tail >= log.sectors() {
        return Err(Corrupt::new(log.locus(at), ReplayRule::TailLsn).into());
    }
    if last.operations == 1 && log.after(at, last.sectors()) == head {
        let body = log.read(log.after(at, last.header_sectors()), 1)?;
        if is_unmount(&body) {
            return Ok(LogPosition {
                state: LogState::Clean,
                tail: head,
                ..position
            });
        }
    }
    Ok(LogPosition {
        tail: verified_tail(log, &position, &last, has_checksums)?,
        ..position
    })
}

/// Where cycle numbers drop, before the first hole; `None` in a log that was never written. The length
/// of the log stands for its end.
fn candidate_head(log: &LogDevice) -> Result<Option<u32>> {
    let end = log.sectors();
    let cycle_at = |sector| -> Result<u32> { Ok(sector_cycle(&log.read(sector, 1)?)) };
    let (first, last) = (cycle_at(0)?, cycle_at(end - 1)?);
    if first == 0 {
        return Ok(None);
    }
    let corrupt = || Corrupt::new(log.locus(0), ReplayRule::Cycles);
    let passes = first.wrapping_sub(last);
    // The pass of the last records: where a hole reaches to the end of the log, its start may have records in flight of
    // the pass after.
    let cycle = if passes == 0 {
        first
    } else {
        last.wrapping_add(1)
    };
    if passes > 2 {
        return Err(corrupt().into());
    }
    let mut head = end;
    if passes > 0 {
        let (mut newer, mut older) = (0, end - 1);
        while older - newer > 1 {
            let middle = newer + (older - newer) / 2;
            if cycle_at(middle)? == last {
                older = middle;
            } else {
                newer = middle;
            }
        }
        if cycle_at(newer)? != cycle {
            return Err(corrupt().into());
        }
        head = older;
    }
    let span = (RECORDS_IN_FLIGHT_MAX * (RECORD_SECTORS_MAX + RECORD_SECTORS_MAX / 64)).min(end);
    let mut at = head.saturating_sub(span);
    // The part of the span before the start of the log was written in the cycle before.
    let mut wrapped = end - (span - (head - at));
    while wrapped < end {
        let count = CHUNK_SECTORS.min(end - wrapped);
        if let Some(hole) = find_hole(log, wrapped, count, cycle.wrapping_sub(1))? {
            return Ok(Some(hole));
        }
        wrapped += count;
    }
    while at < head {
        let count = CHUNK_SECTORS.min(head - at);
        if let Some(hole) = find_hole(log, at, count, cycle)? {
            return Ok(Some(hole));
        }
        at += count;
    }
    Ok(Some(head))
}

/// The first of `count` sectors that does not have the cycle number. One of the next cycle is no hole: it lies
/// after the head, where the log is so short that all of it is searched.
fn find_hole(log: &LogDevice, at: u32, count: u32, cycle: u32) -> Result<Option<u32>> {
    let bytes = log.read(at, count)?;
    let sectors = (at..).zip(bytes.chunks(SECTOR_BYTES));
    let mut holes = sectors.filter(|(_, sector)| {
        let found = sector_cycle(sector);
        found != cycle && found != cycle.wrapping_add(1)
    });
    Ok(holes.next().map(|(at, _)| at))
}

/// Moves the head before a last record of which a part is missing.
fn end_of_whole_records(log: &LogDevice, head: u32) -> Result<u32> {
    let head = head % log.sectors();
    let Some((at, header)) = last_record(log, head, log.sectors())? else {
        return Err(Corrupt::new(log.locus(head), ReplayRule::NoRecord).into());
    };
    let end = log.after(at, header.sectors());
    Ok(if end == head { head } else { at })
}

/// The last record that begins in the `within` sectors before `head`.
fn last_record(log: &LogDevice, head: u32, within: u32) -> Result<Option<(u32, RecordHeader)>> {
    let mut passed = 0;
    while passed < within {
        let count = CHUNK_SECTORS.min(within - passed);
        passed += count;
        let start = log.before(head, passed);
        let bytes = log.read(start, count)?;
        let sectors = (0..count).zip(bytes.chunks(SECTOR_BYTES));
        for (index, sector) in sectors.rev() {
            let at = log.after(start, index);
            if RecordHeader::has_magic(sector) {
                let header = RecordHeader::decode(sector, log.locus(at))?;
                if header.lsn.block() != at {
                    return Err(Corrupt::new(log.locus(at), ReplayRule::RecordLsn).into());
                }
                return Ok(Some((at, header)));
            }
        }
    }
    Ok(None)
}

/// Moves the head before the first record, among those that may have been in flight, whose checksum is
/// wrong. With the record before the head.
fn verified_head(
    log: &LogDevice,
    mut head: u32,
    has_checksums: bool,
) -> Result<(u32, RecordHeader, u32)> {
    let mut records: Vec<(u32, RecordHeader)> = Vec::new();
    let mut at = head;
    let mut left = log.sectors();
    while records.len() < RECORDS_IN_FLIGHT_MAX as usize {
        let Some((start, header)) = last_record(log, at, left)? else {
            break;
        };
        let passed = log.distance(start, at);
        let passed = if passed == 0 { log.sectors() } else { passed };
        left = left.saturating_sub(passed);
        at = start;
        records.push((start, header));
        // What lies before the tail is not needed.
        if records.first().map(|(_, last)| last.tail_lsn.block()) == Some(start) {
            break;
        }
    }
    let torn = if has_checksums {
        let mut broken = None;
        for (index, (at, header)) in records.iter().enumerate() {
            if !records::read(log, *at, header)?.checksum_matches {
                broken = Some(index);
            }
        }
        broken
    } else {
        None
    };
    let last = match torn {
        None => records.first().copied(),
        Some(index) => {
            head = records.get(index).map_or(head, |(at, _)| *at);
            match records.get(index + 1) {
                Some(record) => Some(*record),
                None => last_record(log, head, left)?,
            }
        }
    };
    match last {
        Some((at, header)) => Ok((head, header, at)),
        None => Err(Corrupt::new(log.locus(head), ReplayRule::NoRecord).into()),
    }
}

/// Moves the tail past records that writes in flight at the head have overwritten: these go where the log was about to
/// release them, and reach no further than the records that may be in flight.
fn verified_tail(
    log: &LogDevice,
    position: &LogPosition,
    last: &RecordHeader,
    has_checksums: bool,
) -> Result<u32> {
    let head = position.head;
    let reach = RECORDS_IN_FLIGHT_MAX * (last.size / 512 + last.header_sectors());
    let (mut tail, mut at) = (position.tail, position.tail);
    while at != head && log.distance(head, at) <= reach {
        if let Some(sectors) = whole_record(log, position, at, has_checksums)? {
            at = log.after(at, sectors);
            continue;
        }
        // The next record begins at a sector with the magic number.
        let further = (1..log.distance(at, head).min(2 * reach)).map(|step| log.after(at, step));
        let mut next = None;
        for sector in further {
            if RecordHeader::has_magic(&log.read(sector, 1)?) {
                next = Some(sector);
                break;
            }
        }
        at = next.ok_or_else(|| Corrupt::new(log.locus(at), ReplayRule::NoRecord))?;
        tail = at;
    }
    Ok(tail)
}

/// Sectors of the record that the live part of the log has at a place; `None` if it was overwritten.
fn whole_record(
    log: &LogDevice,
    position: &LogPosition,
    at: u32,
    has_checksums: bool,
) -> Result<Option<u32>> {
    let lsn = Lsn::new(position.cycle_at(at), at);
    let header = RecordHeader::decode(&log.read(at, 1)?, log.locus(at)).ok();
    let left = log.distance(at, position.head);
    let Some(header) = header.filter(|header| header.lsn == lsn && header.sectors() <= left) else {
        return Ok(None);
    };
    let is_whole = if has_checksums {
        records::read(log, at, &header)?.checksum_matches
    } else {
        let bytes = log.read(at, header.sectors())?;
        let mut sectors = (0..).zip(bytes.chunks(SECTOR_BYTES));
        sectors
            .all(|(index, sector)| sector_cycle(sector) == position.cycle_at(log.after(at, index)))
    };
    Ok(is_whole.then(|| header.sectors()))
}

impl LogPosition {
    /// The same of a log that was found at `before` and recovered in place: what is live of it was written by that
    /// recovery, and is in its place. Any other log stays dirty.
    #[must_use]
    pub fn after_recovery(self, before: &Self) -> Self {
        if self.state == LogState::Dirty && self.tail_lsn() >= before.head_lsn() {
            return Self {
                state: LogState::Clean,
                ..self
            };
        }
        self
    }

    /// The position of the record that goes to the head.
    #[must_use]
    pub fn head_lsn(&self) -> Lsn {
        Lsn::new(self.cycle, self.head)
    }

    /// The position of the oldest record that recovery needs.
    #[must_use]
    pub fn tail_lsn(&self) -> Lsn {
        Lsn::new(self.cycle_at(self.tail), self.tail)
    }

    /// The position of the last record.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        Lsn::new(self.cycle_at(self.last), self.last)
    }

    /// The cycle number in which a sector of the live part was written.
    fn cycle_at(&self, sector: u32) -> u32 {
        self.cycle.saturating_sub(u32::from(sector >= self.head))
    }
}

/// A header that names a place outside the log.
pub(super) fn check_place(
    log: &LogDevice,
    at: u32,
    header: &RecordHeader,
) -> Result<(), platter_vfs::Error> {
    if header.lsn.block() != at {
        return Err(Corrupt::new(log.locus(at), ReplayRule::RecordLsn).into());
    }
    if header.sectors() > log.sectors() {
        return Err(Corrupt::new(log.locus(at), LogRule::RecordLength).into());
    }
    Ok(())
}
