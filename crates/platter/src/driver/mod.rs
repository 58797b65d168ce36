//! The seam between the facade and the drivers: one line for each.

mod edit;
mod mkfs;
mod pool;
mod resize;
mod ext4;
mod btrfs;
mod btrfs_pool;
#[cfg(test)]
pub(crate) mod samples;
mod xfs;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_ondisk::checksum::crc32c;
use platter_ondisk::{Corruption, Uuid};
use platter_vfs::{CheckReport, CheckSink, Clock, Error, Filesystem, Result, Unsupported};

use crate::Format;
use crate::devices::{Devices, Members};
use crate::options::{MountOption, OptionError, Recovery, WriteOptions};

pub(crate) use edit::{EditStrategy, FreeRanges, ImageCommit, JournaledEdits, Purpose};
pub(crate) use mkfs::{FillRequest, Mkfs, MkfsRequest, OnDevice};
#[cfg(test)]
pub(crate) use platter_ext4::mkfs::{Generation, MkfsOptions};
pub(crate) use pool::Pool;
pub(crate) use resize::{Resize, ResizeRequest};

pub use btrfs::stream::{
    Command as StreamCommand, EncodedData, Generation as StreamGeneration, Source as StreamSource,
    SourceRank, StreamReader, Times as StreamTimes, decode as decode_data, inode_flags,
};
pub use mkfs::{FilesystemType, NewFilesystem};
pub use pool::{Balance, Moved, Moving, Scrubbed};
pub use resize::Resized;

/// All drivers, in the order in which they are asked.
const DRIVERS: &[&dyn Driver] = &[&ext4::Ext, &btrfs::BtrfsDriver, &xfs::Xfs];

/// What a driver can do.
pub(crate) trait Driver: Sync {
    /// The format it serves.
    fn format(&self) -> Format;

    /// Reads what the filesystem calls itself, without mounting it. That devices are missing is no
    /// error.
    fn identify(&self, devices: &Devices) -> Result<Identity>;

    /// Where a valid copy of the superblock lies, in units of 1 KiB: for `corruption` that a copy
    /// avoids, or where no driver recognises the device.
    fn superblock_copy(
        &self,
        _device: &dyn BlockDevice,
        _corruption: Option<&Corruption>,
    ) -> Option<u64> {
        None
    }

    /// Whether a copy of the superblock that the driver can begin with lies so many KiB into a device on
    /// which no format was recognised.
    fn accepts_superblock_at(&self, _device: &dyn BlockDevice, _kib: u64) -> bool {
        false
    }

    /// Validates a mount option that not all filesystems have. [`MountRequest::options`] has only
    /// those that were accepted here.
    ///
    /// # Errors
    /// The reason for refusing it.
    fn check_option(&self, _option: &MountOption) -> Result<(), OptionError> {
        Err(OptionError::Unknown)
    }

    /// Mounts it.
    fn mount(&self, request: MountRequest) -> Result<Arc<dyn Filesystem>>;

    /// Checks all metadata, as it is once its journal was replayed. An error is one that kept the
    /// check from starting.
    fn check(&self, request: MountRequest, sink: &mut dyn CheckSink) -> Result<CheckReport>;

    /// Reads all data and every copy of it, and reports what does not match its checksum.
    fn verify_data(
        &self,
        _request: MountRequest,
        _sink: &mut dyn CheckSink,
    ) -> Result<CheckReport> {
        Err(unsupported(self.format(), "verifying data"))
    }

    /// How edits of its filesystems are committed.
    fn edit_strategy(&self) -> EditStrategy<'_> {
        EditStrategy::Refused
    }

    /// Whether extents of its files can be written anew as longer ones.
    fn defragments(&self) -> bool {
        false
    }

    /// Whether its files can share extents.
    fn shares_extents(&self) -> bool {
        false
    }

    /// Whether contents can be compressed by the method of this name.
    fn compresses_by(&self, _method: &str) -> bool {
        false
    }

    /// Whether small files that are read one after the other are to be read from the device together.
    fn gathers_reads(&self) -> bool {
        false
    }

    /// The types of filesystems it makes, by the names that `mkfs -t` takes.
    fn mkfs_types(&self) -> &'static [&'static str] {
        &[]
    }

    /// The defaults of a new filesystem of one of [these types](Self::mkfs_types).
    fn mkfs(&self, _kind: &str) -> Option<Box<dyn Mkfs>> {
        None
    }

    /// What it can do with the devices of its filesystems, if it can.
    fn pool(&self) -> Option<&dyn Pool> {
        None
    }

    /// How its filesystems become larger and smaller, if they can.
    fn resize(&self) -> Option<&dyn Resize> {
        None
    }
}

/// What a filesystem calls itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) kind: &'static str,
    pub(crate) label: Vec<u8>,
    pub(crate) uuid: Uuid,
    /// Its devices, where it has several.
    pub(crate) members: Option<Members>,
}

/// What to mount, and how.
#[derive(Debug)]
pub(crate) struct MountRequest {
    pub(crate) devices: Devices,
    pub(crate) recovery: Recovery,
    pub(crate) superblock_kib: Option<u64>,
    /// Options that this driver has accepted.
    pub(crate) options: Vec<MountOption>,
    /// `None` for reading only.
    pub(crate) writing: Option<WriteOptions>,
    pub(crate) purpose: Purpose,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Where a filesystem whose superblock is not recognised has a copy of it, in units of 1 KiB.
pub(crate) fn superblock_copy(device: &dyn BlockDevice) -> Option<u64> {
    DRIVERS
        .iter()
        .find_map(|driver| driver.superblock_copy(device, None))
}

/// The driver that serves `format`.
pub(crate) fn serving(format: Format) -> Option<&'static dyn Driver> {
    DRIVERS
        .iter()
        .copied()
        .find(|driver| driver.format() == format)
}

/// The driver of a device on which no format was recognised, with a superblock so many KiB into it: the one
/// that finds a copy there, else the first one, whose mount reports what is wrong there.
pub(crate) fn with_superblock_at(
    device: &dyn BlockDevice,
    kib: u64,
) -> Option<&'static dyn Driver> {
    let mut drivers = DRIVERS.iter().copied();
    drivers
        .find(|driver| driver.accepts_superblock_at(device, kib))
        .or(DRIVERS.first().copied())
}

/// The names of the [types](FilesystemType) of filesystems that can be made.
pub fn mkfs_types() -> impl Iterator<Item = &'static str> {
    DRIVERS
        .iter()
        .flat_map(|driver| driver.mkfs_types())
        .copied()
}

/// Refuses a mount option that no driver accepts.
///
/// # Errors
/// The reason of the driver that knows it best.
pub fn check_option(option: &MountOption) -> Result<(), OptionError> {
    let mut refused = OptionError::Unknown;
    for driver in DRIVERS {
        match driver.check_option(option) {
            Err(OptionError::Unknown) => {}
            // One that takes the option with other values knows it better.
            Err(OptionError::Unsupported) if refused != OptionError::Unknown => {}
            Err(error) => refused = error,
            Ok(()) => return Ok(()),
        }
    }
    Err(refused)
}

/// Whether a format compresses by the method of this name, to which a level may be added as in `zstd:9`.
#[must_use]
pub fn is_compression(method: &str) -> bool {
    DRIVERS.iter().any(|driver| driver.compresses_by(method))
}

/// The error of what a driver cannot do.
pub(crate) fn unsupported(format: Format, feature: &str) -> Error {
    Unsupported {
        filesystem: format.name(),
        feature: feature.to_owned(),
        reason: None,
    }
    .into()
}

/// Where the superblocks of all formats lie that drivers serve.
const SEED_BYTES: usize = 4096;

/// A number that depends on what a filesystem says of itself: of two edits in a row, each has
/// another one.
pub(crate) fn seed(device: &dyn BlockDevice) -> u64 {
    let mut bytes = [0; SEED_BYTES];
    // What cannot be read cannot be mounted either.
    let _ = device.read_at(0, &mut bytes);
    u64::from(crc32c(!0, &bytes)) << 32 | u64::from(crc32c(0, &bytes))
}
