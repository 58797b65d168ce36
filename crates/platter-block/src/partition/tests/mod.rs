//! Partition tables built byte by byte, valid and hostile.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "the tests build the bytes themselves"
)]

mod gpt;
mod mbr;

use proptest::prelude::*;

use super::*;
use crate::MemoryDevice;

/// A disk of zeros with bytes set by the test.
#[derive(Clone)]
struct Disk(Vec<u8>);

impl Disk {
    fn new(len_bytes: usize) -> Self {
        Self(vec![0; len_bytes])
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) -> &mut Self {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn device(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::new("disk", self.0.clone()))
    }

    fn read(&self) -> Result<Option<PartitionTable>, TableError> {
        read_table(&*self.device())
    }

    fn table(&self) -> PartitionTable {
        self.read().unwrap().expect("there is a table")
    }

    fn corruption(&self) -> Vec<Corruption> {
        match self.read() {
            Err(TableError::Corrupt { corruption, .. }) => corruption,
            other => panic!("not corrupt beyond use: {other:?}"),
        }
    }
}

fn rules(corruption: &[Corruption]) -> Vec<(Structure, Rule)> {
    corruption
        .iter()
        .map(|corruption| (corruption.structure, corruption.rule))
        .collect()
}

fn faults(table: &PartitionTable) -> Vec<(u32, Option<Fault>)> {
    table
        .partitions
        .iter()
        .map(|p| (p.number, p.fault))
        .collect()
}

#[test]
fn device_without_table_has_none() {
    for length in [0, 1, 511, 512, 1023, 1024, 4096, 1 << 20] {
        assert_eq!(Disk::new(length).read().unwrap(), None);
        assert_eq!(
            read_backup_table(&*Disk::new(length).device()).unwrap(),
            None
        );
    }
}

#[test]
fn unreadable_device_is_an_error() {
    let device = gpt::BadSectors::new(&Disk::new(1 << 20), 0..512);
    assert!(matches!(read_table(&device), Err(TableError::Io(_))));
}

#[test]
fn partition_opens_as_a_view() {
    let mut disk = mbr::disk(&[(0x83, 8, 8), (0x83, 16, 1 << 20)]);
    disk.put(4096, b"hello");
    let device = disk.device();
    let table = read_table(&*device).unwrap().unwrap();
    let view = table.open(device.clone(), 1).unwrap();
    assert_eq!(&**view.name(), "disk@1");
    assert_eq!(view.range(), 4096..8192);
    let mut buf = [0; 5];
    view.read_at(0, &mut buf).unwrap();
    assert_eq!(&buf, b"hello");

    let error = table.open(device.clone(), 2).unwrap_err();
    let message = "disk: partition 2 extends beyond the end of the device";
    assert_eq!(error.to_string(), message);
    let error = table.open(device, 3).unwrap_err();
    assert_eq!(error.to_string(), "disk: no partition 3");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any mutated table is read or refused, and partition views stay within the device.
    #[test]
    fn mutated_tables_are_read_or_refused(
        scheme in 0..3,
        changes in proptest::collection::vec((0usize..1200, any::<u8>()), 1..12),
        keep_checksums: bool,
    ) {
        let mut disk = match scheme {
            0 => gpt::Gpt::new(512).disk(),
            1 => gpt::Gpt::new(4096).disk(),
            _ => mbr::logical_disk(3),
        };
        // Offsets of structures: the beginning, and the second sector of 4096 bytes.
        for (place, byte) in changes {
            let place = if scheme == 1 { place + 4096 } else { place };
            disk.0[place] = byte;
        }
        if !keep_checksums && scheme < 2 {
            gpt::seal_primary(&mut disk, if scheme == 0 { 512 } else { 4096 });
        }
        let device = disk.device();
        if let Ok(Some(table)) = read_table(&*device) {
            for partition in &table.partitions {
                if let Ok(view) = table.open(device.clone(), partition.number) {
                    prop_assert!(view.range().end <= device.geometry().len_bytes);
                }
            }
        }
    }
}
