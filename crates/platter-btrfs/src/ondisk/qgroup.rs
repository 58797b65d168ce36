//! Quota groups: state, usage and limits, full and simple. Spec: `btrfs/qgroup`.

use bitflags::bitflags;
use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::types::Generation;

/// State of the quota groups.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskQgroupStatus {
    /// `version`.
    pub version: Le64,
    /// `generation`.
    pub generation: Le64,
    /// `flags`.
    pub flags: Le64,
    /// `rescan`.
    pub rescan: Le64,
    /// `enable_gen`, with simple quotas only.
    pub enable_generation: Le64,
}

/// Usage of a quota group.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskQgroupInfo {
    /// `generation`.
    pub generation: Le64,
    /// `rfer`.
    pub referenced: Le64,
    /// `rfer_cmpr`.
    pub referenced_compressed: Le64,
    /// `excl`.
    pub exclusive: Le64,
    /// `excl_cmpr`.
    pub exclusive_compressed: Le64,
}

/// Limits of a quota group.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskQgroupLimit {
    /// `flags`.
    pub flags: Le64,
    /// `max_rfer`.
    pub referenced_max: Le64,
    /// `max_excl`.
    pub exclusive_max: Le64,
    /// `rsv_rfer`.
    pub referenced_reserved: Le64,
    /// `rsv_excl`.
    pub exclusive_reserved: Le64,
}

const _: () = assert!(size_of::<DiskQgroupStatus>() == 40);
const _: () = assert!(size_of::<DiskQgroupInfo>() == 40);
const _: () = assert!(size_of::<DiskQgroupLimit>() == 40);

/// The size of the state without simple quotas.
const STATUS_BYTES: usize = 32;

bitflags! {
    /// `flags` of the state.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct QgroupFlags: u64 {
        /// Quotas are on.
        const ON = 1 << 0;
        /// A rescan is in progress.
        const RESCAN = 1 << 1;
        /// Usage is not right.
        const INCONSISTENT = 1 << 2;
        /// Quotas are simple.
        const SIMPLE_MODE = 1 << 3;
    }
}

bitflags! {
    /// `flags` of limits. Others limit nothing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct LimitFlags: u64 {
        /// Bytes referred to are limited.
        const REFERENCED = 1 << 0;
        /// Bytes exclusively referred to are limited.
        const EXCLUSIVE = 1 << 1;
    }
}

rules! {
    /// The rules of quota items.
    pub enum QgroupRule of "qgroup item" {
        /// It has the size of the structure; a relation is empty.
        Size => "invalid item size",
        /// The version of the state is 1.
        Version => "invalid version",
        /// Flags of the state are known.
        Flags => "unknown flags",
    }
}

/// State of the quota groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QgroupStatus {
    /// The last transaction that kept usage right.
    pub generation: Generation,
    /// Flags.
    pub flags: QgroupFlags,
    /// The logical address that a rescan has come to.
    pub rescan: u64,
    /// The transaction that turned simple quotas on.
    pub enable_generation: Option<Generation>,
}

impl QgroupStatus {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<QgroupRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let mut disk = DiskQgroupStatus::new_zeroed();
        let has_enable = bytes.len() == size_of::<DiskQgroupStatus>();
        let place = disk.as_mut_bytes().get_mut(..bytes.len());
        let place = place.filter(|place| has_enable || place.len() == STATUS_BYTES);
        place
            .ok_or(broken(QgroupRule::Size))?
            .copy_from_slice(bytes);
        if disk.version.get() != 1 {
            return Err(broken(QgroupRule::Version));
        }
        let flags = QgroupFlags::from_bits(disk.flags.get());
        Ok(Self {
            generation: Generation(disk.generation.get()),
            flags: flags.ok_or(broken(QgroupRule::Flags))?,
            rescan: disk.rescan.get(),
            enable_generation: has_enable.then(|| Generation(disk.enable_generation.get())),
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let disk = DiskQgroupStatus {
            version: 1.into(),
            generation: self.generation.0.into(),
            flags: self.flags.bits().into(),
            rescan: self.rescan.into(),
            enable_generation: self.enable_generation.unwrap_or_default().0.into(),
        };
        let mut bytes = disk.as_bytes().to_vec();
        if self.enable_generation.is_none() {
            bytes.truncate(STATUS_BYTES);
        }
        bytes
    }
}

/// Usage of a quota group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QgroupInfo {
    /// The transaction that last changed it.
    pub generation: Generation,
    /// Bytes that its subvolumes refer to, and the same compressed.
    pub referenced: (u64, u64),
    /// Bytes that only its subvolumes refer to, and the same compressed.
    pub exclusive: (u64, u64),
}

impl QgroupInfo {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<QgroupRule>> {
        let disk = DiskQgroupInfo::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, QgroupRule::Size))?;
        Ok(Self {
            generation: Generation(disk.generation.get()),
            referenced: (disk.referenced.get(), disk.referenced_compressed.get()),
            exclusive: (disk.exclusive.get(), disk.exclusive_compressed.get()),
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskQgroupInfo {
        DiskQgroupInfo {
            generation: self.generation.0.into(),
            referenced: self.referenced.0.into(),
            referenced_compressed: self.referenced.1.into(),
            exclusive: self.exclusive.0.into(),
            exclusive_compressed: self.exclusive.1.into(),
        }
    }
}

/// Limits of a quota group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QgroupLimit {
    /// Which limits are set.
    pub flags: u64,
    /// Bytes referred to, at most.
    pub referenced_max: u64,
    /// Bytes exclusively referred to, at most.
    pub exclusive_max: u64,
    /// Reservations, which nothing uses.
    pub reserved: (u64, u64),
}

impl QgroupLimit {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<QgroupRule>> {
        let disk = DiskQgroupLimit::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, QgroupRule::Size))?;
        Ok(Self {
            flags: disk.flags.get(),
            referenced_max: disk.referenced_max.get(),
            exclusive_max: disk.exclusive_max.get(),
            reserved: (
                disk.referenced_reserved.get(),
                disk.exclusive_reserved.get(),
            ),
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskQgroupLimit {
        DiskQgroupLimit {
            flags: self.flags.into(),
            referenced_max: self.referenced_max.into(),
            exclusive_max: self.exclusive_max.into(),
            referenced_reserved: self.reserved.0.into(),
            exclusive_reserved: self.reserved.1.into(),
        }
    }
}

/// Checks that a relation, which is all in its key, is empty.
pub fn check_relation(bytes: &[u8], locus: Locus) -> Result<(), Corrupt<QgroupRule>> {
    if bytes.is_empty() {
        return Ok(());
    }
    Err(Corrupt::new(locus, QgroupRule::Size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_survive_encoding() {
        for enable_generation in [None, Some(Generation(4))] {
            let status = QgroupStatus {
                generation: Generation(9),
                flags: QgroupFlags::ON,
                rescan: 5,
                enable_generation,
            };
            let bytes = status.encode();
            assert_eq!(QgroupStatus::decode(&bytes, Locus::UNKNOWN), Ok(status));
        }
        let info = QgroupInfo {
            generation: Generation(2),
            referenced: (3, 4),
            exclusive: (5, 6),
        };
        let disk = info.encode();
        let decoded = QgroupInfo::decode(disk.as_bytes(), Locus::UNKNOWN);
        assert_eq!(decoded, Ok(info));
        let limit = QgroupLimit {
            flags: 1,
            referenced_max: 2,
            exclusive_max: 3,
            reserved: (4, 5),
        };
        let disk = limit.encode();
        let decoded = QgroupLimit::decode(disk.as_bytes(), Locus::UNKNOWN);
        assert_eq!(decoded, Ok(limit));
    }

    #[test]
    fn broken_items_are_refused() {
        let rule = |bytes: &[u8]| {
            let decoded = QgroupStatus::decode(bytes, Locus::UNKNOWN);
            decoded.unwrap_err().rule
        };
        assert_eq!(rule(&[0; 33]), QgroupRule::Size);
        assert_eq!(rule(&[0; 48]), QgroupRule::Size);
        assert_eq!(rule(&[0; 32]), QgroupRule::Version);
        let mut bytes = [0; 32];
        bytes[0] = 1;
        bytes[17] = 1;
        assert_eq!(rule(&bytes), QgroupRule::Flags);
        assert!(QgroupInfo::decode(&[0; 39], Locus::UNKNOWN).is_err());
        assert!(QgroupLimit::decode(&[0; 41], Locus::UNKNOWN).is_err());
        assert!(check_relation(&[], Locus::UNKNOWN).is_ok());
        assert!(check_relation(&[0], Locus::UNKNOWN).is_err());
    }
}
