//! Setting and removing attributes by their full names, and keeping ACLs and permission bits
//! consistent.

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, PosixAcl};
use platter_vfs::creation::NewFile;
use platter_vfs::{Condition, Error, FileKind, Result, XattrMode};

use super::change::XattrChange;
use super::names::AttributeName;
use super::{VALUE_BYTES_MAX, acl as stored_acl, get};
use crate::FsContext;
use crate::ondisk::Inode;

const SET_GROUP_ID: u32 = 0o2000;
const PERMISSION_BITS: u32 = 0o777;

/// Returns the ACL under this name, if the inode has one.
pub fn acl(fs: &FsContext, inode: &Inode, name: &[u8]) -> Result<Option<PosixAcl>> {
    match get(fs, inode, name) {
        Ok(value) => Ok(Some(PosixAcl::decode(&value)?)),
        Err(Error::Condition(Condition::NoAttribute)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the attribute with this full name, and returns whether that changed anything. An access
/// ACL changes the permission bits too; `keeps_group_id` says whether the caller may keep the
/// set-group-ID bit.
///
/// # Errors
/// Those of [`get`](super::get); `Exists` and `NoAttribute` according to `mode`, `NotSupported`
/// for attributes that cannot be set, `TooBig` and `NoSpace`.
pub fn set_named(
    change: &mut XattrChange<'_, '_>,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
    keeps_group_id: bool,
) -> Result<bool> {
    let parsed = AttributeName::parse(name)?;
    if value.len() > VALUE_BYTES_MAX as usize {
        return Err(Condition::TooBig.into());
    }
    match name {
        ACL_ACCESS_NAME => {
            let acl = list_for_change(change, name, value)?;
            let permissions = change.inode.permissions;
            let is_changed = set_access_acl(change, &parsed, &acl, mode)?;
            if !keeps_group_id {
                change.inode.permissions &= !SET_GROUP_ID;
            }
            Ok(is_changed || change.inode.permissions != permissions)
        }
        ACL_DEFAULT_NAME => {
            let acl = list_for_change(change, name, value)?;
            change.set(&parsed, Some(&stored_acl::encode(&acl)), mode)
        }
        _ => change.set(&parsed, Some(value), mode),
    }
}

/// Removes the attribute with this full name, and returns whether that changed anything.
///
/// # Errors
/// `NoAttribute` if it does not exist.
pub fn remove_named(change: &mut XattrChange<'_, '_>, name: &[u8]) -> Result<bool> {
    let parsed = AttributeName::parse(name)?;
    change.set(&parsed, None, XattrMode::Replace)
}

/// Sets the permission bits, and updates the access ACL accordingly.
pub fn set_permissions(change: &mut XattrChange<'_, '_>, permissions: u32) -> Result<()> {
    if let Some(acl) = acl(change.fs, change.inode, ACL_ACCESS_NAME)? {
        let name = AttributeName::parse(ACL_ACCESS_NAME)?;
        let stored = stored_acl::encode(&acl.with_mode(permissions));
        change.set(&name, Some(&stored), XattrMode::Replace)?;
    }
    change.inode.permissions = permissions;
    Ok(())
}

/// Sets the ACLs that a new inode inherits from its directory's default ACL, `default`.
pub fn inherit(
    change: &mut XattrChange<'_, '_>,
    new: &NewFile,
    default: Option<&PosixAcl>,
) -> Result<()> {
    if let Some(acl) = &new.access_acl {
        let name = AttributeName::parse(ACL_ACCESS_NAME)?;
        change.set(&name, Some(&stored_acl::encode(acl)), XattrMode::Set)?;
    }
    if let (Some(acl), true) = (default, new.inherits_default_acl) {
        let name = AttributeName::parse(ACL_DEFAULT_NAME)?;
        change.set(&name, Some(&stored_acl::encode(acl)), XattrMode::Set)?;
    }
    Ok(())
}

fn list_for_change(change: &XattrChange<'_, '_>, name: &[u8], value: &[u8]) -> Result<PosixAcl> {
    if change.inode.kind == FileKind::Symlink {
        return Err(Condition::NotSupported.into());
    }
    if name == ACL_DEFAULT_NAME && change.inode.kind != FileKind::Directory {
        return Err(Condition::AccessDenied.into());
    }
    PosixAcl::decode(value)
}

/// Stores an access ACL unless the permission bits express it completely.
fn set_access_acl(
    change: &mut XattrChange<'_, '_>,
    name: &AttributeName<'_>,
    acl: &PosixAcl,
    mode: XattrMode,
) -> Result<bool> {
    let is_changed = if acl.is_minimal() {
        match change.set(name, None, XattrMode::Replace) {
            Err(Error::Condition(Condition::NoAttribute)) => false,
            removed => removed?,
        }
    } else {
        change.set(name, Some(&stored_acl::encode(acl)), mode)?
    };
    let others = change.inode.permissions & !PERMISSION_BITS;
    change.inode.permissions = others | acl.mode_bits();
    Ok(is_changed)
}
