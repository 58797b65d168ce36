//! Extended attributes, and the access control lists among them.

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, AclChange, PosixAcl};
use platter_vfs::{Condition, Context, Error, Result, XattrMode};

use super::properties::{COMPRESSION_NAME, flags_with, flags_without, parse_property};
use super::state::{INODE_CREDITS, Purpose};
use super::{BtrfsInode, properties};
use crate::ondisk::inode_item::InodeItem;
use crate::txn::Editor;
use crate::xattr::change;

/// `XATTR_NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;
/// `XATTR_SIZE_MAX`.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// What begins the names of attributes that are stored as they are given.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Checks the name of an attribute that is to be changed.
///
/// # Errors
/// `NotSupported` for names that are not written; `InvalidArgument` for a prefix alone;
/// `OutOfRange` for a name that is too long.
fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Condition::OutOfRange.into());
    }
    if name == ACL_ACCESS_NAME || name == ACL_DEFAULT_NAME {
        return Ok(());
    }
    let prefix = PREFIXES.iter().find(|prefix| name.starts_with(prefix));
    let prefix = prefix.ok_or(Condition::NotSupported)?;
    if prefix.len() == name.len() {
        return Err(Condition::InvalidArgument.into());
    }
    Ok(())
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
    check_name(name)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Condition::TooBig.into());
    }
    match AclChange::setting(inode.kind, name, value)? {
        Some(acl) => change_acl(inode, context, name, &acl),
        None => change_with(inode, name, XattrChange::Set(value, mode), |_| {}),
    }
}

pub(super) fn remove(inode: &BtrfsInode, context: &Context, name: &[u8]) -> Result<()> {
    if name == COMPRESSION_NAME {
        return remove_property(inode, XattrChange::Remove);
    }
    check_name(name)?;
    match AclChange::removing(inode.kind, name)? {
        Some(acl) => change_acl(inode, context, name, &acl),
        None => change_with(inode, name, XattrChange::Remove, |_| {}),
    }
}

fn change_acl(inode: &BtrfsInode, context: &Context, name: &[u8], acl: &AclChange) -> Result<()> {
    let stored = acl.stored.as_ref().map(PosixAcl::encode);
    let change = match &stored {
        Some(list) => XattrChange::Set(list, XattrMode::Set),
        None => XattrChange::RemoveIfAny,
    };
    change_with(inode, name, change, |item| {
        item.permissions = acl.permissions(item.permissions, item.gid, context);
    })
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
    change_with(inode, COMPRESSION_NAME, change, |item| {
        item.flags = flags_with(item.flags, method);
    })?;
    properties::forget(inode);
    Ok(())
}

fn remove_property(inode: &BtrfsInode, change: XattrChange<'_>) -> Result<()> {
    change_with(inode, COMPRESSION_NAME, change, |item| {
        item.flags = flags_without(item.flags);
    })?;
    properties::forget(inode);
    Ok(())
}

/// Changes an attribute, and with it what `along` changes of the inode.
fn change_with(
    inode: &BtrfsInode,
    name: &[u8],
    change: XattrChange<'_>,
    along: impl Fn(&mut InodeItem),
) -> Result<()> {
    if !inode.can_change() {
        return Err(Condition::ReadOnly.into());
    }
    let _order = inode.order.write();
    let now = inode.fs.clock.now();
    let purpose = match change {
        XattrChange::Set(..) => Purpose::Change(inode.tree_id()),
        XattrChange::Remove | XattrChange::RemoveIfAny => Purpose::Update,
    };
    inode.change(2 * INODE_CREDITS, purpose, |handle, item| {
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
        let is_there = match (changed, change) {
            (Err(Error::Condition(Condition::NoAttribute)), XattrChange::RemoveIfAny) => false,
            (changed, _) => changed.map(|()| true)?,
        };
        let before = (item.permissions, item.flags);
        along(item);
        if is_there || before != (item.permissions, item.flags) {
            item.changed = now;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_written_are_refused() {
        check_name(b"system.posix_acl_access").unwrap();
        check_name(b"user.a").unwrap();
        for name in [&b"btrfs.other"[..], b"user.", b"other"] {
            check_name(name).unwrap_err();
        }
    }
}
