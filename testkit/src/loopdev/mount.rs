//! A kernel mount held by a descriptor.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::members::{Members, mounted_alone};
use super::rest;
use crate::fs_type::FsType;
use crate::loopdev::LoopDevice;

/// How often an image is polled until it is offline.
const REST_CHECKS_MAX: u32 = 2000;
/// Time between two looks.
const REST_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How often a device that is in use is tried again, and the time in between.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Whether the kernel may change what it mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Neither the mount nor the device takes writes.
    ReadOnly,
    /// The device takes the writes of a journal replay; the mount takes none.
    Replay,
    /// Both take writes.
    ReadWrite,
}

/// A mounted filesystem that no other process sees.
#[derive(Debug)]
pub struct Mount {
    fs_type: FsType,
    root: PathBuf,
    descriptor: OwnedFd,
    /// Held until the mount is gone, so that the image is complete when this is.
    _devices: Vec<LoopDevice>,
    /// Those of a btrfs of several devices.
    _members: Option<Members>,
}

impl Mount {
    /// Mounts an ext2, ext3 or ext4 image over a loop device of its own, with options such as
    /// `data=journal,acl`. Reading changes times of access only where they say so, with `relatime`,
    /// `strictatime` or `nodiratime`.
    pub fn image(image: &Path, options: &str, access: Access) -> Result<Self> {
        Self::images(FsType::Ext4, &[image], options, access)
    }

    /// Mounts a block device with an ext2, ext3 or ext4.
    pub fn device(device: &Path, options: &str, access: Access) -> Result<Self> {
        Self::devices(FsType::Ext4, &[device], options, access)
    }

    /// Mounts the images of one filesystem over loop devices of their own: all members of a btrfs; of
    /// an XFS the data device, then the external log if there is one.
    ///
    /// Copies of one btrfs of several members are mounted one after the other, since the kernel
    /// distinguishes members by the UUID of the filesystem and their number alone: a call waits until other
    /// mounts of it are gone. Of one member, other mounts of a copy merely do not begin meanwhile.
    pub fn images(
        fs_type: FsType,
        images: &[&Path],
        options: &str,
        access: Access,
    ) -> Result<Self> {
        let attach = |image: &&Path| LoopDevice::attach(image, access);
        let devices = images.iter().map(attach).collect::<Result<Vec<_>>>()?;
        let described = || {
            let images: Vec<_> = images.iter().map(|image| image.display()).collect();
            format!("kernel mount of {images:?} with '{options}'")
        };
        let mount = |paths: &[&Path]| Self::devices(fs_type, paths, options, access);
        if fs_type == FsType::Btrfs && devices.len() > 1 {
            let members = Members::claim(devices)?;
            let mounted = members.mounted(mount);
            return Ok(Self {
                _members: Some(members),
                ..mounted.with_context(described)?
            });
        }
        let paths: Vec<&Path> = devices.iter().map(LoopDevice::path).collect();
        let mounted = match (fs_type, &paths[..]) {
            (FsType::Btrfs, [device]) => mounted_alone(device, mount),
            (_, paths) => mount(paths),
        };
        let mounted = mounted.with_context(described)?;
        drop(paths);
        Ok(Self {
            _devices: devices,
            ..mounted
        })
    }

    /// Mounts the block devices of one filesystem, in the order of [`images`](Self::images).
    pub fn devices(
        fs_type: FsType,
        devices: &[&Path],
        options: &str,
        access: Access,
    ) -> Result<Self> {
        let mut tries = 0..BUSY_TRIES;
        let context = loop {
            let context = rustix::mount::fsopen(fs_type.kernel_name(), FsOpenFlags::FSOPEN_CLOEXEC)
                .context("fsopen; mounting takes root")?;
            let configured = configure(&context, fs_type, devices, options, access)
                .and_then(|()| Ok(rustix::mount::fsconfig_create(&context)?));
            let Err(error) = configured else {
                break context;
            };
            // A program that another thread starts has the descriptors of this process until it begins.
            let is_busy = error.downcast_ref() == Some(&Errno::BUSY);
            if !is_busy || tries.next().is_none() {
                bail!("{error}: {}", complaints(&context));
            }
            std::thread::sleep(BUSY_PAUSE);
        };
        let attributes = match access {
            Access::ReadOnly | Access::Replay => MountAttrFlags::MOUNT_ATTR_RDONLY,
            Access::ReadWrite => access_times(options),
        };
        let descriptor =
            rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let process = rustix::process::getpid().as_raw_nonzero();
        let root = format!("/proc/{process}/fd/{}", descriptor.as_raw_fd());
        Ok(Self {
            fs_type,
            root: root.into(),
            descriptor,
            _devices: Vec::new(),
            _members: None,
        })
    }

    /// The path of the mount's root, good for this process and for programs it starts.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The root directory's descriptor.
    #[must_use]
    pub fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Unmounts an image, and returns when it is offline.
    ///
    /// Another thread that is about to start a program holds a copy of the descriptor until the
    /// program runs, and the kernel unmounts with the last copy: after a mere drop, the image may
    /// still be changing.
    pub fn unmount(self, image: &Path) -> Result<()> {
        self.unmount_all(&[image])
    }

    /// Unmounts a filesystem of several images, and returns when they are offline.
    pub fn unmount_all(self, images: &[&Path]) -> Result<()> {
        let fs_type = self.fs_type;
        self.release_when(images, || rest::is_clean(fs_type, images))
    }

    /// Unmounts a filesystem whose log the unmount need not leave clean, and returns when no image is in use.
    pub fn release(self, images: &[&Path]) -> Result<()> {
        self.release_when(images, || Ok(true))
    }

    fn release_when(self, images: &[&Path], is_done: impl Fn() -> Result<bool>) -> Result<()> {
        drop(self);
        for _ in 0..REST_CHECKS_MAX {
            let are_free = images.iter().all(|image| is_free(image));
            if are_free && is_done()? {
                return Ok(());
            }
            std::thread::sleep(REST_CHECK_INTERVAL);
        }
        bail!("{images:?} are in use or not clean after their unmount")
    }

    /// Writes everything out to the device.
    pub fn sync(&self) -> Result<()> {
        let root = std::fs::File::open(&self.root)?;
        Ok(rustix::fs::syncfs(&root)?)
    }
}

/// Whether no process has the image open for writing, and no loop device is attached to it.
fn is_free(image: &Path) -> bool {
    let options = platter::block::OpenOptions {
        access: platter::block::Access::Write,
        ..platter::block::OpenOptions::default()
    };
    platter::block::FileDevice::open(image, options).is_ok()
}

/// Options that belong to the mount, not to the filesystem.
const ACCESS_TIMES: [(&str, MountAttrFlags); 3] = [
    ("relatime", MountAttrFlags::MOUNT_ATTR_RELATIME),
    ("strictatime", MountAttrFlags::MOUNT_ATTR_STRICTATIME),
    ("nodiratime", MountAttrFlags::MOUNT_ATTR_NODIRATIME),
];

fn access_times(options: &str) -> MountAttrFlags {
    let named = |name: &&str| ACCESS_TIMES.iter().find(|(known, _)| known == name);
    let flags = options.split(',').filter_map(|name| named(&name));
    flags
        .map(|(_, flag)| *flag)
        .reduce(MountAttrFlags::union)
        .unwrap_or(MountAttrFlags::MOUNT_ATTR_NOATIME)
}

fn configure(
    context: &OwnedFd,
    fs_type: FsType,
    devices: &[&Path],
    options: &str,
    access: Access,
) -> Result<()> {
    let (first, others) = devices.split_first().context("no device")?;
    rustix::mount::fsconfig_set_string(context, "source", *first)?;
    let key = match fs_type {
        FsType::Btrfs => "device",
        FsType::Xfs => "logdev",
        FsType::Ext4 => "journal_path",
    };
    for other in others {
        rustix::mount::fsconfig_set_string(context, key, *other)?;
    }
    if fs_type == FsType::Xfs {
        // Copies of one filesystem may be mounted at the same time.
        rustix::mount::fsconfig_set_flag(context, "nouuid")?;
    }
    if access != Access::ReadWrite {
        rustix::mount::fsconfig_set_flag(context, "ro")?;
    }
    let options = options.split(',').filter(|option| !option.is_empty());
    for option in options.filter(|option| !ACCESS_TIMES.iter().any(|(name, _)| name == option)) {
        match option.split_once('=') {
            Some((key, value)) => rustix::mount::fsconfig_set_string(context, key, value)?,
            None => rustix::mount::fsconfig_set_flag(context, option)?,
        }
    }
    Ok(())
}

/// What the kernel says about a mount that failed.
fn complaints(context: &OwnedFd) -> String {
    let mut text = String::new();
    let mut line = [0; 1024];
    while let Ok(length @ 1..) = rustix::io::read(context, &mut line) {
        text.push_str(&String::from_utf8_lossy(&line[..length]));
    }
    text
}
