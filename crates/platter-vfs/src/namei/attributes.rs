//! Changes of attributes (`notify_change`, `touch_atime`): what is done in which order, and undone after an error.

use crate::inode::InodeLock;
use crate::writing::FreezeGate;
use crate::{AccessTimes, Attr, Clock, Context, FileTimes, Result, SetAttr, Timestamp};

/// The attributes of an inode object of a driver, and the changes of them that the operations need.
pub trait AttributedInode {
    /// The inode lock (`i_rwsem`): exclusive to change names, links or attributes.
    fn inode_lock(&self) -> &InodeLock;

    /// The attributes.
    fn attributes(&self) -> Attr;

    /// Refuses changes that the format or this inode does not have, and does what has to come before the others. The
    /// inode is locked.
    ///
    /// # Errors
    /// `NotSupported`; `ReadOnly` where nothing may be changed.
    fn prepare_change(&self, changes: &SetAttr) -> Result<()>;

    /// Makes changes as one transaction, the size left out. The inode is locked.
    fn change_attributes(&self, context: &Context, changes: &SetAttr) -> Result<()>;

    /// Changes the size of a regular file. The inode is locked.
    fn change_size(&self, size_bytes: u64) -> Result<()>;
}

/// An inode object of a driver that keeps the time of the last read.
pub trait AccessedInode {
    /// The times that reading looks at; `None` where it changes none, or nothing may be changed.
    fn times_before_read(&self) -> Option<FileTimes>;

    /// A time as the inode can hold it.
    fn storable(&self, time: Timestamp) -> Timestamp {
        time
    }

    /// Sets the time of the last read. Neither the size nor the names of the file have to stay as they are meanwhile.
    fn set_access_time(&self, time: Timestamp) -> Result<()>;
}

/// Changes attributes, and returns them as they are then.
pub fn set_attr<I: AttributedInode>(
    inode: &I,
    context: &Context,
    changes: &SetAttr,
) -> Result<Attr> {
    let _order = inode.inode_lock().write();
    inode.prepare_change(changes)?;
    match changes.size_bytes {
        Some(size_bytes) => set_with_size(inode, context, changes, size_bytes)?,
        None => set(inode, context, changes)?,
    }
    Ok(inode.attributes())
}

fn set<I: AttributedInode>(inode: &I, context: &Context, changes: &SetAttr) -> Result<()> {
    if *changes == SetAttr::default() {
        return Ok(());
    }
    inode.change_attributes(context, changes)
}

/// Makes changes among which is the size: first all that is neither size nor time, since it may find no space; then the
/// size; times last, since a change of size sets them, too. What comes first is undone if the size cannot be changed.
fn set_with_size<I: AttributedInode>(
    inode: &I,
    context: &Context,
    changes: &SetAttr,
    size_bytes: u64,
) -> Result<()> {
    let times = SetAttr {
        accessed: changes.accessed,
        modified: changes.modified,
        changed: changes.changed,
        ..SetAttr::default()
    };
    let rest = SetAttr {
        size_bytes: None,
        accessed: None,
        modified: None,
        changed: None,
        ..*changes
    };
    let before = inode.attributes();
    set(inode, context, &rest)?;
    if let Err(error) = inode.change_size(size_bytes) {
        // As in Linux, the file may be truncated although its blocks could not be freed.
        let is_truncated = inode.attributes().size_bytes == size_bytes;
        let undo = SetAttr {
            permissions: rest.permissions.map(|_| before.permissions),
            uid: rest.uid.map(|_| before.uid),
            gid: rest.gid.map(|_| before.gid),
            project: rest.project.map(|_| before.project),
            flags: rest.flags.map(|_| before.flags),
            changed: (!is_truncated).then_some(before.changed),
            ..SetAttr::default()
        };
        if rest != SetAttr::default() {
            set(inode, context, &undo)?;
        }
        return Err(error);
    }
    set(inode, context, &times)
}

/// Sets the time of the last read, where the mount keeps it and this read changes it.
pub fn update_access_time<I: AccessedInode>(
    inode: &I,
    times: AccessTimes,
    writers: &FreezeGate,
    clock: &dyn Clock,
) -> Result<()> {
    if times == AccessTimes::Never {
        return Ok(());
    }
    let Some(kept) = inode.times_before_read() else {
        return Ok(());
    };
    let now = inode.storable(clock.now());
    if !times.is_due(&kept, now) {
        return Ok(());
    }
    // Reading goes on while the filesystem is frozen.
    let Some(_writer) = writers.try_enter() else {
        return Ok(());
    };
    inode.set_access_time(now)
}
