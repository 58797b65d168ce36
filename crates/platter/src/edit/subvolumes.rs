//! Subvolumes that come and go.

use platter_vfs::{Condition, Context, Subvolumes};

use super::Edit;
use crate::volume::place::{Place, join, last_name};
use crate::{Error, Result};

/// Whether a subvolume refuses changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It takes changes.
    ReadWrite,
    /// It refuses them.
    ReadOnly,
}

impl Edit {
    fn subvolumes(&self) -> Result<&dyn Subvolumes> {
        let missing = || {
            let error = platter_vfs::Error::from(Condition::NotSupported);
            Error::new(self.image.name(), error)
        };
        self.volume.filesystem().subvolumes().ok_or_else(missing)
    }

    /// The number of the subvolume whose root directory a path names.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no such directory.
    pub fn subvolume_at(&self, path: &[u8]) -> Result<u64> {
        self.subvolumes()?;
        let found = self.named(path, self.volume.walker().resolve(path))?.id();
        let root = self.named(path, self.volume.filesystem().root())?.id();
        if found != root {
            let place = self.place(path, Condition::InvalidArgument)?;
            if place.dir.id().tree == found.tree {
                return Err(self.error(path, platter_vfs::Error::from(Condition::InvalidArgument)));
            }
        }
        Ok(found.tree)
    }

    /// A name that is free.
    fn vacant(&self, path: &[u8]) -> Result<Place> {
        let place = self.place(path, Condition::Exists)?;
        self.named(path, place.check_may_create())?;
        Ok(place)
    }

    /// Makes an empty subvolume.
    ///
    /// # Errors
    /// `Exists` for what is there.
    pub fn create_subvolume(&self, path: &[u8]) -> Result<()> {
        let subvolumes = self.subvolumes()?;
        let place = self.vacant(path)?;
        let name = place.name.as_name();
        let made = subvolumes.create(&self.context, place.dir.id(), name);
        self.named(path, made)?;
        Ok(())
    }

    /// Makes a snapshot of the subvolume at `source`: at `path`, or in it if that is a directory. What was changed before is
    /// durable then: a snapshot is the last change of an edit that has to be whole.
    ///
    /// # Errors
    /// `InvalidArgument` where `source` is no subvolume.
    pub fn snapshot(&self, source: &[u8], path: &[u8], access: Access) -> Result<()> {
        let subvolumes = self.subvolumes()?;
        let id = self.subvolume_at(source)?;
        let inside = self.is_directory(path).then(|| last_name(source)).flatten();
        let path = inside.map_or_else(|| path.to_vec(), |name| join(path, name));
        let place = self.vacant(&path)?;
        let name = place.name.as_name();
        let is_read_only = access == Access::ReadOnly;
        let dir = place.dir.id();
        let made = subvolumes.snapshot(&self.context, id, dir, name, is_read_only);
        self.named(&path, made)?;
        Ok(())
    }

    /// Deletes a subvolume.
    ///
    /// # Errors
    /// `InvalidArgument` for what is none; `NotPermitted` for the default one; `NotEmpty` where it has others in it.
    pub fn delete_subvolume(&self, path: &[u8]) -> Result<()> {
        let subvolumes = self.subvolumes()?;
        self.subvolume_at(path)?;
        let place = self.place(path, Condition::InvalidArgument)?;
        let name = place.name.as_name();
        let deleted = subvolumes.delete(&Context::root(), place.dir.id(), name, None);
        self.named(path, deleted)
    }

    /// Makes a subvolume the one that is mounted where none is asked for.
    ///
    /// # Errors
    /// `NotFound` where none has the number.
    pub fn set_default_subvolume(&self, id: u64) -> Result<()> {
        let set = self.subvolumes()?.set_default(id);
        set.map_err(|error| Error::new(self.image.name(), error))
    }

    /// Has a subvolume refuse changes, or take them.
    ///
    /// # Errors
    /// `InvalidArgument` for what is none.
    pub fn set_subvolume_access(&self, path: &[u8], access: Access) -> Result<()> {
        let id = self.subvolume_at(path)?;
        let is_read_only = access == Access::ReadOnly;
        self.named(path, self.subvolumes()?.set_read_only(id, is_read_only))
    }
}
