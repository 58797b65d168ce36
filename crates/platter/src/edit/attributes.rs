//! Permission bits, owners, sizes, times and extended attributes.

use platter_vfs::xattr::{XattrAccess, check_xattr};
use platter_vfs::{
    Attr, Condition, Context, CreateKind, Credentials, FileKind, Inode, SetAttr, SetTime, TreeWalk,
    WalkEvent, WalkOrder, XattrMode,
};

use super::{Creation, Edit, ModeChange, Owner, Scope, Symlinks};
use crate::volume::place::join;
use crate::{File, Result, Volume};

/// The permission bits that new files ask for.
const FILE_PERMISSIONS: u32 = 0o666;

/// Does something with a file of this path.
type Work<'a> = dyn FnMut(&[u8], &dyn Inode, &Attr) -> Result<()> + 'a;

/// How a size changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeChange {
    /// To so many bytes.
    Set(u64),
    /// By so many bytes.
    Grow(u64),
    /// By so many bytes, to nothing at most.
    Shrink(u64),
    /// To so many bytes, if there are more.
    AtMost(u64),
    /// To so many bytes, if there are less.
    AtLeast(u64),
    /// To the next smaller multiple.
    RoundDown(u64),
    /// To the next larger multiple.
    RoundUp(u64),
}

impl SizeChange {
    fn apply(self, size_bytes: u64) -> Option<u64> {
        match self {
            Self::Set(bytes) => Some(bytes),
            Self::Grow(bytes) => size_bytes.checked_add(bytes),
            Self::Shrink(bytes) => Some(size_bytes.saturating_sub(bytes)),
            Self::AtMost(bytes) => Some(size_bytes.min(bytes)),
            Self::AtLeast(bytes) => Some(size_bytes.max(bytes)),
            Self::RoundDown(unit) => Some(size_bytes - size_bytes.checked_rem(unit)?),
            Self::RoundUp(0) => None,
            Self::RoundUp(unit) => size_bytes.checked_next_multiple_of(unit),
        }
    }
}

/// Which times change, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Of the last read.
    pub accessed: Option<SetTime>,
    /// Of the last change of the contents.
    pub modified: Option<SetTime>,
}

impl Edit {
    /// Changes permission bits. A symbolic link is followed; those below are left alone.
    pub fn change_mode(&self, path: &[u8], mode: &ModeChange, scope: Scope) -> Result<()> {
        let file = self.volume.open(path)?;
        self.for_each(&file, scope, &mut |path, inode, attr| {
            if attr.kind == FileKind::Symlink {
                return Ok(());
            }
            self.change_mode_of(path, inode, mode)
        })
    }

    pub(super) fn change_mode_of(
        &self,
        path: &[u8],
        inode: &dyn Inode,
        mode: &ModeChange,
    ) -> Result<()> {
        let attr = self.named(path, inode.attr())?;
        let is_directory = attr.kind == FileKind::Directory;
        let permissions = mode.apply(attr.permissions, is_directory, self.context.umask);
        let changes = SetAttr {
            permissions: Some(permissions),
            ..SetAttr::default()
        };
        self.set_attr(path, inode, &changes)
    }

    /// Changes owner and group. In a tree, symbolic links are changed themselves.
    pub fn change_owner(
        &self,
        path: &[u8],
        owner: Owner,
        symlinks: Symlinks,
        scope: Scope,
    ) -> Result<()> {
        let file = match scope {
            Scope::File => self.open_as(path, symlinks)?,
            Scope::Tree => self.volume.open_no_follow(path)?,
        };
        let changes = SetAttr {
            uid: owner.uid,
            gid: owner.gid,
            ..SetAttr::default()
        };
        self.for_each(&file, scope, &mut |path, inode, _| {
            self.set_attr(path, inode, &changes)
        })
    }

    /// Changes the size of a file. A symbolic link is followed.
    pub fn truncate(&self, path: &[u8], change: SizeChange, creation: Creation) -> Result<()> {
        let Some(file) = self.open_or_create(path, creation)? else {
            return Ok(());
        };
        let size_bytes = change.apply(file.attr()?.size_bytes);
        let too_large = || file.error(Condition::FileTooLarge);
        let changes = SetAttr {
            size_bytes: Some(size_bytes.ok_or_else(too_large)?),
            ..SetAttr::default()
        };
        self.set_attr(path, &**file.inode(), &changes)
    }

    /// Changes times. A file is created only where a symbolic link would be followed.
    pub fn touch(
        &self,
        path: &[u8],
        times: Times,
        symlinks: Symlinks,
        creation: Creation,
    ) -> Result<()> {
        let file = match symlinks {
            Symlinks::Follow => self.open_or_create(path, creation)?,
            Symlinks::NoFollow => Some(self.volume.open_no_follow(path)?),
        };
        let changes = SetAttr {
            accessed: times.accessed,
            modified: times.modified,
            ..SetAttr::default()
        };
        match file {
            Some(file) => self.set_attr(path, &**file.inode(), &changes),
            None => Ok(()),
        }
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        symlinks: Symlinks,
    ) -> Result<()> {
        let file = self.xattr_file(path, name, symlinks)?;
        let set = file
            .inode()
            .set_xattr(&Context::root(), name, value, XattrMode::Set);
        self.named(path, set)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: &[u8], name: &[u8], symlinks: Symlinks) -> Result<()> {
        let file = self.xattr_file(path, name, symlinks)?;
        self.named(path, file.inode().remove_xattr(&Context::root(), name))
    }

    fn open_as(&self, path: &[u8], symlinks: Symlinks) -> Result<File> {
        match symlinks {
            Symlinks::Follow => self.volume.open(path),
            Symlinks::NoFollow => self.volume.open_no_follow(path),
        }
    }

    fn xattr_file(&self, path: &[u8], name: &[u8], symlinks: Symlinks) -> Result<File> {
        let file = self.open_as(path, symlinks)?;
        let (root, write) = (Credentials::root(), XattrAccess::Write);
        let checked = check_xattr(&**file.inode(), &file.attr()?, &root, name, write);
        self.named(path, checked)?;
        Ok(file)
    }

    /// The file that a path names, if it is there or is created.
    pub(super) fn open_or_create(&self, path: &[u8], creation: Creation) -> Result<Option<File>> {
        match self.volume.walker().resolve(path) {
            Ok(inode) => self.volume.file(path, Ok(inode)).map(Some),
            Err(platter_vfs::Error::Condition(Condition::NotFound))
                if creation == Creation::Never =>
            {
                Ok(None)
            }
            Err(platter_vfs::Error::Condition(Condition::NotFound)) => {
                let end = self.named(path, self.volume.end_of_links(path))?;
                let place = self.place(&end, Condition::NotFound)?;
                let made = place.create(&self.context, CreateKind::Regular, FILE_PERMISSIONS);
                self.volume.file(path, made).map(Some)
            }
            Err(error) => Err(self.error(path, error)),
        }
    }

    /// Changes attributes as the superuser may.
    pub(super) fn set_attr(&self, path: &[u8], inode: &dyn Inode, changes: &SetAttr) -> Result<()> {
        self.named(path, Volume::set_attr_of(inode, changes))
    }

    /// Does something with a file, or with it and all below it.
    fn for_each(&self, file: &File, scope: Scope, work: &mut Work<'_>) -> Result<()> {
        if scope == Scope::File {
            return work(file.path(), &**file.inode(), &file.attr()?);
        }
        let fs = self.volume.filesystem().clone();
        let walk = TreeWalk::new(fs, file.inode().clone(), WalkOrder::Name);
        let path_of = |below: &[u8]| match below {
            b"" => file.path().to_vec(),
            below => join(file.path(), below),
        };
        for event in walk {
            match event {
                WalkEvent::Visit(visited) => {
                    work(&path_of(&visited.path), &*visited.inode, &visited.attr)?;
                }
                WalkEvent::Leave(_) => {}
                WalkEvent::Failed { path, error } => {
                    return Err(self.error(&path_of(&path), error));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_as_truncate_changes_them() {
        for (change, after) in [
            (SizeChange::Set(5), Some(5)),
            (SizeChange::Grow(5), Some(1005)),
            (SizeChange::Grow(u64::MAX), None),
            (SizeChange::Shrink(1001), Some(0)),
            (SizeChange::AtMost(5), Some(5)),
            (SizeChange::AtMost(5000), Some(1000)),
            (SizeChange::AtLeast(5000), Some(5000)),
            (SizeChange::RoundDown(300), Some(900)),
            (SizeChange::RoundUp(300), Some(1200)),
            (SizeChange::RoundUp(0), None),
            (SizeChange::RoundDown(0), None),
        ] {
            assert_eq!(change.apply(1000), after, "{change:?}");
        }
    }
}
