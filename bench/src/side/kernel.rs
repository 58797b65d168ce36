//! The kernel's ext4, btrfs or XFS on a loop device.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use testkit::loopdev::{Access, LoopDevice, Mount};

use super::{Asked, DeviceAsked, Ground, Live};
use crate::place::{Directory, HostDir};

const SECTOR_BYTES: u64 = 512;

pub(super) struct Kernel {
    mount: Mount,
    device: LoopDevice,
    image: PathBuf,
    /// Where it has a name.
    attached: Option<PathBuf>,
}

impl Kernel {
    pub(super) fn start(ground: &Ground) -> Result<Self> {
        Self::mount(ground, ground.mount.as_deref().unwrap_or_default())
    }

    /// Mounts it with default options, and where programs find it by a name.
    pub(super) fn start_attached(ground: &Ground) -> Result<Self> {
        let mountpoint = ground.mountpoint()?;
        let kernel = Self::mount(ground, "relatime")?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(kernel.mount.descriptor(), "", CWD, &mountpoint, flags)?;
        Ok(Self {
            attached: Some(mountpoint),
            ..kernel
        })
    }

    fn mount(ground: &Ground, options: &str) -> Result<Self> {
        let device = LoopDevice::attach(&ground.image, Access::ReadWrite)?;
        let devices = &[device.path()];
        let mount = Mount::devices(ground.format, devices, options, Access::ReadWrite)?;
        Ok(Self {
            mount,
            device,
            image: ground.image.clone(),
            attached: None,
        })
    }
}

impl Live for Kernel {
    fn root(&self) -> Result<Box<dyn Directory>> {
        Ok(Box::new(HostDir::open(self.mount.root())?))
    }

    fn path(&self) -> Option<PathBuf> {
        Some(
            self.attached
                .clone()
                .unwrap_or_else(|| self.mount.root().to_owned()),
        )
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
            attached,
        } = *self;
        mount.sync()?;
        if let Some(attached) = attached {
            // The descriptor still holds it.
            unmount(&attached, UnmountFlags::DETACH)?;
        }
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

#[cfg(test)]
mod tests {
    use testkit::fs_type::FsType;
    use testkit::oracle::mke2fs;
    use testkit::tool;

    use super::*;

    #[test]
    fn programs_find_a_kernel_mount_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let ground = Ground {
            dir: dir.path().to_owned(),
            image: dir.path().join("image"),
            format: FsType::Ext4,
            mount: None,
            cache_bytes: 0,
        };
        mke2fs::make(&ground.image, 8 << 10, &["-t", "ext4"], None).unwrap();
        let live = Box::new(Kernel::start_attached(&ground).unwrap());
        let path = live.path().unwrap();
        let mut pwd = tool::command("pwd");
        let printed = tool::succeed(pwd.arg("-P").current_dir(&path)).unwrap();
        assert_eq!(printed.text().trim_end(), path.to_str().unwrap());
        std::fs::write(path.join("file"), "text").unwrap();
        live.end().unwrap();
        assert!(!path.join("file").exists());
    }
}
