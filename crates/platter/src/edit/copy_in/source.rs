//! What is copied into an image: a file of the host, or one of an image.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use platter_vfs::attr::DeviceNumber;
use platter_vfs::inode::read_dir_all;
use platter_vfs::{FileKind, InodeId, Timestamp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::data_map::DataMap;
use crate::populate::{Contents, FileId, HostPlace, Xattr, host_xattrs};
use crate::{Cause, Error, Escaped, File, Result};

/// How much of an image is read at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// How soon it is noticed that a copy was cancelled which waits for a stream.
const CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The source of a copy: a file of the host or of an image.
#[derive(Debug, Clone)]
pub enum CopySource {
    /// A file of the host.
    Host(PathBuf),
    /// A file of an image: of the edited one, or another one.
    Image(File),
}

/// The identity of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum SourceId {
    /// Device and inode.
    Host(u64, u64),
    /// The image, and the inode there.
    Image(Arc<str>, InodeId),
}

/// The attributes of a source.
#[derive(Debug, Clone)]
pub(super) struct SourceAttr {
    pub(super) id: SourceId,
    pub(super) kind: FileKind,
    pub(super) permissions: u32,
    pub(super) links: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size_bytes: u64,
    pub(super) device: DeviceNumber,
    pub(super) accessed: Timestamp,
    pub(super) modified: Timestamp,
}

/// Takes bytes of a file with their offset.
type Sink<'a> = dyn FnMut(u64, &[u8]) -> Result<(), Cause> + 'a;

impl CopySource {
    /// The name for messages, escaped.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Host(path) => Escaped(path.as_os_str().as_bytes()).to_string(),
            Self::Image(file) => format!("{}:{}", file.volume().name(), Escaped(file.path())),
        }
    }

    /// The last name of the path; none for a root, `.` and `..`.
    #[must_use]
    pub fn last_name(&self) -> Option<&[u8]> {
        match self {
            Self::Host(path) => crate::volume::place::last_name(path.as_os_str().as_bytes()),
            Self::Image(file) => crate::volume::place::last_name(file.path()),
        }
    }

    /// Its attributes, or those of what it leads to.
    pub(super) fn attr(&self, follow: bool) -> Result<SourceAttr> {
        match self {
            Self::Host(path) => {
                let metadata = if follow {
                    fs::metadata(path)
                } else {
                    fs::symlink_metadata(path)
                };
                let metadata = metadata.map_err(|error| self.error(error))?;
                SourceAttr::of_host(&metadata).ok_or_else(|| {
                    self.error(std::io::Error::from(std::io::ErrorKind::InvalidData))
                })
            }
            Self::Image(file) => {
                let attr = file.attr()?;
                let image = Arc::clone(file.volume().name());
                Ok(SourceAttr {
                    id: SourceId::Image(image, file.inode().id()),
                    kind: attr.kind,
                    permissions: attr.permissions,
                    links: attr.links.into(),
                    uid: attr.uid,
                    gid: attr.gid,
                    size_bytes: attr.size_bytes,
                    device: attr.device,
                    accessed: attr.accessed,
                    modified: attr.modified,
                })
            }
        }
    }

    /// The names in a directory, in order.
    pub(super) fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names: Vec<Vec<u8>> = match self {
            Self::Host(path) => {
                let entries = fs::read_dir(path).map_err(|error| self.error(error))?;
                let names = entries.map(|entry| Ok(entry?.file_name().into_vec()));
                names
                    .collect::<std::io::Result<_>>()
                    .map_err(|error| self.error(error))?
            }
            Self::Image(file) => {
                let entries = read_dir_all(&**file.inode()).map_err(|error| file.error(error))?;
                entries.iter().map(|entry| entry.name.to_vec()).collect()
            }
        };
        names.sort_unstable();
        Ok(names)
    }

    /// An entry of a directory.
    pub(super) fn child(&self, name: &[u8]) -> Result<Self> {
        match self {
            Self::Host(path) => Ok(Self::Host(path.join(OsStr::from_bytes(name)))),
            Self::Image(file) => {
                let found = platter_vfs::Name::new(name).and_then(|name| file.inode().lookup(name));
                let inode = found.map_err(|error| file.entry_error(name, error))?;
                Ok(Self::Image(file.entry_file(name, inode)))
            }
        }
    }

    /// The target of a symbolic link.
    pub(super) fn read_link(&self) -> Result<Vec<u8>> {
        match self {
            Self::Host(path) => {
                let target = fs::read_link(path).map_err(|error| self.error(error))?;
                Ok(target.into_os_string().into_vec())
            }
            Self::Image(file) => file.read_link(),
        }
    }

    /// The extended attributes that mean something on another filesystem.
    pub(super) fn xattrs(&self, follow: bool) -> Result<Vec<Xattr>> {
        match self {
            Self::Host(path) => {
                let found = if follow {
                    fs::canonicalize(path).map_err(|error| self.error(error))?
                } else {
                    path.clone()
                };
                host_xattrs(&found).map_err(|error| self.error(std::io::Error::from(error)))
            }
            Self::Image(file) => file.xattrs(),
        }
    }

    /// Passes all that is not zeros to `write`, in ascending order, and then returns the size. Ends where `check`
    /// refuses, also while a stream is waited for.
    pub(super) fn copy(
        &self,
        attr: &SourceAttr,
        follow: bool,
        check: &dyn Fn() -> Result<(), Cause>,
        write: &mut Sink<'_>,
    ) -> Result<u64> {
        match (self, &attr.id) {
            (Self::Host(path), &SourceId::Host(device, inode))
                if attr.kind == FileKind::Regular =>
            {
                let place = if follow {
                    HostPlace::followed(path)
                } else {
                    path.as_path().into()
                };
                let contents = Contents::Host {
                    place,
                    id: FileId { device, inode },
                    size_bytes: attr.size_bytes,
                };
                let copied = contents.copy(check, write);
                copied.map_err(|cause| self.error(cause))?;
                Ok(attr.size_bytes)
            }
            (Self::Host(path), _) => {
                copy_stream(path, check, write).map_err(|cause| self.error(cause))
            }
            (Self::Image(file), _) => {
                copy_image(file, attr.size_bytes, write).map_err(|cause| self.error(cause))?;
                Ok(attr.size_bytes)
            }
        }
    }

    pub(super) fn error(&self, cause: impl Into<Cause>) -> Error {
        match self {
            Self::Host(path) => {
                Error::at_path(&"".into(), path.as_os_str().as_bytes(), cause.into())
            }
            Self::Image(file) => Error::at_path(file.volume().name(), file.path(), cause.into()),
        }
    }
}

/// Passes on what comes out of a pipe or a device until it ends, and returns how much that is.
fn copy_stream(
    path: &Path,
    check: &dyn Fn() -> Result<(), Cause>,
    write: &mut Sink<'_>,
) -> Result<u64, Cause> {
    // The other end of a FIFO is waited for below.
    let mut options = fs::File::options();
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut source = options.read(true).custom_flags(nonblocking).open(path)?;
    let mut buffer = vec![0; 1 << 16];
    let mut offset = 0;
    loop {
        let mut polled = [PollFd::new(&source, PollFlags::IN)];
        let ready = poll(&mut polled, Some(&CHECK_INTERVAL));
        check()?;
        match ready {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let count = match source.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        if count == 0 {
            return Ok(offset);
        }
        write(offset, &buffer[..count])?;
        offset += count as u64;
    }
}

fn copy_image(file: &File, size_bytes: u64, write: &mut Sink<'_>) -> Result<(), Cause> {
    let inode = &**file.inode();
    let map = DataMap::read(inode, size_bytes, 0, &mut |_, _| {})?;
    let mut buffer = Vec::new();
    for range in map.data() {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(CHUNK_BYTES));
            buffer.resize(usize::try_from(end - at).unwrap_or_default(), 0);
            inode.will_need(end..end.saturating_add(CHUNK_BYTES));
            let count = inode.read_at(at, &mut buffer)?;
            write(at, &buffer[..count])?;
            at = end;
        }
    }
    Ok(())
}

impl SourceAttr {
    fn of_host(metadata: &Metadata) -> Option<Self> {
        let time = |seconds, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or_default(),
        };
        Some(Self {
            id: SourceId::Host(metadata.dev(), metadata.ino()),
            kind: FileKind::from_mode(metadata.mode())?,
            permissions: metadata.mode() & 0o7777,
            links: metadata.nlink(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            size_bytes: metadata.len(),
            device: DeviceNumber {
                major: rustix::fs::major(metadata.rdev()),
                minor: rustix::fs::minor(metadata.rdev()),
            },
            accessed: time(metadata.atime(), metadata.atime_nsec()),
            modified: time(metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}
