//! Owner, mode, times and extended attributes of what was copied.
//!
//! All of it goes through functions of the C library that fakeroot(1) replaces: rustix calls the
//! kernel itself for fchown, fchmod and fchmodat.

use std::fs::{File as HostFile, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclSubject, PosixAcl};
use platter_vfs::{Attr, FileKind, Timestamp};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, fstat, openat,
};
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
/// change of them clears set-id bits and capabilities, and times last. With `has_mode`, it has its permissions, and no
/// ACL is to be put on.
pub(super) fn put_attributes(
    preserve: Preserve,
    has_mode: bool,
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
    let mut unread = Vec::new();
    // Linux knows no modes of symbolic links.
    if preserve.mode && !has_mode && attr.kind != FileKind::Symlink {
        let put = put_permissions(source, attr.kind, permissions, target, &mut failures);
        unread.extend(put.err());
    }
    if preserve.xattrs {
        let put = put_xattrs(source, target, &mut failures);
        unread.extend(put.err());
    }
    // What cannot be read cannot be read twice.
    problems.extend(
        (unread.into_iter().take(1)).map(|error| problem_of(error, Effect::AttributesLost)),
    );
    if preserve.timestamps {
        failures.extend(target.put_times(attr).err());
    }
    for failure in failures {
        problems.push(problem_of(target.error(failure), Effect::AttributesLost));
    }
}

/// Sets the permissions and the ACLs, which together say what is permitted: none is left that a directory of the host gave.
/// Where the ACL of the source cannot be put on, the group gets nothing of what the mode grants to the users that the
/// ACL names.
fn put_permissions(
    source: &File,
    kind: FileKind,
    permissions: u32,
    target: &Target<'_>,
    failures: &mut Vec<Errno>,
) -> Result<()> {
    let mut unread = None;
    let mut limited = permissions;
    for name in [ACL_ACCESS_NAME, ACL_DEFAULT_NAME] {
        if name == ACL_DEFAULT_NAME && kind != FileKind::Directory {
            continue;
        }
        let acl = match acl_of(source, name) {
            Ok(acl) => acl,
            Err(error) => {
                unread = Some(error);
                if name == ACL_ACCESS_NAME {
                    limited &= !0o070;
                }
                None
            }
        };
        let Some(acl) = acl else {
            if target.inherits_acls() {
                failures.extend(target.remove_xattr(name).err());
            }
            continue;
        };
        if let Err(error) = target.put_xattr(name, &acl) {
            failures.push(error);
            failures.extend(target.remove_xattr(name).err());
            if name == ACL_ACCESS_NAME {
                limited &= !0o070 | group_bits(&acl);
            }
        }
    }
    failures.extend(target.put_mode(limited).err());
    unread.map_or(Ok(()), Err)
}

/// An ACL of a file of the image.
pub(super) fn acl_of(source: &File, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match source.get_xattr(name) {
        Ok(acl) => Ok(Some(acl)),
        Err(error) if matches!(error.errno(), Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What an ACL grants to the owning group, as bits of a mode.
fn group_bits(acl: &[u8]) -> u32 {
    let Ok(acl) = PosixAcl::decode(acl) else {
        return 0;
    };
    let mut entries = acl.entries().iter();
    let group = entries.find(|entry| entry.subject == AclSubject::OwningGroup);
    group.map_or(0, |group| u32::from(group.permissions) << 3)
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
        // They belong to the mode.
        if [ACL_ACCESS_NAME, ACL_DEFAULT_NAME].contains(&&*name) {
            continue;
        }
        let value = source.get_xattr(&name)?;
        match target.put_xattr(&name, &value) {
            Ok(()) => {}
            // As `cp -a`, silently where only the superuser may, or the host has no such thing.
            Err(Errno::PERM | Errno::NOTSUP) if !name.starts_with(b"user.") => {}
            Err(error) => failures.push(error),
        }
    }
    Ok(())
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
            Self::Named(place, _) => {
                std::fs::set_permissions(path_of_open(&open_special(place)?), mode)
            }
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

    fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        let removed = match self {
            Self::Open(file, _) | Self::Over(file, _) => rustix::fs::fremovexattr(file, name),
            Self::Named(place, _) => rustix::fs::lremovexattr(path_of(place), name),
        };
        match removed {
            Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
            removed => removed,
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

    /// Whether it may have ACLs that nothing of the copy gave it.
    fn inherits_acls(&self) -> bool {
        match self {
            Self::Open(_, place) | Self::Named(place, _) => place.inherits_acls(),
            Self::Over(..) => true,
        }
    }

    fn error(&self, error: Errno) -> Error {
        match self {
            Self::Open(_, place) | Self::Named(place, _) => place.error(error),
            Self::Over(_, path) => host_error(path, error),
        }
    }
}

/// Opens a special file for nothing but its attributes, unless its name is that of a symbolic link by now, which would
/// lead elsewhere.
fn open_special(place: &Place) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(place.dir(), place.name(), flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&file)?.st_mode);
    if kind == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    Ok(file)
}

/// A path that leads to an open file.
fn path_of_open(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A path of a name in an open directory.
fn path_of(place: &Place) -> PathBuf {
    path_of_open(&place.dir()).join(place.name())
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use rustix::fs::{CWD, mknodat};

    use super::*;

    #[test]
    fn mode_is_not_set_through_a_link_that_took_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let open = Arc::new(HostFile::open(dir.path()).unwrap());
        let place = Place::top(open, dir.path(), OsStr::new("fifo"));
        let (path, other) = (dir.path().join("fifo"), dir.path().join("other"));
        let target = Target::Named(&place, FileKind::Fifo);
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
        target.put_mode(0o640).unwrap();
        assert_eq!(mode_of(&path), 0o640);
        fs::write(&other, b"").unwrap();
        fs::set_permissions(&other, Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert_eq!(target.put_mode(0o666), Err(Errno::LOOP));
        assert_eq!(mode_of(&other), 0o600);
    }
}
