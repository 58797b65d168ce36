//! Reading whole records, one after the other.

use platter_ondisk::Corrupt;
use platter_vfs::{Result, Unsupported};

use super::position::{LogPosition, check_place};
use super::rules::ReplayRule;
use crate::ondisk::log::record::{SECTOR_BYTES, unpack};
use crate::ondisk::log::{LogByteOrder, RecordHeader};
use crate::txn::LogDevice;

/// A record whose operations are as they were logged.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) header: RecordHeader,
    /// Its first sector.
    pub(super) at: u32,
    pub(super) body: Vec<u8>,
    pub(super) checksum_matches: bool,
}

/// Reads the record with this header.
pub(super) fn read(log: &LogDevice, at: u32, header: &RecordHeader) -> Result<Record> {
    check_place(log, at, header)?;
    let mut sectors = log.read(at, header.sectors())?;
    let mut body = sectors.split_off(header.header_sectors() as usize * SECTOR_BYTES);
    body.truncate(header.len as usize);
    let checksum_matches = header.checksum_matches(&sectors, &body);
    unpack(&sectors, &mut body);
    Ok(Record {
        header: *header,
        at,
        body,
        checksum_matches,
    })
}

/// The records from the tail to the head, each verified.
#[derive(Debug)]
pub(super) struct Records<'l> {
    log: &'l LogDevice,
    next: u32,
    /// Sectors up to the head.
    left: u32,
    has_checksums: bool,
}

impl<'l> Records<'l> {
    pub(super) fn new(log: &'l LogDevice, position: &LogPosition, has_checksums: bool) -> Self {
        let left = log.distance(position.tail, position.head);
        Self {
            log,
            next: position.tail,
            left: if left == 0 { log.sectors() } else { left },
            has_checksums,
        }
    }

    /// The next record; `None` at the head.
    pub(super) fn next(&mut self) -> Result<Option<Record>> {
        if self.left == 0 {
            return Ok(None);
        }
        let locus = self.log.locus(self.next);
        let header = RecordHeader::decode(&self.log.read(self.next, 1)?, locus)?;
        let Some(left) = self.left.checked_sub(header.sectors()) else {
            return Err(Corrupt::new(locus, ReplayRule::RecordLsn).into());
        };
        let record = read(self.log, self.next, &header)?;
        if self.has_checksums && !record.checksum_matches {
            return Err(Corrupt::new(locus, ReplayRule::RecordChecksum).into());
        }
        self.check_origin(&header)?;
        (self.next, self.left) = (self.log.after(self.next, header.sectors()), left);
        Ok(Some(record))
    }

    fn check_origin(&self, header: &RecordHeader) -> Result<()> {
        let foreign = match header.byte_order {
            LogByteOrder::LinuxLittle => None,
            LogByteOrder::LinuxBig => Some("a dirty log of a big-endian machine"),
            LogByteOrder::Irix => Some("a dirty log of IRIX"),
            LogByteOrder::Unknown => Some("a dirty log of unknown byte order"),
        };
        if let Some(feature) = foreign {
            return Err(Unsupported {
                filesystem: "xfs",
                feature: feature.to_owned(),
                reason: Some("mount it where it was written, or read-only with norecovery"),
            }
            .into());
        }
        if header.uuid != self.log.uuid() {
            let locus = self.log.locus(header.lsn.block());
            return Err(Corrupt::new(locus, ReplayRule::RecordUuid).into());
        }
        Ok(())
    }
}
