//! The seam between the facade and the drivers: one line for each.

mod ext4;

use std::ops::Range;
use std::sync::Arc;

use platter_block::{BlockDevice, ScratchDevice};
use platter_cache::MemoryBudget;
use platter_ondisk::Uuid;
use platter_ondisk::checksum::crc32c;
use platter_vfs::{CheckReport, CheckSink, Clock, Filesystem, Result};

use crate::Format;
use crate::open::{Recovery, WriteOptions};

/// All drivers.
const DRIVERS: &[Driver] = &[ext4::DRIVER];

/// What a driver can do.
pub(crate) struct Driver {
    /// The format it serves.
    pub(crate) format: Format,
    /// Reads what the filesystem calls itself, without mounting it.
    pub(crate) identify: fn(&dyn BlockDevice) -> Result<Identity>,
    /// Where a valid copy of a superblock lies, in units of 1 KiB, if the first one is broken.
    pub(crate) superblock_copy: fn(&dyn BlockDevice) -> Option<u64>,
    /// Mounts it.
    pub(crate) mount: fn(MountRequest) -> Result<Arc<dyn Filesystem>>,
    /// Checks all of it, as it is when its journal was replayed. An error is one that kept the
    /// check from starting.
    pub(crate) check: fn(MountRequest, &mut dyn CheckSink) -> Result<CheckReport>,
    /// Finds out what nothing uses, if that is known before a replay.
    pub(crate) unused: fn(&MountRequest) -> Result<Option<Box<UnusedPlaces>>>,
    /// Makes the device hold, at once, what was made of it on a scratch device.
    pub(crate) change_over: fn(ChangeoverRequest<'_>) -> Result<()>,
}

/// Whether nothing uses some bytes of a device, as long as nobody writes its filesystem.
pub(crate) type UnusedPlaces = dyn Fn(&Range<u64>) -> bool + Send + Sync;

/// What a device is to hold.
pub(crate) struct ChangeoverRequest<'c> {
    /// The device that holds the filesystem, and how it was opened.
    pub(crate) mount: MountRequest,
    /// The same device, for what nobody sees.
    pub(crate) unseen: Arc<dyn BlockDevice>,
    /// What it is to hold.
    pub(crate) new: &'c ScratchDevice,
}

/// What a filesystem calls itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) kind: &'static str,
    pub(crate) label: Vec<u8>,
    pub(crate) uuid: Uuid,
}

/// What to mount, and how.
#[derive(Debug)]
pub(crate) struct MountRequest {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) journal: Option<Arc<dyn BlockDevice>>,
    pub(crate) recovery: Recovery,
    pub(crate) superblock_kib: Option<u64>,
    /// `None` for reading only.
    pub(crate) writing: Option<WriteOptions>,
    /// The device does not outlive the mount, so a power cut matters to nobody.
    pub(crate) on_scratch: bool,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Where a filesystem whose superblock is gone has a copy of it, in units of 1 KiB.
pub(crate) fn superblock_copy(device: &dyn BlockDevice) -> Option<u64> {
    let mut copies = DRIVERS
        .iter()
        .map(|driver| (driver.superblock_copy)(device));
    copies.find_map(|copy| copy)
}

/// The driver that serves `format`.
pub(crate) fn serving(format: Format) -> Option<&'static Driver> {
    DRIVERS.iter().find(|driver| driver.format == format)
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
