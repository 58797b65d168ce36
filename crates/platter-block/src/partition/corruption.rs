//! Corruption of partition tables, and the errors it leads to.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::IoError;

/// The reason why a partition table cannot be read or used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TableError {
    /// The device returned an error.
    #[error(transparent)]
    Io(#[from] IoError),
    /// There is a table, and neither copy is valid.
    #[error("{device}: {}", listed(corruption))]
    Corrupt {
        /// The disk's name.
        device: Arc<str>,
        /// All corruption found; never empty.
        corruption: Vec<Corruption>,
    },
    /// The table has no entry of this number.
    #[error("{device}: no partition {number}{}", because(*corruption))]
    NoSuchPartition {
        /// The disk's name.
        device: Arc<str>,
        /// The requested number.
        number: u32,
        /// Corruption that may have hidden the entry.
        corruption: Option<Corruption>,
    },
    /// The entry does not describe a valid part of the disk.
    #[error("{device}: partition {number} {fault}")]
    Unusable {
        /// The disk's name.
        device: Arc<str>,
        /// The requested number.
        number: u32,
        /// The fault of the entry.
        fault: Fault,
    },
}

fn listed(corruption: &[Corruption]) -> impl fmt::Display {
    fmt::from_fn(|out| {
        for (index, corruption) in corruption.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(out, "{separator}{corruption}")?;
        }
        Ok(())
    })
}

fn because(corruption: Option<Corruption>) -> impl fmt::Display {
    fmt::from_fn(move |out| corruption.map_or(Ok(()), |corruption| write!(out, " ({corruption})")))
}

/// A rule of the format that a structure of the table breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corruption {
    /// The corrupt structure.
    pub structure: Structure,
    /// Its offset in bytes from the start of the device.
    pub offset: u64,
    /// The broken rule.
    pub rule: Rule,
}

impl fmt::Display for Corruption {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            structure,
            offset,
            rule,
        } = self;
        write!(out, "{structure} at byte {offset}: {rule}")
    }
}

/// The structures of partition tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Structure {
    /// The GPT header in the second sector.
    PrimaryHeader,
    /// The entries that the primary header names.
    PrimaryEntries,
    /// The GPT header in the last sector.
    BackupHeader,
    /// The entries that the backup header names.
    BackupEntries,
    /// The first sector.
    MasterBootRecord,
    /// A record in the chain of logical partitions.
    ExtendedBootRecord,
}

impl fmt::Display for Structure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::PrimaryHeader => "primary GPT header",
            Self::PrimaryEntries => "primary GPT entries",
            Self::BackupHeader => "backup GPT header",
            Self::BackupEntries => "backup GPT entries",
            Self::MasterBootRecord => "master boot record",
            Self::ExtendedBootRecord => "extended boot record",
        })
    }
}

/// The rules, each stated as what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// It cannot be read from the device.
    Unreadable(io::ErrorKind),
    /// It is beyond the end of the device.
    Outside,
    /// Its signature is missing.
    NoSignature,
    /// The revision is unknown.
    Revision(u32),
    /// `HeaderSize` is out of range.
    HeaderSize(u32),
    /// The checksum does not match.
    Checksum,
    /// `MyLBA` is not the sector that the header was read from.
    Misplaced(u64),
    /// `FirstUsableLBA` is after `LastUsableLBA`.
    UsableBackwards,
    /// `LastUsableLBA` is beyond the end of the device.
    UsableBeyondEnd,
    /// `SizeOfPartitionEntry` is not an allowed size.
    EntrySize(u32),
    /// The entry array is larger than the supported maximum.
    TooLarge(u64),
    /// All partitions begin beyond the end of the device.
    NothingInside,
    /// A record occurs twice in the chain.
    Cycle,
    /// The chain exceeds the supported number of records.
    TooLong,
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(kind) => write!(out, "cannot be read ({kind})"),
            Self::Outside => out.write_str("beyond the end of the device"),
            Self::NoSignature => out.write_str("signature missing"),
            Self::Revision(found) => write!(out, "unknown revision {found:#010x}"),
            Self::HeaderSize(found) => write!(out, "invalid header size of {found} bytes"),
            Self::Checksum => out.write_str("checksum does not match"),
            Self::Misplaced(sector) => write!(out, "MyLBA is {sector}"),
            Self::UsableBackwards => out.write_str("first usable LBA is after the last"),
            Self::UsableBeyondEnd => out.write_str("last usable LBA is beyond the end of the disk"),
            Self::EntrySize(found) => write!(out, "invalid entry size of {found} bytes"),
            Self::TooLarge(bytes) => write!(out, "{bytes} bytes of entries exceed the maximum"),
            Self::NothingInside => {
                out.write_str("all partitions begin beyond the end of the device")
            }
            Self::Cycle => out.write_str("occurs twice in the chain"),
            Self::TooLong => out.write_str("too many records in the chain"),
        }
    }
}

/// A fault of a single entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its last sector is before its first.
    Backwards,
    /// It extends beyond the end of the device.
    BeyondEnd,
    /// It overlaps the partition of this number.
    Overlaps(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backwards => out.write_str("last sector is before the first"),
            Self::BeyondEnd => out.write_str("extends beyond the end of the device"),
            Self::Overlaps(number) => write!(out, "overlaps partition {number}"),
        }
    }
}
