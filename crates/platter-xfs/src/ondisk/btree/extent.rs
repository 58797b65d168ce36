//! Mappings of file blocks, as the forks of inodes and the leaves of their B-trees hold them.
//! Spec: `xfs/data_extents`.

use platter_ondisk::rules;

use super::{DiskMapping, RecordKey};
use crate::ondisk::geometry::Geometry;
use crate::ondisk::types::{FileBlock, FsBlock, RtBlock};

/// The most blocks of one mapping: 21 bits.
pub const MAPPING_LEN_MAX: u64 = (1 << 21) - 1;
const START_BITS: u32 = 52;
const LOW_START_BITS: u32 = 43;
const COUNT_BITS: u32 = 21;
const HIGH_START_BITS: u32 = START_BITS - LOW_START_BITS;
const UNWRITTEN: u64 = 1 << 63;

rules! {
    /// What a mapping must hold to.
    pub enum MappingRule of "extent record" {
        /// It has blocks, and ends within the number range of files.
        Length => "bad length",
        /// Its blocks lie within one allocation group, or within the realtime device.
        Target => "blocks lie outside the filesystem",
        /// Attribute forks have no unwritten extents.
        Unwritten => "unwritten extent where there cannot be one",
        /// Mappings ascend and do not overlap.
        Order => "records out of order",
        /// The inode counts as many mappings as there are.
        Count => "number of extents does not match the inode",
    }
}

/// Where the data of a fork lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentDevice {
    /// On the data device.
    Data,
    /// On the realtime device.
    Realtime,
}

/// File blocks and the blocks that back them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The first file block.
    pub offset: FileBlock,
    /// The first block, as stored: an [`FsBlock`] or [`RtBlock`].
    pub start: u64,
    /// Number of blocks.
    pub count: u64,
    /// Space is allocated, but reads as zeros.
    pub is_unwritten: bool,
}

impl Mapping {
    /// Unpacks a record.
    #[must_use]
    pub fn unpack(disk: &DiskMapping) -> Self {
        let (high, low) = (disk.high.get(), disk.low.get());
        let offset = (high & !UNWRITTEN)
            .checked_shr(HIGH_START_BITS)
            .unwrap_or_default();
        let start = (high & mask(HIGH_START_BITS))
            .checked_shl(LOW_START_BITS)
            .unwrap_or_default();
        Self {
            offset: FileBlock(offset),
            start: start | low.checked_shr(COUNT_BITS).unwrap_or_default(),
            count: low & mask(COUNT_BITS),
            is_unwritten: high & UNWRITTEN != 0,
        }
    }

    /// The record of this mapping; `None` if it does not fit one.
    #[must_use]
    pub fn pack(&self) -> Option<DiskMapping> {
        let fits = self.offset <= FileBlock::MAX
            && self.start <= mask(START_BITS)
            && (1..=MAPPING_LEN_MAX).contains(&self.count);
        let unwritten = if self.is_unwritten { UNWRITTEN } else { 0 };
        let high =
            self.offset.0.checked_shl(HIGH_START_BITS)? | self.start.checked_shr(LOW_START_BITS)?;
        let low = (self.start & mask(LOW_START_BITS)).checked_shl(COUNT_BITS)?;
        fits.then(|| DiskMapping {
            high: (unwritten | high).into(),
            low: (low | self.count).into(),
        })
    }

    /// The file block after the last one.
    #[must_use]
    pub fn end(&self) -> FileBlock {
        FileBlock(self.offset.0.saturating_add(self.count))
    }

    /// Checks all that can be decided without its neighbours.
    pub fn check(&self, geometry: &Geometry, device: ExtentDevice) -> Result<(), MappingRule> {
        if self.count == 0 || self.offset.checked_add(self.count).is_none() {
            return Err(MappingRule::Length);
        }
        let is_inside = match device {
            ExtentDevice::Data => geometry.contains(FsBlock(self.start), self.count),
            ExtentDevice::Realtime => geometry.contains_rt(RtBlock(self.start), self.count),
        };
        if is_inside {
            Ok(())
        } else {
            Err(MappingRule::Target)
        }
    }

    /// First byte on the device that `device` names.
    #[must_use]
    pub fn byte_offset(&self, geometry: &Geometry, device: ExtentDevice) -> u64 {
        match device {
            ExtentDevice::Data => geometry.byte_offset(FsBlock(self.start)),
            ExtentDevice::Realtime => geometry.rt_byte_offset(RtBlock(self.start)),
        }
    }
}

impl DiskMapping {
    /// What records of a fork's B-tree are ordered by.
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        let mapping = Mapping::unpack(self);
        RecordKey::of_run(mapping.offset.0, mapping.count)
    }
}

fn mask(bits: u32) -> u64 {
    1_u64
        .checked_shl(bits)
        .map_or(u64::MAX, |size| size.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn records_unpack_as_the_document_shows() {
        // The third extent of the document's example.
        let disk = DiskMapping {
            high: 0x001f_a400.into(),
            low: 0x0000_000f_58e0_07e9.into(),
        };
        let mapping = Mapping::unpack(&disk);
        let expected = Mapping {
            offset: FileBlock(4050),
            start: 31431,
            count: 2025,
            is_unwritten: false,
        };
        assert_eq!(mapping, expected);
        assert_eq!(mapping.pack(), Some(disk));
    }

    #[test]
    fn extreme_records_survive_packing() {
        let mapping = Mapping {
            offset: FileBlock::MAX,
            start: (1 << 52) - 1,
            count: MAPPING_LEN_MAX,
            is_unwritten: true,
        };
        let disk = mapping.pack().unwrap();
        assert_eq!((disk.high.get(), disk.low.get()), (u64::MAX, u64::MAX));
        assert_eq!(Mapping::unpack(&disk), mapping);
        for bad in [
            Mapping {
                count: 0,
                ..mapping
            },
            Mapping {
                count: 1 << 21,
                ..mapping
            },
            Mapping {
                start: 1 << 52,
                ..mapping
            },
        ] {
            assert_eq!(bad.pack(), None);
        }
    }

    #[test]
    fn mappings_stay_within_the_filesystem() {
        let geometry = sample_geometry();
        let mapping = Mapping {
            offset: FileBlock(0),
            start: 4095,
            count: 1,
            is_unwritten: false,
        };
        assert_eq!(mapping.check(&geometry, ExtentDevice::Data), Ok(()));
        let across = Mapping {
            count: 2,
            ..mapping
        };
        assert_eq!(
            across.check(&geometry, ExtentDevice::Data),
            Err(MappingRule::Target)
        );
        assert_eq!(
            mapping.check(&geometry, ExtentDevice::Realtime),
            Err(MappingRule::Target)
        );
        let empty = Mapping {
            count: 0,
            ..mapping
        };
        assert_eq!(
            empty.check(&geometry, ExtentDevice::Data),
            Err(MappingRule::Length)
        );
        let beyond = Mapping {
            offset: FileBlock::MAX,
            count: 2,
            ..mapping
        };
        assert_eq!(
            beyond.check(&geometry, ExtentDevice::Data),
            Err(MappingRule::Length)
        );
    }
}
