//! A file as a block device of the kernel.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::loopdev::Access;
use crate::tool;

/// How often a busy loop device is asked for again.
const ATTEMPTS_MAX: u32 = 40;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// An attached loop device. Dropping it detaches it, at once or when its last user closes it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `image` as a device of 512-byte sectors.
    pub fn attach(image: &Path, access: Access) -> Result<Self> {
        Self::with_sectors(image, 512, access)
    }

    /// Attaches `image` as a device with sectors of this size.
    pub fn with_sectors(image: &Path, sector_bytes: u32, access: Access) -> Result<Self> {
        let mut losetup = tool::command("losetup");
        losetup.args([
            "--find",
            "--show",
            "--sector-size",
            &sector_bytes.to_string(),
        ]);
        if access == Access::ReadOnly {
            losetup.arg("--read-only");
        }
        losetup.arg(image);
        let mut attempt = 1;
        let finished = loop {
            // Others on this machine take devices too, between finding one and taking it.
            match tool::succeed(&mut losetup) {
                Err(_) if attempt < ATTEMPTS_MAX => std::thread::sleep(PAUSE),
                done => break done?,
            }
            attempt += 1;
        };
        let path = String::from_utf8(finished.stdout)?;
        Ok(Self {
            path: path.trim_end().into(),
        })
    }

    /// The device's node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The major and minor number.
    pub fn number(&self) -> Result<(u32, u32)> {
        let stat = rustix::fs::stat(&self.path).context("the loop device's node")?;
        Ok((
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        ))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A device that something still holds goes when that lets go.
        let _ = tool::finish(tool::command("losetup").arg("--detach").arg(&self.path));
    }
}
