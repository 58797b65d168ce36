//! Permission checks, as the kernel makes them: mode bits, ACLs, inode flags, the superuser.
//!
//! Drivers check no permission. Callers that act for a user ask here first; FUSE leaves all but flags,
//! which it does not know, to the kernel. See `path_resolution(7)`, `inode(7)`, `acl(5)`, `ioctl_iflags(2)`.

mod attributes;
mod names;

use bitflags::bitflags;

pub use self::attributes::{check_frozen, prepare_set_attr, without_set_ids};
pub use self::names::{check_create, check_delete, permissions_of_new};
use crate::acl::ACL_ACCESS_NAME;
use crate::{Attr, Condition, Credentials, Error, FileKind, Inode, PosixAcl, Result};

bitflags! {
    /// What one wants to do with a file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Read its contents, or list the directory.
        const READ = 4;
        /// Change its contents, or the names in the directory.
        const WRITE = 2;
        /// Run it, or go through the directory.
        const EXECUTE = 1;
    }
}

/// `FS_IMMUTABLE_FL`: nothing of the file may change.
pub const IMMUTABLE: u32 = 0x10;
/// `FS_APPEND_FL`: contents may only grow.
pub const APPEND_ONLY: u32 = 0x20;

const ANY_EXECUTE: u32 = 0o111;
const GROUP_BITS: u32 = 0o070;

/// Whether `credentials` may do `wanted` with a file of these attributes.
///
/// # Errors
/// `AccessDenied` when the mode or the ACL says no, `NotPermitted` for changing an immutable file.
pub fn check_access(
    inode: &dyn Inode,
    attr: &Attr,
    credentials: &Credentials,
    wanted: Access,
) -> Result<()> {
    if wanted.contains(Access::WRITE) && attr.flags & IMMUTABLE != 0 {
        return Err(Condition::NotPermitted.into());
    }
    if superuser_may(attr, credentials, wanted) || permitted(inode, attr, credentials, wanted)? {
        return Ok(());
    }
    Err(Condition::AccessDenied.into())
}

/// The superuser may do everything but execute a plain file without any execute bit.
fn superuser_may(attr: &Attr, credentials: &Credentials, wanted: Access) -> bool {
    let runs_file = wanted.contains(Access::EXECUTE) && attr.kind != FileKind::Directory;
    credentials.is_superuser() && (!runs_file || attr.permissions & ANY_EXECUTE != 0)
}

/// What the mode and the ACL say, superuser or not.
fn permitted(
    inode: &dyn Inode,
    attr: &Attr,
    credentials: &Credentials,
    wanted: Access,
) -> Result<bool> {
    let bits = u32::from(wanted.bits());
    let grants = |shift: u32| (attr.permissions >> shift) & bits == bits;
    if credentials.uid == attr.uid {
        return Ok(grants(6));
    }
    // The group bits are the ACL's mask. Without any of them no entry can grant a thing, and the
    // kernel does not even look at it.
    if attr.permissions & GROUP_BITS != 0
        && let Some(acl) = access_acl(inode, attr)?
    {
        return Ok(acl.permits(credentials, attr.uid, attr.gid, wanted.bits()));
    }
    Ok(grants(if credentials.is_in_group(attr.gid) {
        3
    } else {
        0
    }))
}

fn access_acl(inode: &dyn Inode, attr: &Attr) -> Result<Option<PosixAcl>> {
    if attr.kind == FileKind::Symlink {
        return Ok(None);
    }
    match inode.get_xattr(ACL_ACCESS_NAME) {
        Ok(value) => PosixAcl::decode(&value).map(Some),
        Err(Error::Condition(Condition::NoAttribute | Condition::NotSupported)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether `credentials` are the owner's, or stand above it.
pub(crate) fn is_owner(attr: &Attr, credentials: &Credentials) -> bool {
    credentials.uid == attr.uid || credentials.is_superuser()
}
