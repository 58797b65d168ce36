//! Creating, linking and removing names.

use std::sync::Arc;

use super::{NamedInode, NewInode, may_create, may_delete, may_link};
use crate::writing::retry_no_space;
use crate::{Condition, Context, CreateKind, FileKind, InodeId, Name, Result};

/// Creates a file named `name` in `dir`.
///
/// # Errors
/// `Exists`, `NotFound` for a directory that was removed, `NotPermitted` for an immutable one,
/// `TooManyLinks`, `NoSpace`; else the driver's.
pub fn create<I: NamedInode>(dir: &I, name: Name<'_>, new: NewInode<'_>) -> Result<Arc<I>> {
    retry_no_space(dir.space()?, || {
        let _lock = dir.inode_lock().write();
        let vacancy = dir.vacancy(name)?;
        may_create(&dir.link_state())?;
        if *new.kind == CreateKind::Directory && !dir.takes_directory() {
            return Err(Condition::TooManyLinks.into());
        }
        dir.create_child(name, vacancy, new)
    })
}

/// Creates a regular file without a name in the filesystem of `dir` (`O_TMPFILE`).
///
/// # Errors
/// `NotDirectory`, `NotPermitted` for an immutable directory, `NoSpace`; else the driver's.
pub fn create_unnamed<I: NamedInode>(dir: &I, new: NewInode<'_>) -> Result<Arc<I>> {
    retry_no_space(dir.space()?, || {
        let _lock = dir.inode_lock().read();
        if dir.kind() != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        dir.link_state().refuse_immutable()?;
        dir.create_without_name(new)
    })
}

/// Adds a name of the file `target` to `dir`.
///
/// # Errors
/// `Exists`, `NotFound` where either was removed, `NotPermitted` for a directory and where flags forbid
/// it, `TooManyLinks`, `CrossDevice`, `NoSpace`; else the driver's.
pub fn link<I: NamedInode>(
    dir: &I,
    context: &Context,
    name: Name<'_>,
    target: InodeId,
) -> Result<()> {
    retry_no_space(dir.space()?, || {
        let _lock = dir.inode_lock().write();
        let vacancy = dir.vacancy(name)?;
        let state = dir.link_state();
        may_create(&state)?;
        let file = dir.in_use(target)?.ok_or(Condition::NotFound)?;
        if file.kind() == FileKind::Directory {
            return Err(Condition::NotPermitted.into());
        }
        let _file_lock = file.inode_lock().write_nth(1);
        may_link(&state, &file.link_state(), dir.links_max())?;
        dir.link_child(context, name, vacancy, &file)
    })
}

/// Removes a name of a file that is no directory.
///
/// # Errors
/// `NotFound`, `IsDirectory`, `NotPermitted` where flags forbid it; else the driver's.
pub fn unlink<I: NamedInode>(dir: &I, name: Name<'_>) -> Result<()> {
    dir.space()?;
    if name.is_dot_or_dotdot() {
        return Err(Condition::IsDirectory.into());
    }
    let _lock = dir.inode_lock().write();
    let (victim, slot) = dir.child(name)?;
    if victim.kind() == FileKind::Directory {
        return Err(Condition::IsDirectory.into());
    }
    let _victim_lock = victim.inode_lock().write_nth(1);
    may_delete(&dir.link_state(), &victim.link_state())?;
    dir.remove_child(&slot, &victim)
}

/// Removes an empty directory.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `NotEmpty`, `InvalidArgument` for `.`, `NotPermitted` where flags forbid it;
/// else the driver's.
pub fn remove_dir<I: NamedInode>(dir: &I, name: Name<'_>) -> Result<()> {
    dir.space()?;
    match name.as_bytes() {
        b"." => return Err(Condition::InvalidArgument.into()),
        b".." => return Err(Condition::NotEmpty.into()),
        _ => {}
    }
    let _lock = dir.inode_lock().write();
    let (victim, slot) = dir.child(name)?;
    if victim.kind() != FileKind::Directory {
        return Err(Condition::NotDirectory.into());
    }
    let _victim_lock = victim.inode_lock().write_nth(1);
    // As in Linux, flags are looked at first.
    may_delete(&dir.link_state(), &victim.link_state())?;
    if !victim.is_empty_directory()? {
        return Err(Condition::NotEmpty.into());
    }
    dir.remove_child(&slot, &victim)
}
