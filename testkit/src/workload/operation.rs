//! One operation by path, as a program would ask for it.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::{
    Context, CreateKind, FallocateMode, Filesystem, Inode, PathWalk, RenameMode, Result, SetAttr,
    XattrMode,
};

use crate::prng::Prng;

/// Bytes to write: where, how many, and what makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fill {
    /// First byte in the file.
    pub offset: u64,
    /// How many.
    pub len: usize,
    /// Equal seeds give equal bytes.
    pub seed: u64,
}

impl Fill {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        Prng::new(self.seed).bytes(self.len)
    }
}

/// What is done. Paths go from the root, without a leading slash; the root's is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Makes a file of any kind.
    Create(String, CreateKind, u32),
    /// Writes into a file.
    Write(String, Fill),
    /// Sets the size of a file.
    Truncate(String, u64),
    /// Takes, frees or moves space of a file.
    Fallocate(String, Range<u64>, FallocateMode),
    /// Moves a name.
    Rename(String, String, RenameMode),
    /// Gives a file a second name.
    Link(String, String),
    /// Removes a name.
    Unlink(String),
    /// Removes a directory.
    RemoveDir(String),
    /// Sets an attribute to a value of that many bytes.
    SetXattr(String, &'static str, Fill),
    /// Removes an attribute.
    RemoveXattr(String, &'static str),
    /// Sets the permission bits.
    SetPermissions(String, u32),
    /// Sets owner and group.
    SetOwner(String, u32, u32),
    /// `fsync`, or `fdatasync`.
    Fsync(String, bool),
    /// `sync` of everything.
    Sync,
}

impl Operation {
    /// Does it, for the superuser.
    pub fn apply(&self, fs: &dyn Filesystem) -> Result<()> {
        let context = Context::root();
        let file = |path: &str| resolve(fs, path);
        let parent = |path: &str| PathWalk::new(fs).resolve_parent(path.as_bytes());
        match self {
            Self::Create(path, kind, permissions) => {
                let located = parent(path)?;
                let name = located.name_to_create()?;
                located
                    .parent
                    .create(&context, name, kind.clone(), *permissions)?;
            }
            Self::Write(path, fill) => file(path)?.write_at(fill.offset, &fill.bytes())?,
            Self::Truncate(path, size) => {
                let changes = SetAttr {
                    size_bytes: Some(*size),
                    ..SetAttr::default()
                };
                file(path)?.set_attr(&context, &changes)?;
            }
            Self::Fallocate(path, range, mode) => file(path)?.fallocate(range.clone(), *mode)?,
            Self::Rename(from, to, mode) => {
                let (from, to) = (parent(from)?, parent(to)?);
                let (name, new_name) = (from.name_to_rename()?, to.name_to_rename()?);
                let target = to.parent.id();
                from.parent
                    .rename(&context, name, target, new_name, *mode)?;
            }
            Self::Link(from, to) => {
                let target = file(from)?.id();
                let located = parent(to)?;
                located
                    .parent
                    .link(&context, located.name_to_create()?, target)?;
            }
            Self::Unlink(path) => {
                let located = parent(path)?;
                located.parent.unlink(&context, located.name_to_unlink()?)?;
            }
            Self::RemoveDir(path) => {
                let located = parent(path)?;
                located
                    .parent
                    .remove_dir(&context, located.name_to_remove_dir()?)?;
            }
            Self::SetXattr(path, name, fill) => {
                let (name, value) = (name.as_bytes(), fill.bytes());
                file(path)?.set_xattr(&context, name, &value, XattrMode::Set)?;
            }
            Self::RemoveXattr(path, name) => {
                file(path)?.remove_xattr(&context, name.as_bytes())?;
            }
            Self::SetPermissions(path, permissions) => {
                let changes = SetAttr {
                    permissions: Some(*permissions),
                    ..SetAttr::default()
                };
                file(path)?.set_attr(&context, &changes)?;
            }
            Self::SetOwner(path, uid, gid) => {
                let changes = SetAttr {
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..SetAttr::default()
                };
                file(path)?.set_attr(&context, &changes)?;
            }
            Self::Fsync(path, data_only) => file(path)?.sync(*data_only)?,
            Self::Sync => fs.sync()?,
        }
        Ok(())
    }

    /// Whether something is promised once it has returned.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Sync | Self::Fsync(..))
    }

    /// The paths whose files, and whose directories, it changes more than the contents of.
    pub(super) fn touched_paths(&self) -> Vec<&str> {
        match self {
            Self::Create(path, ..) | Self::Unlink(path) | Self::RemoveDir(path) => {
                vec![path, parent_of(path)]
            }
            Self::Rename(from, to, _) | Self::Link(from, to) => {
                vec![from, parent_of(from), to, parent_of(to)]
            }
            Self::SetXattr(path, ..)
            | Self::RemoveXattr(path, _)
            | Self::SetPermissions(path, _)
            | Self::SetOwner(path, ..) => vec![path],
            Self::Write(..)
            | Self::Truncate(..)
            | Self::Fallocate(..)
            | Self::Fsync(..)
            | Self::Sync => Vec::new(),
        }
    }
}

/// The file at a path, itself where it is a symbolic link.
pub fn resolve(fs: &dyn Filesystem, path: &str) -> Result<Arc<dyn Inode>> {
    if path.is_empty() {
        return fs.root();
    }
    PathWalk::new(fs).resolve_no_follow(path.as_bytes())
}

/// The path of the directory that holds a path's last name.
pub(super) fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}
