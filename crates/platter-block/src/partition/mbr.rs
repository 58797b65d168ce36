//! The master boot record, and the chain of extended boot records with the logical partitions.

use std::collections::HashSet;
use std::mem::size_of;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    Corruption, Fault, Partition, PartitionTable, PartitionType, Rule, Scheme, Structure,
    TableError, byte_range, read_bytes,
};
use crate::{BlockDevice, IoError};

/// The first 512 bytes of the first sector, and of each extended boot record.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskRecord {
    /// Boot code.
    code: [u8; 440],
    /// Disk signature.
    disk_signature: U32,
    /// Zero, or 0x5a5a on a copy-protected disk.
    reserved: [u8; 2],
    /// The partition entries.
    entries: [DiskEntry; 4],
    /// 0x55, 0xaa.
    signature: [u8; 2],
}
const _: () = assert!(size_of::<DiskRecord>() == RECORD_BYTES);

/// One entry. The CHS fields are ignored.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskEntry {
    /// 0x80 on the partition to boot from, else zero.
    boot_indicator: u8,
    first_chs: [u8; 3],
    /// The type; zero in an entry that is not used.
    kind: u8,
    last_chs: [u8; 3],
    /// First sector, relative to: the disk (primary), the containing record (logical), or the
    /// extended partition (link to the next record).
    first: U32,
    /// Number of sectors.
    count: U32,
}
const _: () = assert!(size_of::<DiskEntry>() == 16);

const RECORD_BYTES: usize = 512;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// Maximum number of extended boot records; Linux has no more partitions on a disk.
const RECORD_COUNT_MAX: usize = 256;
/// The alignment of partitioning tools in bytes, whatever the sector size.
const ALIGN_BYTES: u64 = 1 << 20;

/// A boot record with a valid signature.
#[derive(Debug, Clone, Copy)]
pub(super) struct BootRecord {
    disk_signature: u32,
    entries: [Entry; 4],
}

/// One entry of a boot record, in sectors.
#[derive(Debug, Clone, Copy)]
struct Entry {
    boot_indicator: u8,
    kind: PartitionType,
    first: u64,
    count: u64,
    used: bool,
}

impl Entry {
    fn decode(disk: &DiskEntry) -> Self {
        Self {
            boot_indicator: disk.boot_indicator,
            kind: PartitionType::Byte(disk.kind),
            first: disk.first.get().into(),
            count: disk.count.get().into(),
            used: disk.kind != 0 && disk.count != U32::ZERO,
        }
    }

    fn partition(
        &self,
        number: u32,
        first: u64,
        sector_bytes: u32,
        device: &dyn BlockDevice,
    ) -> Partition {
        let range = byte_range(first, self.count, sector_bytes);
        let beyond = range.end > device.geometry().len_bytes;
        Partition {
            number,
            range,
            kind: self.kind,
            name: Vec::new(),
            guid: None,
            fault: beyond.then_some(Fault::BeyondEnd),
        }
    }
}

impl BootRecord {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (disk, _) = DiskRecord::ref_from_prefix(bytes).ok()?;
        (disk.signature == SIGNATURE).then(|| Self {
            disk_signature: disk.disk_signature.get(),
            entries: disk.entries.each_ref().map(Entry::decode),
        })
    }

    fn used(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.used)
    }

    /// Whether the entries can be a partition table: the boot sector of a filesystem has the same
    /// signature, with boot code or zeros in place of entries.
    pub(super) fn is_partition_table(&self) -> bool {
        let plain = |entry: &Entry| matches!(entry.boot_indicator, 0 | 0x80);
        self.entries.iter().all(plain) && self.used().next().is_some()
    }

    /// Whether the record is a protective MBR of a GPT, alone or with other entries (hybrid MBR).
    pub(super) fn is_protective(&self) -> bool {
        self.used()
            .any(|entry| entry.kind == PartitionType::PROTECTIVE)
    }
}

/// Reads the boot record at a byte offset; `None` if it has no signature or is beyond the end.
pub(super) fn read_record(
    device: &dyn BlockDevice,
    offset: u64,
) -> Result<Option<BootRecord>, IoError> {
    let bytes = read_bytes(device, offset, RECORD_BYTES)?;
    Ok(bytes.and_then(|bytes| BootRecord::decode(&bytes)))
}

/// Reads the table whose first record is `mbr`.
pub(super) fn read_table(
    device: &dyn BlockDevice,
    mbr: &BootRecord,
) -> Result<PartitionTable, TableError> {
    let sector_bytes = sector_bytes(device, mbr)?;
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(&mbr.entries) {
        if entry.used {
            partitions.push(entry.partition(number, entry.first, sector_bytes, device));
        }
    }
    let begins_inside = |partition: &Partition| partition.range.start < device.geometry().len_bytes;
    if !partitions.iter().any(begins_inside) {
        return Err(TableError::Corrupt {
            device: device.name().clone(),
            corruption: vec![Corruption {
                structure: Structure::MasterBootRecord,
                offset: 0,
                rule: Rule::NothingInside,
            }],
        });
    }
    let mut logical = Logical {
        device,
        sector_bytes,
        partitions,
        corruption: Vec::new(),
        number: 5,
        seen: HashSet::new(),
    };
    for extended in mbr.used().filter(|entry| entry.kind.is_container()) {
        logical.follow(extended);
    }
    let scheme = Scheme::Mbr {
        disk_signature: mbr.disk_signature,
    };
    Ok(PartitionTable::new(
        scheme,
        sector_bytes,
        logical.partitions,
        logical.corruption,
    ))
}

/// The logical partitions found while their chain is followed.
struct Logical<'a> {
    device: &'a dyn BlockDevice,
    sector_bytes: u32,
    partitions: Vec<Partition>,
    corruption: Vec<Corruption>,
    /// Number of the next partition.
    number: u32,
    /// Sectors of the records read so far.
    seen: HashSet<u64>,
}

impl Logical<'_> {
    /// Follows the chain in an extended partition to its end or to the first corrupt record.
    fn follow(&mut self, extended: &Entry) {
        let end = extended.first.saturating_add(extended.count);
        let mut sector = extended.first;
        let first_record = self.seen.len();
        loop {
            let record = match self.read(sector) {
                Ok(Some(record)) => record,
                // An extended partition without logical partitions needs no record.
                Ok(None) => {
                    if self.seen.len() == first_record.saturating_add(1) {
                        return;
                    }
                    return self.corrupt(sector, Rule::NoSignature);
                }
                Err(rule) => return self.corrupt(sector, rule),
            };
            self.add(&record, sector, extended);
            let Some(link) = record.used().find(|entry| entry.kind.is_container()) else {
                return;
            };
            sector = extended.first.saturating_add(link.first);
            if sector >= end {
                return self.corrupt(sector, Rule::Outside);
            }
        }
    }

    fn read(&mut self, sector: u64) -> Result<Option<BootRecord>, Rule> {
        if self.seen.len() >= RECORD_COUNT_MAX {
            return Err(Rule::TooLong);
        }
        if !self.seen.insert(sector) {
            return Err(Rule::Cycle);
        }
        let offset = self.offset(sector);
        let bytes = read_bytes(self.device, offset, RECORD_BYTES)
            .map_err(|error| Rule::Unreadable(error.source.kind()))?
            .ok_or(Rule::Outside)?;
        Ok(BootRecord::decode(&bytes))
    }

    /// Adds the logical partitions of one record: its first entry, and further ones, which are
    /// rare, only if they are within the extended partition.
    fn add(&mut self, record: &BootRecord, sector: u64, extended: &Entry) {
        let end = extended.first.saturating_add(extended.count);
        for (slot, entry) in record.entries.iter().enumerate() {
            if !entry.used || entry.kind.is_container() {
                continue;
            }
            let first = sector.saturating_add(entry.first);
            if slot >= 2 && (first < extended.first || first.saturating_add(entry.count) > end) {
                continue;
            }
            let partition = entry.partition(self.number, first, self.sector_bytes, self.device);
            self.partitions.push(partition);
            self.number = self.number.saturating_add(1);
        }
    }

    fn corrupt(&mut self, sector: u64, rule: Rule) {
        self.corruption.push(Corruption {
            structure: Structure::ExtendedBootRecord,
            offset: self.offset(sector),
            rule,
        });
    }

    fn offset(&self, sector: u64) -> u64 {
        sector.saturating_mul(self.sector_bytes.into())
    }
}

/// Returns the sector size that the entries use: the device's own, unless the entries are plausible
/// only with the other one of 512 and 4096 bytes. An MBR does not store it.
fn sector_bytes(device: &dyn BlockDevice, mbr: &BootRecord) -> Result<u32, IoError> {
    let own = device.geometry().logical_block_bytes;
    let other = match own {
        512 => 4096,
        4096 => 512,
        _ => return Ok(own),
    };
    let fits = |sector_bytes| {
        let len_bytes = device.geometry().len_bytes;
        mbr.used()
            .all(|entry| byte_range(entry.first, entry.count, sector_bytes).end <= len_bytes)
    };
    if !fits(other) {
        return Ok(own);
    }
    if !fits(own) {
        return Ok(other);
    }
    if let Some(extended) = mbr.used().find(|entry| entry.kind.is_container()) {
        let record_in = |sector_bytes| {
            let offset = byte_range(extended.first, 0, sector_bytes).start;
            read_record(device, offset).map(|record| record.is_some())
        };
        if record_in(own)? {
            return Ok(own);
        }
        if record_in(other)? {
            return Ok(other);
        }
    }
    let aligned = |sector_bytes| {
        mbr.used().all(|entry| {
            let start = byte_range(entry.first, 0, sector_bytes).start;
            start.is_multiple_of(ALIGN_BYTES)
        })
    };
    Ok(if aligned(other) && !aligned(own) {
        other
    } else {
        own
    })
}
