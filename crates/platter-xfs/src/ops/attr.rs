//! Attributes of inodes.

use platter_vfs::{
    AccessTimes, Attr, Condition, FileKind, FileTimes, Result, SetAttr, SetTime, Timestamp, file,
};

use super::Inode;
use super::state::{Times, touch};
use crate::change::{Change, Cost};
use crate::fork::InodeEdit;
use crate::inode;
use crate::ondisk::inode::edit::{self, core_mut};
use crate::ondisk::{InodeFlags, InodeFlags2};

impl Inode {
    pub(super) fn attributes(&self) -> Attr {
        let geometry = self.context().geometry();
        let state = self.state.read();
        let mut attr = inode::attr(&state.inode, geometry);
        if self.kind == FileKind::Regular {
            attr.size_bytes = self.data.size_bytes();
            let reserved = state.delayed.reserved();
            attr.sectors += reserved * u64::from(geometry.block_bytes() >> 9);
        }
        attr
    }

    pub(super) fn update_access_time(&self, times: AccessTimes) -> Result<()> {
        let is_due = |inode: &crate::ondisk::Inode, now| {
            let kept = FileTimes {
                accessed: inode.accessed,
                modified: inode.modified,
                changed: inode.changed,
            };
            !inode.flags.contains(InodeFlags::NOATIME) && times.is_due(&kept, now)
        };
        if times == AccessTimes::Never || !self.superblock.can_write() {
            return Ok(());
        }
        let now = self.superblock.clock.now();
        if !is_due(&self.state.read().inode, now) {
            return Ok(());
        }
        // Reading goes on while the filesystem is frozen.
        let Some(_writer) = self.superblock.writers.try_enter() else {
            return Ok(());
        };
        self.change(Cost::default(), |_, edit, _| {
            touch(
                edit,
                Times {
                    accessed: Some(now),
                    ..Times::default()
                },
            )
        })
    }

    pub(super) fn set_attributes(&self, changes: &SetAttr) -> Result<Attr> {
        if !self.superblock.can_write() {
            return Err(Condition::ReadOnly.into());
        }
        let _order = self.order.write();
        self.refuse_unsupported(changes)?;
        if let Some(size) = changes.size_bytes {
            self.set_with_size(changes, size)?;
        } else {
            self.set(changes)?;
        }
        Ok(self.attributes())
    }

    /// Hints that cannot be, and flags that are not kept, are refused.
    fn refuse_unsupported(&self, changes: &SetAttr) -> Result<()> {
        if let Some(flags) = changes.flags {
            inode::stored_flags(flags, self.kind).ok_or(Condition::NotSupported)?;
        }
        self.refuse_hints(changes)
    }

    /// Makes changes among which is the size.
    fn set_with_size(&self, changes: &SetAttr, size: u64) -> Result<()> {
        let current = || inode::attr(&self.state.read().inode, self.context().geometry());
        changes.apply_with_size(
            size,
            current,
            |changes| self.set(changes),
            |size| file::resize(self, size),
        )
    }

    fn set(&self, changes: &SetAttr) -> Result<()> {
        if *changes == SetAttr::default() {
            return Ok(());
        }
        let cost = match changes.permissions {
            Some(_) => self.xattr_cost(0),
            None => Cost::default(),
        };
        let now = self.superblock.clock.now();
        self.change(cost, |change, edit, _| apply(change, edit, changes, now))
    }
}

/// Makes changes, the size left out.
fn apply(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    changes: &SetAttr,
    now: Timestamp,
) -> Result<()> {
    if let Some(permissions) = changes.permissions {
        super::xattrs::set_permissions(change, edit, permissions & 0o7777)?;
    }
    super::hints::set(edit, changes, change.geometry())?;
    let kind = edit.inode().kind;
    let old_flags = edit.inode().flags;
    let old_flags2 = edit.inode().flags2;
    let flags = changes
        .flags
        .and_then(|flags| inode::stored_flags(flags, kind));
    edit.change(|bytes| {
        if let Some(project) = changes.project {
            edit::set_project(bytes, project)?;
        }
        let disk = core_mut(bytes)?;
        if let Some((flags, flags2)) = flags {
            let settable = inode::SETTABLE_FLAGS;
            let flags = old_flags.difference(settable) | flags;
            disk.core.flags.set(flags.bits());
            let flags2 = old_flags2.difference(InodeFlags2::DAX) | flags2;
            disk.flags2.set(flags2.bits());
        }
        if let Some(uid) = changes.uid {
            disk.core.uid.set(uid);
        }
        if let Some(gid) = changes.gid {
            disk.core.gid.set(gid);
        }
        Some(())
    })?;
    let time = |set: Option<SetTime>| Some(set?.resolve(now));
    let times = Times {
        accessed: time(changes.accessed),
        modified: time(changes.modified),
        changed: Some(changes.changed.unwrap_or(now)),
    };
    touch(edit, times)
}
