//! Owner, mode, times and extended attributes of what was copied.
//!
//! All of it goes through functions of the C library that fakeroot(1) replaces: rustix calls the
//! kernel itself for fchown, fchmod and fchmodat.

use std::fs::{File as HostFile, Permissions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use platter_vfs::{Attr, FileKind, Timestamp};
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::place::Place;
use super::{Preserve, errno, host_error, problem_of};
use crate::problem::{Effect, Problem};
use crate::{Error, File, Result};

/// Set-user-ID and set-group-ID.
const SET_ID_BITS: u32 = 0o6000;

/// What attributes are put on.
pub(super) enum Target<'a> {
    /// A file or directory that is open, and its name.
    Open(&'a HostFile, &'a Place),
    /// A regular file that was there before, open, and a path that leads to it.
    Over(&'a HostFile, &'a Path),
    /// What cannot be opened: a symbolic link or special file.
    Named(&'a Place, FileKind),
}

/// Puts on what is to be preserved, in the order in which nothing undoes another: owners first, since a
/// change of them clears set-id bits and capabilities, and times last.
pub(super) fn put_attributes(
    preserve: Preserve,
    source: &File,
    attr: &Attr,
    target: &Target<'_>,
    problems: &mut Vec<Problem>,
) {
    let mut permissions = attr.permissions;
    let mut failures = Vec::new();
    let is_owned = preserve.ownership && put_owner(target, attr, &mut failures);
    if !is_owned {
        permissions &= !SET_ID_BITS;
    }
    if preserve.mode {
        failures.extend(target.put_mode(permissions).err());
    }
    if preserve.xattrs {
        let put = put_xattrs(source, target, &mut failures);
        problems.extend(
            put.err()
                .map(|error| problem_of(error, Effect::AttributesLost)),
        );
    }
    if preserve.timestamps {
        failures.extend(target.put_times(attr).err());
    }
    for failure in failures {
        problems.push(problem_of(target.error(failure), Effect::AttributesLost));
    }
}

/// Sets owner and group; whether they are now those of the source. As with `cp -a`, it is no
/// failure that an ordinary user may not change the owner of files.
fn put_owner(target: &Target<'_>, attr: &Attr, failures: &mut Vec<Errno>) -> bool {
    // An image may say this number, which chown(2) takes for no owner.
    if attr.uid == u32::MAX || attr.gid == u32::MAX {
        failures.push(Errno::INVAL);
        return false;
    }
    if target.is_made_for(attr.uid, attr.gid) {
        return true;
    }
    let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
    match target.put_owner(Some(uid), Some(gid)) {
        Ok(()) => true,
        Err(Errno::PERM | Errno::INVAL) => {
            // The group alone may still be one of the caller's.
            let _ = target.put_owner(None, Some(gid));
            false
        }
        Err(error) => {
            failures.push(error);
            false
        }
    }
}

fn put_xattrs(source: &File, target: &Target<'_>, failures: &mut Vec<Errno>) -> Result<()> {
    for name in source.list_xattrs()? {
        let value = source.get_xattr(&name)?;
        match target.put_xattr(&name, &value) {
            Ok(()) => {}
            // As `cp -a`, silently where only the superuser may, or the host has no such thing.
            Err(Errno::PERM | Errno::NOTSUP) if !is_for_everyone(&name) => {}
            Err(error) => failures.push(error),
        }
    }
    Ok(())
}

/// Whether an ordinary user may set the attribute on what is theirs.
fn is_for_everyone(name: &[u8]) -> bool {
    name.starts_with(b"user.") || [ACL_ACCESS_NAME, ACL_DEFAULT_NAME].contains(&name)
}

impl Target<'_> {
    fn put_owner(&self, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Errno> {
        match self {
            Self::Open(file, _) | Self::Over(file, _) => {
                let (uid, gid) = (uid.map(Uid::as_raw), gid.map(Gid::as_raw));
                std::os::unix::fs::fchown(file, uid, gid).map_err(|error| errno(&error))
            }
            Self::Named(place, _) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(place.dir(), place.name(), uid, gid, flags)
            }
        }
    }

    fn put_mode(&self, permissions: u32) -> Result<(), Errno> {
        let mode = Permissions::from_mode(permissions & 0o7777);
        let set = match self {
            Self::Open(file, _) | Self::Over(file, _) => file.set_permissions(mode),
            // Linux knows no modes of symbolic links.
            Self::Named(_, FileKind::Symlink) => Ok(()),
            Self::Named(place, _) => match std::fs::set_permissions(path_of(place), mode) {
                // There is no /proc.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let mode = Mode::from_raw_mode(permissions & 0o7777);
                    let flags = AtFlags::empty();
                    return rustix::fs::chmodat(place.dir(), place.name(), mode, flags);
                }
                set => set,
            },
        };
        set.map_err(|error| errno(&error))
    }

    fn put_times(&self, attr: &Attr) -> Result<(), Errno> {
        let times = Timestamps {
            last_access: timespec(attr.accessed),
            last_modification: timespec(attr.modified),
        };
        match self {
            Self::Open(file, _) | Self::Over(file, _) => rustix::fs::futimens(file, &times),
            Self::Named(place, _) => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(place.dir(), place.name(), &times, flags)
            }
        }
    }

    fn put_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        let flags = XattrFlags::empty();
        match self {
            Self::Open(file, _) | Self::Over(file, _) => {
                rustix::fs::fsetxattr(file, name, value, flags)
            }
            Self::Named(place, _) => rustix::fs::lsetxattr(path_of(place), name, value, flags),
        }
    }

    /// Takes from everyone what neither `permissions` nor those of before grant, before there are contents to be read.
    pub(super) fn restrict(&self, preserve: Preserve, permissions: u32) {
        if preserve.mode {
            // That it fails is reported when the permissions are set.
            let _ = self.put_mode(permissions & 0o777);
        }
    }

    /// Whether it belongs to this owner and group from the beginning.
    fn is_made_for(&self, uid: u32, gid: u32) -> bool {
        match self {
            Self::Open(_, place) | Self::Named(place, _) => place.is_made_for(uid, gid),
            Self::Over(..) => false,
        }
    }

    fn error(&self, error: Errno) -> Error {
        match self {
            Self::Open(_, place) | Self::Named(place, _) => place.error(error),
            Self::Over(_, path) => host_error(path, error),
        }
    }
}

/// A path of a name in an open directory.
fn path_of(place: &Place) -> PathBuf {
    let dir = place.dir().as_fd().as_raw_fd();
    Path::new(&format!("/proc/self/fd/{dir}")).join(place.name())
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanoseconds),
    }
}
