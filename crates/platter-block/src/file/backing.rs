//! Backing files of loop devices. The kernel does not lock them, so a process that uses a loop
//! device locks its backing file as well.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fs::{Stat, major, minor};

/// The unit of sizes and offsets in sysfs, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The backing file or device of a loop device, or of one of its partitions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Backing {
    pub(super) path: PathBuf,
    /// The byte range of it that the device exposes.
    pub(super) range: Range<u64>,
}

impl Backing {
    /// Returns the backing file of `device`; `None` unless it is a loop device that has one.
    pub(super) fn of(device: &Stat) -> Option<Self> {
        let (major, minor) = (major(device.st_rdev), minor(device.st_rdev));
        let directory = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        Self::read(&directory)
    }

    /// Reads the attributes in the device's sysfs directory.
    fn read(directory: &Path) -> Option<Self> {
        let is_partition = directory.join("partition").exists();
        let whole = if is_partition {
            directory.parent()?
        } else {
            directory
        };
        let settings = whole.join("loop");
        let path = fs::read(settings.join("backing_file")).ok()?;
        let path = path.strip_suffix(b"\n").unwrap_or(&path);
        let path = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path);
        let number = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let offset = number(settings.join("offset")).unwrap_or(0);
        let sectors = number(directory.join("size"))?;
        let first = if is_partition {
            number(directory.join("start"))?
        } else {
            0
        };
        let start = offset.checked_add(first.checked_mul(SECTOR_BYTES)?)?;
        let end = start.checked_add(sectors.checked_mul(SECTOR_BYTES)?)?;
        Some(Self {
            path: path.into(),
            range: start..end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_a_range_of_the_backing_file() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("loop7");
        let partition = disk.join("loop7p2");
        fs::create_dir_all(disk.join("loop")).unwrap();
        fs::create_dir(&partition).unwrap();
        for (file, contents) in [
            ("loop/backing_file", "/srv/disk.img\n"),
            ("loop/offset", "1024\n"),
            ("size", "4096\n"),
            ("loop7p2/partition", "2\n"),
            ("loop7p2/start", "2048\n"),
            ("loop7p2/size", "1000\n"),
        ] {
            fs::write(disk.join(file), contents).unwrap();
        }
        let backing = |range| {
            Some(Backing {
                path: "/srv/disk.img".into(),
                range,
            })
        };
        assert_eq!(Backing::read(&disk), backing(1024..1024 + (4096 << 9)));
        let start = 1024 + (2048 << 9);
        assert_eq!(
            Backing::read(&partition),
            backing(start..start + (1000 << 9))
        );
        fs::remove_file(disk.join("loop/backing_file")).unwrap();
        assert_eq!(Backing::read(&disk), None);
    }
}
