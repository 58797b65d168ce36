//! The GUID partition table: two copies of a header and an array of entries, each with a checksum.
//!
//! Spec: UEFI 2.10, 5.3.

use std::mem::{offset_of, size_of};

use crc_fast::{CrcAlgorithm, checksum};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    Corruption, Fault, GptCopy, Partition, PartitionTable, PartitionType, Rule, Scheme, Structure,
    TableError, byte_range, read_bytes,
};
use crate::{BlockDevice, IoError};

/// The beginning of a header's sector.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskHeader {
    /// `Signature`.
    signature: [u8; 8],
    /// `Revision`.
    revision: U32,
    /// `HeaderSize`.
    header_bytes: U32,
    /// `HeaderCRC32`, of the header with this field zero.
    header_crc: U32,
    /// `Reserved`.
    reserved: U32,
    /// `MyLBA`.
    own_sector: U64,
    /// `AlternateLBA`.
    other_sector: U64,
    /// `FirstUsableLBA`.
    first_usable: U64,
    /// `LastUsableLBA`.
    last_usable: U64,
    /// `DiskGUID`.
    disk_guid: [u8; 16],
    /// `PartitionEntryLBA`.
    entries_sector: U64,
    /// `NumberOfPartitionEntries`.
    entry_count: U32,
    /// `SizeOfPartitionEntry`.
    entry_bytes: U32,
    /// `PartitionEntryArrayCRC32`.
    entries_crc: U32,
}
const _: () = assert!(size_of::<DiskHeader>() == 92);
const _: () = assert!(offset_of!(DiskHeader, disk_guid) == 56);

/// The defined part of an entry.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntry {
    /// `PartitionTypeGUID`, zero in an entry that is not used.
    type_guid: [u8; 16],
    /// `UniquePartitionGUID`.
    guid: [u8; 16],
    /// `StartingLBA`.
    first: U64,
    /// `EndingLBA`, inclusive.
    last: U64,
    /// `Attributes`.
    attributes: U64,
    /// `PartitionName`, zero-terminated UTF-16.
    name: [U16; 36],
}
const _: () = assert!(size_of::<DiskEntry>() == 128);

const SIGNATURE: [u8; 8] = *b"EFI PART";
/// The major revision of all known headers.
const REVISION_MAJOR: u32 = 1;
/// The supported entry sizes in bytes; the specification demands 128 times a power of two.
const ENTRY_BYTES: std::ops::RangeInclusive<u32> = 128..=4096;
/// Maximum size of the entry array in bytes, as in Linux. Real tables have 16 KiB.
const ENTRIES_BYTES_MAX: u64 = 4 << 20;

/// Outcome of reading one copy.
pub(super) enum Attempt {
    /// No signature.
    Absent,
    /// A valid table.
    Found(PartitionTable),
    /// A signature, but the table is corrupt.
    Corrupt(Broken),
}

/// A corrupt copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Broken {
    corruption: Corruption,
    /// The `AlternateLBA` of a header that is itself valid.
    other_sector: Option<u64>,
}

/// Reads the primary copy.
pub(super) fn read_primary(device: &dyn BlockDevice, sector_bytes: u32) -> Attempt {
    match read_copy(device, sector_bytes, 1, GptCopy::Primary) {
        Ok(table) => Attempt::Found(table),
        Err(Broken { corruption, .. })
            if corruption.structure == Structure::PrimaryHeader
                && matches!(corruption.rule, Rule::NoSignature | Rule::Outside) =>
        {
            Attempt::Absent
        }
        Err(broken) => Attempt::Corrupt(broken),
    }
}

/// Reports the missing primary header of a disk that should have one.
pub(super) fn missing(sector_bytes: u32) -> Broken {
    Corruption {
        structure: Structure::PrimaryHeader,
        offset: u64::from(sector_bytes),
        rule: Rule::NoSignature,
    }
    .into()
}

/// Reads the backup copy in place of a corrupt primary one: in the last sector, or at the
/// `AlternateLBA` of a valid primary header.
pub(super) fn read_backup(
    device: &dyn BlockDevice,
    primaries: Vec<(u32, Broken)>,
) -> Result<PartitionTable, TableError> {
    let mut corruption = Vec::new();
    for (sector_bytes, primary) in primaries {
        corruption.push(primary.corruption);
        let sectors = device.geometry().len_bytes.checked_div(sector_bytes.into());
        let last = sectors.unwrap_or(0).saturating_sub(1);
        let other = primary.other_sector.filter(|&other| other != last);
        for sector in std::iter::once(last).chain(other) {
            match read_copy(device, sector_bytes, sector, GptCopy::Backup) {
                Ok(mut table) => {
                    table.corruption.insert(0, primary.corruption);
                    return Ok(table);
                }
                Err(backup) => corruption.push(backup.corruption),
            }
        }
    }
    Err(TableError::Corrupt {
        device: device.name().clone(),
        corruption,
    })
}

impl From<Corruption> for Broken {
    fn from(corruption: Corruption) -> Self {
        Self {
            corruption,
            other_sector: None,
        }
    }
}

/// A header with valid checksum and bounds.
struct Header {
    other_sector: u64,
    last_usable: u64,
    disk: Uuid,
    entries_offset: u64,
    entry_bytes: usize,
    entries_bytes: usize,
    entries_crc: u32,
}

fn read_copy(
    device: &dyn BlockDevice,
    sector_bytes: u32,
    sector: u64,
    copy: GptCopy,
) -> Result<PartitionTable, Broken> {
    let (structure, entries_structure) = match copy {
        GptCopy::Primary => (Structure::PrimaryHeader, Structure::PrimaryEntries),
        GptCopy::Backup => (Structure::BackupHeader, Structure::BackupEntries),
    };
    let offset = sector.saturating_mul(u64::from(sector_bytes));
    let broken = |rule| Corruption {
        structure,
        offset,
        rule,
    };
    let bytes = read(device, offset, sector_bytes as usize).map_err(broken)?;
    let header = decode_header(&bytes, sector, sector_bytes).map_err(broken)?;
    let broken = |rule| Broken {
        corruption: Corruption {
            structure: entries_structure,
            offset: header.entries_offset,
            rule,
        },
        other_sector: Some(header.other_sector),
    };
    let bytes = read(device, header.entries_offset, header.entries_bytes).map_err(broken)?;
    if crc32(&bytes) != header.entries_crc {
        return Err(broken(Rule::Checksum));
    }
    let device_bytes = device.geometry().len_bytes;
    let partitions = (1..)
        .zip(bytes.chunks_exact(header.entry_bytes))
        .filter_map(|(number, bytes)| decode_entry(number, bytes, sector_bytes, device_bytes))
        .collect();
    let mut corruption = Vec::new();
    if byte_range(header.last_usable, 1, sector_bytes).end > device_bytes {
        corruption.push(Corruption {
            structure,
            offset,
            rule: Rule::UsableBeyondEnd,
        });
    }
    let scheme = Scheme::Gpt {
        disk: header.disk,
        copy,
    };
    Ok(PartitionTable::new(
        scheme,
        sector_bytes,
        partitions,
        corruption,
    ))
}

fn read(device: &dyn BlockDevice, offset: u64, length: usize) -> Result<Vec<u8>, Rule> {
    let unreadable = |error: IoError| Rule::Unreadable(error.source.kind());
    read_bytes(device, offset, length)
        .map_err(unreadable)?
        .ok_or(Rule::Outside)
}

/// Validates the header in the sector `sector`, whose contents are `bytes`.
fn decode_header(bytes: &[u8], sector: u64, sector_bytes: u32) -> Result<Header, Rule> {
    let (disk, _) = DiskHeader::ref_from_prefix(bytes).map_err(|_| Rule::Outside)?;
    if disk.signature != SIGNATURE {
        return Err(Rule::NoSignature);
    }
    let header_bytes = disk.header_bytes.get();
    let header = usize::try_from(header_bytes)
        .ok()
        .filter(|&length| length >= size_of::<DiskHeader>())
        .and_then(|length| bytes.get(..length))
        .ok_or(Rule::HeaderSize(header_bytes))?;
    let mut header = header.to_vec();
    if let Ok((disk, _)) = DiskHeader::mut_from_prefix(&mut header) {
        disk.header_crc = U32::ZERO;
    }
    if crc32(&header) != disk.header_crc.get() {
        return Err(Rule::Checksum);
    }
    let revision = disk.revision.get();
    if revision >> 16 != REVISION_MAJOR {
        return Err(Rule::Revision(revision));
    }
    if disk.own_sector.get() != sector {
        return Err(Rule::Misplaced(disk.own_sector.get()));
    }
    if disk.first_usable.get() > disk.last_usable.get() {
        return Err(Rule::UsableBackwards);
    }
    let entry_bytes = disk.entry_bytes.get();
    if !ENTRY_BYTES.contains(&entry_bytes) || !entry_bytes.is_power_of_two() {
        return Err(Rule::EntrySize(entry_bytes));
    }
    let entries_bytes = u64::from(entry_bytes).saturating_mul(disk.entry_count.get().into());
    if entries_bytes > ENTRIES_BYTES_MAX {
        return Err(Rule::TooLarge(entries_bytes));
    }
    Ok(Header {
        other_sector: disk.other_sector.get(),
        last_usable: disk.last_usable.get(),
        disk: Uuid::from_bytes_le(disk.disk_guid),
        entries_offset: disk
            .entries_sector
            .get()
            .saturating_mul(u64::from(sector_bytes)),
        entry_bytes: usize::try_from(entry_bytes).map_err(|_| Rule::EntrySize(entry_bytes))?,
        entries_bytes: usize::try_from(entries_bytes).map_err(|_| Rule::TooLarge(entries_bytes))?,
        entries_crc: disk.entries_crc.get(),
    })
}

/// Decodes one entry; `None` if it is unused.
fn decode_entry(
    number: u32,
    bytes: &[u8],
    sector_bytes: u32,
    device_bytes: u64,
) -> Option<Partition> {
    let (disk, _) = DiskEntry::ref_from_prefix(bytes).ok()?;
    if disk.type_guid == [0; 16] {
        return None;
    }
    let (first, last) = (disk.first.get(), disk.last.get());
    let count = last.checked_sub(first).map(|more| more.saturating_add(1));
    let range = byte_range(first, count.unwrap_or(0), sector_bytes);
    let fault = match count {
        None => Some(Fault::Backwards),
        Some(_) if range.end > device_bytes => Some(Fault::BeyondEnd),
        Some(_) => None,
    };
    let units = disk.name.iter().map(|unit| unit.get());
    let name: String = char::decode_utf16(units.take_while(|&unit| unit != 0))
        .map(|character| character.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect();
    Some(Partition {
        number,
        range,
        kind: PartitionType::Guid(Uuid::from_bytes_le(disk.type_guid)),
        name: name.into_bytes(),
        guid: Some(Uuid::from_bytes_le(disk.guid)),
        fault,
    })
}

/// Returns the CRC-32 (IEEE 802.3).
fn crc32(bytes: &[u8]) -> u32 {
    let sum = checksum(CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(sum & 0xffff_ffff).unwrap_or_default()
}
