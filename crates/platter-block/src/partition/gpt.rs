//! The GUID partition table: two copies of a header and an array of entries, each with a checksum.
//!
//! Spec: UEFI 2.10, 5.3.

use std::mem::{offset_of, size_of};

use crc_fast::{CrcAlgorithm, checksum};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    Damage, Fault, GptCopy, Partition, PartitionTable, PartitionType, Rule, Scheme, Structure,
    TableError, byte_range, read_bytes,
};
use crate::{BlockDevice, IoError};

/// The first bytes of the sector of a header.
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

/// The part of an entry that has a meaning.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntry {
    /// `PartitionTypeGUID`, zero in an entry that is not used.
    type_guid: [u8; 16],
    /// `UniquePartitionGUID`.
    guid: [u8; 16],
    /// `StartingLBA`.
    first: U64,
    /// `EndingLBA`, which belongs to the partition.
    last: U64,
    /// `Attributes`.
    attributes: U64,
    /// `PartitionName`, UTF-16 that a zero ends.
    name: [U16; 36],
}
const _: () = assert!(size_of::<DiskEntry>() == 128);

const SIGNATURE: [u8; 8] = *b"EFI PART";
/// The major revision that every header has.
const REVISION_MAJOR: u32 = 1;
/// The entry sizes that are served: 128 times a power of two, by the specification.
const ENTRY_BYTES: std::ops::RangeInclusive<u32> = 128..=4096;
/// The bytes of entries that are served; Linux stops here too. Real tables have 16 KiB.
const ENTRIES_BYTES_MAX: u64 = 4 << 20;

/// What became of reading one copy.
pub(super) enum Attempt {
    /// There is none: no signature.
    Absent,
    /// A table that can be believed.
    Found(PartitionTable),
    /// There is one, and it is damaged.
    Damaged(Broken),
}

/// A copy that cannot be believed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Broken {
    damage: Damage,
    /// Where a header that can be believed itself says that the other copy is.
    other_sector: Option<u64>,
}

/// Reads the copy at the beginning.
pub(super) fn read_primary(device: &dyn BlockDevice, sector_bytes: u32) -> Attempt {
    match read_copy(device, sector_bytes, 1, GptCopy::Primary) {
        Ok(table) => Attempt::Found(table),
        Err(Broken { damage, .. })
            if damage.structure == Structure::PrimaryHeader
                && matches!(damage.rule, Rule::NoSignature | Rule::Outside) =>
        {
            Attempt::Absent
        }
        Err(broken) => Attempt::Damaged(broken),
    }
}

/// The damage of a disk that should have a primary header and has none.
pub(super) fn missing(sector_bytes: u32) -> Broken {
    Damage {
        structure: Structure::PrimaryHeader,
        offset: u64::from(sector_bytes),
        rule: Rule::NoSignature,
    }
    .into()
}

/// Reads the copy at the end in place of primary copies that are damaged: in the last sector, or
/// where an intact primary header says.
pub(super) fn read_backup(
    device: &dyn BlockDevice,
    primaries: Vec<(u32, Broken)>,
) -> Result<PartitionTable, TableError> {
    let mut damage = Vec::new();
    for (sector_bytes, primary) in primaries {
        damage.push(primary.damage);
        let sectors = device.geometry().len_bytes.checked_div(sector_bytes.into());
        let last = sectors.unwrap_or(0).saturating_sub(1);
        let other = primary.other_sector.filter(|&other| other != last);
        for sector in std::iter::once(last).chain(other) {
            match read_copy(device, sector_bytes, sector, GptCopy::Backup) {
                Ok(mut table) => {
                    table.damage.insert(0, primary.damage);
                    return Ok(table);
                }
                Err(backup) => damage.push(backup.damage),
            }
        }
    }
    Err(TableError::Damaged {
        device: device.name().clone(),
        damage,
    })
}

impl From<Damage> for Broken {
    fn from(damage: Damage) -> Self {
        Self {
            damage,
            other_sector: None,
        }
    }
}

/// A header whose own checksum and bounds hold.
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
    let broken = |rule| Damage {
        structure,
        offset,
        rule,
    };
    let bytes = read(device, offset, sector_bytes as usize).map_err(broken)?;
    let header = decode_header(&bytes, sector, sector_bytes).map_err(broken)?;
    let broken = |rule| Broken {
        damage: Damage {
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
    let mut damage = Vec::new();
    if byte_range(header.last_usable, 1, sector_bytes).end > device_bytes {
        damage.push(Damage {
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
        damage,
    ))
}

fn read(device: &dyn BlockDevice, offset: u64, length: usize) -> Result<Vec<u8>, Rule> {
    let unreadable = |error: IoError| Rule::Unreadable(error.source.kind());
    read_bytes(device, offset, length)
        .map_err(unreadable)?
        .ok_or(Rule::Outside)
}

/// Decodes the header in the sector `sector`, whose bytes these are.
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

/// Decodes one entry, `None` when it is not used.
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

/// CRC-32 as Ethernet has it.
fn crc32(bytes: &[u8]) -> u32 {
    let sum = checksum(CrcAlgorithm::Crc32IsoHdlc, bytes);
    u32::try_from(sum & 0xffff_ffff).unwrap_or_default()
}
