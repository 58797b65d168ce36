//! Partition tables: which parts of a disk hold something, and what.
//!
//! Specs: UEFI 2.10 chapter 5 (GPT and the protective MBR); the MBR and its extended boot records
//! have none and are read as Linux reads them.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod damage;
mod gpt;
mod kind;
mod mbr;

use std::ops::Range;
use std::sync::Arc;

use uuid::Uuid;

use crate::{BlockDevice, IoError, WindowDevice};

pub use damage::{Damage, Fault, Rule, Structure, TableError};
pub use kind::PartitionType;

/// A partition table, as far as it can be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// Which kind of table it is.
    pub scheme: Scheme,
    /// The sector size in bytes that the table counts in. A table in a plain file can have been
    /// written for a disk of another sector size than the file's device has.
    pub sector_bytes: u32,
    /// The partitions, in the order of their numbers.
    pub partitions: Vec<Partition>,
    /// What is broken and was worked around, such as the primary GPT when its backup is used.
    pub damage: Vec<Damage>,
}

/// The kinds of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// GUID partition table.
    Gpt {
        /// The GUID of the disk.
        disk: Uuid,
        /// Which of its two copies was read.
        copy: GptCopy,
    },
    /// Master boot record with its extended boot records.
    Mbr {
        /// The disk signature; zero where there is none.
        disk_signature: u32,
    },
}

/// The two copies of a GPT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GptCopy {
    /// At the beginning of the disk.
    Primary,
    /// At the end of the disk.
    Backup,
}

/// One entry of a partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux numbers it.
    pub number: u32,
    /// The bytes of the disk that the entry says it takes, possibly beyond the end of the disk.
    pub range: Range<u64>,
    /// What it says it holds.
    pub kind: PartitionType,
    /// Its name in UTF-8, empty where there is none; an MBR has no names.
    pub name: Vec<u8>,
    /// Its own GUID, in a GPT.
    pub guid: Option<Uuid>,
    /// What is wrong with the entry.
    pub fault: Option<Fault>,
}

/// Reads the partition table of a device.
///
/// `None` means that there is no table, or an MBR without a single partition, which cannot be told
/// from the boot sector of a bare filesystem; an error that there was one, and that it is damaged
/// beyond use. A backup GPT at the end is consulted only where the beginning promises a GPT: else
/// it is more likely a leftover, for which there is [`read_backup_table`].
pub fn read_table(device: &dyn BlockDevice) -> Result<Option<PartitionTable>, TableError> {
    let mbr = mbr::read_record(device, 0)?.filter(mbr::BootRecord::is_partition_table);
    if let Some(mbr) = &mbr
        && !mbr.is_protective()
    {
        return mbr::read_table(device, mbr).map(Some);
    }
    let mut damage = Vec::new();
    for sector_bytes in sector_sizes(device) {
        match gpt::read_primary(device, sector_bytes) {
            gpt::Attempt::Absent => {}
            gpt::Attempt::Found(table) => return Ok(Some(table)),
            gpt::Attempt::Damaged(found) => damage.push((sector_bytes, found)),
        }
    }
    if damage.is_empty() {
        if mbr.is_none() {
            return Ok(None);
        }
        damage = sector_sizes(device)
            .map(|sector_bytes| (sector_bytes, gpt::missing(sector_bytes)))
            .collect();
    }
    gpt::read_backup(device, damage).map(Some)
}

/// Reads the backup GPT at the end of a device, whatever its beginning holds.
///
/// For a disk whose beginning was overwritten. Where a filesystem was found at the beginning, the
/// backup is a leftover of what was there before.
pub fn read_backup_table(device: &dyn BlockDevice) -> Result<Option<PartitionTable>, TableError> {
    let damage = sector_sizes(device)
        .map(|sector_bytes| (sector_bytes, gpt::missing(sector_bytes)))
        .collect();
    match gpt::read_backup(device, damage) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::Damaged { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl PartitionTable {
    /// The partition of this number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Partition> {
        let found = self.partitions.binary_search_by_key(&number, |p| p.number);
        found.ok().and_then(|index| self.partitions.get(index))
    }

    /// The partition of this number as a device, named after the disk: `disk.img@2`.
    ///
    /// Refused where the entry reaches beyond the end of the device. One that overlaps another can
    /// be opened; whoever wants to write to it should look at its fault first.
    pub fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        number: u32,
    ) -> Result<WindowDevice, TableError> {
        let partition = self
            .get(number)
            .ok_or_else(|| TableError::NoSuchPartition {
                device: Arc::clone(device.name()),
                number,
                damage: self.damage.first().copied(),
            })?;
        match partition.fault {
            Some(fault @ (Fault::Backwards | Fault::BeyondEnd)) => Err(TableError::Unusable {
                device: Arc::clone(device.name()),
                number,
                fault,
            }),
            None | Some(Fault::Overlaps(_)) => {
                let name = format!("{}@{number}", device.name());
                let window = WindowDevice::new(&name, device, partition.range.clone());
                window.map_err(TableError::Io)
            }
        }
    }

    /// Builds a table out of entries that were decoded one by one: orders them, and finds the
    /// faults that show only in the whole.
    fn new(
        scheme: Scheme,
        sector_bytes: u32,
        mut partitions: Vec<Partition>,
        damage: Vec<Damage>,
    ) -> Self {
        mark_overlaps(&mut partitions);
        partitions.sort_by_key(|partition| partition.number);
        Self {
            scheme,
            sector_bytes,
            partitions,
            damage,
        }
    }
}

/// Marks partitions that share bytes with another one. Extended partitions are meant to.
fn mark_overlaps(partitions: &mut [Partition]) {
    partitions.sort_by_key(|partition| (partition.range.start, partition.number));
    let mut widest: Option<usize> = None;
    for index in 0..partitions.len() {
        let Some((before, [partition, ..])) = partitions.split_at_mut_checked(index) else {
            break;
        };
        if partition.fault == Some(Fault::Backwards) || partition.kind.is_container() {
            continue;
        }
        let earlier = widest.and_then(|widest| before.get_mut(widest));
        let reach = earlier.as_ref().map_or(0, |earlier| earlier.range.end);
        if let Some(earlier) = earlier.filter(|earlier| partition.range.start < earlier.range.end) {
            partition.fault = partition.fault.or(Some(Fault::Overlaps(earlier.number)));
            earlier.fault = earlier.fault.or(Some(Fault::Overlaps(partition.number)));
        }
        if partition.range.end > reach {
            widest = Some(index);
        }
    }
}

/// The sector sizes a table may have been written for, the device's own first.
fn sector_sizes(device: &dyn BlockDevice) -> impl Iterator<Item = u32> {
    /// No disk has larger sectors.
    const SECTOR_BYTES_MAX: u32 = 65536;
    let own = device.geometry().logical_block_bytes;
    let own = own.clamp(512, SECTOR_BYTES_MAX);
    std::iter::once(own).chain([512, 4096].into_iter().filter(move |&size| size != own))
}

/// The bytes of `count` sectors from `first`, as far as numbers go.
fn byte_range(first: u64, count: u64, sector_bytes: u32) -> Range<u64> {
    let scale = u64::from(sector_bytes);
    let end = first.saturating_add(count);
    first.saturating_mul(scale)..end.saturating_mul(scale)
}

/// Reads one sector or less, or says that it does not lie on the device.
fn read_bytes(
    device: &dyn BlockDevice,
    offset: u64,
    length: usize,
) -> Result<Option<Vec<u8>>, IoError> {
    let end = offset.checked_add(length as u64);
    if end.is_none_or(|end| end > device.geometry().len_bytes) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    device.read_at(offset, &mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
