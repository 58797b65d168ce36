//! Looking at what an image holds, without mounting it.

use std::fmt;

use platter_block::{Partition, PartitionTable};
use platter_ondisk::Uuid;

use crate::devices::{Devices, Members};
use crate::driver::{self, Identity};
use crate::{Cause, Error, Format, Image, Result};

/// The format that a run of bytes holds, as its first bytes show it.
#[derive(Debug, Clone)]
pub struct Signature {
    /// The format.
    pub format: Format,
    /// The name, as exact as it is known: `ext3` where the format is ext.
    pub kind: &'static str,
    /// The label, where the driver knows it.
    pub label: Option<Vec<u8>>,
    /// The UUID, where the driver knows it.
    pub uuid: Option<Uuid>,
    /// The devices of a filesystem with several, as recorded on those that were given.
    pub members: Option<Members>,
    /// Whether there is a driver for it.
    pub supported: bool,
    /// Why the driver could not make out more.
    pub problem: Option<Error>,
}

/// What an image holds.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The length of the image in bytes.
    pub len_bytes: u64,
    /// The format of the whole image.
    pub signature: Option<Signature>,
    /// The partition table of the image.
    pub table: Option<ProbedTable>,
    /// Why a partition table that is there cannot be read.
    pub table_problem: Option<Error>,
}

/// A partition table and what the partitions hold.
#[derive(Debug, Clone)]
pub struct ProbedTable {
    /// The table.
    pub table: PartitionTable,
    /// The format that each partition holds, in the order of the table.
    pub contents: Vec<Option<Signature>>,
}

impl ProbedTable {
    /// The partitions with what they hold.
    pub fn iter(&self) -> impl Iterator<Item = (&Partition, Option<&Signature>)> {
        let contents = self.contents.iter().map(Option::as_ref);
        self.table.partitions.iter().zip(contents)
    }

    /// The first partition that can be opened, or else the first.
    fn likely_number(&self) -> u32 {
        let supported = |(_, signature): &(_, Option<&Signature>)| {
            signature.is_some_and(|signature| signature.supported)
        };
        let found = self.iter().find(supported).or_else(|| self.iter().next());
        found.map_or(1, |(partition, _)| partition.number)
    }
}

impl fmt::Display for ProbedTable {
    /// The numbers of the partitions, each with what it holds.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (partition, signature)) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let number = partition.number;
            match signature {
                Some(signature) => write!(out, "{separator}{number} {}", signature.kind)?,
                None => write!(out, "{separator}{number} {}", partition.kind)?,
            }
        }
        Ok(())
    }
}

impl Image {
    /// Looks at the image, and at its partitions if it has any.
    ///
    /// A boot sector of a bare filesystem is not taken for a partition table.
    pub fn probe(&self) -> Result<Probe> {
        self.probe_with(&Devices::single(self))
    }

    pub(crate) fn probe_with(&self, devices: &Devices) -> Result<Probe> {
        let signature = self.signature_with(devices)?;
        let (table, table_problem) = if signature.as_ref().is_some_and(owns_boot_sector) {
            (None, None)
        } else {
            match self.partition_table() {
                Ok(table) => (table, None),
                Err(error) => (None, Some(error)),
            }
        };
        let table = table.map(|table| self.probe_table(table));
        Ok(Probe {
            len_bytes: self.device().geometry().len_bytes,
            signature,
            table,
            table_problem,
        })
    }

    /// What the whole of it is.
    pub fn signature(&self) -> Result<Option<Signature>> {
        self.signature_with(&Devices::single(self))
    }

    fn signature_with(&self, devices: &Devices) -> Result<Option<Signature>> {
        let Some(format) = self.format()? else {
            return Ok(None);
        };
        let mut signature = Signature {
            format,
            kind: format.name(),
            label: None,
            uuid: None,
            members: None,
            supported: false,
            problem: None,
        };
        if let Some(driver) = driver::serving(format) {
            signature.supported = true;
            match driver.identify(devices) {
                Ok(Identity {
                    kind,
                    label,
                    uuid,
                    members,
                }) => {
                    signature.kind = kind;
                    signature.label = Some(label);
                    signature.uuid = Some(uuid);
                    signature.members = members;
                }
                Err(error) => signature.problem = Some(Error::new(self.name(), error)),
            }
        }
        Ok(Some(signature))
    }

    /// Looks at the partitions of `table`; what cannot be read holds nothing known.
    pub(crate) fn probe_table(&self, table: PartitionTable) -> ProbedTable {
        let of = |partition: &Partition| {
            if partition.kind.is_container() {
                return None;
            }
            let image = self.partition_of(&table, partition.number).ok()?;
            image.signature().ok().flatten()
        };
        let contents = table.partitions.iter().map(of).collect();
        ProbedTable { table, contents }
    }

    /// The error of opening this image as a filesystem, when it is none.
    pub(crate) fn not_a_filesystem(&self, format: Option<Format>) -> Error {
        if let Some(format) = format {
            return Error::new(self.name(), Cause::UnsupportedFormat { format });
        }
        match self.partition_table() {
            Ok(Some(table)) => {
                let probed = self.probe_table(table);
                let cause = Cause::Partitioned {
                    example: format!("{}@{}", self.name(), probed.likely_number()),
                    partitions: probed.to_string(),
                };
                Error::new(self.name(), cause)
            }
            Ok(None) => {
                let copy = driver::superblock_copy(&**self.device());
                let gone = |kib| Cause::SuperblockGone { kib };
                Error::new(self.name(), copy.map_or(Cause::Unrecognised, gone))
            }
            Err(error) => error,
        }
    }
}

/// Whether a filesystem keeps code of its own where a partition table would be.
fn owns_boot_sector(signature: &Signature) -> bool {
    matches!(
        signature.format,
        Format::Vfat | Format::Exfat | Format::Ntfs | Format::BitLocker
    )
}
