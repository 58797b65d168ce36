//! Where work is done: directories and files, reached through the library or by system calls, so that
//! one generator of work drives both.

mod host;
mod library;
mod aligned;

use anyhow::Result;

pub(crate) use self::aligned::Aligned;
pub(crate) use self::host::HostDir;
pub(crate) use self::library::LibraryDir;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
    /// Past the host's page cache, where there is one, and through that of platter to the image.
    WriteDirect,
}

/// One name of a directory, as listed.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) is_dir: bool,
    /// Its inode, by which the library finds it without its name.
    pub(crate) inode: u64,
}

/// A directory.
pub(crate) trait Directory: Send + Sync {
    /// Makes a directory in it.
    fn make_dir(&self, name: &str) -> Result<Box<dyn Directory>>;

    /// Makes a subvolume in it, where the filesystem has any.
    fn make_subvolume(&self, name: &str) -> Result<Box<dyn Directory>>;

    /// Makes a snapshot in it, of a subvolume in it.
    fn snapshot(&self, source: &str, name: &str) -> Result<()>;

    /// A directory in it.
    fn dir(&self, name: &str) -> Result<Box<dyn Directory>>;

    /// Makes a file that was not there, and opens it for writing.
    fn create(&self, name: &str) -> Result<Box<dyn Document>>;

    /// Opens a file.
    fn open(&self, name: &str, mode: Mode) -> Result<Box<dyn Document>>;

    /// The size of what `name` names, with all fields of `stat`.
    fn size_bytes(&self, name: &str) -> Result<u64>;

    /// The size of what was listed, with all fields of `stat`.
    fn size_bytes_of(&self, entry: &Entry) -> Result<u64>;

    /// Removes a file.
    fn unlink(&self, name: &str) -> Result<()>;

    /// All its names but `.` and `..`.
    fn list(&self) -> Result<Vec<Entry>>;

    /// Makes all that was done in it durable.
    fn sync(&self) -> Result<()>;
}

/// An open file.
pub(crate) trait Document: Send + Sync {
    /// Reads until `buffer` is full or the file ends.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Sets an attribute.
    fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()>;

    /// Makes its contents durable.
    fn sync(&self) -> Result<()>;

    /// Reads pages anywhere in the first `bytes`, through a mapping, as many as there are; nothing
    /// where files cannot be mapped.
    fn read_mapped(&self, bytes: u64) -> Result<Option<Mapped>>;
}

/// What reading through a mapping took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapped {
    pub(crate) reads: u64,
    pub(crate) seconds: f64,
}
