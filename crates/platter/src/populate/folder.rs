//! What a directory of the host holds.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter_vfs::Timestamp;
use platter_vfs::attr::DeviceNumber;
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;

use super::contents::Contents;
use super::{Content, FileId, Member, MemberKind, MemberPath, Xattr};
use crate::{Cause, Error, Escaped, Result};

/// The longest list of names and the longest value that Linux knows.
const XATTR_BYTES_MAX: usize = 1 << 16;

/// Finds all below `folder` but for the file `left_out`, in the order of the names.
pub(super) fn index(folder: &Path, left_out: Option<&Path>) -> Result<Content> {
    let name: Arc<str> = Escaped(folder.as_os_str().as_bytes()).to_string().into();
    let mut walk = Walk {
        content: Content::new(name),
        left_out: left_out.and_then(FileId::of),
        seen: HashMap::new(),
    };
    walk.add(folder, &MemberPath(Vec::new()))?;
    Ok(walk.content)
}

struct Walk {
    content: Content,
    left_out: Option<FileId>,
    /// The first name of each inode that has several.
    seen: HashMap<FileId, MemberPath>,
}

impl Walk {
    /// Adds a file with what is below it. Recurses as deep as directories lie in each other, which
    /// the host bounds by the length of a path.
    fn add(&mut self, path: &Path, member_path: &MemberPath) -> Result<()> {
        let host = |error: std::io::Error| host_error(path, error);
        let metadata = fs::symlink_metadata(path).map_err(host)?;
        if self.left_out == Some(FileId::from(&metadata)) {
            return Ok(());
        }
        let kind = self.kind(path, member_path, &metadata).map_err(host)?;
        let is_directory = matches!(kind, MemberKind::Directory);
        let member = Member {
            uid: metadata.uid(),
            gid: metadata.gid(),
            permissions: metadata.mode() & 0o7777,
            modified: Timestamp {
                seconds: metadata.mtime(),
                nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
            },
            xattrs: if matches!(kind, MemberKind::Link(_)) {
                Vec::new()
            } else {
                xattrs(path).map_err(|error| host(error.into()))?
            },
            kind,
        };
        self.content.members.insert(member_path.clone(), member);
        if !is_directory {
            return Ok(());
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(path).map_err(host)? {
            names.push(entry.map_err(host)?.file_name());
        }
        names.sort_unstable();
        for name in names {
            let mut below = member_path.clone();
            below.0.push(name.as_bytes().to_vec());
            self.add(&path.join(&name), &below)?;
        }
        Ok(())
    }

    fn kind(
        &mut self,
        path: &Path,
        member_path: &MemberPath,
        metadata: &Metadata,
    ) -> std::io::Result<MemberKind> {
        let kind = metadata.file_type();
        if !kind.is_dir() && metadata.nlink() > 1 {
            let inode = FileId::from(metadata);
            if let Some(first) = self.seen.get(&inode) {
                return Ok(MemberKind::Link(first.clone()));
            }
            self.seen.insert(inode, member_path.clone());
        }
        let device = || DeviceNumber {
            major: rustix::fs::major(metadata.rdev()),
            minor: rustix::fs::minor(metadata.rdev()),
        };
        Ok(if kind.is_dir() {
            MemberKind::Directory
        } else if kind.is_symlink() {
            MemberKind::Symlink(fs::read_link(path)?.into_os_string().into_vec())
        } else if kind.is_char_device() {
            MemberKind::CharDevice(device())
        } else if kind.is_block_device() {
            MemberKind::BlockDevice(device())
        } else if kind.is_fifo() {
            MemberKind::Fifo
        } else if kind.is_socket() {
            MemberKind::Socket
        } else {
            MemberKind::File(Contents::Host {
                path: PathBuf::from(path),
                size_bytes: metadata.len(),
            })
        })
    }
}

/// The attributes that mean something on another filesystem, in the order of their names.
pub(crate) fn xattrs(path: &Path) -> Result<Vec<Xattr>, Errno> {
    let list = match whole(|buffer| llistxattr(path, buffer)) {
        Ok(list) => list,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for name in list
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        let is_acl = name.starts_with(b"system.posix_acl_");
        if name.starts_with(b"system.") && !is_acl {
            continue;
        }
        let value = whole(|buffer| lgetxattr(path, OsStr::from_bytes(name), buffer))?;
        found.push((name.to_vec(), value));
    }
    found.sort_unstable();
    Ok(found)
}

/// What `get` puts into a buffer that is long enough. Most of it is short or nothing.
fn whole(get: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut short = [0; 256];
    match get(&mut short) {
        Ok(len) => Ok(short[..len].to_vec()),
        Err(Errno::RANGE) => {
            let mut long = vec![0; XATTR_BYTES_MAX];
            let len = get(&mut long)?;
            long.truncate(len);
            Ok(long)
        }
        Err(error) => Err(error),
    }
}

impl From<Errno> for Cause {
    fn from(error: Errno) -> Self {
        std::io::Error::from(error).into()
    }
}

/// An error about a file of the host.
pub(crate) fn host_error(path: &Path, error: std::io::Error) -> Error {
    Error {
        image: Escaped(path.as_os_str().as_bytes()).to_string().into(),
        path: None,
        cause: error.into(),
    }
}
