//! Extended attributes, and the access control lists among them.

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, PosixAcl};
use platter_vfs::{Condition, Context, Error, FileKind, Result, XattrMode};

use super::properties::{COMPRESSION_NAME, flags_with, flags_without, parse_property};
use super::state::{INODE_CREDITS, Purpose};
use super::{BtrfsInode, properties};
use crate::ondisk::inode_item::InodeFlags;
use crate::txn::Editor;
use crate::xattr::change;

const SET_GROUP_ID: u32 = 0o2000;
const PERMISSION_BITS: u32 = 0o777;
/// `XATTR_NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;
/// `XATTR_SIZE_MAX`.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// What begins the names of attributes that are stored as they are given.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Whether a name is that of an access control list.
///
/// # Errors
/// `NotSupported` for names that are not written; `InvalidArgument` for a prefix alone;
/// `OutOfRange` for a name that is too long.
fn is_acl(name: &[u8]) -> Result<bool> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Condition::OutOfRange.into());
    }
    if name == ACL_ACCESS_NAME || name == ACL_DEFAULT_NAME {
        return Ok(true);
    }
    let prefix = PREFIXES.iter().find(|prefix| name.starts_with(prefix));
    let prefix = prefix.ok_or(Condition::NotSupported)?;
    if prefix.len() == name.len() {
        return Err(Condition::InvalidArgument.into());
    }
    Ok(false)
}

/// What becomes of an attribute.
#[derive(Debug, Clone, Copy)]
enum XattrChange<'v> {
    Set(&'v [u8], XattrMode),
    Remove,
    /// It need not be there.
    RemoveIfAny,
}

pub(super) fn set(
    inode: &BtrfsInode,
    context: &Context,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    if name == COMPRESSION_NAME {
        return set_property(inode, value, mode);
    }
    let is_acl = is_acl(name)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Condition::TooBig.into());
    }
    if !is_acl {
        return change_xattr(inode, name, XattrChange::Set(value, mode), None);
    }
    // An ACL is set in any mode, as in Linux.
    if inode.kind == FileKind::Symlink {
        return Err(Condition::NotSupported.into());
    }
    if name == ACL_DEFAULT_NAME {
        if inode.kind != FileKind::Directory {
            return Err(Condition::AccessDenied.into());
        }
        let list = PosixAcl::decode(value)?.encode();
        return change_xattr(inode, name, XattrChange::Set(&list, XattrMode::Set), None);
    }
    let list = PosixAcl::decode(value)?;
    let credentials = &context.credentials;
    let gid = inode.item().gid;
    let keeps_group_id = credentials.is_superuser() || credentials.is_in_group(gid);
    let lost = if keeps_group_id { 0 } else { SET_GROUP_ID };
    let bits = Some((list.mode_bits(), lost));
    if list.is_minimal() {
        // The bits express it.
        return change_xattr(inode, name, XattrChange::RemoveIfAny, bits);
    }
    change_xattr(
        inode,
        name,
        XattrChange::Set(&list.encode(), XattrMode::Set),
        bits,
    )
}

pub(super) fn remove(inode: &BtrfsInode, name: &[u8]) -> Result<()> {
    if name == COMPRESSION_NAME {
        return remove_property(inode, XattrChange::Remove);
    }
    is_acl(name)?;
    change_xattr(inode, name, XattrChange::Remove, None)
}

/// Sets the property; an empty value removes it, as in Linux.
fn set_property(inode: &BtrfsInode, value: &[u8], mode: XattrMode) -> Result<()> {
    properties::check(inode)?;
    if value.is_empty() {
        return remove_property(
            inode,
            match mode {
                XattrMode::Replace => XattrChange::Remove,
                XattrMode::Set | XattrMode::Create => XattrChange::RemoveIfAny,
            },
        );
    }
    let method = parse_property(value)?;
    let change = XattrChange::Set(value, mode);
    change_with(inode, COMPRESSION_NAME, change, None, |flags| {
        flags_with(flags, method)
    })?;
    properties::forget(inode);
    Ok(())
}

fn remove_property(inode: &BtrfsInode, change: XattrChange<'_>) -> Result<()> {
    change_with(inode, COMPRESSION_NAME, change, None, flags_without)?;
    properties::forget(inode);
    Ok(())
}

/// Changes an attribute, with permission bits that change with it: new ones, and such as are lost.
fn change_xattr(
    inode: &BtrfsInode,
    name: &[u8],
    change: XattrChange<'_>,
    bits: Option<(u32, u32)>,
) -> Result<()> {
    change_with(inode, name, change, bits, |flags| flags)
}

/// As [`change_xattr`], with flags that change with it.
fn change_with(
    inode: &BtrfsInode,
    name: &[u8],
    change: XattrChange<'_>,
    bits: Option<(u32, u32)>,
    flags: impl Fn(InodeFlags) -> InodeFlags,
) -> Result<()> {
    if !inode.can_change() {
        return Err(Condition::ReadOnly.into());
    }
    let _order = inode.order.write();
    let now = inode.fs.clock.now();
    inode.change(2 * INODE_CREDITS, Purpose::Change, |handle, item| {
        let transaction = handle.generation();
        let number = inode.id.number;
        let changed = handle.edit(
            inode.tree_id(),
            |editor: &mut Editor<'_, '_>| match change {
                XattrChange::Set(value, mode) => {
                    change::set(editor, transaction, (number, name), value, mode)
                }
                XattrChange::Remove | XattrChange::RemoveIfAny => {
                    change::remove(editor, number, name)
                }
            },
        );
        match (changed, change) {
            (Err(Error::Condition(Condition::NoAttribute)), XattrChange::RemoveIfAny) => {}
            (changed, _) => changed?,
        }
        if let Some((bits, lost)) = bits {
            item.permissions = (item.permissions & !PERMISSION_BITS | bits) & !lost;
        }
        item.flags = flags(item.flags);
        item.changed = now;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_written_are_refused() {
        assert!(is_acl(b"system.posix_acl_access").unwrap());
        assert!(!is_acl(b"user.a").unwrap());
        for name in [&b"btrfs.other"[..], b"user.", b"other"] {
            is_acl(name).unwrap_err();
        }
    }
}
