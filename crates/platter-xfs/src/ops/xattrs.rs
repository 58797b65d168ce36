//! Extended attributes, and the access control lists among them. All attributes of an inode are written anew
//! when one changes.

use platter_vfs::acl::{ACL_ACCESS_NAME, ACL_DEFAULT_NAME, PosixAcl};
use platter_vfs::writing::retry_no_space;
use platter_vfs::{Condition, Context, FileKind, Result, XattrMode};

use super::Inode;
use super::state::{Times, touch};
use crate::change::{Change, Cost};
use crate::fork::{Attr, AttrSet, InodeEdit};
use crate::ondisk::inode::edit::core_mut;
use crate::ondisk::{InodeNr, attr};
use crate::xattr::{AttrName, acl};

const SET_GROUP_ID: u32 = 0o2000;
const PERMISSION_BITS: u32 = 0o777;
/// `XATTR_SIZE_MAX`.
const VALUE_BYTES_MAX: usize = 64 << 10;

impl Inode {
    /// What a change of the attributes takes; less where it will most likely stay in the inode.
    pub(super) fn xattr_cost(&self, may_change_attributes: bool) -> Result<Cost> {
        if !may_change_attributes {
            return Ok(Cost::default());
        }
        let inode = self.state.read().inode.clone();
        let map = crate::mapping::ForkMap::of_attrs(self.context(), &inode)?;
        let blocks = map.end(self.context())?.0;
        let blocks = u32::try_from(blocks).map_err(|_| Condition::NoSpace)?;
        Ok(Cost {
            extents: 2 * inode.attr_extents,
            bytes: u64::from(blocks) * (u64::from(self.context().geometry().block_bytes()) + 512),
            ..self.new_xattr_cost()
        })
    }

    /// What a value of the largest size takes in an inode that has no other.
    pub(super) fn new_xattr_cost(&self) -> Cost {
        let capacity = attr::remote::capacity(self.context().geometry()).max(1);
        let blocks = (VALUE_BYTES_MAX as u64).div_ceil(capacity.into()) + 4;
        Cost {
            extents: 8,
            forks: 2,
            directory_blocks: 2,
            inodes: 1,
            bytes: blocks * (u64::from(self.context().geometry().block_bytes()) + 512),
        }
    }

    pub(super) fn set_named_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let parsed = AttrName::parse(name)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Condition::TooBig.into());
        }
        if !parsed.is_acl {
            let value = Some(value.to_vec());
            return self
                .change_xattrs(|change, edit| set(change, edit, &parsed, value.clone(), mode));
        }
        if self.kind == FileKind::Symlink {
            return Err(Condition::NotSupported.into());
        }
        if name == ACL_DEFAULT_NAME && self.kind != FileKind::Directory {
            return Err(Condition::AccessDenied.into());
        }
        let list = PosixAcl::decode(value)?;
        let credentials = &context.credentials;
        self.change_xattrs(|change, edit| {
            if name == ACL_DEFAULT_NAME {
                let stored = acl::to_stored(&list);
                return set(change, edit, &parsed, Some(stored), mode);
            }
            let gid = edit.inode().gid;
            let keeps_group_id = credentials.is_superuser() || credentials.is_in_group(gid);
            set_access_acl(change, edit, &parsed, &list, mode)?;
            let others = edit.inode().permissions & !PERMISSION_BITS;
            let mut permissions = others | list.mode_bits();
            if !keeps_group_id {
                permissions &= !SET_GROUP_ID;
            }
            store_permissions(edit, permissions)
        })
    }

    pub(super) fn remove_named_xattr(&self, name: &[u8]) -> Result<()> {
        let parsed = AttrName::parse(name)?;
        self.change_xattrs(|change, edit| set(change, edit, &parsed, None, XattrMode::Replace))
    }

    fn change_xattrs(
        &self,
        work: impl Fn(&mut Change<'_>, &mut InodeEdit) -> Result<()>,
    ) -> Result<()> {
        if !self.superblock.can_write() {
            return Err(Condition::ReadOnly.into());
        }
        let _order = self.order.write();
        let now = self.superblock.clock.now();
        let cost = self.xattr_cost(true)?;
        retry_no_space(&*self.superblock, || {
            self.change(cost, |change, edit, _| {
                work(change, edit)?;
                touch(edit, Times::of_attributes(now))
            })
        })
    }
}

/// Sets or removes one attribute.
fn set(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    name: &AttrName<'_>,
    value: Option<Vec<u8>>,
    mode: XattrMode,
) -> Result<()> {
    let mut all = if edit.inode().attr_format.is_some() {
        AttrSet::read(&mut change.groups, edit)?
    } else {
        AttrSet::default()
    };
    let is_it = |attr: &Attr| attr.namespace == name.namespace && attr.name == name.name;
    let there = all.0.iter().position(is_it);
    match (there, mode) {
        (Some(_), XattrMode::Create) => return Err(Condition::Exists.into()),
        (None, XattrMode::Replace) => return Err(Condition::NoAttribute.into()),
        _ => {}
    }
    match (there, value) {
        (Some(at), Some(value)) => {
            if let Some(attr) = all.0.get_mut(at) {
                attr.value = value;
            }
        }
        (Some(at), None) => drop(all.0.remove(at)),
        (None, Some(value)) => all.0.push(Attr {
            namespace: name.namespace,
            name: name.name.to_vec(),
            value,
        }),
        (None, None) => return Ok(()),
    }
    if edit.inode().attr_format.is_none() {
        change.add_attr_fork(edit)?;
    }
    all.write(&mut change.groups, edit)?;
    edit.refresh(change.geometry())
}

fn store_permissions(edit: &mut InodeEdit, permissions: u32) -> Result<()> {
    let mode = edit.inode().kind.mode_bits() | permissions & 0o7777;
    let mode = u16::try_from(mode).unwrap_or_default();
    edit.change(|bytes| {
        core_mut(bytes)?.core.mode.set(mode);
        Some(())
    })
}

/// Stores an access ACL unless the permission bits express it completely.
fn set_access_acl(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    name: &AttrName<'_>,
    list: &PosixAcl,
    mode: XattrMode,
) -> Result<()> {
    if !list.is_minimal() {
        return set(change, edit, name, Some(acl::to_stored(list)), mode);
    }
    match set(change, edit, name, None, XattrMode::Replace) {
        Err(platter_vfs::Error::Condition(Condition::NoAttribute)) => Ok(()),
        removed => removed,
    }
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
    let stored = Some(acl::to_stored(list));
    set(change, &mut edit, &name, stored, XattrMode::Set)?;
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
        let all = AttrSet::read(&mut change.groups, edit)?;
        let is_it = |attr: &&Attr| attr.namespace == name.namespace && attr.name == name.name;
        if let Some(attr) = all.0.iter().find(is_it) {
            let list = PosixAcl::decode(&acl::to_attribute(edit.inode(), &attr.value)?)?;
            let stored = acl::to_stored(&list.with_mode(permissions));
            set(change, edit, &name, Some(stored), XattrMode::Replace)?;
        }
    }
    store_permissions(edit, permissions)
}
