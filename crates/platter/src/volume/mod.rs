//! An open filesystem and the files in it, by path.

mod file;
mod listing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::{BlockDevice, Counts, FileDevice};
use platter_vfs::inode::{OwnedDirEntry, read_dir_all};
use platter_vfs::path::PathWalk;
use platter_vfs::{Attr, Description, Filesystem, Inode, StatFs};

pub use file::{File, FileReader};
pub use listing::{Entries, LoadedEntries, LoadedEntry};

use crate::counting::Counting;
use crate::devices::Devices;
use crate::entries::EntrySource;
use crate::{Cause, Error, Result};

/// An open filesystem. All calls may be made from any number of threads at once.
///
/// Paths are bytes, count from the root of the filesystem with or without a leading slash, and
/// never lead out of it: symbolic links are followed inside. No permission is checked: whoever
/// can read the image can read all of it.
#[derive(Debug, Clone)]
pub struct Volume {
    name: Arc<str>,
    fs: Arc<dyn Filesystem>,
    /// In the order in which the filesystem was given them.
    devices: Arc<[Arc<dyn BlockDevice>]>,
    file: Option<Arc<FileDevice>>,
    counting: Option<Counting>,
    /// Set once the edit that it is of has ended.
    ended: Option<Arc<AtomicBool>>,
}

impl Volume {
    /// A volume of a filesystem that is mounted already; `name` is what errors call it.
    pub fn new(name: impl Into<Arc<str>>, fs: Arc<dyn Filesystem>) -> Self {
        Self {
            name: name.into(),
            fs,
            devices: Arc::new([]),
            file: None,
            counting: None,
            ended: None,
        }
    }

    /// The same volume, which knows the devices below for announcing what will be read.
    #[must_use]
    pub(crate) fn on_devices(mut self, devices: &Devices) -> Self {
        self.devices = devices
            .iter()
            .map(|device| Arc::clone(&device.device))
            .collect();
        self
    }

    /// The same volume, which knows the open file below it.
    #[must_use]
    pub(crate) fn on_file(mut self, file: Option<Arc<FileDevice>>) -> Self {
        self.file = file;
        self
    }

    /// The same volume, whose requests `counting` counts.
    #[must_use]
    pub(crate) fn counting(mut self, counting: Counting) -> Self {
        self.counting = Some(counting);
        self
    }

    /// The same volume, which is of an edit that has ended once `ended` is set.
    #[must_use]
    pub(crate) fn ending_with(mut self, ended: Arc<AtomicBool>) -> Self {
        self.ended = Some(ended);
        self
    }

    /// Refuses what has no image any more.
    pub(crate) fn check_live(&self) -> Result<(), Cause> {
        match &self.ended {
            Some(ended) if ended.load(Ordering::Relaxed) => Err(Cause::Ended),
            _ => Ok(()),
        }
    }

    /// How many requests have reached the image, if it was opened to count them.
    #[must_use]
    pub fn request_counts(&self) -> Option<Counts> {
        self.counting.as_ref().map(Counting::counts)
    }

    /// What errors call it: the image and the partition, escaped.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The filesystem below, for what has no path: inode numbers, unmounting.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<dyn Filesystem> {
        &self.fs
    }

    /// The devices below, as far as they are known, in the order in which they were given.
    #[must_use]
    pub fn devices(&self) -> &[Arc<dyn BlockDevice>] {
        &self.devices
    }

    /// The open image file below, if it is known.
    #[must_use]
    pub fn image_file(&self) -> Option<&Arc<FileDevice>> {
        self.file.as_ref()
    }

    /// What the filesystem says about itself.
    #[must_use]
    pub fn describe(&self) -> Description {
        self.fs.describe()
    }

    /// Space and inodes.
    pub fn stat_fs(&self) -> Result<StatFs> {
        self.fs
            .stat_fs()
            .map_err(|error| Error::new(&self.name, error))
    }

    /// Opens the file that `path` names, following symbolic links.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let path = path.as_ref();
        let inode = self.walker().resolve(or_root(path));
        self.file(path, inode)
    }

    /// Opens what `path` names, and a symbolic link itself.
    pub fn open_no_follow(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let path = path.as_ref();
        let inode = self.walker().resolve_no_follow(or_root(path));
        self.file(path, inode)
    }

    /// The attributes of what `path` names, following symbolic links.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.open(path)?.attr()
    }

    /// The attributes of what `path` names, or of the symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.open_no_follow(path)?.attr()
    }

    /// The entries of a directory but `.` and `..`, in the filesystem's order.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<OwnedDirEntry>> {
        let file = self.open(path)?;
        read_dir_all(&**file.inode()).map_err(|error| file.error(error))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.open_no_follow(path)?.read_link()
    }

    /// The contents of a file, if they are at most `len_bytes_max` long.
    ///
    /// # Errors
    /// `FileTooLarge` when they are longer.
    pub fn read(&self, path: impl AsRef<[u8]>, len_bytes_max: usize) -> Result<Vec<u8>> {
        self.open(path)?.read_all(len_bytes_max)
    }

    /// Where directory entries come from; `contents` says that their contents will be read.
    pub(crate) fn entry_source(&self, contents: bool) -> EntrySource<'_> {
        EntrySource {
            fs: &*self.fs,
            devices: &self.devices,
            contents,
        }
    }

    pub(crate) fn walker(&self) -> PathWalk<'_> {
        PathWalk::new(&*self.fs).with_long_paths()
    }

    pub(crate) fn file(
        &self,
        path: &[u8],
        inode: platter_vfs::Result<Arc<dyn Inode>>,
    ) -> Result<File> {
        self.check_live()
            .map_err(|cause| Error::at_path(&self.name, path, cause))?;
        match inode {
            Ok(inode) => Ok(File::new(self, path, inode)),
            Err(error) => Err(Error::at_path(&self.name, path, error)),
        }
    }
}

/// No path is the root: `IMAGE:` reads like `IMAGE:/`.
fn or_root(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}
