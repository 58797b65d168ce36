//! The members of a btrfs, which the kernel knows by the UUID of the filesystem alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{LoopDevice, Mount};
use crate::tool;

/// How often a lock or a busy device is tried again, and the pause between.
const ATTEMPTS_MAX: u32 = 6000;
const PAUSE: Duration = Duration::from_millis(50);
/// How often the kernel is asked to forget the devices: a copy of the mount's descriptor in a child
/// process that is about to start keeps them in use for a moment.
const FORGET_ATTEMPTS_MAX: u32 = 100;

/// Loop devices that are the only ones of their filesystem in the kernel's list while this lives, and
/// are not in it afterwards: another state of the same filesystem is never mixed with them.
#[derive(Debug)]
pub struct Members {
    devices: Vec<LoopDevice>,
    _lock: File,
}

impl Members {
    /// Waits until no other process has a copy of the filesystem in use.
    pub fn claim(devices: Vec<LoopDevice>) -> Result<Self> {
        let first = devices.first().context("no device")?;
        let lock = lock_uuid_of(first.path())?;
        let members = Self {
            devices,
            _lock: lock,
        };
        // What a process that was killed left.
        members.forget();
        Ok(members)
    }

    /// The paths of the devices.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.devices.iter().map(LoopDevice::path)
    }

    pub(super) fn mounted(&self, mount: impl Fn(&[&Path]) -> Result<Mount>) -> Result<Mount> {
        let paths: Vec<&Path> = self.paths().collect();
        mounted(&paths, mount)
    }

    /// A device that is the only one of its filesystem leaves the list with its unmount.
    fn forget(&self) -> bool {
        self.devices.len() == 1 || forget(self.paths())
    }
}

/// Mounts the only device of a filesystem while no other mount of a copy begins: of two copies that the kernel knows and has
/// not opened yet, it refuses the older one.
pub(super) fn mounted_alone(
    device: &Path,
    mount: impl Fn(&[&Path]) -> Result<Mount>,
) -> Result<Mount> {
    let lock = lock_uuid_of(device)?;
    let mounted = mounted(&[device], mount);
    lock.unlock()?;
    mounted
}

/// Calls `mount` again while the kernel knows a newer copy of a member, which is no longer in use: one that was not
/// forgotten in time.
fn mounted(paths: &[&Path], mount: impl Fn(&[&Path]) -> Result<Mount>) -> Result<Mount> {
    let mount = || {
        let list = File::open(list_lock()?)?;
        list.lock_shared()?;
        let mounted = mount(paths);
        list.unlock()?;
        mounted
    };
    for _ in 0..FORGET_ATTEMPTS_MAX {
        match mount() {
            Err(error) if error.to_string().contains("File exists") => {
                forget_all()?;
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
    mount()
}

/// Makes the kernel forget devices. Returns whether it did.
fn forget<'p>(paths: impl Iterator<Item = &'p Path>) -> bool {
    let mut scan = tool::command("btrfs");
    scan.args(["device", "scan", "--forget"]).args(paths);
    tool::finish(&mut scan).is_ok_and(|finished| finished.status.success())
}

/// Makes the kernel forget all devices that are not mounted.
pub(super) fn forget_all() -> Result<()> {
    let list = File::open(list_lock()?)?;
    list.lock()?;
    forget(std::iter::empty());
    Ok(list.unlock()?)
}

impl Drop for Members {
    fn drop(&mut self) {
        for _ in 0..FORGET_ATTEMPTS_MAX {
            if self.forget() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Returns the path of a lock file that is held shared while devices must stay in the kernel's list without being mounted:
/// by a mount that names several, between the first and its end. Where it is held alone, all may be forgotten.
pub fn list_lock() -> Result<PathBuf> {
    let path = locks()?.join("list");
    File::create(&path)?;
    Ok(path)
}

/// Waits for the lock of the filesystem with the UUID of this device.
fn lock_uuid_of(device: &Path) -> Result<File> {
    const UUID: u64 = (64 << 10) + 0x20;
    let mut uuid = [0; 16];
    File::open(device)?.read_exact_at(&mut uuid, UUID)?;
    let name = format!("{:032x}", u128::from_be_bytes(uuid));
    let lock = File::create(locks()?.join(&name)).with_context(|| name)?;
    for _ in 0..ATTEMPTS_MAX {
        if lock.try_lock().is_ok() {
            return Ok(lock);
        }
        std::thread::sleep(PAUSE);
    }
    bail!("another copy of {} stays mounted", device.display())
}

fn locks() -> Result<PathBuf> {
    let dir = std::env::temp_dir().join("platter-btrfs-locks");
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}
