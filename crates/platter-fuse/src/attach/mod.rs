//! Attaching a FUSE connection to a directory, and taking it off again: as the superuser by
//! `mount(2)`, as anyone else with the help of `fusermount3`.

mod helper;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use platter_vfs::{MountTable, MountedDevice};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};

use crate::MountOptions;

const DEVICE: &str = "/dev/fuse";

/// The type `/proc/mounts` shows, and `mount -t` takes.
const FILESYSTEM_TYPE: &str = "fuse.platter";

/// The kernel's own readahead is 128 KiB, however large a request may be.
const READAHEAD_KIB: u32 = 1024;

/// Why a directory could not be mounted on or freed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A system call failed.
    #[error("{}: {action}: {source}", path.display())]
    System {
        /// The file it was about.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// `fusermount3` refused.
    #[error("{}", message.trim())]
    Helper {
        /// What it said.
        message: String,
    },
}

/// A mount that is there until it is detached, by us or anyone.
#[derive(Debug)]
pub(crate) struct Attachment {
    mountpoint: PathBuf,
    device: MountedDevice,
    /// What distinguishes it from a later mount with its device number, where the kernel knows.
    unique_id: Option<u64>,
    by_helper: bool,
}

/// What to do about files that are still in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenBusy {
    Refuse,
    /// Take the mount out of sight; its users keep what they have open.
    Detach,
}

/// Mounts on `mountpoint` and returns the kernel's end of the connection.
pub(crate) fn attach(
    mountpoint: &Path,
    options: &MountOptions,
    checks_permissions: bool,
) -> Result<(OwnedFd, Attachment), AttachError> {
    let canonical = mountpoint.canonicalize();
    let mountpoint = canonical.map_err(|error| system(mountpoint, "mount point", error))?;
    // fusermount3 mounts on files as well; there is nothing that could be seen there.
    if std::fs::metadata(&mountpoint).is_ok_and(|found| !found.is_dir()) {
        return Err(system(&mountpoint, "mount point", Errno::NOTDIR.into()));
    }
    let (connection, by_helper) = match mount_directly(&mountpoint, options, checks_permissions)? {
        Some(connection) => (connection, false),
        None => (
            helper::mount(&mountpoint, options, checks_permissions)?,
            true,
        ),
    };
    let found = device_at(&mountpoint)
        .map_err(|error| system(&mountpoint, "reading the table of mounts", error))
        .and_then(|found| found.ok_or_else(|| system(&mountpoint, "mount", Errno::NOENT.into())));
    let device = match found {
        Ok(device) => device,
        Err(error) => {
            // Without a server it would stay, and fail its users. Unmounting may need a descriptor.
            drop(connection);
            let _ = unmount(&mountpoint, by_helper, WhenBusy::Detach);
            return Err(error);
        }
    };
    let attachment = Attachment {
        unique_id: unique_mount_id(&mountpoint),
        mountpoint,
        device,
        by_helper,
    };
    Ok((connection, attachment))
}

/// Unmounts what is mounted on top at `mountpoint`.
fn unmount(mountpoint: &Path, by_helper: bool, when_busy: WhenBusy) -> Result<(), AttachError> {
    if by_helper {
        return helper::unmount(mountpoint, when_busy);
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, when_busy == WhenBusy::Detach);
    match rustix::mount::unmount(mountpoint, flags) {
        // Another process was faster.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(system(mountpoint, "unmount", error.into())),
    }
}

/// Mounts without help; `None` where that is not permitted.
fn mount_directly(
    mountpoint: &Path,
    options: &MountOptions,
    checks_permissions: bool,
) -> Result<Option<OwnedFd>, AttachError> {
    let connection = match File::options().read(true).write(true).open(DEVICE) {
        Ok(file) => OwnedFd::from(file),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(system(Path::new(DEVICE), "open", error)),
    };
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.devices);
    flags.set(MountFlags::NOSUID, !options.set_id);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={}",
        connection.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw(),
        options.request_bytes_max,
    );
    if checks_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("no NUL in what was just written");
    let source = options.source_shown();
    match rustix::mount::mount(source, mountpoint, FILESYSTEM_TYPE, flags, &*data) {
        Ok(()) => Ok(Some(connection)),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(system(mountpoint, "mount", error.into())),
    }
}

impl Attachment {
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub(crate) fn device(&self) -> MountedDevice {
        self.device
    }

    /// Takes the mount off, unless it is gone already.
    pub(crate) fn detach(&self, when_busy: WhenBusy) -> Result<(), AttachError> {
        if !self.is_attached() {
            return Ok(());
        }
        unmount(&self.mountpoint, self.by_helper, when_busy)
    }

    /// Whether ours is what is mounted there; what came over it since is not for us to take off.
    pub(crate) fn is_attached(&self) -> bool {
        let is_there = match device_at(&self.mountpoint) {
            Ok(mounted) => mounted == Some(self.device),
            // A process that can open no more files still has to unmount.
            Err(_) => self.unique_id.is_some(),
        };
        is_there && unique_mount_id(&self.mountpoint) == self.unique_id
    }

    /// Lets the kernel read ahead as far as one request goes, where we may: only the superuser can,
    /// and not before the kernel was greeted, which sets it anew.
    pub(crate) fn raise_readahead(&self) {
        let MountedDevice { major, minor } = self.device;
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        // Without it, sequential reads come in smaller requests: slower, but nothing else.
        let _ = std::fs::write(setting, READAHEAD_KIB.to_string());
    }
}

impl MountOptions {
    /// The source that the table of mounts shows.
    fn source_shown(&self) -> &str {
        self.source.as_deref().unwrap_or("platter")
    }
}

/// The filesystem that one sees at `mountpoint`, if something is mounted just there.
fn device_at(mountpoint: &Path) -> io::Result<Option<MountedDevice>> {
    let table = MountTable::read()?;
    Ok(table.at(mountpoint).map(|mount| mount.device))
}

/// The number that no other mount gets until the next boot, unlike its device number
/// (`STATX_MNT_ID_UNIQUE`, Linux 6.8). Asks nothing of the mount itself.
fn unique_mount_id(mountpoint: &Path) -> Option<u64> {
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let status = rustix::fs::statx(rustix::fs::CWD, mountpoint, flags, UNIQUE).ok()?;
    let is_filled_in = status.stx_mask & UNIQUE.bits() != 0;
    is_filled_in.then_some(status.stx_mnt_id)
}

fn system(path: &Path, action: &'static str, source: io::Error) -> AttachError {
    AttachError::System {
        path: path.to_owned(),
        action,
        source,
    }
}
