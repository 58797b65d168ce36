//! A file as the host's kernel shows it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{Attr, FileKind, StatFs, Timestamp};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, StatxFlags};
use rustix::io::Errno;

use crate::attributes;

/// One path of the host.
#[derive(Debug)]
pub(super) struct HostFile {
    path: PathBuf,
}

/// The device number of a filesystem, or of one subvolume of a btrfs.
pub(super) type Device = (u32, u32);

/// Names with the file type in the directory entry.
pub(super) type Listing = BTreeMap<Vec<u8>, Option<FileKind>>;

impl HostFile {
    pub(super) fn new(root: &Path, relative: &[u8]) -> Self {
        let path = if relative.is_empty() {
            root.join(".")
        } else {
            root.join(OsStr::from_bytes(relative))
        };
        Self { path }
    }

    pub(super) fn attr(&self) -> Result<(Attr, Device)> {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW, mask)
            .with_context(|| self.path.display().to_string())?;
        let time = |time: rustix::fs::StatxTimestamp| Timestamp {
            seconds: time.tv_sec,
            nanoseconds: time.tv_nsec,
        };
        let mode = u32::from(found.stx_mode);
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let attr = Attr {
            inode: found.stx_ino,
            generation: 0,
            kind: FileKind::from_mode(mode).context("a file type")?,
            permissions: mode & 0o7777,
            links: found.stx_nlink,
            uid: found.stx_uid,
            gid: found.stx_gid,
            project: 0,
            size_bytes: found.stx_size,
            sectors: found.stx_blocks,
            space_is_estimated: false,
            io_block_bytes: found.stx_blksize,
            device: DeviceNumber {
                major: found.stx_rdev_major,
                minor: found.stx_rdev_minor,
            },
            accessed: time(found.stx_atime),
            modified: time(found.stx_mtime),
            changed: time(found.stx_ctime),
            created: has_birth.then(|| time(found.stx_btime)),
            flags: 0,
        };
        Ok((attr, (found.stx_dev_major, found.stx_dev_minor)))
    }

    /// All names but `.` and `..`.
    pub(super) fn listing(&self) -> Result<Listing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.path, flags, Mode::empty())?;
        let mut names = BTreeMap::new();
        for entry in rustix::fs::Dir::new(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.insert(name.to_vec(), kind(entry.file_type()));
            }
        }
        Ok(names)
    }

    pub(super) fn link_target(&self) -> Result<Vec<u8>> {
        Ok(std::fs::read_link(&self.path)?.into_os_string().into_vec())
    }

    pub(super) fn open(&self) -> Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.path, flags, Mode::empty())?.into())
    }

    /// The inode flags that `lsattr` shows; only regular files and directories can be asked.
    pub(super) fn flags(&self) -> Result<u32> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        Ok(rustix::fs::ioctl_getflags(&file)?.bits())
    }

    /// All attributes with their values.
    pub(super) fn xattrs(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        match attributes::of(&self.path) {
            Ok(attributes) => Ok(attributes.into_iter().collect()),
            Err(Errno::NOTSUP) => Ok(BTreeMap::new()),
            Err(error) => bail!("{}: attributes: {error}", self.path.display()),
        }
    }
}

/// What `statfs` says of the filesystem at `root`.
pub(super) fn stat_fs(root: &Path) -> Result<StatFs> {
    let plain = rustix::fs::statfs(root)?;
    let found = rustix::fs::statvfs(root)?;
    Ok(StatFs {
        block_bytes: u32::try_from(found.f_bsize)?,
        blocks: found.f_blocks,
        blocks_free: found.f_bfree,
        blocks_available: found.f_bavail,
        inodes: found.f_files,
        inodes_free: found.f_ffree,
        name_len_max: u32::try_from(found.f_namemax)?,
        id: found.f_fsid,
        magic: u32::try_from(plain.f_type)?,
    })
}

fn kind(file_type: FileType) -> Option<FileKind> {
    FileKind::from_mode(RawMode::from(file_type.as_raw_mode()))
}

/// A file of any length that is read in pieces.
pub(super) fn read_exact_at(file: &File, offset: u64, buf: &mut [u8]) -> Result<()> {
    file.read_exact_at(buf, offset)
        .with_context(|| format!("host read of {} bytes at {offset}", buf.len()))
}
