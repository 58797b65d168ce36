//! The members of a btrfs, which the kernel knows by the UUID of the filesystem alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
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
pub(super) struct Members {
    devices: Vec<LoopDevice>,
    _lock: File,
}

impl Members {
    /// Waits until no other process has a copy of the filesystem in use.
    pub(super) fn claim(devices: Vec<LoopDevice>) -> Result<Self> {
        let first = devices.first().context("no device")?;
        let lock = lock_of(first.path())?;
        for _ in 0..ATTEMPTS_MAX {
            if lock.try_lock().is_ok() {
                let members = Self {
                    devices,
                    _lock: lock,
                };
                // What a process that was killed left.
                members.forget();
                return Ok(members);
            }
            std::thread::sleep(PAUSE);
        }
        bail!(
            "another copy of {} stays mounted",
            devices[0].path().display()
        )
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.devices.iter().map(LoopDevice::path)
    }

    /// Calls `mount` again while the kernel knows a newer copy of a member, which is no longer in use: one that was not
    /// forgotten in time.
    pub(super) fn mounted(&self, mount: impl Fn(&[&Path]) -> Result<Mount>) -> Result<Mount> {
        let paths: Vec<&Path> = self.paths().collect();
        for _ in 0..FORGET_ATTEMPTS_MAX {
            match mount(&paths) {
                Err(error) if error.to_string().contains("File exists") => {
                    forget(std::iter::empty());
                    std::thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
        mount(&paths)
    }

    fn forget(&self) -> bool {
        forget(self.paths())
    }
}

/// Makes the kernel forget devices, or without any all that are not mounted. Returns whether it did.
fn forget<'p>(paths: impl Iterator<Item = &'p Path>) -> bool {
    let mut scan = tool::command("btrfs");
    scan.args(["device", "scan", "--forget"]).args(paths);
    tool::finish(&mut scan).is_ok_and(|finished| finished.status.success())
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

/// The lock file of the filesystem with this UUID.
fn lock_of(device: &Path) -> Result<File> {
    const UUID: u64 = (64 << 10) + 0x20;
    let mut uuid = [0; 16];
    File::open(device)?.read_exact_at(&mut uuid, UUID)?;
    let name = format!("{:032x}", u128::from_be_bytes(uuid));
    let dir = std::env::temp_dir().join("platter-btrfs-locks");
    std::fs::create_dir_all(&dir)?;
    File::create(dir.join(&name)).with_context(|| name)
}
