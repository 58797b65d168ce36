//! Setting and removing attributes by their full names, and keeping ACLs and permission bits
//! consistent.

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclChange, PosixAcl};
use platter_vfs::creation::NewFile;
use platter_vfs::{Condition, Context, Error, Result, XattrMode};

use super::change::XattrChange;
use super::names::AttributeName;
use super::{VALUE_BYTES_MAX, acl as stored_acl, get};
use crate::FsContext;
use crate::ondisk::Inode;

/// Returns the ACL under this name, if the inode has one.
pub fn acl(fs: &FsContext, inode: &Inode, name: &[u8]) -> Result<Option<PosixAcl>> {
    match get(fs, inode, name) {
        Ok(value) => Ok(Some(PosixAcl::decode(&value)?)),
        Err(Error::Condition(Condition::NoAttribute)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the attribute with this full name on behalf of `context`, and returns whether that changed anything. An access
/// ACL changes the permission bits too.
///
/// # Errors
/// Those of [`get`](super::get); `Exists` and `NoAttribute` according to `mode`, `NotSupported`
/// for attributes that cannot be set, `TooBig` and `NoSpace`.
pub fn set_named(
    change: &mut XattrChange<'_, '_>,
    context: &Context,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<bool> {
    let parsed = AttributeName::parse(name)?;
    if value.len() > VALUE_BYTES_MAX as usize {
        return Err(Condition::TooBig.into());
    }
    match AclChange::setting(change.inode.kind, name, value)? {
        Some(acl) => apply(change, context, &parsed, &acl),
        None => change.set(&parsed, Some(value), mode),
    }
}

/// Removes the attribute with this full name, and returns whether that changed anything.
///
/// # Errors
/// `NoAttribute` if it does not exist and is not an ACL.
pub fn remove_named(
    change: &mut XattrChange<'_, '_>,
    context: &Context,
    name: &[u8],
) -> Result<bool> {
    let parsed = AttributeName::parse(name)?;
    match AclChange::removing(change.inode.kind, name)? {
        Some(acl) => apply(change, context, &parsed, &acl),
        None => change.set(&parsed, None, XattrMode::Replace),
    }
}

fn apply(
    change: &mut XattrChange<'_, '_>,
    context: &Context,
    name: &AttributeName<'_>,
    acl: &AclChange,
) -> Result<bool> {
    let is_changed = match &acl.stored {
        Some(list) => change.set(name, Some(&stored_acl::encode(list)), XattrMode::Set)?,
        None => match change.set(name, None, XattrMode::Replace) {
            Err(Error::Condition(Condition::NoAttribute)) => false,
            removed => removed?,
        },
    };
    let before = change.inode.permissions;
    change.inode.permissions = acl.permissions(before, change.inode.gid, context);
    Ok(is_changed || change.inode.permissions != before)
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
