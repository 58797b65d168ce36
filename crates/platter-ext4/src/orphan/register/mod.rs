//! The orphans of a filesystem mounted read-write: unlinked inodes still in use and truncations in
//! progress, recorded in the orphan file if it has space, else in the list. Spec: `ext4/orphan`.

mod file;
mod list;
#[cfg(test)]
mod tests;

use platter_vfs::Result;

use crate::FsContext;
use crate::inode;
use crate::ondisk::{Inode, InodeNr};
use crate::txn::Handle;
use file::OrphanFile;
use list::OrphanList;

/// Maximum number of blocks modified by adding or removing an orphan: its own inode, and either a
/// block of the orphan file and the superblock, or the superblock or another inode.
pub const ORPHAN_CREDITS: u32 = 3;

/// The orphans, in memory and on disk.
///
/// An inode is added in the transaction that removes its last link or begins to truncate it, and
/// removed in the one that completes this.
#[derive(Debug)]
pub struct OrphanRegister {
    list: OrphanList,
    file: Option<OrphanFile>,
}

impl OrphanRegister {
    /// Reads the orphans that a crash left. Like the kernel's search, the list ends where it is
    /// corrupt.
    ///
    /// # Errors
    /// `Corrupt` if a block of the orphan file is corrupt.
    pub fn open(fs: &FsContext) -> Result<Self> {
        Ok(Self {
            list: OrphanList::open(fs)?,
            file: OrphanFile::open(fs)?,
        })
    }

    /// Returns all orphans, the last added first.
    #[must_use]
    pub fn all(&self) -> Vec<InodeNr> {
        let mut all = self.list.all();
        all.extend(self.file.iter().flat_map(OrphanFile::all));
        all
    }

    /// Adds an inode, unless it is an orphan already. Uses [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction was aborted.
    pub fn add(&self, fs: &FsContext, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        let added = self.try_add(fs, handle, number);
        added.map_err(|error| handle.abort(error))
    }

    fn try_add(&self, fs: &FsContext, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        if let Some(file) = &self.file
            && (file.contains(number) || file.add(fs, handle, number)?)
        {
            return Ok(());
        }
        self.list.add(fs, handle, number)
    }

    /// Whether an inode is an orphan.
    pub fn contains(&self, number: InodeNr) -> bool {
        let is_in_file = self.file.as_ref().map(|file| file.contains(number));
        is_in_file.unwrap_or(false) || self.list.contains(number)
    }

    /// Removes an inode if it is an orphan: it was truncated, or linked. Uses [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction was aborted.
    pub fn remove(&self, fs: &FsContext, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        let removed = self.try_remove(fs, handle, number);
        removed.map_err(|error| handle.abort(error))
    }

    /// Removes an inode that is deleted at `time`, in seconds, and stores it with that. Uses
    /// [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction was aborted.
    pub fn remove_deleted(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        inode: &Inode,
        time: u32,
    ) -> Result<()> {
        let removed = self.take_out(fs, handle, inode.number);
        let stored = removed.and_then(|_| inode::store_deletion(fs, handle, inode, time));
        stored.map_err(|error| handle.abort(error))
    }

    /// Removes an inode that is too corrupt to be processed, and leaves it unchanged. Uses
    /// [`ORPHAN_CREDITS`].
    ///
    /// # Errors
    /// The transaction was aborted.
    pub fn forget(&self, fs: &FsContext, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        let forgotten = self.take_out(fs, handle, number);
        forgotten.map(|_| ()).map_err(|error| handle.abort(error))
    }

    /// Removes an inode; returns whether it was in the list.
    fn take_out(&self, fs: &FsContext, handle: &mut Handle<'_>, number: InodeNr) -> Result<bool> {
        let was_in_file = match &self.file {
            Some(file) => file.remove(handle, number)?,
            None => false,
        };
        Ok(!was_in_file && self.list.remove(fs, handle, number)?)
    }

    fn try_remove(&self, fs: &FsContext, handle: &mut Handle<'_>, number: InodeNr) -> Result<()> {
        if self.take_out(fs, handle, number)? {
            inode::store_deleted(fs, handle, number, 0)?;
        }
        Ok(())
    }

    /// Clears `orphan_present` in the superblock if the orphan file is empty. Uses one credit.
    pub fn close(&self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        match &self.file {
            Some(file) => file.close(fs, handle),
            None => Ok(()),
        }
    }
}
