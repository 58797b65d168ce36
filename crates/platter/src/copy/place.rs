//! A name in a directory of the host that is held open, so that no path is resolved twice.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter_vfs::FileKind;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::host_error;
use crate::Error;

/// Longer paths cannot be linked to.
const PATH_BYTES_MAX: usize = 4000;

/// Where something is to be made.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The directory that the caller named, and its path.
    top: Arc<File>,
    /// The directory it is in.
    dir: Arc<File>,
    /// The path of the directory, for messages.
    dir_path: Arc<Path>,
    /// The path of the directory below the top, with a slash at the end unless it is the top.
    below_top: Arc<[u8]>,
    name: OsString,
    /// The directory was made for the copy: nothing else is in it.
    is_in_new: bool,
}

/// A place that further names may be linked to.
#[derive(Debug)]
pub(super) struct Remembered {
    /// The directory that the caller named.
    top: Arc<File>,
    /// The path below it.
    path: Vec<u8>,
}

impl Place {
    /// `name` in the directory `dir`, which has the path `path`.
    pub(super) fn top(dir: Arc<File>, path: &Path, name: &OsStr) -> Self {
        Self {
            top: Arc::clone(&dir),
            dir,
            dir_path: path.into(),
            below_top: (*b"").into(),
            name: name.to_owned(),
            is_in_new: false,
        }
    }

    /// `name` in the directory that is this place and was opened as `dir`, and made for the copy if it
    /// `is_new`.
    pub(super) fn below(&self, (dir, is_new): (&Arc<File>, bool), name: &[u8]) -> Self {
        Self {
            top: Arc::clone(&self.top),
            dir: Arc::clone(dir),
            dir_path: self.path().into(),
            below_top: [&self.below_top, self.name.as_bytes(), b"/"]
                .concat()
                .into(),
            name: OsStr::from_bytes(name).to_owned(),
            is_in_new: is_new,
        }
    }

    /// The path on the host, for messages.
    pub(super) fn path(&self) -> PathBuf {
        if &*self.dir_path == Path::new(".") {
            return PathBuf::from(&self.name);
        }
        self.dir_path.join(&self.name)
    }

    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// What to remember of this place so that it can be linked to later.
    pub(super) fn remembered(&self) -> Option<Remembered> {
        let path = [&self.below_top, self.name.as_bytes()].concat();
        (path.len() <= PATH_BYTES_MAX).then(|| Remembered {
            top: Arc::clone(&self.top),
            path,
        })
    }

    pub(super) fn error(&self, error: Errno) -> Error {
        host_error(&self.path(), error)
    }

    /// The type of what is there.
    pub(super) fn kind(&self) -> Result<Option<FileKind>, Errno> {
        if self.is_in_new {
            return Ok(None);
        }
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(FileKind::from_mode(found.st_mode)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes away what is there, which is no directory.
    pub(super) fn clear(&self) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes a regular file, which must not be there yet.
    pub(super) fn create(&self, permissions: u32) -> Result<File, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(permissions & 0o777);
        Ok(rustix::fs::openat(&self.dir, &self.name, flags, mode)?.into())
    }

    /// Makes a directory, or takes the one that is there, and opens it. Returns whether it is new.
    pub(super) fn make_dir(&self, permissions: u32) -> Result<(File, bool), Errno> {
        // The owner may work in it until it is finished.
        let mode = Mode::from_raw_mode(permissions & 0o777 | 0o700);
        let is_new = match rustix::fs::mkdirat(&self.dir, &self.name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty())?;
        Ok((dir.into(), is_new))
    }

    pub(super) fn make_symlink(&self, target: &[u8]) -> Result<(), Errno> {
        rustix::fs::symlinkat(target, &self.dir, &self.name)
    }

    pub(super) fn make_special(
        &self,
        kind: FileType,
        permissions: u32,
        (major, minor): (u32, u32),
    ) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(permissions & 0o777);
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(&self.dir, &self.name, kind, mode, device)
    }

    /// Makes it another name of a file that was remembered.
    pub(super) fn make_link(&self, first: &Remembered) -> Result<(), Errno> {
        let flags = AtFlags::empty();
        rustix::fs::linkat(&first.top, &first.path[..], &self.dir, &self.name, flags)
    }
}
