//! Changing a file's attributes.

use super::{APPEND_ONLY, Access, IMMUTABLE, check_access, is_owner};
use crate::{Attr, Condition, Credentials, FileKind, Inode, Result, SetAttr, SetTime};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// Checks whether `credentials` may make `changes`, and returns what is to be changed then: set-id
/// bits do not outlive a change of owner, nor of the contents by a user other than the superuser.
///
/// # Errors
/// `NotPermitted` for what only the owner or the superuser may, or for an immutable file;
/// `AccessDenied` where write permission is missing; `IsDirectory` and `InvalidArgument` for the
/// size of what has none.
pub fn prepare_set_attr(
    inode: &dyn Inode,
    attr: &Attr,
    credentials: &Credentials,
    changes: &SetAttr,
) -> Result<SetAttr> {
    let mut changes = *changes;
    check_frozen(attr, &changes)?;
    check_size(inode, attr, credentials, &changes)?;
    check_owner(attr, credentials, &changes)?;
    check_times(inode, attr, credentials, &changes)?;
    let needs_owner = changes.permissions.is_some() || changes.flags.is_some();
    if (needs_owner || changes.project.is_some()) && !is_owner(attr, credentials) {
        return Err(Condition::NotPermitted.into());
    }
    check_new_flags(attr, credentials, &changes)?;
    if let Some(permissions) = &mut changes.permissions {
        let gid = changes.gid.unwrap_or(attr.gid);
        if !credentials.is_superuser() && !credentials.is_in_group(gid) {
            *permissions &= !SET_GROUP_ID;
        }
    }
    drop_set_ids(attr, credentials, &mut changes);
    Ok(changes)
}

/// Whether a file's flags allow `changes`: an immutable file changes in nothing but its flags, and
/// one that only grows keeps its owner, mode and times, but for setting them to now.
///
/// # Errors
/// `NotPermitted`, also for the superuser.
pub fn check_frozen(attr: &Attr, changes: &SetAttr) -> Result<()> {
    let sets_now = |time: Option<SetTime>| time == Some(SetTime::Now);
    let sets_time = |time: Option<SetTime>| time.is_some() && !sets_now(time);
    let owner_or_mode =
        changes.permissions.is_some() || changes.uid.is_some() || changes.gid.is_some();
    let times = sets_time(changes.accessed) || sets_time(changes.modified);
    let now = sets_now(changes.accessed) || sets_now(changes.modified);
    let size = changes.size_bytes.is_some();
    let frozen = attr.flags & (IMMUTABLE | APPEND_ONLY) != 0;
    let forbidden =
        frozen && (owner_or_mode || times || size) || attr.flags & IMMUTABLE != 0 && now;
    if forbidden {
        return Err(Condition::NotPermitted.into());
    }
    Ok(())
}

fn check_size(
    inode: &dyn Inode,
    attr: &Attr,
    credentials: &Credentials,
    changes: &SetAttr,
) -> Result<()> {
    if changes.size_bytes.is_none() {
        return Ok(());
    }
    match attr.kind {
        FileKind::Regular => check_access(inode, attr, credentials, Access::WRITE),
        FileKind::Directory => Err(Condition::IsDirectory.into()),
        FileKind::Symlink
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => Err(Condition::InvalidArgument.into()),
    }
}

/// The owner of a file is changed by the superuser only; owners may change the group to one they are in.
fn check_owner(attr: &Attr, credentials: &Credentials, changes: &SetAttr) -> Result<()> {
    let owns = credentials.uid == attr.uid;
    let uid_kept = changes.uid.is_none_or(|uid| owns && uid == attr.uid);
    let own_group = |gid| gid == attr.gid || credentials.is_in_group(gid);
    let gid_allowed = changes.gid.is_none_or(|gid| owns && own_group(gid));
    if credentials.is_superuser() || uid_kept && gid_allowed {
        return Ok(());
    }
    Err(Condition::NotPermitted.into())
}

/// Write permission suffices to set times to now; other times need the owner.
fn check_times(
    inode: &dyn Inode,
    attr: &Attr,
    credentials: &Credentials,
    changes: &SetAttr,
) -> Result<()> {
    let times = [changes.accessed, changes.modified];
    if is_owner(attr, credentials) || times == [None, None] && changes.changed.is_none() {
        return Ok(());
    }
    if times == [Some(SetTime::Now); 2] {
        return check_access(inode, attr, credentials, Access::WRITE);
    }
    Err(Condition::NotPermitted.into())
}

/// Only the superuser freezes and unfreezes files.
fn check_new_flags(attr: &Attr, credentials: &Credentials, changes: &SetAttr) -> Result<()> {
    let changed = changes.flags.map_or(0, |flags| flags ^ attr.flags);
    if changed & (IMMUTABLE | APPEND_ONLY) != 0 && !credentials.is_superuser() {
        return Err(Condition::NotPermitted.into());
    }
    Ok(())
}

/// The permission bits of a file after its contents or its owner changed: it no longer runs as
/// another user. Without the group's right to run it, the set-group-id bit means something else.
#[must_use]
pub fn without_set_ids(permissions: u32) -> u32 {
    let runs_as_group = permissions & GROUP_EXECUTE != 0;
    permissions & !(SET_USER_ID | if runs_as_group { SET_GROUP_ID } else { 0 })
}

fn drop_set_ids(attr: &Attr, credentials: &Credentials, changes: &mut SetAttr) {
    let new_owner = changes.uid.is_some() || changes.gid.is_some();
    let new_contents = changes.size_bytes.is_some() && !credentials.is_superuser();
    if attr.kind == FileKind::Directory || !(new_owner || new_contents) {
        return;
    }
    let before = changes.permissions.unwrap_or(attr.permissions);
    let mut after = without_set_ids(before);
    if !credentials.is_superuser() && !credentials.is_in_group(attr.gid) {
        after &= !SET_GROUP_ID;
    }
    if after != before {
        changes.permissions = Some(after);
    }
}
