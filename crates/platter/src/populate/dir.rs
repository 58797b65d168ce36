//! What a directory of the host holds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use platter_block::lock::{Condvar, Mutex};
use platter_vfs::Timestamp;
use platter_vfs::attr::DeviceNumber;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat, fstat, lgetxattr, llistxattr, openat,
    statat,
};
use rustix::io::{Errno, retry_on_intr};

use super::contents::{Contents, changed};
use super::{Content, FileId, HostPlace, Member, MemberKind, MemberPath, Xattr};
use crate::{Cause, Error, Escaped, Result};

/// The longest list of names and the longest value that Linux knows.
const XATTR_BYTES_MAX: usize = 1 << 16;

/// Threads that look at files at most.
const THREADS_MAX: usize = 4;

/// Bytes of a directory that are listed at once.
const LIST_BYTES: usize = 32 << 10;

/// Finds all below `dir` but for the file `left_out`. Several threads look, each at one directory
/// at a time; what is found does not depend on their order.
pub(super) fn index(dir: &Path, left_out: Option<&Path>) -> Result<Content> {
    let name: Arc<str> = Escaped(dir.as_os_str().as_bytes()).to_string().into();
    let walk = Walk {
        left_out: left_out.and_then(FileId::of),
        state: Mutex::default(),
        changed: Condvar::new(),
    };
    // A symbolic link is followed where it is the operand, not below.
    let followed = fs::canonicalize(dir).map_err(|error| host_error(dir, error))?;
    let dir = if dir.is_symlink() { &*followed } else { dir };
    let stat = statat(CWD, dir, AtFlags::SYMLINK_NOFOLLOW);
    let stat = stat.map_err(|error| host_error(dir, error.into()))?;
    let root = walk.look(dir, dir.into(), MemberPath::root(), &stat)?;
    if let Some(root) = root.as_ref().filter(|root| root.is_directory()) {
        let pending = (Arc::from(dir), FileId::from(&stat), root.path.clone());
        walk.state.lock().pending.push(pending);
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
    let state = walk.state.into_inner();
    match state.failure {
        Some((_, error)) => Err(error),
        None => Ok(content_of(name, root, state.listings)),
    }
}

/// Puts what was found into its order. Of the names of an inode, all but the first become links.
fn content_of(
    name: Arc<str>,
    root: Option<Found>,
    mut listings: HashMap<MemberPath, Vec<Found>>,
) -> Content {
    let mut content = Content::new(name);
    let mut seen: HashMap<FileId, MemberPath> = HashMap::new();
    let count: usize = listings.values().map(Vec::len).sum();
    content.members.reserve_exact(count + 1);
    // The contents of a directory follow it immediately.
    let mut open = vec![Vec::from_iter(root).into_iter()];
    while let Some(listing) = open.last_mut() {
        let Some(found) = listing.next() else {
            open.pop();
            continue;
        };
        if found.is_directory() {
            open.extend(listings.remove(&found.path).map(Vec::into_iter));
        }
        let Found { path, member, link } = found;
        let member = match link.map(|inode| seen.entry(inode)) {
            Some(Entry::Occupied(first)) => Member::link(first.get().clone()),
            Some(Entry::Vacant(first)) => {
                first.insert(path.clone());
                member
            }
            None => member,
        };
        content.members.push((path, member));
    }
    content
}

/// A file that was looked at.
struct Found {
    path: MemberPath,
    member: Member,
    /// Its inode, if that may have other names.
    link: Option<FileId>,
}

impl Found {
    fn is_directory(&self) -> bool {
        matches!(self.member.kind, MemberKind::Directory)
    }
}

struct Walk {
    left_out: Option<FileId>,
    /// Directories whose entries are to be read.
    state: Mutex<State>,
    /// Rung when there are further directories, or will be none.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Directories whose entries were not read yet.
    pending: Vec<Pending>,
    /// Threads that may find further ones.
    busy: usize,
    /// What lies in the other directories, in its order.
    listings: HashMap<MemberPath, Vec<Found>>,
    /// What went wrong with the first path that anything was wrong with.
    failure: Option<(MemberPath, Error)>,
}

/// A directory to look at: its path on the host, which it is, and its path in the content.
type Pending = (Arc<Path>, FileId, MemberPath);

/// What lies in a directory, in its order, and the directories among that.
type Listed = (Vec<Found>, Vec<Pending>);

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
        let mut buffer = Vec::with_capacity(LIST_BYTES);
        while let Some((path, id, member_path)) = self.next() {
            let _busy = Busy(self);
            let listed = self.list((&path, id), &member_path, &mut buffer);
            let mut state = self.state.lock();
            match listed {
                Ok((files, directories)) => {
                    state.listings.insert(member_path, files);
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
    fn next(&self) -> Option<Pending> {
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

    /// What lies in a directory.
    fn list(
        &self,
        (dir, id): (&Arc<Path>, FileId),
        member_path: &MemberPath,
        buffer: &mut Vec<u8>,
    ) -> Result<Listed, (MemberPath, Error)> {
        let host = |error: Errno| (member_path.clone(), host_error(dir, error.into()));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = retry_on_intr(|| openat(CWD, &**dir, flags, Mode::empty())).map_err(host)?;
        // Where it was replaced, as by a symbolic link, the path leads elsewhere.
        if FileId::from(&fstat(&open).map_err(host)?) != id {
            let error = Error {
                cause: changed(),
                ..host_error(dir, Errno::STALE.into())
            };
            return Err((member_path.clone(), error));
        }
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        let mut path = dir.to_path_buf();
        let mut entries = RawDir::new(&open, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(host)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let below = member_path.below(name.to_bytes());
            let in_dir = Path::new(OsStr::from_bytes(name.to_bytes()));
            path.push(in_dir);
            // Found from the directory, not from the root of the host.
            let found = statat(&open, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| host_error(&path, error.into()))
                .and_then(|stat| {
                    let place = HostPlace::within(dir, in_dir);
                    let found = self.look(&path, place, below, &stat)?;
                    Ok(found.map(|found| (found, FileId::from(&stat))))
                });
            let found = found.map_err(|error| (member_path.below(name.to_bytes()), error))?;
            if let Some((found, id)) = found {
                if found.is_directory() {
                    directories.push((Arc::from(&*path), id, found.path.clone()));
                }
                files.push(found);
            }
            path.pop();
        }
        files.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        Ok((files, directories))
    }

    /// Looks at a file; `None` for the one that is left out.
    fn look(
        &self,
        path: &Path,
        place: HostPlace,
        member_path: MemberPath,
        stat: &Stat,
    ) -> Result<Option<Found>> {
        let inode = FileId::from(stat);
        if self.left_out == Some(inode) {
            return Ok(None);
        }
        let xattrs = xattrs(path).map_err(|error| host_error(path, error.into()))?;
        let kind = kind(path, place, stat)?;
        let is_directory = matches!(kind, MemberKind::Directory);
        let link = (!is_directory && stat.st_nlink > 1).then_some(inode);
        let member = Member {
            uid: stat.st_uid,
            gid: stat.st_gid,
            permissions: stat.st_mode & 0o7777,
            modified: Timestamp {
                seconds: stat.st_mtime,
                nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or_default(),
            },
            xattrs,
            kind,
        };
        Ok(Some(Found {
            path: member_path,
            member,
            link,
        }))
    }
}

fn kind(path: &Path, place: HostPlace, stat: &Stat) -> Result<MemberKind> {
    let device = || DeviceNumber {
        major: rustix::fs::major(stat.st_rdev),
        minor: rustix::fs::minor(stat.st_rdev),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => MemberKind::Directory,
        FileType::Symlink => {
            let target = fs::read_link(path).map_err(|error| host_error(path, error))?;
            MemberKind::Symlink(target.into_os_string().into_vec())
        }
        FileType::CharacterDevice => MemberKind::CharDevice(device()),
        FileType::BlockDevice => MemberKind::BlockDevice(device()),
        FileType::Fifo => MemberKind::Fifo,
        FileType::Socket => MemberKind::Socket,
        FileType::RegularFile | FileType::Unknown => MemberKind::File(Contents::Host {
            place,
            id: FileId::from(stat),
            size_bytes: u64::try_from(stat.st_size).unwrap_or_default(),
        }),
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
