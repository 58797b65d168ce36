//! GUID partition tables.

use std::io;
use std::num::Wrapping;

use super::*;
use crate::{Geometry, Operation};

const DISK_BYTES: usize = 1 << 20;

/// The fields of a GPT, to be modified before it is written.
#[derive(Clone)]
pub(super) struct Gpt {
    sector: usize,
    header_bytes: u32,
    revision: u32,
    primary_sector: u64,
    backup_sector: u64,
    first_usable: u64,
    last_usable: u64,
    entries_sector: u64,
    backup_entries_sector: u64,
    entry_count: u32,
    entry_bytes: u32,
    entries: Vec<(usize, u64, u64, &'static str)>,
}

impl Gpt {
    pub(super) fn new(sector: usize) -> Self {
        let sectors = (DISK_BYTES / sector) as u64;
        let array = 16384usize.div_ceil(sector) as u64;
        Self {
            sector,
            header_bytes: 92,
            revision: 0x10000,
            primary_sector: 1,
            backup_sector: sectors - 1,
            first_usable: 2 + array,
            last_usable: sectors - 2 - array,
            entries_sector: 2,
            backup_entries_sector: sectors - 1 - array,
            entry_count: 128,
            entry_bytes: 128,
            entries: vec![(0, 40, 49, "boot"), (4, 60, 99, "dürüm 🥙")],
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn array(&self) -> Vec<u8> {
        let mut array = vec![0; 16384];
        for &(slot, first, last, name) in &self.entries {
            let mut entry = [0xa5; 16].to_vec();
            entry.extend([slot.to_le_bytes()[0] + 1; 16]);
            entry.extend(first.to_le_bytes());
            entry.extend(last.to_le_bytes());
            entry.extend([0; 8]);
            entry.extend(name.encode_utf16().flat_map(u16::to_le_bytes));
            let start = slot * usize::try_from(self.entry_bytes).unwrap();
            array[start..start + entry.len()].copy_from_slice(&entry);
        }
        array
    }

    fn header(&self, own: u64, other: u64, entries: u64) -> Vec<u8> {
        let length = u64::from(self.entry_count) * u64::from(self.entry_bytes);
        let array = self.array();
        let length = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(array.len());
        let mut header = b"EFI PART".to_vec();
        header.extend(self.revision.to_le_bytes());
        header.extend(self.header_bytes.to_le_bytes());
        header.extend([0; 8]);
        for sector in [own, other, self.first_usable, self.last_usable] {
            header.extend(sector.to_le_bytes());
        }
        header.extend([0xd1; 16]);
        header.extend(entries.to_le_bytes());
        header.extend(self.entry_count.to_le_bytes());
        header.extend(self.entry_bytes.to_le_bytes());
        header.extend(crc32(&array[..length]).to_le_bytes());
        header.resize(512, 0);
        seal(&mut header);
        header
    }

    pub(super) fn disk(&self) -> Disk {
        let mut disk = Disk::new(DISK_BYTES);
        let protective = [
            0, 0, 2, 0, 0xee, 255, 255, 255, 1, 0, 0, 0, 255, 255, 255, 255,
        ];
        disk.put(446, &protective).put(510, &[0x55, 0xaa]);
        let array = self.array();
        let backup_entries = usize::try_from(self.backup_entries_sector).unwrap() * self.sector;
        disk.put(2 * self.sector, &array)
            .put(backup_entries, &array);
        let (primary, backup) = (self.primary_sector, self.backup_sector);
        let header = self.header(primary, backup, self.entries_sector);
        disk.put(self.sector, &header);
        let header = self.header(backup, primary, self.backup_entries_sector);
        disk.put(DISK_BYTES - self.sector, &header);
        disk
    }

    /// The disk with its backup overwritten, so that only the primary copy can be used.
    fn primary_only(&self) -> Disk {
        let mut disk = self.disk();
        disk.0[DISK_BYTES - self.sector..].fill(0);
        disk
    }
}

/// A bitwise CRC-32, independent of the tested implementation.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    })
}

/// Stores the checksum in a header, computed over its `HeaderSize`.
fn seal(header: &mut [u8]) {
    let length = u32::from_le_bytes(header[12..16].try_into().unwrap());
    let length = usize::try_from(length).unwrap().min(header.len());
    header[16..20].fill(0);
    let sum = crc32(&header[..length]);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// Stores both checksums in the primary header, as far as its fields allow.
pub(super) fn seal_primary(disk: &mut Disk, sector: usize) {
    let field = |disk: &Disk, at: usize| {
        u32::from_le_bytes(disk.0[sector + at..sector + at + 4].try_into().unwrap())
    };
    let length = Wrapping(field(disk, 80)) * Wrapping(field(disk, 84));
    let start = usize::try_from(field(disk, 72))
        .unwrap()
        .saturating_mul(sector);
    let end = start.saturating_add(usize::try_from(length.0).unwrap());
    if let Some(array) = disk.0.get(start..end) {
        let sum = crc32(array);
        disk.put(sector + 88, &sum.to_le_bytes());
    }
    seal(&mut disk.0[sector..2 * sector]);
}

/// A device with unreadable bytes.
#[derive(Debug)]
pub(super) struct BadSectors {
    device: Arc<MemoryDevice>,
    bad: Range<u64>,
}

impl BadSectors {
    pub(super) fn new(disk: &Disk, bad: Range<u64>) -> Self {
        let device = disk.device();
        Self { device, bad }
    }
}

impl BlockDevice for BadSectors {
    fn name(&self) -> &Arc<str> {
        self.device.name()
    }
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let end = offset + buf.len() as u64;
        if offset < self.bad.end && self.bad.start < end {
            let source = io::Error::from_raw_os_error(5);
            return Err(IoError::new(
                self.name(),
                Operation::Read,
                offset,
                1,
                source,
            ));
        }
        self.device.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.device.write_at(offset, buf)
    }
    fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }
    fn discard(&self, _range: Range<u64>) -> Result<(), IoError> {
        Ok(())
    }
}

fn copy(table: &PartitionTable) -> GptCopy {
    match table.scheme {
        Scheme::Gpt { copy, .. } => copy,
        Scheme::Mbr { .. } => panic!("an MBR: {table:?}"),
    }
}

#[test]
fn both_sector_sizes_are_found_in_a_regular_file() {
    for sector in [512, 4096] {
        let table = Gpt::new(sector).disk().table();
        assert_eq!(u64::from(table.sector_bytes), sector as u64);
        assert_eq!(copy(&table), GptCopy::Primary);
        assert_eq!(table.corruption, []);
        let scale = sector as u64;
        let [boot, kebab] = &table.partitions[..] else {
            panic!("{table:?}");
        };
        assert_eq!(
            (boot.number, boot.range.clone()),
            (1, 40 * scale..50 * scale)
        );
        assert_eq!(
            (kebab.number, kebab.range.clone()),
            (5, 60 * scale..100 * scale)
        );
        assert_eq!(boot.name, b"boot");
        assert_eq!(kebab.name, "dürüm 🥙".as_bytes());
        assert_eq!(boot.kind, PartitionType::Guid(Uuid::from_bytes([0xa5; 16])));
        assert_eq!(kebab.guid, Some(Uuid::from_bytes([5; 16])));
        assert_eq!(table.get(5), Some(kebab));
        assert_eq!(table.get(2), None);
    }
}

#[test]
fn backup_replaces_corrupt_primary() {
    for sector in [512, 4096] {
        for wiped in [sector, 2 * sector + 32] {
            let mut disk = Gpt::new(sector).disk();
            disk.0[wiped..wiped + 8].fill(0);
            let table = disk.table();
            assert_eq!(copy(&table), GptCopy::Backup);
            assert_eq!(table.partitions, Gpt::new(sector).disk().table().partitions);
            let rule = if wiped == sector {
                (Structure::PrimaryHeader, Rule::NoSignature)
            } else {
                (Structure::PrimaryEntries, Rule::Checksum)
            };
            assert_eq!(rules(&table.corruption), [rule]);
        }
    }
}

#[test]
fn backup_replaces_unreadable_primary() {
    let device = BadSectors::new(&Gpt::new(512).disk(), 512..1024);
    let table = read_table(&device).unwrap().unwrap();
    assert_eq!(copy(&table), GptCopy::Backup);
    let Rule::Unreadable(_) = table.corruption[0].rule else {
        panic!("{table:?}");
    };
}

#[test]
fn backup_inside_a_grown_disk_is_found() {
    let mut disk = Gpt::new(512).disk();
    disk.0.resize(2 * DISK_BYTES, 0);
    assert_eq!(copy(&disk.table()), GptCopy::Primary);
    disk.0[1024 + 5] ^= 1;
    assert_eq!(copy(&disk.table()), GptCopy::Backup);
}

#[test]
fn leftover_backup_is_ignored() {
    let mut disk = Gpt::new(512).disk();
    disk.0[..4096].fill(0);
    assert_eq!(disk.read().unwrap(), None);
    let table = read_backup_table(&*disk.device()).unwrap().unwrap();
    assert_eq!(copy(&table), GptCopy::Backup);
    assert_eq!(table.partitions.len(), 2);
}

#[test]
fn gpt_without_protective_mbr_is_found() {
    let mut disk = Gpt::new(512).disk();
    disk.0[..512].fill(0);
    assert_eq!(copy(&disk.table()), GptCopy::Primary);
    disk.0[512 + 40] ^= 1;
    assert_eq!(copy(&disk.table()), GptCopy::Backup);
    disk.0[DISK_BYTES - 512..].fill(0);
    let corruption = rules(&disk.corruption());
    let expected = [
        (Structure::PrimaryHeader, Rule::Checksum),
        (Structure::BackupHeader, Rule::NoSignature),
    ];
    assert_eq!(corruption, expected);
}

#[test]
fn gpt_has_precedence_over_hybrid_mbr() {
    let mut disk = Gpt::new(512).disk();
    let linux = [0x80, 0, 2, 0, 0x83, 255, 255, 255, 40, 0, 0, 0, 10, 0, 0, 0];
    disk.put(446 + 16, &linux);
    assert_eq!(copy(&disk.table()), GptCopy::Primary);
}

#[test]
fn protective_mbr_without_gpt_is_corrupt() {
    let mut disk = Gpt::new(512).primary_only();
    disk.0[512..2048].fill(0);
    let corruption = disk.corruption();
    assert_eq!(corruption[0].offset, 512);
    let header = (Structure::PrimaryHeader, Rule::NoSignature);
    let backup = (Structure::BackupHeader, Rule::NoSignature);
    assert_eq!(rules(&corruption), [header, backup, header, backup]);
    let message = disk.read().unwrap_err().to_string();
    let first = "disk: primary GPT header at byte 512: signature missing; ";
    assert!(message.starts_with(first), "{message}");
}

fn primary_header_rule(change: impl FnOnce(&mut Gpt)) -> Rule {
    let corruption = Gpt::new(512).with(change).primary_only().corruption();
    assert_eq!(corruption[0].structure, Structure::PrimaryHeader);
    corruption[0].rule
}

#[test]
fn header_of_unknown_revision_is_corrupt() {
    let rule = primary_header_rule(|gpt| gpt.revision = 0x20000);
    assert_eq!(rule, Rule::Revision(0x20000));
}

#[test]
fn header_of_invalid_size_is_corrupt() {
    for size in [0, 91, 513, u32::MAX] {
        let rule = primary_header_rule(|gpt| gpt.header_bytes = size);
        assert_eq!(rule, Rule::HeaderSize(size));
    }
    let table = Gpt::new(512)
        .with(|gpt| gpt.header_bytes = 512)
        .disk()
        .table();
    assert_eq!(table.partitions.len(), 2);
}

#[test]
fn header_with_flipped_bit_is_corrupt() {
    let mut disk = Gpt::new(512).primary_only();
    disk.0[512 + 60] ^= 4;
    assert_eq!(disk.corruption()[0].rule, Rule::Checksum);
}

#[test]
fn header_with_wrong_my_lba_is_corrupt() {
    let rule = primary_header_rule(|gpt| gpt.primary_sector = 7);
    assert_eq!(rule, Rule::Misplaced(7));
}

#[test]
fn reversed_usable_range_is_corrupt() {
    let rule = primary_header_rule(|gpt| gpt.last_usable = gpt.first_usable - 1);
    assert_eq!(rule, Rule::UsableBackwards);
}

#[test]
fn invalid_entry_size_is_corrupt() {
    for size in [0, 1, 64, 127, 129, 192, 8192, u32::MAX] {
        let rule = primary_header_rule(|gpt| {
            gpt.entries.clear();
            gpt.entry_bytes = size;
            gpt.entry_count = 1;
        });
        assert_eq!(rule, Rule::EntrySize(size));
    }
    let wide = Gpt::new(512).with(|gpt| {
        gpt.entry_bytes = 512;
        gpt.entry_count = 32;
    });
    assert_eq!(
        wide.disk().table().get(5).unwrap().name,
        "dürüm 🥙".as_bytes()
    );
}

#[test]
fn excessive_entry_count_is_corrupt() {
    let rule = primary_header_rule(|gpt| gpt.entry_count = u32::MAX);
    assert_eq!(rule, Rule::TooLarge(u64::from(u32::MAX) * 128));
}

#[test]
fn entries_outside_the_device_are_corrupt() {
    for (sector, count) in [(u64::MAX, 128), (2047, 128), (1 << 55, 128), (2, 8192)] {
        let gpt = Gpt::new(512).with(|gpt| {
            gpt.entries_sector = sector;
            gpt.entry_count = count;
        });
        let corruption = gpt.primary_only().corruption();
        assert_eq!(
            rules(&corruption)[0],
            (Structure::PrimaryEntries, Rule::Outside)
        );
    }
}

#[test]
fn table_of_a_longer_disk_is_used_partially() {
    let mut disk = Gpt::new(512).disk();
    disk.0.truncate(90 * 512);
    let table = disk.table();
    assert_eq!(
        rules(&table.corruption),
        [(Structure::PrimaryHeader, Rule::UsableBeyondEnd)]
    );
    assert_eq!(faults(&table), [(1, None), (5, Some(Fault::BeyondEnd))]);
}

#[test]
fn faulty_entries_are_marked_and_others_kept() {
    let gpt = Gpt::new(512).with(|gpt| {
        gpt.entries = vec![
            (0, 40, 49, "good"),
            (1, 60, 50, "backwards"),
            (2, 100, 300, "wide"),
            (3, 150, 160, "inside it"),
            (4, 300, 300, "at its end"),
            (6, 2000, 2048, "beyond the end"),
            (8, 5, u64::MAX, "everything"),
        ];
    });
    let table = gpt.disk().table();
    let expected = [
        (1, Some(Fault::Overlaps(9))),
        (2, Some(Fault::Backwards)),
        (3, Some(Fault::Overlaps(9))),
        (4, Some(Fault::Overlaps(9))),
        (5, Some(Fault::Overlaps(9))),
        (7, Some(Fault::BeyondEnd)),
        (9, Some(Fault::BeyondEnd)),
    ];
    assert_eq!(faults(&table), expected);
    let device = gpt.disk().device();
    assert!(table.open(device.clone(), 3).is_ok());
    for unusable in [2, 7, 9] {
        assert!(table.open(device.clone(), unusable).is_err());
    }
}

#[test]
fn invalid_utf16_name_is_converted() {
    let mut disk = Gpt::new(512).disk();
    disk.put(1024 + 56, &[0x00, 0xd8, b'x', 0]);
    seal_primary(&mut disk, 512);
    let name = "\u{fffd}xot".as_bytes();
    assert_eq!(disk.table().partitions[0].name, name);
}
