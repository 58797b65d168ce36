//! A log record: a header of one to eight sectors, and up to 256 KiB of operations. Each sector of the
//! log begins with its cycle number; the header keeps what the operations had there.
//! Spec: `xfs/journaling_log`, "Log Records".

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Be32, Be64, Le32};
use platter_ondisk::{Corrupt, Locus, Uuid};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::LogRule;
use crate::ondisk::types::Lsn;

/// `h_magicno`. No cycle number has this value.
pub const RECORD_MAGIC: u32 = 0xfeed_babe;
/// Size of a sector of the log in bytes: the unit of its block numbers (`BBSIZE`).
pub const SECTOR_BYTES: usize = 512;
/// The longest record without its header.
pub const RECORD_BYTES_MAX: u32 = 256 << 10;
/// Bytes of a record whose first words one header holds.
pub const HEADER_COVERS_BYTES: u32 = 32 << 10;
/// The number of records that may be in flight at once.
pub const RECORDS_IN_FLIGHT_MAX: u32 = 8;
/// Buffer size of records before version 2, and the size in headers that name none.
const DEFAULT_SIZE: u32 = 32 << 10;
const CYCLE_WORDS: usize = 64;
/// Bytes of the header that its checksum covers.
const HEADER_SUMMED: usize = 328;
/// The same on machines that do not pad the header: i386.
const HEADER_SUMMED_I386: usize = 324;
/// Bytes of an extended header that the checksum covers.
const EXTENDED_SUMMED: usize = 260;

/// The header of a record. Spec: `xfs/journaling_log`, `struct xlog_rec_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskRecordHeader {
    /// `h_magicno`.
    pub magic: Be32,
    /// `h_cycle`.
    pub cycle: Be32,
    /// `h_version`.
    pub version: Be32,
    /// `h_len`, in bytes.
    pub len: Be32,
    /// `h_lsn`.
    pub lsn: Be64,
    /// `h_tail_lsn`.
    pub tail_lsn: Be64,
    /// `h_crc`.
    pub crc: Le32,
    /// `h_prev_block`.
    pub prev_block: Be32,
    /// `h_num_logops`.
    pub operations: Be32,
    /// `h_cycle_data`.
    pub cycle_data: [Be32; CYCLE_WORDS],
    /// `h_fmt`.
    pub byte_order: Be32,
    /// `h_fs_uuid`.
    pub uuid: [u8; 16],
    /// `h_size`, in bytes.
    pub size: Be32,
    /// `h_pad0`.
    pub pad: [u8; 4],
    /// `h_reserved`.
    pub reserved: [u8; 184],
}

/// A further sector of the header. Spec: `xfs/journaling_log`, `struct xlog_rec_ext_header`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskExtendedHeader {
    /// `xh_cycle`.
    pub cycle: Be32,
    /// `xh_cycle_data`.
    pub cycle_data: [Be32; CYCLE_WORDS],
    /// `xh_reserved`.
    pub reserved: [u8; 252],
}

const _: () = assert!(size_of::<DiskRecordHeader>() == SECTOR_BYTES);
const _: () = assert!(std::mem::offset_of!(DiskRecordHeader, crc) == 32);
const _: () = assert!(std::mem::offset_of!(DiskRecordHeader, pad) == HEADER_SUMMED_I386);
const _: () = assert!(std::mem::offset_of!(DiskRecordHeader, reserved) == HEADER_SUMMED);
const _: () = assert!(size_of::<DiskExtendedHeader>() == SECTOR_BYTES);
const _: () = assert!(std::mem::offset_of!(DiskExtendedHeader, reserved) == EXTENDED_SUMMED);

/// `h_fmt`: the byte order of the items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogByteOrder {
    /// Linux on a little-endian machine.
    LinuxLittle,
    /// Linux on a big-endian machine.
    LinuxBig,
    /// IRIX, which was big-endian.
    Irix,
    /// No known value.
    Unknown,
}

/// The header of a record whose rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The cycle of the log in which the record was written.
    pub cycle: u32,
    /// Version 1 or 2 of the record format.
    pub version: u32,
    /// Bytes of operations, which begin after the header.
    pub len: u32,
    /// Position of the record.
    pub lsn: Lsn,
    /// Position of the first record that recovery needs.
    pub tail_lsn: Lsn,
    /// The stored checksum; zero for none.
    pub crc: u32,
    /// Sector of the record before this one.
    pub prev_block: u32,
    /// Number of operations.
    pub operations: u32,
    /// Byte order of the items.
    pub byte_order: LogByteOrder,
    /// The filesystem's UUID, or zeros.
    pub uuid: Uuid,
    /// Size of the buffer that the record was assembled in.
    pub size: u32,
}

impl RecordHeader {
    /// Whether a sector looks like the first one of a record.
    #[must_use]
    pub fn has_magic(sector: &[u8]) -> bool {
        first_word(sector) == Some(RECORD_MAGIC)
    }

    /// Validates the first sector of a record.
    pub fn decode(sector: &[u8], locus: Locus) -> Result<Self, Corrupt<LogRule>> {
        let broken = |rule| Err(Corrupt::new(locus, rule));
        let Ok((disk, _)) = DiskRecordHeader::ref_from_prefix(sector) else {
            return broken(LogRule::RecordLength);
        };
        if disk.magic.get() != RECORD_MAGIC {
            return broken(LogRule::RecordMagic);
        }
        let version = disk.version.get();
        if !(1..=2).contains(&version) {
            return broken(LogRule::RecordVersion);
        }
        let (len, operations) = (disk.len.get(), disk.operations.get());
        if len == 0 || len > RECORD_BYTES_MAX {
            return broken(LogRule::RecordLength);
        }
        let size = match disk.size.get() {
            0 => DEFAULT_SIZE,
            _ if version == 1 => DEFAULT_SIZE,
            size => size,
        };
        // mkfs writes one record of one operation that is as long as the log's stripe unit.
        let size = if len > size && operations == 1 {
            len
        } else {
            size
        };
        if len > size || size > RECORD_BYTES_MAX {
            return broken(LogRule::RecordSize);
        }
        Ok(Self {
            cycle: disk.cycle.get(),
            version,
            len,
            lsn: Lsn(disk.lsn.get()),
            tail_lsn: Lsn(disk.tail_lsn.get()),
            crc: disk.crc.get(),
            prev_block: disk.prev_block.get(),
            operations,
            byte_order: match disk.byte_order.get() {
                1 => LogByteOrder::LinuxLittle,
                2 => LogByteOrder::LinuxBig,
                3 => LogByteOrder::Irix,
                _ => LogByteOrder::Unknown,
            },
            uuid: Uuid::from_bytes(disk.uuid),
            size,
        })
    }

    /// Sectors of the header.
    #[must_use]
    pub fn header_sectors(&self) -> u32 {
        if self.version == 1 {
            return 1;
        }
        self.size.div_ceil(HEADER_COVERS_BYTES).max(1)
    }

    /// Sectors of the operations.
    #[must_use]
    pub fn body_sectors(&self) -> u32 {
        self.len.div_ceil(512)
    }

    /// Sectors of the whole record.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.header_sectors().saturating_add(self.body_sectors())
    }

    /// Whether the stored checksum is that of the record; true for records without one.
    #[must_use]
    pub fn checksum_matches(&self, header: &[u8], body: &[u8]) -> bool {
        self.crc == 0
            || checksum(header, body, HEADER_SUMMED) == Some(self.crc)
            || checksum(header, body, HEADER_SUMMED_I386) == Some(self.crc)
    }

    /// Sets `h_fs_uuid` in the sectors of the record with this header, as they lie in the log. What changes, the checksum
    /// included, is in the first sector.
    pub fn set_uuid(&self, record: &mut [u8], uuid: Uuid) {
        if let Ok((first, _)) = DiskRecordHeader::mut_from_prefix(record) {
            first.uuid = uuid.into_bytes();
        }
        if self.crc == 0 {
            return;
        }
        let header_len = (self.header_sectors() as usize).saturating_mul(SECTOR_BYTES);
        let sealed = record.split_at_checked(header_len);
        let sealed = sealed.and_then(|(header, rest)| {
            let body = rest.get(..self.len as usize)?;
            checksum(header, body, HEADER_SUMMED)
        });
        if let (Some(crc), Ok((first, _))) = (sealed, DiskRecordHeader::mut_from_prefix(record)) {
            first.crc.set(crc);
        }
    }

    /// The header's sectors for operations that are not [packed](pack) yet, without checksum.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut disk = DiskRecordHeader::new_zeroed();
        disk.magic.set(RECORD_MAGIC);
        disk.cycle.set(self.cycle);
        disk.version.set(self.version);
        disk.len.set(self.len);
        disk.lsn.set(self.lsn.0);
        disk.tail_lsn.set(self.tail_lsn.0);
        disk.prev_block.set(self.prev_block);
        disk.operations.set(self.operations);
        disk.byte_order.set(match self.byte_order {
            LogByteOrder::Unknown => 0,
            LogByteOrder::LinuxLittle => 1,
            LogByteOrder::LinuxBig => 2,
            LogByteOrder::Irix => 3,
        });
        disk.uuid = self.uuid.into_bytes();
        disk.size.set(self.size);
        let mut header = disk.as_bytes().to_vec();
        for _ in 1..self.header_sectors() {
            let mut further = DiskExtendedHeader::new_zeroed();
            further.cycle.set(self.cycle);
            header.extend_from_slice(further.as_bytes());
        }
        header
    }
}

/// The cycle number of a sector: its first word, or the second of a record's first sector.
#[must_use]
pub fn sector_cycle(sector: &[u8]) -> u32 {
    let word = first_word(sector).unwrap_or_default();
    if word != RECORD_MAGIC {
        return word;
    }
    sector.get(4..).and_then(first_word).unwrap_or_default()
}

/// Puts the words that the header keeps back into the first bytes of each sector of `body`.
pub fn unpack(header: &[u8], body: &mut [u8]) {
    let words: Vec<Be32> = kept_words(header).copied().collect();
    for (sector, word) in body.chunks_mut(SECTOR_BYTES).zip(words) {
        let _ = word.write_to_prefix(sector);
    }
}

/// Moves the first word of each sector of `body` into the header, puts cycle numbers in their place,
/// and stores the checksum. Sector `wraps_at` of the whole record is the first one of the next cycle.
pub fn pack(header: &mut [u8], body: &mut [u8], cycle: u32, wraps_at: Option<usize>) {
    let header_sectors = header.len().div_ceil(SECTOR_BYTES);
    let cycle_of = |sector: usize| match wraps_at {
        Some(at) if sector >= at => cycle.wrapping_add(1),
        _ => cycle,
    };
    let mut words = Vec::with_capacity(body.len().div_ceil(SECTOR_BYTES));
    for (index, sector) in body.chunks_mut(SECTOR_BYTES).enumerate() {
        words.push(Be32::new(first_word(sector).unwrap_or_default()));
        let cycle = Be32::new(cycle_of(index.saturating_add(header_sectors)));
        let _ = cycle.write_to_prefix(sector);
    }
    let mut rest = words.into_iter();
    for (index, sector) in header.chunks_mut(SECTOR_BYTES).enumerate() {
        let cycle_data = if index == 0 {
            let first = DiskRecordHeader::mut_from_prefix(sector).ok();
            first.map(|(first, _)| &mut first.cycle_data)
        } else {
            let further = DiskExtendedHeader::mut_from_prefix(sector).ok();
            further.map(|(further, _)| {
                further.cycle.set(cycle_of(index));
                &mut further.cycle_data
            })
        };
        for (slot, word) in cycle_data.into_iter().flatten().zip(&mut rest) {
            *slot = word;
        }
    }
    let crc = checksum(header, body, HEADER_SUMMED).unwrap_or_default();
    if let Ok((first, _)) = DiskRecordHeader::mut_from_prefix(header) {
        first.crc.set(crc);
    }
}

/// The words that a header of one or more sectors keeps.
fn kept_words(header: &[u8]) -> impl Iterator<Item = &Be32> {
    let first = DiskRecordHeader::ref_from_prefix(header).ok();
    let further = header.chunks_exact(SECTOR_BYTES).skip(1);
    let further = further.filter_map(|sector| DiskExtendedHeader::ref_from_bytes(sector).ok());
    let first = first.into_iter().flat_map(|(first, _)| &first.cycle_data);
    first.chain(further.flat_map(|further| &further.cycle_data))
}

/// The checksum of a record as it lies in the log: of the header without the checksum itself, of as
/// many further header sectors as the length needs, and of the operations with their cycle numbers.
fn checksum(header: &[u8], body: &[u8], header_len: usize) -> Option<u32> {
    let (before, rest) = header.get(..header_len)?.split_at_checked(32)?;
    let (_, after) = rest.split_at_checked(4)?;
    let mut crc = crc32c(crc32c(crc32c(!0, before), &[0; 4]), after);
    let covered = usize::try_from(HEADER_COVERS_BYTES).ok()?;
    let further = body.len().div_ceil(covered).saturating_sub(1);
    // A version 1 header, or one with a wrong size, has no further sectors.
    for sector in header.chunks_exact(SECTOR_BYTES).skip(1).take(further) {
        crc = crc32c(crc, sector.get(..EXTENDED_SUMMED)?);
    }
    Some(!crc32c(crc, body))
}

fn first_word(sector: &[u8]) -> Option<u32> {
    let (word, _) = Be32::ref_from_prefix(sector).ok()?;
    Some(word.get())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(len: u32, size: u32) -> RecordHeader {
        RecordHeader {
            cycle: 7,
            version: 2,
            len,
            lsn: Lsn::new(7, 64),
            tail_lsn: Lsn::new(6, 900),
            crc: 0,
            prev_block: 2,
            operations: 3,
            byte_order: LogByteOrder::LinuxLittle,
            uuid: Uuid::from_bytes([9; 16]),
            size,
        }
    }

    #[test]
    fn packed_record_unpacks_to_the_same_operations() {
        for len in [512, 32 << 10, 33 << 10, 256 << 10] {
            let plain: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let header = sample(len, 256 << 10);
            let (mut sectors, mut body) = (header.encode(), plain.clone());
            assert_eq!(sectors.len(), 8 * 512);
            pack(&mut sectors, &mut body, 7, Some(9));
            let decoded = RecordHeader::decode(&sectors, Locus::UNKNOWN).unwrap();
            assert!(decoded.checksum_matches(&sectors, &body));
            assert_eq!(RecordHeader { crc: 0, ..decoded }, header);
            for (index, sector) in body.chunks(512).enumerate() {
                assert_eq!(sector_cycle(sector), if index == 0 { 7 } else { 8 });
            }
            assert_eq!(sector_cycle(&sectors), 7);
            body[100] ^= 1;
            assert!(!decoded.checksum_matches(&sectors, &body));
            body[100] ^= 1;
            unpack(&sectors, &mut body);
            assert!(body == plain, "{len}");
        }
    }

    #[test]
    fn record_with_another_uuid_differs_in_its_first_sector() {
        for (len, size) in [(512, 32 << 10), (64 << 10, 256 << 10)] {
            let (mut sectors, mut body) = (sample(len, size).encode(), vec![7; len as usize]);
            let header_len = sectors.len();
            pack(&mut sectors, &mut body, 7, None);
            sectors.extend_from_slice(&body);
            let mut changed = sectors.clone();
            let header = RecordHeader::decode(&sectors, Locus::UNKNOWN).unwrap();
            header.set_uuid(&mut changed, Uuid::nil());
            let found = RecordHeader::decode(&changed, Locus::UNKNOWN).unwrap();
            assert!(found.uuid.is_nil() && found.crc != header.crc);
            let (head, rest) = changed.split_at(header_len);
            assert!(found.checksum_matches(head, rest), "{len}");
            assert!(changed[SECTOR_BYTES..] == sectors[SECTOR_BYTES..]);
            found.set_uuid(&mut changed, header.uuid);
            assert!(changed == sectors);
        }
    }

    #[test]
    fn headers_that_break_a_rule_are_refused() {
        let header = sample(512, 32 << 10);
        let decode = |change: fn(&mut DiskRecordHeader)| {
            let mut sector = header.encode();
            change(DiskRecordHeader::mut_from_prefix(&mut sector).unwrap().0);
            RecordHeader::decode(&sector, Locus::block(3)).map_err(|corrupt| corrupt.rule)
        };
        assert_eq!(decode(|_| ()), Ok(header));
        assert_eq!(decode(|h| h.magic.set(1)), Err(LogRule::RecordMagic));
        assert_eq!(decode(|h| h.version.set(3)), Err(LogRule::RecordVersion));
        assert_eq!(decode(|h| h.len.set(0)), Err(LogRule::RecordLength));
        assert_eq!(decode(|h| h.len.set(1 << 20)), Err(LogRule::RecordLength));
        assert_eq!(decode(|h| h.len.set(33 << 10)), Err(LogRule::RecordSize));
        assert_eq!(decode(|h| h.size.set(1 << 20)), Err(LogRule::RecordSize));
        let short = RecordHeader::decode(&[0xfe; 100], Locus::UNKNOWN).unwrap_err();
        assert_eq!(short.rule, LogRule::RecordLength);
    }

    #[test]
    fn long_record_of_one_operation_may_exceed_its_size() {
        let header = RecordHeader {
            operations: 1,
            ..sample(256 << 10, 32 << 10)
        };
        let decoded = RecordHeader::decode(&header.encode(), Locus::UNKNOWN).unwrap();
        assert_eq!(decoded.size, 256 << 10);
        assert_eq!(decoded.header_sectors(), 8);
    }

    #[test]
    fn version_1_has_one_header_sector() {
        let header = RecordHeader {
            version: 1,
            ..sample(4096, 0)
        };
        let decoded = RecordHeader::decode(&header.encode(), Locus::UNKNOWN).unwrap();
        assert_eq!((decoded.header_sectors(), decoded.sectors()), (1, 9));
    }
}
