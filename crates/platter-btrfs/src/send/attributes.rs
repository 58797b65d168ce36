//! Attributes of inodes in a stream, in the order in which a receiver keeps them: contents and owner change
//! capabilities and set-id bits, which follow; times are the last.

use std::collections::BTreeMap;

use platter_vfs::{FileKind, Result};

use super::Sender;
use super::side::join;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::send_stream::{Command, Times};

/// Attributes by name.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The prefix of properties, some of which say how contents are stored.
const PROPERTIES: &[u8] = b"btrfs.";
/// Capabilities, which a change of contents or owner removes.
const CAPABILITY: &[u8] = b"security.capability";
/// What new files of a directory inherit.
const INHERITED: [&[u8]; 2] = [b"system.posix_acl_default", b"btrfs.compression"];

/// Flags that a stream carries.
fn sent_flags(flags: InodeFlags) -> InodeFlags {
    flags
        & (InodeFlags::NODATASUM
            | InodeFlags::NODATACOW
            | InodeFlags::NOCOMPRESS
            | InodeFlags::COMPRESS
            | InodeFlags::SYNC
            | InodeFlags::IMMUTABLE
            | InodeFlags::APPEND
            | InodeFlags::NODUMP
            | InodeFlags::NOATIME
            | InodeFlags::DIRSYNC)
}

/// Whether an inode has flags of its own.
fn has_flags(item: &InodeItem) -> bool {
    matches!(item.kind, FileKind::Regular | FileKind::Directory)
}

/// Flags under which a file cannot be changed.
const LOCKING: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// The attributes of one inode, at the receiver and as they are to be.
pub(super) struct Attributes<'a> {
    pub(super) path: &'a [u8],
    pub(super) item: &'a InodeItem,
    /// Of an inode that the receiver has.
    pub(super) old: Option<&'a InodeItem>,
    pub(super) xattrs: Xattrs,
    pub(super) old_xattrs: Xattrs,
}

/// The attributes of an inode. Those that are not known to differ are not read.
pub(super) fn read<'a>(
    sender: &Sender<'_, '_>,
    number: u64,
    path: &'a [u8],
    (item, old): (&'a InodeItem, Option<&'a InodeItem>),
) -> Result<Attributes<'a>> {
    let old_xattrs = match (&sender.old, old) {
        (Some(side), Some(_)) => side.xattrs(number)?,
        _ => Xattrs::new(),
    };
    Ok(Attributes {
        path,
        item,
        old,
        xattrs: sender.new.xattrs(number)?,
        old_xattrs,
    })
}

/// Makes the receiver clear the flags of an older inode under which it cannot be changed.
pub(super) fn unlock(sender: &mut Sender<'_, '_>, number: u64, item: &InodeItem) -> Result<()> {
    let Some(old) = sender.old.filter(|_| item.flags.intersects(LOCKING)) else {
        return Ok(());
    };
    let path = if number == old.root_dir() {
        Vec::new()
    } else {
        let (dir, name) = old.link(number)?;
        join(&old.dir_path(dir, &sender.nothing_moved)?, &name)
    };
    send_flags(sender, &path, sent_flags(item.flags).difference(LOCKING))
}

fn send_flags(sender: &mut Sender<'_, '_>, path: &[u8], flags: InodeFlags) -> Result<()> {
    if sender.out.version() < 2 {
        return Ok(());
    }
    let flags = flags.bits();
    sender.put(&Command::SetFlags { path, flags })
}

/// Sends what says how contents are stored, and removes capabilities that contents and owner would remove.
pub(super) fn send_before_contents(
    sender: &mut Sender<'_, '_>,
    of: &mut Attributes<'_>,
) -> Result<()> {
    if !of.xattrs.contains_key(CAPABILITY) && of.old_xattrs.remove(CAPABILITY).is_some() {
        sender.put(&Command::RemoveXattr {
            path: of.path,
            name: CAPABILITY,
        })?;
    }
    let old = of.old.map(|old| sent_flags(old.flags));
    let new = sent_flags(of.item.flags).difference(LOCKING);
    if old.unwrap_or_default() != new && has_flags(of.item) {
        send_flags(sender, of.path, new)?;
    }
    send_xattrs(sender, of, true)
}

/// Sends attributes that are properties, or those that are not.
fn send_xattrs(sender: &mut Sender<'_, '_>, of: &Attributes<'_>, properties: bool) -> Result<()> {
    let path = of.path;
    let is_of_part = |name: &[u8]| name.starts_with(PROPERTIES) == properties;
    for name in of.old_xattrs.keys() {
        if is_of_part(name) && !of.xattrs.contains_key(name) {
            sender.put(&Command::RemoveXattr { path, name })?;
        }
    }
    for (name, value) in &of.xattrs {
        if is_of_part(name) && of.old_xattrs.get(name) != Some(value) {
            sender.put(&Command::SetXattr { path, name, value })?;
        }
    }
    Ok(())
}

/// Sends all other attributes; `changed` says that contents were sent.
pub(super) fn send_after_contents(
    sender: &mut Sender<'_, '_>,
    of: &mut Attributes<'_>,
    changed: bool,
) -> Result<()> {
    let (path, item) = (of.path, of.item);
    let owner = |item: &InodeItem| (item.uid, item.gid);
    let is_moved = of.old.is_none_or(|old| owner(old) != owner(item));
    if is_moved {
        let (uid, gid) = owner(item);
        sender.put(&Command::Chown { path, uid, gid })?;
    }
    if is_moved || changed {
        // They went with that.
        of.old_xattrs.remove(CAPABILITY);
    }
    send_xattrs(sender, of, false)?;
    let keeps_mode = of
        .old
        .is_some_and(|old| old.permissions == item.permissions);
    if item.kind != FileKind::Symlink && (!keeps_mode || is_moved) {
        let permissions = item.permissions;
        sender.put(&Command::Chmod { path, permissions })?;
    }
    let flags = sent_flags(item.flags);
    if flags.intersects(LOCKING) && has_flags(item) {
        send_times(sender, path, item)?;
        return send_flags(sender, path, flags);
    }
    send_times(sender, path, item)
}

fn send_times(sender: &mut Sender<'_, '_>, path: &[u8], item: &InodeItem) -> Result<()> {
    let times = Times {
        accessed: item.accessed,
        modified: item.modified,
        changed: item.changed,
        created: Some(item.created),
    };
    sender.put(&Command::SetTimes { path, times })
}

/// Takes from the root directory what files that are created in it would inherit. Its attributes are sent
/// at the end. Returns those that it has then.
pub(super) fn clear_inherited(sender: &mut Sender<'_, '_>) -> Result<Xattrs> {
    let Some(old) = sender.old else {
        return Ok(Xattrs::new());
    };
    let mut xattrs = old.xattrs(old.root_dir())?;
    for name in INHERITED {
        if xattrs.remove(name).is_some() {
            sender.put(&Command::RemoveXattr { path: b"", name })?;
        }
    }
    Ok(xattrs)
}
