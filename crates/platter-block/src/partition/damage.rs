//! What can be wrong with a partition table, and the errors it leads to.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::IoError;

/// A partition table that cannot be read, or not used as asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TableError {
    /// The device failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// There is a table, and no copy of it can be believed.
    #[error("{device}: {}", listed(damage))]
    Damaged {
        /// The disk.
        device: Arc<str>,
        /// Everything that is wrong; never empty.
        damage: Vec<Damage>,
    },
    /// The table has no entry of this number.
    #[error("{device}: no partition {number}{}", because(*damage))]
    NoSuchPartition {
        /// The disk.
        device: Arc<str>,
        /// The number asked for.
        number: u32,
        /// Damage that the entry may have been lost to.
        damage: Option<Damage>,
    },
    /// The entry does not describe a part of the disk.
    #[error("{device}: partition {number} {fault}")]
    Unusable {
        /// The disk.
        device: Arc<str>,
        /// The number asked for.
        number: u32,
        /// What is wrong with it.
        fault: Fault,
    },
}

fn listed(damage: &[Damage]) -> impl fmt::Display {
    fmt::from_fn(|out| {
        for (index, damage) in damage.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(out, "{separator}{damage}")?;
        }
        Ok(())
    })
}

fn because(damage: Option<Damage>) -> impl fmt::Display {
    fmt::from_fn(move |out| damage.map_or(Ok(()), |damage| write!(out, " ({damage})")))
}

/// A rule of the format that a structure of the table breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// What is damaged.
    pub structure: Structure,
    /// Where it lies, in bytes from the start of the device.
    pub offset: u64,
    /// How.
    pub rule: Rule,
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            structure,
            offset,
            rule,
        } = self;
        write!(out, "{structure} at byte {offset}: {rule}")
    }
}

/// The parts that partition tables are made of.
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
    /// A link of the chain of logical partitions.
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

/// The rules, each as what was found instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// It cannot be read from the device.
    Unreadable(io::ErrorKind),
    /// It does not lie on the device.
    Outside,
    /// It does not begin or end with its signature.
    NoSignature,
    /// The revision is not one that is known.
    Revision(u32),
    /// The header does not say a size in bytes that a header can have.
    HeaderSize(u32),
    /// The checksum does not match.
    Checksum,
    /// The header names this sector as its own, and lies elsewhere.
    Misplaced(u64),
    /// The first usable sector comes after the last.
    UsableBackwards,
    /// The table was made for a longer disk.
    UsableBeyondEnd,
    /// An entry does not have a size in bytes that is allowed.
    EntrySize(u32),
    /// The entries take more bytes than any disk has use for.
    TooLarge(u64),
    /// No partition begins within the device.
    NothingInside,
    /// A record that has been read before comes again.
    Cycle,
    /// The chain is longer than any that is made.
    TooLong,
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(kind) => write!(out, "cannot be read ({kind})"),
            Self::Outside => out.write_str("does not lie on the device"),
            Self::NoSignature => out.write_str("has no signature"),
            Self::Revision(found) => write!(out, "revision {found:#010x} is unknown"),
            Self::HeaderSize(found) => write!(out, "header size of {found} bytes is impossible"),
            Self::Checksum => out.write_str("checksum does not match"),
            Self::Misplaced(sector) => write!(out, "says that it lies in sector {sector}"),
            Self::UsableBackwards => out.write_str("its first usable sector is after its last"),
            Self::UsableBeyondEnd => out.write_str("was made for a longer disk"),
            Self::EntrySize(found) => write!(out, "entry size of {found} bytes is not allowed"),
            Self::TooLarge(bytes) => write!(out, "{bytes} bytes of entries are too many"),
            Self::NothingInside => out.write_str("no partition begins within the device"),
            Self::Cycle => out.write_str("comes twice in the chain"),
            Self::TooLong => out.write_str("the chain does not end"),
        }
    }
}

/// What can be wrong with a single entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It ends before it begins.
    Backwards,
    /// It reaches beyond the end of the device.
    BeyondEnd,
    /// It shares bytes with the partition of this number.
    Overlaps(u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backwards => out.write_str("ends before it begins"),
            Self::BeyondEnd => out.write_str("reaches beyond the end of the device"),
            Self::Overlaps(number) => write!(out, "overlaps partition {number}"),
        }
    }
}
