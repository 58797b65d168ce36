//! What the superuser may do with a file and with its names: flags of files and directories forbid some of it.

use platter_vfs::path::PathWalk;
use platter_vfs::permission::{Access, check_access, check_create, check_delete, prepare_set_attr};
use platter_vfs::{
    Attr, Condition, Context, Credentials, Error, FileKind, Filesystem, Inode, Located, RenameMode,
    Result, SetAttr,
};

/// Whether a file has contents that the superuser may write.
///
/// # Errors
/// `IsDirectory` for a directory, `InvalidArgument` for what else has no contents, `ReadOnly` where nothing is
/// written, `NotPermitted` where its flags forbid it.
pub(crate) fn check_writable(fs: &dyn Filesystem, inode: &dyn Inode, attr: &Attr) -> Result<()> {
    match attr.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Condition::IsDirectory.into()),
        FileKind::Symlink
        | FileKind::CharDevice
        | FileKind::BlockDevice
        | FileKind::Fifo
        | FileKind::Socket => return Err(Condition::InvalidArgument.into()),
    }
    if fs.is_read_only() {
        return Err(Condition::ReadOnly.into());
    }
    check_access(inode, attr, &Credentials::root(), Access::WRITE)
}

/// Where a name may be created.
pub(super) fn vacant(walker: &PathWalk<'_>, path: &[u8], is_directory: bool) -> Result<Located> {
    let located = walker.resolve_parent(path)?;
    let name = located.name_to_create()?;
    if located.trailing_slash && !is_directory {
        located.parent.lookup(name)?;
        return Err(Condition::Exists.into());
    }
    if located.parent.lookup(name).is_ok() {
        return Err(Condition::Exists.into());
    }
    let parent = &*located.parent;
    check_create(parent, &parent.attr()?, &Credentials::root())?;
    Ok(located)
}

/// Whether flags of the directory and of the file let a name go.
pub(super) fn may_remove(from: &Located, victim: &Attr) -> Result<()> {
    let dir = &*from.parent;
    check_delete(dir, &dir.attr()?, victim, &Credentials::root())
}

/// Whether flags of the directories and of the files let a name move.
pub(super) fn may_rename(
    from: &Located,
    moved: &dyn Inode,
    to: &Located,
    mode: RenameMode,
) -> Result<()> {
    let there = match to.parent.lookup(to.name_to_rename()?) {
        Ok(there) => Some(there),
        Err(Error::Condition(Condition::NotFound)) => None,
        Err(error) => return Err(error),
    };
    match there {
        // Nothing moves.
        Some(there) if there.id() == moved.id() => Ok(()),
        Some(_) if mode == RenameMode::NoReplace => Err(Condition::Exists.into()),
        Some(there) => {
            may_remove(from, &moved.attr()?)?;
            may_remove(to, &there.attr()?)
        }
        None => {
            may_remove(from, &moved.attr()?)?;
            check_create(&*to.parent, &to.parent.attr()?, &Credentials::root())
        }
    }
}

/// Changes attributes as the superuser may.
pub(crate) fn set_attr(inode: &dyn Inode, changes: &SetAttr) -> Result<()> {
    let root = Credentials::root();
    let changes = prepare_set_attr(inode, &inode.attr()?, &root, changes)?;
    inode.set_attr(&Context::root(), &changes).map(drop)
}
