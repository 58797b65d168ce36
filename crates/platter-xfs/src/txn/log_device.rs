//! The blocks of the log: part of the data device, or a device of its own.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus, Uuid};
use platter_vfs::{Result, Unsupported};

use crate::ondisk::log::record::SECTOR_BYTES;
use crate::ondisk::{Geometry, Lsn, Superblock, SuperblockRule};

/// The log, in sectors of 512 bytes that its positions count in.
#[derive(Debug, Clone)]
pub struct LogDevice {
    device: Arc<dyn BlockDevice>,
    /// First byte on the device.
    start: u64,
    /// Length in sectors.
    sectors: u32,
    internal: bool,
    version: u32,
    stripe_bytes: u32,
    uuid: Uuid,
    /// Bytes in use at most.
    bytes_max: u64,
    /// Nothing is written: blocks are stamped as of this record.
    unwritten: Option<Lsn>,
}

/// Length of a log that is not written.
const UNWRITTEN_SECTORS: u32 = 1 << 20;

impl LogDevice {
    /// The same without any writes, for changes that no crash exposes: what is brought to its place bears `lsn`, that
    /// of the last record.
    #[must_use]
    pub fn unwritten(&self, lsn: Lsn) -> Self {
        Self {
            sectors: UNWRITTEN_SECTORS,
            unwritten: Some(lsn),
            ..self.clone()
        }
    }

    /// The same with so many bytes in use at most.
    #[must_use]
    pub fn limited(self, bytes_max: Option<u64>) -> Self {
        Self {
            bytes_max: bytes_max.unwrap_or(u64::MAX),
            ..self
        }
    }

    /// Bytes that records may take.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        // The head never reaches the tail.
        let spare = u64::from(self.record_unit_bytes()) * 2;
        let bytes = u64::from(self.sectors) * SECTOR_BYTES as u64;
        bytes.min(self.bytes_max).saturating_sub(spare)
    }

    /// What blocks that were logged at `lsn` are stamped with.
    #[must_use]
    pub fn stamp(&self, lsn: Lsn) -> Lsn {
        self.unwritten.unwrap_or(lsn)
    }

    /// The log of a filesystem: inside `data`, or on `external` where the superblock says so.
    pub fn open(
        superblock: &Superblock,
        data: &Arc<dyn BlockDevice>,
        external: Option<&Arc<dyn BlockDevice>>,
    ) -> Result<Self> {
        let geometry = Geometry::new(superblock);
        let len_bytes = u64::from(superblock.log_blocks) * u64::from(geometry.block_bytes());
        let (device, start) = match (superblock.log_start, external) {
            (Some(start), _) => (data, geometry.byte_offset(start)),
            (None, Some(external)) => (external, 0),
            (None, None) => {
                return Err(Unsupported {
                    filesystem: "xfs",
                    feature: "an external log without its device".to_owned(),
                    reason: Some("name it with logdev="),
                }
                .into());
            }
        };
        let sectors = u32::try_from(len_bytes / SECTOR_BYTES as u64).ok();
        let end = start.checked_add(len_bytes);
        let fits = end.is_some_and(|end| end <= device.geometry().len_bytes);
        let Some(sectors) = sectors.filter(|&sectors| fits && sectors >= 2) else {
            return Err(Corrupt::new(Locus::UNKNOWN, SuperblockRule::Log).into());
        };
        let has_stripe = superblock.log_stripe_unit > 1;
        Ok(Self {
            device: Arc::clone(device),
            start,
            sectors,
            internal: superblock.log_start.is_some(),
            version: if superblock.features.has_logv2() {
                2
            } else {
                1
            },
            stripe_bytes: if has_stripe {
                superblock.log_stripe_unit
            } else {
                superblock.log_sector_bytes.max(512)
            },
            uuid: superblock.uuid,
            bytes_max: u64::MAX,
            unwritten: None,
        })
    }

    /// Length in sectors.
    #[must_use]
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// The UUID that its records bear.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The version of the records it takes.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The unit in bytes that records are padded to.
    #[must_use]
    pub fn record_unit_bytes(&self) -> u32 {
        self.stripe_bytes
    }

    /// Whether a range of bytes of the data device overlaps the log.
    #[must_use]
    pub fn overlaps_data(&self, start: u64, len: u64) -> bool {
        let end = self.start + u64::from(self.sectors) * SECTOR_BYTES as u64;
        self.internal && start < end && start.saturating_add(len) > self.start
    }

    /// Names a sector of the log in errors.
    #[must_use]
    pub fn locus(&self, sector: u32) -> Locus {
        Locus::UNKNOWN.at_offset(u64::from(sector) * SECTOR_BYTES as u64)
    }

    /// The sector `count` after `sector`, around the end.
    #[must_use]
    pub fn after(&self, sector: u32, count: u32) -> u32 {
        let sum = u64::from(sector) + u64::from(count);
        u32::try_from(sum % u64::from(self.sectors)).unwrap_or_default()
    }

    /// The sector `count` before `sector`, around the start.
    #[must_use]
    pub fn before(&self, sector: u32, count: u32) -> u32 {
        self.after(sector, self.sectors - count % self.sectors)
    }

    /// How many sectors lie from one sector up to another, around the end.
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        self.after(to, self.sectors - from % self.sectors)
    }

    /// Reads `count` sectors, around the end.
    pub fn read(&self, first: u32, count: u32) -> Result<Vec<u8>> {
        let first = first % self.sectors;
        let count = count.min(self.sectors);
        let before_end = count.min(self.sectors - first);
        let mut bytes = vec![0; count as usize * SECTOR_BYTES];
        let (one, two) = bytes.split_at_mut(before_end as usize * SECTOR_BYTES);
        self.device.read_at(self.offset(first), one)?;
        if !two.is_empty() {
            self.device.read_at(self.start, two)?;
        }
        Ok(bytes)
    }

    /// Writes whole sectors, around the end. What lies before the end is durable before the start is written: where
    /// recovery finds the cycle number of the next pass at the start, the pass before must be whole.
    pub fn write(&self, first: u32, bytes: &[u8]) -> Result<()> {
        if self.unwritten.is_some() {
            return Ok(());
        }
        let first = first % self.sectors;
        let before_end = (self.sectors - first) as usize * SECTOR_BYTES;
        let (one, two) = match first {
            0 => (&[][..], bytes),
            _ => bytes.split_at(before_end.min(bytes.len())),
        };
        if !one.is_empty() {
            self.device.write_at(self.offset(first), one)?;
        }
        if !two.is_empty() {
            self.device.flush()?;
            self.device.write_at(self.start, two)?;
        }
        Ok(())
    }

    /// Makes what was written durable.
    pub fn flush(&self) -> Result<()> {
        if self.unwritten.is_some() {
            return Ok(());
        }
        Ok(self.device.flush()?)
    }

    fn offset(&self, sector: u32) -> u64 {
        self.start + u64::from(sector) * SECTOR_BYTES as u64
    }
}

#[cfg(test)]
impl LogDevice {
    /// An external log of the whole device.
    pub(crate) fn sample(device: Arc<dyn BlockDevice>, uuid: Uuid) -> Self {
        Self::sample_of(device, uuid, 512)
    }

    /// The same with a stripe unit.
    pub(crate) fn sample_of(device: Arc<dyn BlockDevice>, uuid: Uuid, stripe_bytes: u32) -> Self {
        let sectors = device.geometry().len_bytes / SECTOR_BYTES as u64;
        Self {
            device,
            start: 0,
            sectors: u32::try_from(sectors).unwrap(),
            internal: false,
            version: 2,
            stripe_bytes,
            uuid,
            bytes_max: u64::MAX,
            unwritten: None,
        }
    }
}
