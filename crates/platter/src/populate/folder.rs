//! What a directory of the host holds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::num::NonZeroUsize;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};
use platter_vfs::Timestamp;
use platter_vfs::attr::DeviceNumber;
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;

use super::contents::Contents;
use super::{Content, FileId, Member, MemberKind, MemberPath, Xattr};
use crate::{Cause, Error, Escaped, Result};

/// The longest list of names and the longest value that Linux knows.
const XATTR_BYTES_MAX: usize = 1 << 16;

/// Threads that look at files at most.
const THREADS_MAX: usize = 4;

/// Finds all below `folder` but for the file `left_out`. Several threads look, each at one directory
/// at a time; what is found does not depend on who came first.
pub(super) fn index(folder: &Path, left_out: Option<&Path>) -> Result<Content> {
    let name: Arc<str> = Escaped(folder.as_os_str().as_bytes()).to_string().into();
    let walk = Walk {
        left_out: left_out.and_then(FileId::of),
        state: Mutex::default(),
        changed: Condvar::new(),
    };
    let metadata = fs::symlink_metadata(folder).map_err(|error| host_error(folder, error))?;
    let root = walk.look(folder, &MemberPath::root(), &metadata)?;
    {
        let mut state = walk.state.lock();
        if let Some(root) = root {
            let is_directory = matches!(root.member.kind, MemberKind::Directory);
            if is_directory {
                state.pending.push((folder.to_owned(), root.path.clone()));
            }
            state.found.push(root);
        }
    }
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for number in 1..threads.min(THREADS_MAX) {
            let looker = thread::Builder::new().name(format!("mkfs-look-{number}"));
            // One is enough.
            let _ = looker.spawn_scoped(scope, || walk.run());
        }
        walk.run();
    });
    let State { found, failure, .. } = walk.state.into_inner();
    match failure {
        Some((_, error)) => Err(error),
        None => Ok(content_of(name, found)),
    }
}

/// Puts what was found into its order. Of the names of an inode, all but the first become links.
fn content_of(name: Arc<str>, mut found: Vec<Found>) -> Content {
    found.sort_unstable_by(|left, right| left.path.cmp(&right.path));
    let mut content = Content::new(name);
    let mut seen: HashMap<FileId, MemberPath> = HashMap::new();
    let members = found.into_iter().map(|found| {
        let Found { path, member, link } = found;
        let member = match link.map(|inode| seen.entry(inode)) {
            Some(Entry::Occupied(first)) => Member::link(first.get().clone()),
            Some(Entry::Vacant(first)) => {
                first.insert(path.clone());
                member
            }
            None => member,
        };
        (path, member)
    });
    content.members = members.collect();
    content
}

/// A file that was looked at.
struct Found {
    path: MemberPath,
    member: Member,
    /// Its inode, if that may have other names.
    link: Option<FileId>,
}

struct Walk {
    left_out: Option<FileId>,
    state: Mutex<State>,
    /// Rung when there are further directories, or will be none.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Directories whose entries nobody has looked at.
    pending: Vec<(PathBuf, MemberPath)>,
    /// Threads that may find further ones.
    busy: usize,
    found: Vec<Found>,
    /// What went wrong with the first path that anything was wrong with.
    failure: Option<(MemberPath, Error)>,
}

/// What lies in a directory.
#[derive(Default)]
struct Listed {
    files: Vec<Found>,
    /// Those of them that are directories.
    directories: Vec<(PathBuf, MemberPath)>,
}

/// A thread that may find further directories, until this is dropped.
struct Busy<'w>(&'w Walk);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.changed.notify_all();
    }
}

impl Walk {
    /// Looks at directories until there are no more.
    fn run(&self) {
        while let Some((path, member_path)) = self.next() {
            let _busy = Busy(self);
            let listed = self.list(&path, &member_path);
            let mut state = self.state.lock();
            match listed {
                Ok(Listed { files, directories }) => {
                    state.found.extend(files);
                    state.pending.extend(directories);
                }
                Err((path, error)) => {
                    let first = state.failure.as_ref().map(|(first, _)| first);
                    if first.is_none_or(|first| path < *first) {
                        state.failure = Some((path, error));
                    }
                }
            }
        }
    }

    /// The next directory to look at, for a thread that is busy with it then.
    fn next(&self) -> Option<(PathBuf, MemberPath)> {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.pending.pop() {
                state.busy += 1;
                return Some(next);
            }
            if state.busy == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// What lies in a directory, and the directories among that.
    fn list(&self, path: &Path, member_path: &MemberPath) -> Result<Listed, (MemberPath, Error)> {
        let host = |error| (member_path.clone(), host_error(path, error));
        let mut listed = Listed::default();
        for entry in fs::read_dir(path).map_err(host)? {
            let entry = entry.map_err(host)?;
            let name = entry.file_name();
            let below = member_path.below(name.as_bytes());
            let path = path.join(&name);
            // Found from the directory, not from the root of the host.
            let metadata = entry.metadata();
            let metadata = metadata.map_err(|error| host_error(&path, error));
            let found = metadata.and_then(|metadata| self.look(&path, &below, &metadata));
            let found = match found {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => return Err((below, error)),
            };
            if matches!(found.member.kind, MemberKind::Directory) {
                listed.directories.push((path, below));
            }
            listed.files.push(found);
        }
        Ok(listed)
    }

    /// Looks at a file; `None` for the one that is left out.
    fn look(
        &self,
        path: &Path,
        member_path: &MemberPath,
        metadata: &Metadata,
    ) -> Result<Option<Found>> {
        let inode = FileId::from(metadata);
        if self.left_out == Some(inode) {
            return Ok(None);
        }
        let xattrs = xattrs(path).map_err(|error| host_error(path, error.into()))?;
        let link = (!metadata.is_dir() && metadata.nlink() > 1).then_some(inode);
        let member = Member {
            uid: metadata.uid(),
            gid: metadata.gid(),
            permissions: metadata.mode() & 0o7777,
            modified: Timestamp {
                seconds: metadata.mtime(),
                nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
            },
            xattrs,
            kind: kind(path, metadata)?,
        };
        Ok(Some(Found {
            path: member_path.clone(),
            member,
            link,
        }))
    }
}

fn kind(path: &Path, metadata: &Metadata) -> Result<MemberKind> {
    let kind = metadata.file_type();
    let device = || DeviceNumber {
        major: rustix::fs::major(metadata.rdev()),
        minor: rustix::fs::minor(metadata.rdev()),
    };
    Ok(if kind.is_dir() {
        MemberKind::Directory
    } else if kind.is_symlink() {
        let target = fs::read_link(path).map_err(|error| host_error(path, error))?;
        MemberKind::Symlink(target.into_os_string().into_vec())
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
            path: path.into(),
            size_bytes: metadata.len(),
        })
    })
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
