//! A file as a block device of the kernel.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::loopdev::Access;
use crate::tool;

/// How often a busy loop device is asked for again.
const ATTEMPTS_MAX: u32 = 40;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a device that was detached is looked at.
const DETACH_CHECKS_MAX: u32 = 1200;

/// An attached loop device. It is detached automatically (`LO_FLAGS_AUTOCLEAR`) when its last user
/// is gone, and this is one of them, so that it does not outlive the process.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    node: File,
}

impl LoopDevice {
    /// Attaches `image` as a device of 512-byte sectors.
    pub fn attach(image: &Path, access: Access) -> Result<Self> {
        Self::with_sectors(image, 512, access)
    }

    /// Attaches the bytes of `image` from `offset` on.
    pub fn at_offset(image: &Path, offset: u64, access: Access) -> Result<Self> {
        Self::with_options(image, &["--offset", &offset.to_string()], access)
    }

    /// Attaches `image` as a device with sectors of this size.
    pub fn with_sectors(image: &Path, sector_bytes: u32, access: Access) -> Result<Self> {
        Self::with_options(image, &["--sector-size", &sector_bytes.to_string()], access)
    }

    fn with_options(image: &Path, options: &[&str], access: Access) -> Result<Self> {
        let mut losetup = tool::command("losetup");
        losetup.args(["--find", "--show"]).args(options);
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
        let path = PathBuf::from(String::from_utf8(finished.stdout)?.trim_end());
        let node = File::open(&path).with_context(|| path.display().to_string())?;
        tool::succeed(tool::command("losetup").arg("--detach").arg(&path))?;
        Ok(Self { path, node })
    }

    /// Detaches it, and returns when the image is not attached any more: a program that looks at all devices keeps it
    /// for a moment. After a minute that is an error.
    pub fn detach(self, image: &Path) -> Result<()> {
        let image = image.canonicalize()?;
        let name = self.path.file_name().context("a device's name")?;
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        drop(self);
        for _ in 0..DETACH_CHECKS_MAX {
            // Of a device that has no file, or has another one by now.
            let found = std::fs::read_to_string(&backing).unwrap_or_default();
            if Path::new(found.trim_end_matches('\n')) != image {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        bail!("{} stays attached", image.display())
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
        // What was written reaches the image before anyone else opens it.
        let _ = self.node.sync_all();
    }
}
