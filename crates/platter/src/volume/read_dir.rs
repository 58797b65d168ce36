//! The entries of a directory, one after the other.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use platter_vfs::inode::OwnedDirEntry;
use platter_vfs::{FileKind, WalkOrder};

use super::{Entries, File, Metadata};
use crate::Result;

/// The entries of a directory but `.` and `..`, in the filesystem's order and in bounded memory; see
/// [`Volume::read_dir`](super::Volume::read_dir).
///
/// Where the listing breaks off, the error comes after all entries before it.
#[derive(Debug)]
pub struct ReadDir {
    dir: File,
    entries: Entries,
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct DirEntry {
    dir: File,
    entry: OwnedDirEntry,
}

impl ReadDir {
    pub(super) fn new(dir: File) -> Self {
        let entries = dir.entries(WalkOrder::Driver);
        Self { dir, entries }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?;
        let dir = self.dir.clone();
        Some(entry.map(|entry| DirEntry { dir, entry }))
    }
}

impl DirEntry {
    /// The name.
    #[must_use]
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.entry.name.to_vec())
    }

    /// The path: that of the directory, as it was given, and the name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let path = self.dir.path_of_entry(&self.entry.name);
        OsString::from_vec(path).into()
    }

    /// The type. The inode is read only where the entry does not have it.
    pub fn file_type(&self) -> Result<FileKind> {
        match self.entry.kind {
            Some(kind) => Ok(kind),
            None => Ok(self.open()?.attr()?.kind),
        }
    }

    /// The attributes; of a symbolic link itself.
    pub fn metadata(&self) -> Result<Metadata> {
        Ok(self.open()?.attr()?.into())
    }

    /// Opens the file, or a symbolic link itself, for reading.
    pub fn open(&self) -> Result<File> {
        self.dir.open_entry(&self.entry.name, self.entry.id)
    }
}
