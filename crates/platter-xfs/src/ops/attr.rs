//! Attributes of inodes.

use platter_vfs::inode::InodeLock;
use platter_vfs::namei::{AccessedInode, AttributedInode};
use platter_vfs::{
    Attr, Condition, Context, FileKind, FileTimes, Result, SetAttr, SetTime, Timestamp, file,
};

use super::state::{Times, touch};
use super::{Inode, hints, xattrs};
use crate::change::{Change, Cost};
use crate::fork::InodeEdit;
use crate::inode;
use crate::ondisk::inode::edit::{self, core_mut};
use crate::ondisk::{InodeFlags, InodeFlags2};

impl AttributedInode for Inode {
    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn attributes(&self) -> Attr {
        let geometry = self.context().geometry();
        let state = self.state.read();
        let mut attr = inode::attr(&state.inode, geometry);
        if self.kind == FileKind::Regular {
            attr.size_bytes = self.data.size_bytes();
            let reserved = state.delayed.reserved();
            let sectors = reserved.saturating_mul(u64::from(geometry.block_bytes() >> 9));
            attr.sectors = attr.sectors.saturating_add(sectors);
            attr.space_is_estimated = self.growth.is_listed() || state.has_estimated_space();
        }
        attr
    }

    fn prepare_change(&self, changes: &SetAttr) -> Result<()> {
        if !self.superblock.can_write() {
            return Err(Condition::ReadOnly.into());
        }
        if let Some(flags) = changes.flags {
            inode::stored_flags(flags, self.kind).ok_or(Condition::NotSupported)?;
        }
        hints::validate(self, changes)
    }

    fn change_attributes(&self, _: &Context, changes: &SetAttr) -> Result<()> {
        let cost = match changes.permissions {
            Some(_) => xattrs::cost(self, 0),
            None => Cost::default(),
        };
        let now = self.superblock.clock.now();
        self.change(cost, |change, edit, _| apply(change, edit, changes, now))
    }

    fn change_size(&self, size_bytes: u64) -> Result<()> {
        file::resize(self, size_bytes)
    }
}

impl AccessedInode for Inode {
    fn times_before_read(&self) -> Option<FileTimes> {
        let state = self.state.read();
        let inode = &state.inode;
        let is_kept = !inode.flags.contains(InodeFlags::NOATIME) && self.superblock.can_write();
        is_kept.then_some(FileTimes {
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
        })
    }

    fn set_access_time(&self, time: Timestamp) -> Result<()> {
        let times = Times {
            accessed: Some(time),
            ..Times::default()
        };
        self.change(Cost::default(), |_, edit, _| touch(edit, times))
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
        xattrs::set_permissions(change, edit, permissions & 0o7777)?;
    }
    hints::set(edit, changes, change.geometry())?;
    let kind = edit.inode().kind;
    let flags = changes
        .flags
        .and_then(|flags| inode::stored_flags(flags, kind));
    edit.change(|bytes| {
        if let Some(project) = changes.project {
            edit::set_project(bytes, project)?;
        }
        let disk = core_mut(bytes)?;
        if let Some((flags, flags2)) = flags {
            // Hints have changed others meanwhile.
            let kept = InodeFlags::from_bits_retain(disk.core.flags.get());
            let flags = kept.difference(inode::SETTABLE_FLAGS) | flags;
            disk.core.flags.set(flags.bits());
            let kept = InodeFlags2::from_bits_retain(disk.flags2.get());
            let flags2 = kept.difference(InodeFlags2::DAX) | flags2;
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
