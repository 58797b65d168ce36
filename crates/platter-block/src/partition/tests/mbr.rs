//! Master and extended boot records.

use super::*;

/// Builds a boot record from entries of type, first sector and number of sectors.
fn record(entries: &[(u8, u32, u32)]) -> [u8; 512] {
    let mut record = [0; 512];
    for (slot, (kind, first, count)) in entries.iter().enumerate() {
        let at = 446 + slot * 16;
        record[at + 4] = *kind;
        record[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        record[at + 12..at + 16].copy_from_slice(&count.to_le_bytes());
    }
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    record
}

/// Builds a disk of 1 MiB with primary partitions.
pub(super) fn disk(entries: &[(u8, u32, u32)]) -> Disk {
    let mut disk = Disk::new(1 << 20);
    disk.put(0, &record(entries));
    disk
}

/// Builds a disk with one primary and `count` logical partitions: the extended partition begins in
/// sector 100, each record is followed by its partition of 8 sectors at a distance of 10.
pub(super) fn logical_disk(count: u32) -> Disk {
    let mut disk = disk(&[(0x83, 8, 8), (0x05, 100, 1000)]);
    for index in 0..count {
        let link = if index + 1 < count {
            (0x05, (index + 1) * 10, 10)
        } else {
            (0, 0, 0)
        };
        disk.put(sector(100 + index * 10), &record(&[(0x83, 1, 8), link]));
    }
    disk
}

fn sector(number: u32) -> usize {
    usize::try_from(number).unwrap() * 512
}

fn numbers(table: &PartitionTable) -> Vec<(u32, u64)> {
    table
        .partitions
        .iter()
        .map(|p| (p.number, p.range.start / 512))
        .collect()
}

#[test]
fn primary_partitions_are_numbered_by_slot() {
    let mut disk = disk(&[(0, 0, 0), (0x83, 8, 8), (0, 0, 0), (0x82, 16, 32)]);
    disk.put(440, &[1, 2, 3, 4]);
    let table = disk.table();
    assert_eq!(
        table.scheme,
        Scheme::Mbr {
            disk_signature: 0x0403_0201
        }
    );
    assert_eq!(table.sector_bytes, 512);
    assert_eq!(numbers(&table), [(2, 8), (4, 16)]);
    assert_eq!(table.partitions[0].range, 4096..8192);
    assert_eq!(table.partitions[1].kind.to_string(), "Linux swap");
    assert_eq!(table.partitions[1].guid, None);
}

#[test]
fn logical_partitions_are_numbered_from_five() {
    let table = logical_disk(3).table();
    assert_eq!(
        numbers(&table),
        [(1, 8), (2, 100), (5, 101), (6, 111), (7, 121)]
    );
    assert_eq!(table.corruption, []);
    assert!(
        table
            .partitions
            .iter()
            .all(|partition| partition.fault.is_none())
    );
}

#[test]
fn extended_partition_without_records_is_empty() {
    let table = logical_disk(0).table();
    assert_eq!(numbers(&table), [(1, 8), (2, 100)]);
    assert_eq!(table.corruption, []);
}

#[test]
fn empty_record_in_the_chain_takes_no_number() {
    let mut disk = logical_disk(3);
    disk.put(sector(110), &record(&[(0, 0, 0), (0x05, 20, 10)]));
    assert_eq!(
        numbers(&disk.table()),
        [(1, 8), (2, 100), (5, 101), (6, 121)]
    );
}

#[test]
fn more_partitions_in_one_record_count_when_inside() {
    let mut disk = logical_disk(1);
    let entries = [(0x83, 1, 8), (0, 0, 0), (0x83, 20, 8), (0x83, 20, 5000)];
    disk.put(sector(100), &record(&entries));
    assert_eq!(
        numbers(&disk.table()),
        [(1, 8), (2, 100), (5, 101), (6, 120)]
    );
}

#[test]
fn cyclic_chain_is_corrupt() {
    let mut disk = logical_disk(3);
    disk.put(sector(120), &record(&[(0x83, 1, 8), (0x05, 10, 10)]));
    let table = disk.table();
    assert_eq!(numbers(&table).len(), 5);
    assert_eq!(
        rules(&table.corruption),
        [(Structure::ExtendedBootRecord, Rule::Cycle)]
    );
    assert_eq!(table.corruption[0].offset, 110 * 512);
    let error = table.open(disk.device(), 8).unwrap_err();
    let reason = "extended boot record at byte 56320: occurs twice in the chain";
    assert_eq!(
        error.to_string(),
        format!("disk: no partition 8 ({reason})")
    );
}

#[test]
fn overlong_chain_is_limited() {
    let mut disk = disk(&[(0x0f, 10, 2000)]);
    for index in 0..400 {
        let entries = [(0x83, 1, 1), (0x05, (index + 1) * 4, 4)];
        disk.put(sector(10 + index * 4), &record(&entries));
    }
    let table = disk.table();
    assert_eq!(table.partitions.len(), 257);
    assert_eq!(
        rules(&table.corruption),
        [(Structure::ExtendedBootRecord, Rule::TooLong)]
    );
}

#[test]
fn corrupt_record_keeps_earlier_partitions() {
    for (link, rule) in [
        ((0x05, 500, 10), Rule::NoSignature),
        ((0x05, 1000, 10), Rule::Outside),
        ((0x05, u32::MAX, 10), Rule::Outside),
    ] {
        let mut disk = logical_disk(2);
        disk.put(sector(110), &record(&[(0x83, 1, 8), link]));
        let table = disk.table();
        assert_eq!(numbers(&table), [(1, 8), (2, 100), (5, 101), (6, 111)]);
        assert_eq!(
            rules(&table.corruption),
            [(Structure::ExtendedBootRecord, rule)]
        );
    }
}

#[test]
fn unreadable_record_keeps_earlier_partitions() {
    let bad = 110 * 512..111 * 512;
    let device = super::gpt::BadSectors::new(&logical_disk(3), bad);
    let table = read_table(&device).unwrap().unwrap();
    assert_eq!(numbers(&table), [(1, 8), (2, 100), (5, 101)]);
    assert!(
        matches!(table.corruption[0].rule, Rule::Unreadable(_)),
        "{table:?}"
    );
}

#[test]
fn table_entirely_beyond_the_device_is_corrupt() {
    let corruption = disk(&[(0x83, 2048, 4096), (0x83, 8192, 100)]).corruption();
    assert_eq!(
        rules(&corruption),
        [(Structure::MasterBootRecord, Rule::NothingInside)]
    );
}

#[test]
fn overlapping_primaries_are_marked() {
    let table = disk(&[(0x83, 8, 100), (0x83, 50, 10), (0x83, 108, 1)]).table();
    let expected = [
        (1, Some(Fault::Overlaps(2))),
        (2, Some(Fault::Overlaps(1))),
        (3, None),
    ];
    assert_eq!(faults(&table), expected);
}

#[test]
fn boot_sector_of_a_filesystem_is_no_table() {
    // Boot code up to the signature, as syslinux leaves it before an ext superblock.
    let mut boot = Disk::new(1 << 20);
    let code: Vec<u8> = (0..510u32)
        .map(|i| (i * 37 % 251).to_le_bytes()[0] | 1)
        .collect();
    boot.put(0, &code)
        .put(510, &[0x55, 0xaa])
        .put(1024 + 56, &[0x53, 0xef]);
    assert_eq!(boot.read().unwrap(), None);

    // A boot sector that ends in zeros, as mkfs.fat writes it.
    let mut boot = Disk::new(1 << 20);
    boot.put(0, &[0xeb, 0x3c, 0x90])
        .put(3, b"mkfs.fat")
        .put(510, &[0x55, 0xaa]);
    assert_eq!(boot.read().unwrap(), None);

    // Message text in place of the entries.
    let text = b"This is not a bootable disk.  Please insert a bootable floppy and";
    boot.put(440, text).put(510, &[0x55, 0xaa]);
    assert_eq!(boot.read().unwrap(), None);

    // A table without the signature.
    let mut table = disk(&[(0x83, 8, 8)]);
    table.put(510, &[0, 0]);
    assert_eq!(table.read().unwrap(), None);
}

#[test]
fn table_for_4096_byte_sectors_is_recognized() {
    // Aligned to 1 MiB only in sectors of 4096 bytes.
    let mut aligned = Disk::new(64 << 20);
    aligned.put(0, &record(&[(0x83, 256, 256), (0x83, 512, 1024)]));
    assert_eq!(aligned.table().sector_bytes, 4096);
    assert_eq!(aligned.table().partitions[1].range, 2 << 20..6 << 20);

    // The extended boot record determines the sector size.
    let mut logical = Disk::new(16 << 20);
    logical.put(0, &record(&[(0x05, 300, 1000)]));
    logical.put(300 * 4096, &record(&[(0x83, 1, 100)]));
    assert_eq!(logical.table().sector_bytes, 4096);
    assert_eq!(logical.table().get(5).unwrap().range.start, 301 * 4096);

    // The same table does not fit in sectors of 4096 bytes.
    let mut short = Disk::new(4 << 20);
    short.put(0, &record(&[(0x83, 256, 256), (0x83, 512, 1024)]));
    assert_eq!(short.table().sector_bytes, 512);
}
