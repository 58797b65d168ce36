//! Who else uses an image.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Stat;

/// Somebody who uses an image already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A program that locked it exclusively.
    Writer,
    /// Programs that locked it shared.
    Reader,
    /// The block device is mounted, or a program or a device above it claimed it.
    Claim,
    /// The file is attached to the loop device of this name, which takes no lock.
    Loop(Arc<str>),
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer => out.write_str("another writer"),
            Self::Reader => out.write_str("another reader"),
            Self::Claim => out.write_str("a mount, or by another program that claimed it"),
            Self::Loop(name) => write!(out, "loop device {name}"),
        }
    }
}

/// The loop device that a file is attached to, where the kernel tells.
pub(super) fn attached_loop_device(file: &Stat) -> Option<Arc<str>> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let backing = fs::metadata(Path::new(backing.trim_end_matches('\n'))).ok()?;
        let same = (backing.dev(), backing.ino()) == (file.st_dev, file.st_ino);
        same.then(|| device.file_name().to_string_lossy().into())
    })
}
