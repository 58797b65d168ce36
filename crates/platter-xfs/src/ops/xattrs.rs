//! Extended attributes, and the access control lists among them.

use platter_vfs::acl::{ACL_ACCESS_NAME, AclChange, PosixAcl};
use platter_vfs::writing::retry_no_space;
use platter_vfs::{Condition, Context, Error, Result, XattrMode};

use super::data::eof_blocks;
use super::space::FreedSpace;
use super::state::{Times, touch};
use super::{Inode, attr_fork};
use crate::change::{Change, Cost};
use crate::fork::{Attr, AttrEdit, AttrKey, InodeEdit};
use crate::ondisk::attr::{Namespace, build};
use crate::ondisk::inode::edit::core_mut;
use crate::ondisk::{InodeNr, attr};
use crate::xattr::{AttrName, acl};

/// Blocks that the tree of attributes grows by at most when one is added.
const TREE_BLOCKS: u32 = 4;
/// An access control list that most inodes have at most.
const ACL_BYTES_MAX: usize = 4096;
/// `XATTR_SIZE_MAX`.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// What a change of an attribute takes whose value has so many bytes, before and after.
pub(super) fn cost(inode: &Inode, value_bytes: usize) -> Cost {
    let geometry = inode.context().geometry();
    let capacity = u64::from(attr::remote::capacity(geometry).max(1));
    let value_bytes = u64::try_from(value_bytes).unwrap_or(u64::MAX);
    // A leaf that is split, and the node above it.
    let blocks = value_bytes.div_ceil(capacity) + 4;
    Cost {
        extents: 4,
        forks: 2,
        directory_blocks: 0,
        inodes: 1,
        bytes: blocks * (u64::from(geometry.block_bytes()) + 512),
        blocks: 0,
    }
}

/// The same with free blocks for it. Attributes of the superuser, ACLs among them, may take the reserve pool.
fn reserving_cost(inode: &Inode, name: &AttrName<'_>, value_bytes: usize) -> Cost {
    let blocks = match name.namespace {
        Namespace::Root => 0,
        Namespace::User | Namespace::Secure | Namespace::Parent => {
            let value_bytes = u32::try_from(value_bytes).unwrap_or(u32::MAX);
            let capacity = attr::remote::capacity(inode.context().geometry()).max(1);
            value_bytes.div_ceil(capacity).saturating_add(TREE_BLOCKS)
        }
    };
    Cost {
        blocks,
        ..cost(inode, value_bytes)
    }
}

/// What access control lists of the largest size take in an inode that has no attribute.
pub(super) fn new_acl_cost(inode: &Inode) -> Cost {
    let one = cost(inode, ACL_BYTES_MAX);
    one.and(one)
}

/// Sets an attribute by its full name; an access ACL sets the permission bits as well.
pub(super) fn set(
    inode: &Inode,
    context: &Context,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<()> {
    let parsed = AttrName::parse(name)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Condition::TooBig.into());
    }
    if let Some(acl) = AclChange::setting(inode.kind, name, value)? {
        return change_acl(inode, context, &parsed, &acl);
    }
    let cost = reserving_cost(inode, &parsed, value.len());
    change(inode, cost, |change, edit| {
        set_stored(change, edit, &parsed, Some(value), mode)?;
        Ok(true)
    })
}

/// Removes an attribute by its full name.
pub(super) fn remove(inode: &Inode, context: &Context, name: &[u8]) -> Result<()> {
    let parsed = AttrName::parse(name)?;
    match AclChange::removing(inode.kind, name)? {
        Some(acl) => change_acl(inode, context, &parsed, &acl),
        None => change(inode, cost(inode, 0), |change, edit| {
            set_stored(change, edit, &parsed, None, XattrMode::Replace)?;
            Ok(true)
        }),
    }
}

fn change_acl(
    inode: &Inode,
    context: &Context,
    name: &AttrName<'_>,
    acl: &AclChange,
) -> Result<()> {
    let stored = acl.stored.as_ref();
    if stored
        .is_some_and(|list| list.entries().len() > acl::entries_max(inode.context().geometry()))
    {
        return Err(Condition::TooBig.into());
    }
    let stored = stored.map(acl::to_stored);
    let cost = cost(inode, stored.as_ref().map_or(0, Vec::len));
    change(inode, cost, |change, edit| {
        let is_changed = match &stored {
            Some(stored) => {
                set_stored(change, edit, name, Some(stored), XattrMode::Set)?;
                true
            }
            None => match set_stored(change, edit, name, None, XattrMode::Replace) {
                Err(Error::Condition(Condition::NoAttribute)) => false,
                removed => removed.map(|()| true)?,
            },
        };
        let before = edit.inode();
        let permissions = acl.permissions(before.permissions, before.gid, context);
        if permissions == before.permissions {
            return Ok(is_changed);
        }
        store_permissions(edit, permissions)?;
        Ok(true)
    })
}

/// Does `work` in one transaction; the inode has changed if that says so.
fn change(
    inode: &Inode,
    cost: Cost,
    work: impl Fn(&mut Change<'_>, &mut InodeEdit) -> Result<bool>,
) -> Result<()> {
    if !inode.superblock.can_write() {
        return Err(Condition::ReadOnly.into());
    }
    let _order = inode.order.write();
    let now = inode.superblock.clock.now();
    let space = FreedSpace(&inode.superblock);
    eof_blocks::retry_without(inode, || {
        retry_no_space(&space, || {
            inode.change(cost, |change, edit, _| {
                if work(change, edit)? {
                    touch(edit, Times::of_attributes(now))?;
                }
                Ok(())
            })
        })
    })
}

/// Sets or removes one attribute.
fn set_stored(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    name: &AttrName<'_>,
    value: Option<&[u8]>,
    mode: XattrMode,
) -> Result<()> {
    let has_fork = edit.inode().attr_format.is_some();
    let key = AttrKey::new(name.namespace, name.name, &[]);
    let is_there = match (has_fork, mode) {
        (false, _) => false,
        (true, XattrMode::Set) => true,
        (true, _) => AttrEdit::open(&mut change.groups, edit)?.has(&key)?,
    };
    match (is_there, mode) {
        (true, XattrMode::Create) => return Err(Condition::Exists.into()),
        (false, XattrMode::Replace) => return Err(Condition::NoAttribute.into()),
        _ => {}
    }
    if !has_fork {
        if value.is_none() {
            return Ok(());
        }
        attr_fork::add(change, edit)?;
    }
    let geometry = change.geometry();
    if value.is_some_and(|value| !build::is_local(name.name, value, geometry))
        && let Some(log) = change.context().log()
    {
        let (ag, _) = geometry.split_inode(edit.inode().number);
        change.groups.finish_freed(ag, log)?;
    }
    let mut attrs = AttrEdit::open(&mut change.groups, edit)?;
    match value {
        Some(value) => attrs.set(&Attr {
            namespace: name.namespace,
            name: name.name.to_vec(),
            value: value.to_vec(),
        })?,
        None => {
            attrs.remove(&key)?;
        }
    }
    attrs.finish()
}

fn store_permissions(edit: &mut InodeEdit, permissions: u32) -> Result<()> {
    let mode = edit.inode().kind.mode_bits() | permissions & 0o7777;
    let mode = u16::try_from(mode).unwrap_or_default();
    edit.change(|bytes| {
        core_mut(bytes)?.core.mode.set(mode);
        Some(())
    })
}

/// Sets the ACL of an inode that was just made.
pub(super) fn set_acl(
    change: &mut Change<'_>,
    number: InodeNr,
    name: &[u8],
    list: &PosixAcl,
) -> Result<()> {
    let name = AttrName::parse(name)?;
    let mut edit = change.inode(number)?;
    let stored = acl::to_stored(list);
    set_stored(change, &mut edit, &name, Some(&stored), XattrMode::Set)?;
    change.put(edit);
    Ok(())
}

/// Sets the permission bits, and updates the access ACL accordingly.
pub(super) fn set_permissions(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    permissions: u32,
) -> Result<()> {
    if edit.inode().attr_format.is_some() {
        let name = AttrName::parse(ACL_ACCESS_NAME)?;
        let key = AttrKey::new(name.namespace, name.name, &[]);
        let found = AttrEdit::open(&mut change.groups, edit)?.get(&key)?;
        if let Some(value) = found {
            let list = PosixAcl::decode(&acl::to_attribute(edit.inode(), &value)?)?;
            let stored = acl::to_stored(&list.with_mode(permissions));
            set_stored(change, edit, &name, Some(&stored), XattrMode::Replace)?;
        }
    }
    store_permissions(edit, permissions)
}
