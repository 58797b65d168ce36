//! Partition tables: GPT and MBR.
//!
//! Specs: UEFI 2.10 chapter 5 (GPT and the protective MBR); the MBR and its extended boot records
//! have none and are read as Linux reads them.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

mod corruption;
mod kind;
mod gpt;
mod mbr;

use std::ops::Range;
use std::sync::Arc;

use uuid::Uuid;

use crate::{BlockDevice, IoError, PartitionView};

pub use corruption::{Corruption, Fault, Rule, Structure, TableError};
pub use kind::PartitionType;

/// The valid part of a partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionTable {
    /// The kind of table.
    pub scheme: Scheme,
    /// The sector size in bytes that the table uses. A table in a regular file can have been
    /// written for a disk with another sector size than the file's device.
    pub sector_bytes: u32,
    /// The partitions in ascending order of their numbers.
    pub partitions: Vec<Partition>,
    /// Corruption that was worked around, such as in the primary GPT when the backup is used.
    pub corruption: Vec<Corruption>,
}

/// The kinds of partition tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// GUID partition table.
    Gpt {
        /// The GUID of the disk.
        disk: Uuid,
        /// The copy that was read.
        copy: GptCopy,
    },
    /// Master boot record with its extended boot records.
    Mbr {
        /// The disk signature; zero if there is none.
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
    /// Its number, as in Linux device names.
    pub number: u32,
    /// The byte range in its entry, possibly beyond the end of the disk.
    pub range: Range<u64>,
    /// Its type.
    pub kind: PartitionType,
    /// Its name in UTF-8, empty if it has none; an MBR has no names.
    pub name: Vec<u8>,
    /// Its own GUID, in a GPT.
    pub guid: Option<Uuid>,
    /// The fault of the entry, if any.
    pub fault: Option<Fault>,
}

/// Reads the partition table of a device.
///
/// Returns `None` if there is no table, or an MBR without partitions, which cannot be distinguished
/// from the boot sector of a bare filesystem; an error if there is a table that is corrupt beyond
/// use. A backup GPT at the end is read only if the beginning has a primary GPT or a protective
/// MBR: otherwise it is more likely a leftover, for which there is [`read_backup_table`].
pub fn read_table(device: &dyn BlockDevice) -> Result<Option<PartitionTable>, TableError> {
    let mbr = mbr::read_record(device, 0)?.filter(mbr::BootRecord::is_partition_table);
    if let Some(mbr) = &mbr
        && !mbr.is_protective()
    {
        return mbr::read_table(device, mbr).map(Some);
    }
    let mut corruption = Vec::new();
    for sector_bytes in sector_sizes(device) {
        match gpt::read_primary(device, sector_bytes) {
            gpt::Attempt::Absent => {}
            gpt::Attempt::Found(table) => return Ok(Some(table)),
            gpt::Attempt::Corrupt(found) => corruption.push((sector_bytes, found)),
        }
    }
    if corruption.is_empty() {
        if mbr.is_none() {
            return Ok(None);
        }
        corruption = sector_sizes(device)
            .map(|sector_bytes| (sector_bytes, gpt::missing(sector_bytes)))
            .collect();
    }
    gpt::read_backup(device, corruption).map(Some)
}

/// Reads the backup GPT at the end of a device, regardless of its beginning.
///
/// This is for a disk whose beginning was overwritten. If there is a filesystem at the beginning,
/// the backup is a leftover of an earlier table.
pub fn read_backup_table(device: &dyn BlockDevice) -> Result<Option<PartitionTable>, TableError> {
    let corruption = sector_sizes(device)
        .map(|sector_bytes| (sector_bytes, gpt::missing(sector_bytes)))
        .collect();
    match gpt::read_backup(device, corruption) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl PartitionTable {
    /// Returns the partition of this number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Partition> {
        let found = self.partitions.binary_search_by_key(&number, |p| p.number);
        found.ok().and_then(|index| self.partitions.get(index))
    }

    /// Opens the partition of this number as a device, named after the disk: `disk.img@2`.
    ///
    /// Refused if the entry extends beyond the end of the device. A partition that overlaps another
    /// one can be opened; callers that write to it should check its fault first.
    pub fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        number: u32,
    ) -> Result<PartitionView, TableError> {
        let partition = self
            .get(number)
            .ok_or_else(|| TableError::NoSuchPartition {
                device: Arc::clone(device.name()),
                number,
                corruption: self.corruption.first().copied(),
            })?;
        match partition.fault {
            Some(fault @ (Fault::Backwards | Fault::BeyondEnd)) => Err(TableError::Unusable {
                device: Arc::clone(device.name()),
                number,
                fault,
            }),
            None | Some(Fault::Overlaps(_)) => {
                let name = format!("{}@{number}", device.name());
                let view = PartitionView::new(&name, device, partition.range.clone());
                view.map_err(TableError::Io)
            }
        }
    }

    /// Builds a table from decoded entries: sorts them, and finds the faults that involve several
    /// entries.
    fn new(
        scheme: Scheme,
        sector_bytes: u32,
        mut partitions: Vec<Partition>,
        corruption: Vec<Corruption>,
    ) -> Self {
        mark_overlaps(&mut partitions);
        partitions.sort_by_key(|partition| partition.number);
        Self {
            scheme,
            sector_bytes,
            partitions,
            corruption,
        }
    }
}

/// Marks partitions that overlap another one. Extended partitions overlap by design.
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

/// Returns the sector sizes that a table may have been written for, the device's own first.
fn sector_sizes(device: &dyn BlockDevice) -> impl Iterator<Item = u32> {
    /// No disk has larger sectors.
    const SECTOR_BYTES_MAX: u32 = 65536;
    let own = device.geometry().logical_block_bytes;
    let own = own.clamp(512, SECTOR_BYTES_MAX);
    std::iter::once(own).chain([512, 4096].into_iter().filter(move |&size| size != own))
}

/// Returns the byte range of `count` sectors from `first`, saturating.
fn byte_range(first: u64, count: u64, sector_bytes: u32) -> Range<u64> {
    let scale = u64::from(sector_bytes);
    let end = first.saturating_add(count);
    first.saturating_mul(scale)..end.saturating_mul(scale)
}

/// Reads one sector or less, or reports that it is beyond the end of the device.
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
