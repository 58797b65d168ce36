//! Attributes of inodes.

use platter_vfs::acl::{ACL_ACCESS_NAME, PosixAcl};
use platter_vfs::inode::InodeLock;
use platter_vfs::namei::{AccessedInode, AttributedInode};
use platter_vfs::{
    Attr, Condition, Context, Error, FileKind, FileTimes, Result, SetAttr, SetTime, Timestamp,
    XattrMode, file,
};

use super::properties::{COMPRESSION_NAME, PropertyChange};
use super::state::{INODE_CREDITS, Purpose};
use super::{BtrfsInode, properties};
use crate::inode;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::xattr;

/// The access ACL with other permission bits, if there is one.
fn acl_with(inode: &BtrfsInode, permissions: u32) -> Result<Option<Vec<u8>>> {
    match xattr::get(
        inode.context(),
        inode.tree(),
        inode.id.number,
        ACL_ACCESS_NAME,
    ) {
        Ok(value) => Ok(Some(
            PosixAcl::decode(&value)?.with_mode(permissions).encode(),
        )),
        Err(Error::Condition(Condition::NoAttribute)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl AttributedInode for BtrfsInode {
    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn attributes(&self) -> Attr {
        let sector_bytes = self.context().sector_bytes();
        let (item, delayed) = {
            let state = self.state.read();
            (state.item, state.delayed.count())
        };
        let mut attr = inode::attr(&item, self.fs.shown(self.id), sector_bytes);
        if self.kind == FileKind::Regular {
            attr.size_bytes = self.data.size_bytes();
            attr.sectors += delayed * u64::from(sector_bytes >> 9);
            // What is dirty may replace what is allocated.
            attr.space_is_estimated = delayed > 0 && item.allocated_bytes > 0;
        }
        attr
    }

    fn prepare_change(&self, changes: &SetAttr) -> Result<()> {
        if !self.can_change() {
            return Err(Condition::ReadOnly.into());
        }
        if changes.project.is_some_and(|project| project != 0) {
            return Err(Condition::NotSupported.into());
        }
        if let Some(flags) = changes.flags {
            inode::changed_flags(&self.item(), flags).ok_or(Condition::NotSupported)?;
        }
        Ok(())
    }

    fn change_attributes(&self, _: &Context, changes: &SetAttr) -> Result<()> {
        let now = self.fs.clock.now();
        let acl = match changes.permissions {
            Some(permissions) => acl_with(self, permissions)?,
            None => None,
        };
        let property = match changes.flags {
            Some(flags) => properties::change_with_flags(self, flags)?,
            None => PropertyChange::None,
        };
        self.change(2 * INODE_CREDITS, Purpose::Update, |handle, item| {
            if let Some(acl) = acl {
                let name = (self.id.number, ACL_ACCESS_NAME);
                handle.edit(self.tree_id(), |editor| {
                    let transaction = handle.generation();
                    xattr::change::set(editor, transaction, name, &acl, XattrMode::Replace)
                })?;
            }
            let of = (self.id.number, COMPRESSION_NAME);
            handle.edit(self.tree_id(), |editor| match property {
                PropertyChange::None => Ok(()),
                PropertyChange::Set(value) => {
                    let transaction = handle.generation();
                    xattr::change::set(editor, transaction, of, value, XattrMode::Set)
                }
                PropertyChange::Remove => match xattr::change::remove(editor, of.0, of.1) {
                    Err(Error::Condition(Condition::NoAttribute)) => Ok(()),
                    removed => removed,
                },
            })?;
            apply(item, changes, now);
            Ok(())
        })?;
        if property != PropertyChange::None {
            properties::forget(self);
        }
        Ok(())
    }

    fn change_size(&self, size_bytes: u64) -> Result<()> {
        file::resize(self, size_bytes)
    }
}

impl AccessedInode for BtrfsInode {
    fn times_before_read(&self) -> Option<FileTimes> {
        let item = self.item();
        let is_kept = !item.flags.contains(InodeFlags::NOATIME) && self.can_change();
        is_kept.then_some(FileTimes {
            accessed: item.accessed,
            modified: item.modified,
            changed: item.changed,
        })
    }

    fn set_access_time(&self, time: Timestamp) -> Result<()> {
        self.change(INODE_CREDITS, Purpose::Update, |_, item| {
            item.accessed = time;
            Ok(())
        })
    }
}

/// Makes changes, the size left out.
fn apply(item: &mut InodeItem, changes: &SetAttr, now: Timestamp) {
    if let Some(permissions) = changes.permissions {
        item.permissions = permissions & 0o7777;
    }
    let flags = changes.flags;
    if let Some(flags) = flags.and_then(|flags| inode::changed_flags(item, flags)) {
        item.flags = flags;
    }
    item.uid = changes.uid.unwrap_or(item.uid);
    item.gid = changes.gid.unwrap_or(item.gid);
    let time = |set: Option<SetTime>, old| set.map_or(old, |set| set.resolve(now));
    item.accessed = time(changes.accessed, item.accessed);
    item.modified = time(changes.modified, item.modified);
    item.changed = changes.changed.unwrap_or(now);
}
