//! The orphans of a filesystem that is written: inodes that a crash would leave half deleted or half
//! truncated, kept in a file where there is one with room, and in a list otherwise.
//! Spec: `ext4/orphan`.

mod file;
mod list;
#[cfg(test)]
mod tests;

use platter_vfs::Result;

use crate::Volume;
use crate::inode;
use crate::ondisk::{Inode, InodeNr};
use crate::txn::Handle;
use file::OrphanFile;
use list::OrphanList;

/// Blocks that adding an orphan or removing it changes at most: its own inode, and either a block of
/// the orphan file and the superblock, or the superblock or another inode.
pub const ORPHAN_CREDITS: u32 = 3;

/// Which inodes are orphans, in memory and on the medium.
///
/// An inode enters in the transaction that takes its last name, or begins to truncate it, and leaves
/// in the one that ends that.
#[derive(Debug)]
pub struct OrphanRegister {
    list: OrphanList,
    file: Option<OrphanFile>,
}

impl OrphanRegister {
    /// What a crash left. The list ends, as the kernel's search, where it is damaged.
    ///
    /// # Errors
    /// `Corrupt` when a block of the orphan file is damaged.
    pub fn open(volume: &Volume) -> Result<Self> {
        Ok(Self {
            list: OrphanList::open(volume)?,
            file: OrphanFile::open(volume)?,
        })
    }

    /// All orphans, those that came last first.
    #[must_use]
    pub fn all(&self) -> Vec<InodeNr> {
        let mut all = self.list.all();
        all.extend(self.file.iter().flat_map(OrphanFile::all));
        all
    }

    /// Adds an inode, unless it is there. Takes [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction is aborted then.
    pub fn add(&self, volume: &Volume, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        let added = self.try_add(volume, handle, number);
        added.map_err(|error| handle.abort(error))
    }

    fn try_add(&self, volume: &Volume, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        if let Some(file) = &self.file
            && (file.contains(number) || file.add(volume, handle, number)?)
        {
            return Ok(());
        }
        self.list.add(volume, handle, number)
    }

    /// Whether an inode is there.
    pub fn contains(&self, number: InodeNr) -> bool {
        let is_in_file = self.file.as_ref().map(|file| file.contains(number));
        is_in_file.unwrap_or(false) || self.list.contains(number)
    }

    /// Takes an inode out, if it is there: it was truncated, or got a name. Takes
    /// [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction is aborted then.
    pub fn remove(&self, volume: &Volume, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        let removed = self.try_remove(volume, handle, number);
        removed.map_err(|error| handle.abort(error))
    }

    /// Takes an inode out that is deleted at `time`, in seconds, and stores it with that. Takes
    /// [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction is aborted then.
    pub fn remove_deleted(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        inode: &Inode,
        time: u32,
    ) -> Result<()> {
        let removed = self.take_out(volume, handle, inode.number);
        let stored = removed.and_then(|_| inode::store_deletion(volume, handle, inode, time));
        stored.map_err(|error| handle.abort(error))
    }

    /// Takes an inode out that is too damaged to be dealt with, and leaves it as it is. Takes
    /// [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction is aborted then.
    pub fn forget(&self, volume: &Volume, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        let forgotten = self.take_out(volume, handle, number);
        forgotten.map(|_| ()).map_err(|error| handle.abort(error))
    }

    /// Whether the inode was in the list.
    fn take_out(&self, volume: &Volume, handle: &mut Handle<'_>, number: InodeNr) -> Result<bool> {
        let was_in_file = match &self.file {
            Some(file) => file.remove(handle, number)?,
            None => false,
        };
        Ok(!was_in_file && self.list.remove(volume, handle, number)?)
    }

    fn try_remove(&self, volume: &Volume, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        if self.take_out(volume, handle, number)? {
            inode::store_deleted(volume, handle, number, 0)?;
        }
        Ok(())
    }

    /// Says in the superblock that the orphan file is empty, if it is. Takes one credit.
    pub fn close(&self, volume: &Volume, handle: &mut Handle<'_>) -> Result<()> {
        match &self.file {
            Some(file) => file.close(volume, handle),
            None => Ok(()),
        }
    }
}
