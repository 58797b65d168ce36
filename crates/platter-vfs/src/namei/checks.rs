//! What inode flags, link counts and projects allow.

use crate::permission::{APPEND_ONLY, IMMUTABLE};
use crate::{Condition, Result};

/// `FS_PROJINHERIT_FL`: new files get the project of the directory.
const PROJECT_INHERIT: u32 = 0x2000_0000;

/// What decides whether names of an inode, or in it, may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkState {
    /// Its names; of a directory, those in it as well.
    pub links: u32,
    /// It was created without a name, and may still get its first.
    pub may_get_first_name: bool,
    /// Flags as of [`Attr`](crate::Attr).
    pub flags: u32,
    /// Its project.
    pub project: u32,
}

impl LinkState {
    /// Whether it was removed: it has no name, and gets none.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.links == 0 && !self.may_get_first_name
    }

    /// Nothing of an immutable file changes.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn refuse_immutable(&self) -> Result<()> {
        self.refuse(IMMUTABLE)
    }

    /// Nothing is taken from an immutable file, or from one that only grows.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn refuse_append_only(&self) -> Result<()> {
        self.refuse(IMMUTABLE | APPEND_ONLY)
    }

    /// Files of other projects stay out of a directory whose files inherit its own.
    ///
    /// # Errors
    /// `CrossDevice`.
    pub fn refuse_other_project(&self, file: &Self) -> Result<()> {
        if self.flags & PROJECT_INHERIT != 0 && self.project != file.project {
            return Err(Condition::CrossDevice.into());
        }
        Ok(())
    }

    fn refuse(&self, flags: u32) -> Result<()> {
        if self.flags & flags != 0 {
            return Err(Condition::NotPermitted.into());
        }
        Ok(())
    }
}

/// Whether a name may be added to a directory.
///
/// # Errors
/// `NotFound` for a directory that was removed; `NotPermitted` for an immutable one.
pub fn may_create(dir: &LinkState) -> Result<()> {
    if dir.links == 0 {
        return Err(Condition::NotFound.into());
    }
    dir.refuse_immutable()
}

/// Whether a name of `victim` may be taken from a directory.
///
/// # Errors
/// `NotPermitted` where either is immutable or append-only.
pub fn may_delete(dir: &LinkState, victim: &LinkState) -> Result<()> {
    dir.refuse_append_only()?;
    victim.refuse_append_only()
}

/// Whether a file that is no directory may get another name in a directory.
///
/// # Errors
/// `NotPermitted` for one that is immutable or append-only, `NotFound` for one that was removed,
/// `TooManyLinks`, `CrossDevice`.
pub fn may_link(dir: &LinkState, file: &LinkState, links_max: u32) -> Result<()> {
    file.refuse_append_only()?;
    if file.is_removed() {
        return Err(Condition::NotFound.into());
    }
    if file.links >= links_max {
        return Err(Condition::TooManyLinks.into());
    }
    dir.refuse_other_project(file)
}
