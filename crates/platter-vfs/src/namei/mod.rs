//! Creating, linking, removing and renaming names, and changing attributes: which inodes are locked in which order, and what is
//! refused before a driver changes its directories. See `rename(2)`, `unlink(2)`, `link(2)`.
//!
//! A driver implements [`NamedInode`] and [`AttributedInode`] for its inode object; the operations here call its changes with all
//! inode locks held.

mod attributes;
mod checks;
mod operations;
mod rename;

use crate::inode::{InodeLock, RenameLock};
use std::sync::Arc;

use crate::writing::ReturnsSpace;
use crate::{Context, CreateKind, Error, FileKind, InodeId, Name, Result};

pub use attributes::{AccessedInode, AttributedInode, set_attr, update_access_time};
pub use checks::{LinkState, may_create, may_delete, may_link};
pub use operations::{create, create_unnamed, link, remove_dir, unlink};
pub use rename::{Place, Rename, rename};

/// A file to be created.
#[derive(Debug, Clone, Copy)]
pub struct NewInode<'a> {
    /// The caller.
    pub context: &'a Context,
    /// What to create.
    pub kind: &'a CreateKind,
    /// Permission bits, to which the umask is still to be applied.
    pub permissions: u32,
}

/// An inode object of a driver, and the changes of a directory that the operations need.
pub trait NamedInode: Sized + Send + Sync {
    /// A name of a directory with its location in it, valid while the directory does not change.
    type Slot;
    /// The location in a directory where a name may be added, valid while it does not change.
    type Vacancy;
    /// The space of the filesystem.
    type Space: ReturnsSpace;

    /// Its identity.
    fn id(&self) -> InodeId;

    /// Its kind, which never changes.
    fn kind(&self) -> FileKind;

    /// The inode lock (`i_rwsem`): exclusive to change names, links or attributes.
    fn inode_lock(&self) -> &InodeLock;

    /// Serialises renames from one directory to another (`s_vfs_rename_mutex`): while it is held, the
    /// position of every directory stays.
    fn rename_lock(&self) -> &RenameLock;

    /// Its links and flags.
    fn link_state(&self) -> LinkState;

    /// The space of the filesystem, which takes changes.
    ///
    /// # Errors
    /// `ReadOnly` where nothing may be changed.
    fn space(&self) -> Result<&Self::Space>;

    /// The most links of a file.
    fn links_max(&self) -> u32;

    /// Whether one more directory may be in this one.
    fn takes_directory(&self) -> bool {
        self.link_state().links < self.links_max()
    }

    /// The inode in use with this identity, also one without a name.
    fn in_use(&self, id: InodeId) -> Result<Option<Arc<Self>>>;

    /// The inode that `name`, which is neither `.` nor `..`, names in this directory.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory`.
    fn child(&self, name: Name<'_>) -> Result<(Arc<Self>, Self::Slot)>;

    /// Where `name` may be added to this directory.
    ///
    /// # Errors
    /// `Exists`; `NotDirectory`.
    fn vacancy(&self, name: Name<'_>) -> Result<Self::Vacancy>;

    /// Whether this is the root directory.
    fn is_root(&self) -> bool;

    /// The directory that `..` of this one names.
    fn parent(&self) -> Result<Arc<Self>>;

    /// The error for a directory that is its own ancestor.
    fn own_ancestor(&self) -> Error;

    /// Whether this directory has no names but `.` and `..`.
    fn is_empty_directory(&self) -> Result<bool>;

    /// Creates a file with this name.
    fn create_child(
        &self,
        name: Name<'_>,
        vacancy: Self::Vacancy,
        new: NewInode<'_>,
    ) -> Result<Arc<Self>>;

    /// Creates a regular file without a name (`O_TMPFILE`). The directory is locked shared.
    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>>;

    /// Adds a name of `target`.
    fn link_child(
        &self,
        context: &Context,
        name: Name<'_>,
        vacancy: Self::Vacancy,
        target: &Arc<Self>,
    ) -> Result<()>;

    /// Removes the name at `slot`, which names `victim`: a file, or an empty directory.
    fn remove_child(&self, slot: &Self::Slot, victim: &Arc<Self>) -> Result<()>;

    /// Makes a rename that is allowed.
    fn rename_child(rename: &Rename<'_, Self>) -> Result<()>;
}
