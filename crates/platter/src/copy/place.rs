//! A name in a directory of the host that is held open, so that no path is resolved twice.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::links::Links;
use super::{errno, host_error};
use crate::Error;
use crate::host_file::HostFileId;

/// The access control list that what is made in a directory gets.
const ACL_DEFAULT: &str = "system.posix_acl_default";

/// Longer paths cannot be linked to.
const PATH_BYTES_MAX: usize = 4000;

/// An open directory of the host that is being filled.
#[derive(Debug)]
pub(super) struct Directory {
    /// The directory that the caller named.
    top: Arc<File>,
    file: Arc<File>,
    /// Its path, for messages.
    path: PathBuf,
    /// Its path below the top, with a slash at the end unless it is the top.
    below_top: Vec<u8>,
    /// If it was made for the copy: owner and group that it got, as all that is made in it gets them.
    made_for: Option<(u32, u32)>,
    /// What is made in it gets the permissions that are asked for, but for those of the umask.
    keeps_permissions: bool,
}

/// Where something is to be made.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The directory it is in.
    dir: Arc<Directory>,
    name: OsString,
}

/// A place that further names may be linked to.
#[derive(Debug)]
pub(super) struct Remembered {
    /// The directory that the caller named.
    top: Arc<File>,
    /// The path below it.
    path: Vec<u8>,
    /// Which file it is.
    pub(super) file: HostFileId,
}

impl Directory {
    /// `name` in this directory.
    pub(super) fn place(self: &Arc<Self>, name: &[u8]) -> Place {
        Place {
            dir: Arc::clone(self),
            name: OsStr::from_bytes(name).to_owned(),
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Whether nothing but the copy is in it.
    pub(super) fn is_new(&self) -> bool {
        self.made_for.is_some()
    }
}

impl Place {
    /// `name` in the directory `dir`, which the caller named and has the path `path`.
    pub(super) fn top(dir: Arc<File>, path: &Path, name: &OsStr) -> Self {
        let dir = Directory {
            top: Arc::clone(&dir),
            file: dir,
            path: path.to_owned(),
            below_top: Vec::new(),
            made_for: None,
            keeps_permissions: false,
        };
        Self {
            dir: Arc::new(dir),
            name: name.to_owned(),
        }
    }

    /// Whether it is what the caller named, not something below.
    pub(super) fn is_top(&self) -> bool {
        self.dir.below_top.is_empty()
    }

    /// Whether what is made here belongs to this owner and group from the beginning.
    pub(super) fn is_made_for(&self, uid: u32, gid: u32) -> bool {
        self.dir.made_for == Some((uid, gid))
    }

    /// Whether what is made here may have an ACL from the directory.
    pub(super) fn inherits_acls(&self) -> bool {
        !self.dir.keeps_permissions
    }

    /// Whether a file that is made here with these permissions has them.
    pub(super) fn makes_with(&self, permissions: u32, umask: u32) -> bool {
        permissions & !(0o777 & !umask) == 0 && self.dir.keeps_permissions
    }

    /// The path on the host, for messages.
    pub(super) fn path(&self) -> PathBuf {
        if self.dir.path == Path::new(".") {
            return PathBuf::from(&self.name);
        }
        self.dir.path.join(&self.name)
    }

    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.file.as_fd()
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// What to remember of this place so that it can be linked to later.
    pub(super) fn remembered(&self) -> Option<Remembered> {
        let path = [&self.dir.below_top, self.name.as_bytes()].concat();
        let file = HostFileId::inode_of(&self.stat().ok()??);
        (path.len() <= PATH_BYTES_MAX).then(|| Remembered {
            top: Arc::clone(&self.dir.top),
            path,
            file,
        })
    }

    pub(super) fn error(&self, error: Errno) -> Error {
        host_error(&self.path(), error)
    }

    /// Returns what was there before the copy.
    pub(super) fn found(&self) -> Result<Option<Stat>, Errno> {
        if self.dir.is_new() {
            return Ok(None);
        }
        self.stat()
    }

    fn stat(&self) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.dir.file, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes what is there, which is no directory.
    pub(super) fn clear(&self) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.dir.file, &self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes a regular file, which must not be there yet.
    pub(super) fn create(&self, permissions: u32) -> Result<File, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(permissions & 0o777);
        Ok(rustix::fs::openat(&self.dir.file, &self.name, flags, mode)?.into())
    }

    /// Makes a directory, or takes the one that is there, and opens it.
    pub(super) fn make_dir(&self, permissions: u32) -> Result<Directory, Errno> {
        // The owner may work in it until it is finished.
        let mode = Mode::from_raw_mode(permissions & 0o777 | 0o700);
        let is_new = match rustix::fs::mkdirat(&self.dir.file, &self.name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error),
        };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.dir.file, &self.name, flags, Mode::empty());
        let file = match opened {
            Ok(file) => File::from(file),
            Err(error) => {
                if is_new {
                    // The error is what counts.
                    let flags = AtFlags::REMOVEDIR;
                    let _ = rustix::fs::unlinkat(&self.dir.file, &self.name, flags);
                }
                return Err(error);
            }
        };
        let made_for = if is_new {
            // By the C library, for fakeroot(1).
            let found = file.metadata().map_err(|error| errno(&error))?;
            Some((found.uid(), found.gid()))
        } else {
            None
        };
        // One of a new directory is inherited.
        let acl = rustix::fs::fgetxattr(&file, ACL_DEFAULT, &mut [0; 0]);
        let has_acl = !matches!(acl, Err(Errno::NODATA | Errno::NOTSUP));
        Ok(Directory {
            top: Arc::clone(&self.dir.top),
            file: Arc::new(file),
            path: self.path(),
            below_top: [&self.dir.below_top, self.name.as_bytes(), b"/"].concat(),
            made_for,
            keeps_permissions: is_new && !has_acl,
        })
    }

    pub(super) fn make_symlink(&self, target: &[u8]) -> Result<(), Errno> {
        rustix::fs::symlinkat(target, &self.dir.file, &self.name)
    }

    pub(super) fn make_special(
        &self,
        kind: FileType,
        permissions: u32,
        (major, minor): (u32, u32),
    ) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(permissions & 0o777);
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(&self.dir.file, &self.name, kind, mode, device)
    }

    /// Makes it another name of a file that was remembered, or returns false where nothing became of that: another
    /// file may be at its place by now.
    pub(super) fn make_link(&self, first: &Remembered, links: &Links) -> Result<bool, Errno> {
        let (from, flags) = (&first.path[..], AtFlags::empty());
        if rustix::fs::linkat(&first.top, from, &self.dir.file, &self.name, flags).is_err() {
            return Ok(false);
        }
        let linked = self.stat()?.map(|found| HostFileId::inode_of(&found));
        if linked == Some(first.file) && links.is_known(first) {
            return Ok(true);
        }
        self.clear()?;
        Ok(false)
    }
}
