//! Listing a directory, by names alone or with inodes.

use platter_vfs::inode::OwnedDirEntry;
use platter_vfs::tree_walk::DirListing;
use platter_vfs::{Attr, FileKind, InodeId, NameBuf, WalkOrder};

use super::File;
use crate::Result;
use crate::entries::{DirEntries, Shares};

/// Memory for entries that are being listed, in bytes.
const LISTED_BYTES: usize = 16 << 20;

/// The entries of a directory; see [`File::entries`].
#[derive(Debug)]
pub struct Entries {
    dir: File,
    listing: DirListing,
}

/// The entries of a directory with their inodes; see [`File::loaded_entries`].
#[derive(Debug)]
pub struct LoadedEntries {
    dir: File,
    entries: DirEntries,
}

/// An entry with its inode.
#[derive(Debug)]
pub struct LoadedEntry {
    /// The name.
    pub name: NameBuf,
    /// The inode that the entry names.
    pub id: InodeId,
    /// The type as the entry has it.
    pub kind: Option<FileKind>,
    /// The file and its attributes.
    pub file: Result<(File, Attr)>,
}

impl Entries {
    pub(super) fn new(dir: File, order: WalkOrder) -> Self {
        let listing = DirListing::new(dir.inode().clone(), LISTED_BYTES, order);
        Self { dir, listing }
    }
}

impl Iterator for Entries {
    type Item = Result<OwnedDirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.listing.next()?;
        Some(entry.map_err(|error| self.dir.error(error)))
    }
}

impl LoadedEntries {
    pub(super) fn new(dir: File, order: WalkOrder) -> Self {
        let entries = Shares::default().open(dir.inode().clone(), order);
        Self { dir, entries }
    }
}

impl Iterator for LoadedEntries {
    type Item = Result<LoadedEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let dir = &self.dir;
        let entry = match self.entries.next(&dir.volume().entry_source(false))? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(dir.error(error))),
        };
        let name = &entry.entry.name;
        let file = match entry.file {
            Ok((inode, attr)) => Ok((dir.entry_file(name, inode), attr)),
            Err(error) => Err(dir.entry_error(name, error)),
        };
        let OwnedDirEntry { name, id, kind } = entry.entry;
        Some(Ok(LoadedEntry {
            name,
            id,
            kind,
            file,
        }))
    }
}
