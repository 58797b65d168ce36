//! Attributes.

use platter_vfs::inode::InodeLock;
use platter_vfs::namei::{AccessedInode, AttributedInode};
use platter_vfs::{
    Attr, Condition, Context, FileKind, FileTimes, Result, SetAttr, SetTime, Timestamp,
};

use super::{Ext4Inode, InodeState, data, quotas, xattrs};
use crate::file::size_bytes_max;
use crate::inode;
use crate::ondisk::features::{Incompat, RoCompat};
use crate::ondisk::{Inode, InodeFlags};
use crate::txn::Handle;
use crate::xattr;

fn apply(
    node: &Ext4Inode,
    context: &Context,
    handle: &mut Handle<'_>,
    state: &mut InodeState,
    (changes, flags): (&SetAttr, InodeFlags),
    needed: &mut Option<u32>,
) -> Result<()> {
    if state
        .inode
        .flags
        .difference(flags)
        .contains(InodeFlags::EXTENTS)
        && !state.map.leave_extents(node.fs(), &mut state.inode)?
    {
        return Err(Condition::NotSupported.into());
    }
    quotas::check_new_owners(node, context, state, changes)?;
    if let Some(permissions) = changes.permissions {
        let mut change = xattrs::begin(node, context, handle, state)?;
        let set = xattr::set_permissions(&mut change, permissions & 0o7777);
        *needed = change.needed;
        set?;
    }
    let SetAttr {
        permissions: _,
        uid,
        gid,
        size_bytes: _,
        accessed,
        modified,
        changed,
        flags: _,
        project,
        // The kernel ignores them on ext4.
        xflags: _,
        extent_size_bytes: _,
        cow_extent_size_bytes: _,
    } = *changes;
    let now = node.sb.clock.now();
    let inode = &mut state.inode;
    inode.uid = uid.unwrap_or(inode.uid);
    inode.gid = gid.unwrap_or(inode.gid);
    inode.project = project.unwrap_or(inode.project);
    inode.flags = flags;
    inode.accessed = time(inode, accessed, now).unwrap_or(inode.accessed);
    inode.modified = time(inode, modified, now).unwrap_or(inode.modified);
    inode.changed = inode.storable(changed.unwrap_or(now));
    Ok(())
}

/// The inode's flags as `changes` leave them. Flags that are shown and cannot be set stay as they are,
/// whether they are among those to be set or not.
///
/// # Errors
/// `NotSupported` for flags that are unknown or mean nothing for this file, and for changes that
/// cannot be made.
fn flags_after(node: &Ext4Inode, changes: &SetAttr) -> Result<InodeFlags> {
    let state = node.state.read();
    let old = state.inode.flags;
    let Some(wanted) = changes.flags else {
        return Ok(old);
    };
    let wanted = InodeFlags::from_bits_retain(wanted);
    if !InodeFlags::USER_VISIBLE.contains(wanted) {
        return Err(Condition::NotSupported.into());
    }
    let shown = inode::attr(&state.inode, &node.fs().geometry).flags;
    let toggled = wanted.symmetric_difference(InodeFlags::from_bits_retain(shown))
        & (InodeFlags::USER_MODIFIABLE | InodeFlags::USER_CONVERTIBLE);
    let meaning = match node.kind {
        FileKind::Directory => InodeFlags::USER_MODIFIABLE,
        FileKind::Regular => InodeFlags::USER_MODIFIABLE - InodeFlags::OF_DIRECTORIES,
        FileKind::Symlink
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => InodeFlags::OF_ANY_FILE,
    };
    let mut simple = toggled;
    if may_leave_extents(node, &state.inode) {
        simple.remove(InodeFlags::EXTENTS);
    }
    if !meaning.contains(simple) {
        return Err(Condition::NotSupported.into());
    }
    if toggled.contains(InodeFlags::CASEFOLD) {
        check_can_fold(node, &state)?;
    }
    Ok(old.symmetric_difference(toggled))
}

/// Whether a map of block numbers can take the place of this inode's extents, as far as can be said
/// without a look at them.
fn may_leave_extents(node: &Ext4Inode, inode: &Inode) -> bool {
    let geometry = &node.fs().geometry;
    let mut without = inode.clone();
    without.flags.remove(InodeFlags::EXTENTS);
    inode.flags.contains(InodeFlags::EXTENTS)
        && matches!(node.kind, FileKind::Regular | FileKind::Directory)
        && geometry.cluster_blocks == 1
        && node.size_bytes() <= size_bytes_max(geometry, &without)
}

/// Checks that the comparison of names may be changed: only in an empty directory.
fn check_can_fold(node: &Ext4Inode, state: &InodeState) -> Result<()> {
    let fs = node.fs();
    let incompat = fs.geometry.features.incompat;
    if !incompat.contains(Incompat::CASEFOLD) {
        return Err(Condition::NotSupported.into());
    }
    if state.directory(fs)?.is_empty()? {
        return Ok(());
    }
    Err(Condition::NotEmpty.into())
}

/// Without projects, all files belong to number 0.
fn refuse_project(node: &Ext4Inode, changes: &SetAttr) -> Result<()> {
    let Some(project) = changes.project else {
        return Ok(());
    };
    let geometry = &node.fs().geometry;
    let has_projects = geometry.features.ro_compat.contains(RoCompat::PROJECT);
    if project != 0 && !has_projects {
        return Err(Condition::NotSupported.into());
    }
    if project != 0 && !node.state.read().inode.holds_project() {
        return Err(Condition::Overflow.into());
    }
    Ok(())
}

impl AttributedInode for Ext4Inode {
    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn attributes(&self) -> Attr {
        let geometry = &self.fs().geometry;
        let state = self.state.read();
        let mut attr = inode::attr(&state.inode, geometry);
        if self.kind == FileKind::Regular {
            attr.size_bytes = self.size_bytes();
            // Otherwise, programs take a file of which nothing is allocated yet for a hole.
            let reserved = state.delayed.reserved_blocks(geometry);
            attr.sectors += reserved * u64::from(geometry.block_bytes >> 9);
            attr.space_is_estimated = state.has_estimated_space(geometry);
        }
        if self.kind == FileKind::Directory && state.inode.links == 0 {
            // As Linux shows a directory that was removed while open.
            attr.size_bytes = 0;
        }
        attr
    }

    fn prepare_change(&self, changes: &SetAttr) -> Result<()> {
        let flags = flags_after(self, changes)?;
        refuse_project(self, changes)?;
        quotas::add_new_owners(self, changes)?;
        let old = self.state.read().inode.flags;
        if old
            .symmetric_difference(flags)
            .contains(InodeFlags::JOURNAL_DATA)
        {
            // What is dirty is written as it was to be, and checkpointed, before the file changes its mode of journaling.
            data::write_back(self)?;
            data::leave_journal(self)?;
        }
        if old.difference(flags).contains(InodeFlags::EXTENTS) {
            data::write_back(self)?;
        }
        Ok(())
    }

    fn change_attributes(&self, context: &Context, changes: &SetAttr) -> Result<()> {
        let flags = flags_after(self, changes)?;
        self.retry_after_enospc(|| {
            xattrs::in_handle(self, |handle, state, needed| {
                apply(self, context, handle, state, (changes, flags), needed)
            })
        })
    }

    fn change_size(&self, size_bytes: u64) -> Result<()> {
        data::resize(self, size_bytes)
    }
}

impl AccessedInode for Ext4Inode {
    fn times_before_read(&self) -> Option<FileTimes> {
        let state = self.state.read();
        let inode = &state.inode;
        let is_kept = !inode.flags.contains(InodeFlags::NOATIME) && self.sb.can_write();
        is_kept.then_some(FileTimes {
            accessed: inode.accessed,
            modified: inode.modified,
            changed: inode.changed,
        })
    }

    fn storable(&self, time: Timestamp) -> Timestamp {
        self.state.read().inode.storable(time)
    }

    fn set_access_time(&self, time: Timestamp) -> Result<()> {
        self.change(0, |_, state| {
            state.inode.accessed = time;
            Ok(())
        })
    }
}

/// A time to be set, as the inode can hold it.
fn time(inode: &Inode, set: Option<SetTime>, now: Timestamp) -> Option<Timestamp> {
    Some(inode.storable(set?.resolve(now)))
}
