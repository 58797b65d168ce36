//! The kernel's ext4, btrfs or XFS on a loop device.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testkit::loopdev::{Access, LoopDevice, Mount};

use super::{Asked, DeviceAsked, Ground, Live};
use crate::place::{Directory, HostDir};

const SECTOR_BYTES: u64 = 512;

pub(super) struct Kernel {
    mount: Mount,
    device: LoopDevice,
    image: PathBuf,
}

impl Kernel {
    pub(super) fn start(ground: &Ground) -> Result<Self> {
        let device = LoopDevice::attach(&ground.image, Access::ReadWrite)?;
        let options = ground.mount.as_deref().unwrap_or_default();
        let devices = &[device.path()];
        let mount = Mount::devices(ground.format, devices, options, Access::ReadWrite)?;
        Ok(Self {
            mount,
            device,
            image: ground.image.clone(),
        })
    }
}

impl Live for Kernel {
    fn root(&self) -> Result<Box<dyn Directory>> {
        Ok(Box::new(HostDir::open(self.mount.root())?))
    }

    fn server(&self) -> Option<u32> {
        None
    }

    fn asked(&mut self) -> Result<Asked> {
        Ok(Asked {
            device: Some(device_asked(self.device.path())?),
            ..Asked::default()
        })
    }

    fn end(self: Box<Self>) -> Result<()> {
        let Self {
            mount,
            device,
            image,
        } = *self;
        mount.sync()?;
        drop(device);
        mount.unmount(&image)
    }
}

/// What was asked of a block device as the block layer counts: after merging, and reads ahead of the kernel's own included.
pub(crate) fn device_asked(device: &Path) -> Result<DeviceAsked> {
    let name = device.file_name().context("a device's name")?;
    let path = Path::new("/sys/block").join(name).join("stat");
    let text = std::fs::read_to_string(path)?;
    let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
    let numbers = numbers?;
    let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
    Ok(DeviceAsked {
        reads: number(0),
        read_bytes: Some(number(2) * SECTOR_BYTES),
        writes: number(4),
        write_bytes: Some(number(6) * SECTOR_BYTES),
        flushes: number(15),
    })
}
