//! Which extended attributes a user may see and set, by their namespace. See `xattr(7)`.

use crate::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME};
use crate::permission::{APPEND_ONLY, Access, IMMUTABLE, check_access, is_owner};
use crate::{Attr, Condition, Credentials, FileKind, Inode, Result};

/// The longest name of an attribute, its namespace included, in bytes (`XATTR_NAME_MAX`).
pub const XATTR_NAME_LEN_MAX: usize = 255;

/// The largest value of an attribute in bytes (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;

const STICKY: u32 = 0o1000;

/// What one wants to do with an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrAccess {
    /// Read its value.
    Read,
    /// Set or remove it.
    Write,
}

/// Whether a listing for `credentials` includes an attribute: `trusted.` ones are for the superuser.
#[must_use]
pub fn is_listed(name: &[u8], credentials: &Credentials) -> bool {
    !name.starts_with(b"trusted.") || credentials.is_superuser()
}

/// Whether `credentials` may read or change the attribute `name` of a file.
///
/// # Errors
/// `OutOfRange` for a name too long or empty; `NotSupported` for an unknown namespace;
/// `NoAttribute` for reading what one may not know of; `NotPermitted` and `AccessDenied` for the
/// rest.
pub fn check_xattr(
    inode: &dyn Inode,
    attr: &Attr,
    credentials: &Credentials,
    name: &[u8],
    access: XattrAccess,
) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
        return Err(Condition::OutOfRange.into());
    }
    let writes = access == XattrAccess::Write;
    if writes && attr.flags & (IMMUTABLE | APPEND_ONLY) != 0 {
        return Err(Condition::NotPermitted.into());
    }
    let denied = if writes {
        Condition::NotPermitted
    } else {
        Condition::NoAttribute
    };
    let (namespace, _) = split(name).ok_or(Condition::NotSupported)?;
    match namespace {
        b"user" => check_user(inode, attr, credentials, access, denied),
        b"trusted" if credentials.is_superuser() => Ok(()),
        b"trusted" => Err(denied.into()),
        b"security" if writes && !credentials.is_superuser() => Err(denied.into()),
        b"security" => Ok(()),
        b"system" => check_system(attr, credentials, name, writes),
        _ => Err(Condition::NotSupported.into()),
    }
}

/// The namespace and what follows its dot, neither of which may be empty.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let dot = name.iter().position(|&byte| byte == b'.')?;
    let (namespace, rest) = name.split_at(dot);
    let suffix = rest.get(1..)?;
    (!namespace.is_empty() && !suffix.is_empty()).then_some((namespace, suffix))
}

/// Attributes of users count as contents, and only regular files and directories have those. In a
/// directory that all users may write they would be anyone's, so there the owner writes them.
fn check_user(
    inode: &dyn Inode,
    attr: &Attr,
    credentials: &Credentials,
    access: XattrAccess,
    denied: Condition,
) -> Result<()> {
    if !matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
        return Err(denied.into());
    }
    let wanted = match access {
        XattrAccess::Read => Access::READ,
        XattrAccess::Write => Access::WRITE,
    };
    let shared = attr.kind == FileKind::Directory && attr.permissions & STICKY != 0;
    if wanted == Access::WRITE && shared && !is_owner(attr, credentials) {
        return Err(denied.into());
    }
    check_access(inode, attr, credentials, wanted)
}

/// ACLs are read by all and set by the owner; what else there is, the driver knows.
fn check_system(attr: &Attr, credentials: &Credentials, name: &[u8], writes: bool) -> Result<()> {
    if name != ACL_ACCESS_NAME && name != ACL_DEFAULT_NAME {
        return Ok(());
    }
    if attr.kind == FileKind::Symlink {
        return Err(Condition::NotSupported.into());
    }
    if writes && !is_owner(attr, credentials) {
        return Err(Condition::NotPermitted.into());
    }
    Ok(())
}
