//! Making and removing names.

use super::{APPEND_ONLY, Access, IMMUTABLE, check_access};
use crate::{Attr, Condition, Credentials, FileKind, Inode, Result};

const STICKY: u32 = 0o1000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// Whether `credentials` may add a name to `dir`.
///
/// # Errors
/// `NotFound` for a directory that was removed, else as [`check_access`].
pub fn check_create(dir: &dyn Inode, dir_attr: &Attr, credentials: &Credentials) -> Result<()> {
    if dir_attr.links == 0 {
        return Err(Condition::NotFound.into());
    }
    check_access(dir, dir_attr, credentials, Access::WRITE | Access::EXECUTE)
}

/// Whether `credentials` may take a name of the file `victim` out of `dir`, or move it there.
///
/// # Errors
/// `NotPermitted` where a sticky directory keeps others' files or flags forbid the change, else as
/// [`check_access`].
pub fn check_delete(
    dir: &dyn Inode,
    dir_attr: &Attr,
    victim: &Attr,
    credentials: &Credentials,
) -> Result<()> {
    check_access(dir, dir_attr, credentials, Access::WRITE | Access::EXECUTE)?;
    let kept_by_flags =
        dir_attr.flags & APPEND_ONLY != 0 || victim.flags & (APPEND_ONLY | IMMUTABLE) != 0;
    let kept_by_sticky_bit = dir_attr.permissions & STICKY != 0
        && credentials.uid != victim.uid
        && credentials.uid != dir_attr.uid
        && !credentials.is_superuser();
    if kept_by_flags || kept_by_sticky_bit {
        return Err(Condition::NotPermitted.into());
    }
    Ok(())
}

/// The permission bits that `credentials` may give a new file of `kind` in a directory: a program
/// that runs as the directory's group can be made by members of that group only.
#[must_use]
pub fn permissions_of_new(
    dir_attr: &Attr,
    credentials: &Credentials,
    kind: FileKind,
    permissions: u32,
) -> u32 {
    const SET_GROUP_PROGRAM: u32 = SET_GROUP_ID | GROUP_EXECUTE;
    let takes_group = dir_attr.permissions & SET_GROUP_ID != 0;
    let is_program = permissions & SET_GROUP_PROGRAM == SET_GROUP_PROGRAM;
    let may = credentials.is_superuser() || credentials.is_in_group(dir_attr.gid);
    if kind != FileKind::Directory && takes_group && is_program && !may {
        return permissions & !SET_GROUP_ID;
    }
    permissions
}
