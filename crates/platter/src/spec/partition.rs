//! `@PARTITION`: which entry of a partition table.

use std::fmt;
use std::num::NonZeroU32;

use platter_block::partition::Scheme;
use platter_block::{Partition, PartitionTable};
use platter_ondisk::Uuid;

use crate::Escaped;

/// Selects a partition, in the words of fstab(5).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PartitionSelector {
    /// By number, as in the kernel's device name: `@2`.
    Number(NonZeroU32),
    /// By unique identifier, as blkid shows it: `@PARTUUID=…`. MBR partitions have identifiers
    /// like `c0ffee00-01`.
    Uuid(PartitionUuid),
    /// By name in the partition table: `@PARTLABEL=…`.
    Label(String),
}

/// The identifier of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartitionUuid {
    /// Of a GPT partition.
    Gpt(Uuid),
    /// Of an MBR partition: the disk's signature and the partition's number.
    Mbr {
        /// The signature at byte 440 of the disk.
        disk: u32,
        /// The partition's number.
        number: NonZeroU32,
    },
}

impl PartitionSelector {
    /// Reads what stands after the `@`, if it selects a partition.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?;
        match text.split_once('=') {
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().map(Self::Number)
            }
            Some(("PARTUUID", id)) => PartitionUuid::parse(id).map(Self::Uuid),
            Some(("PARTLABEL", label)) if !label.is_empty() => Some(Self::Label(label.to_owned())),
            _ => None,
        }
    }
}

impl PartitionSelector {
    /// The number of the partition it selects in `table`.
    #[must_use]
    pub fn find(&self, table: &PartitionTable) -> Option<u32> {
        let is_selected = |partition: &&Partition| match self {
            Self::Number(number) => partition.number == number.get(),
            Self::Uuid(PartitionUuid::Gpt(guid)) => partition.guid == Some(*guid),
            Self::Uuid(PartitionUuid::Mbr { disk, number }) => {
                let scheme = Scheme::Mbr {
                    disk_signature: *disk,
                };
                table.scheme == scheme && partition.number == number.get()
            }
            Self::Label(label) => partition.name == label.as_bytes(),
        };
        table
            .partitions
            .iter()
            .find(is_selected)
            .map(|partition| partition.number)
    }
}

impl PartitionUuid {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(uuid) = text.parse() {
            return Some(Self::Gpt(uuid));
        }
        let (disk, number) = text.split_once('-')?;
        if disk.len() != 8 {
            return None;
        }
        let disk = u32::from_str_radix(disk, 16).ok()?;
        let number = NonZeroU32::new(u32::from_str_radix(number, 16).ok()?)?;
        Some(Self::Mbr { disk, number })
    }
}

impl fmt::Display for PartitionUuid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpt(uuid) => write!(out, "{uuid}"),
            Self::Mbr { disk, number } => write!(out, "{disk:08x}-{number:02x}"),
        }
    }
}

impl fmt::Display for PartitionSelector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(out, "{number}"),
            Self::Uuid(uuid) => write!(out, "PARTUUID={uuid}"),
            Self::Label(label) => write!(out, "PARTLABEL={}", Escaped(label.as_bytes())),
        }
    }
}
