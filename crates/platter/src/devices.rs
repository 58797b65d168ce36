//! The devices that one filesystem lies on.

use std::fmt;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::Uuid;

use crate::Image;
use crate::host_file::HostFileId;

/// What a device holds of its filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceRole {
    /// Data and metadata: every filesystem has at least one.
    Data,
    /// An external journal or log.
    Log,
    /// The realtime section of XFS.
    Realtime,
}

impl fmt::Display for DeviceRole {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Data => "data",
            Self::Log => "log",
            Self::Realtime => "realtime",
        })
    }
}

/// One of the devices of a filesystem, under the name that errors give it.
#[derive(Debug, Clone)]
pub(crate) struct NamedDevice {
    pub(crate) role: DeviceRole,
    #[expect(dead_code, reason = "for drivers of several devices")]
    pub(crate) name: Arc<str>,
    pub(crate) device: Arc<dyn BlockDevice>,
    /// The files of the host that it lies in, as far as they are known.
    pub(crate) host_files: Arc<[HostFileId]>,
}

impl NamedDevice {
    pub(crate) fn new(role: DeviceRole, image: &Image) -> Self {
        Self {
            role,
            name: Arc::clone(image.name()),
            device: Arc::clone(image.device()),
            host_files: image.host_files().into(),
        }
    }
}

/// The devices of a filesystem, in the order in which they were given. The first is the image that
/// names it.
#[derive(Debug, Clone)]
pub(crate) struct Devices {
    first: NamedDevice,
    others: Vec<NamedDevice>,
}

impl Devices {
    /// The devices of a filesystem on `image` and on `others`.
    pub(crate) fn new(image: &Image, others: Vec<NamedDevice>) -> Self {
        let first = NamedDevice::new(DeviceRole::Data, image);
        Self { first, others }
    }

    /// An image alone.
    pub(crate) fn single(image: &Image) -> Self {
        Self::new(image, Vec::new())
    }

    /// The device of the image that names the filesystem.
    pub(crate) fn first(&self) -> &Arc<dyn BlockDevice> {
        &self.first.device
    }

    /// All of them, the first first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &NamedDevice> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// All of them without their roles.
    pub(crate) fn all(&self) -> Arc<[Arc<dyn BlockDevice>]> {
        let devices = self.iter();
        devices.map(|device| Arc::clone(&device.device)).collect()
    }

    /// The files of the host that they lie in, as far as they are known.
    pub(crate) fn host_files(&self) -> Vec<HostFileId> {
        let devices = self.iter();
        devices
            .flat_map(|device| device.host_files.iter().copied())
            .collect()
    }

    /// The first device of a role.
    pub(crate) fn of_role(&self, role: DeviceRole) -> Option<&Arc<dyn BlockDevice>> {
        let mut devices = self.iter().filter(|device| device.role == role);
        devices.next().map(|device| &device.device)
    }

    /// The same devices, each replaced by what `layer` makes of it.
    pub(crate) fn map(&self, mut layer: impl FnMut(&NamedDevice) -> Arc<dyn BlockDevice>) -> Self {
        let mut mapped = |device: &NamedDevice| NamedDevice {
            device: layer(device),
            ..device.clone()
        };
        Self {
            first: mapped(&self.first),
            others: self.others.iter().map(mapped).collect(),
        }
    }

    /// The same devices, with another one that leads to the first.
    pub(crate) fn with_first(&self, device: Arc<dyn BlockDevice>) -> Self {
        let mut devices = self.clone();
        devices.first.device = device;
        devices
    }
}

/// One of the devices that a filesystem says it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// What the device holds.
    pub role: DeviceRole,
    /// The number of the device in the filesystem, where devices are numbered.
    pub id: Option<u64>,
    /// The UUID of the device, where it has its own.
    pub uuid: Option<Uuid>,
}

/// The devices of a filesystem, as recorded on those that were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The number of devices of the filesystem.
    pub count: u64,
    /// Those that were given.
    pub present: Vec<Member>,
    /// Those that were not and are known.
    pub missing: Vec<Member>,
}

impl Members {
    /// Whether devices are missing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        (self.present.len() as u64) < self.count
    }
}
