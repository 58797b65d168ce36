//! A kernel mount held by a descriptor.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use platter_ext4::ondisk::features::Incompat;
use platter_ext4::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES, State,
};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::loopdev::LoopDevice;

/// How often an image is looked at until it is at rest.
const REST_CHECKS_MAX: u32 = 2000;
/// Time between two looks.
const REST_CHECK_INTERVAL: Duration = Duration::from_millis(5);

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

/// A mounted filesystem that nobody else sees.
#[derive(Debug)]
pub struct Mount {
    root: PathBuf,
    descriptor: OwnedFd,
    /// Held until the mount is gone, so that the image is complete when this is.
    _device: Option<LoopDevice>,
}

impl Mount {
    /// Mounts an image over a loop device of its own, with options such as `data=journal,acl`. Reading
    /// changes times of access only where they say so, with `relatime`, `strictatime` or `nodiratime`.
    pub fn image(image: &Path, options: &str, access: Access) -> Result<Self> {
        let device = LoopDevice::attach(image, access)?;
        let mount = Self::device(device.path(), options, access)
            .with_context(|| format!("kernel mount of {} with '{options}'", image.display()))?;
        Ok(Self {
            _device: Some(device),
            ..mount
        })
    }

    /// Mounts a block device.
    pub fn device(device: &Path, options: &str, access: Access) -> Result<Self> {
        let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)
            .context("fsopen; mounting takes root")?;
        let configured = configure(&context, device, options, access)
            .and_then(|()| Ok(rustix::mount::fsconfig_create(&context)?));
        if let Err(error) = configured {
            bail!("{error}: {}", complaints(&context));
        }
        let attributes = match access {
            Access::ReadOnly | Access::Replay => MountAttrFlags::MOUNT_ATTR_RDONLY,
            Access::ReadWrite => access_times(options),
        };
        let descriptor =
            rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        let process = rustix::process::getpid().as_raw_nonzero();
        let root = format!("/proc/{process}/fd/{}", descriptor.as_raw_fd());
        Ok(Self {
            root: root.into(),
            descriptor,
            _device: None,
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

    /// Gives the mount of an image up, and returns when the image is at rest.
    ///
    /// Another thread that is about to start a program holds a copy of the descriptor until the
    /// program runs, and the kernel unmounts with the last copy: after a mere drop, the image may
    /// still be changing.
    pub fn unmount(self, image: &Path) -> Result<()> {
        drop(self);
        for _ in 0..REST_CHECKS_MAX {
            if is_at_rest(image)? && is_free(image) {
                return Ok(());
            }
            std::thread::sleep(REST_CHECK_INTERVAL);
        }
        bail!("{} is not at rest after its unmount", image.display())
    }

    /// Writes everything out to the device.
    pub fn sync(&self) -> Result<()> {
        let root = std::fs::File::open(&self.root)?;
        Ok(rustix::fs::syncfs(&root)?)
    }
}

/// The kernel writes the superblock last: with its state clean, and no journal to replay.
fn is_at_rest(image: &Path) -> Result<bool> {
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    File::open(image)?.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
    let disk: DiskSuperblock = zerocopy::transmute!(bytes);
    let incompat = Incompat::from_bits_retain(disk.feature_incompat.get());
    Ok(State(disk.state.get()).is_clean() && !incompat.contains(Incompat::RECOVER))
}

/// Nobody has the image open for writing, and no loop device is attached to it.
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

fn configure(context: &OwnedFd, device: &Path, options: &str, access: Access) -> Result<()> {
    rustix::mount::fsconfig_set_string(context, "source", device)?;
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
