//! An open filesystem and the files in it, by path.

pub(crate) mod rights;
pub(crate) mod place;
mod open_options;
mod listing;
mod metadata;
mod file;
pub(crate) mod removal;
mod names;
mod read_dir;
mod streams;
#[cfg(test)]
mod std_fs_tests;
#[cfg(test)]
mod tests;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_block::{BlockDevice, Counts, FileDevice, GatheringDevice, RevocableDevice};
use platter_vfs::path::PathWalk;
use platter_vfs::subvolumes::Received;
use platter_vfs::{
    Condition, Context, Credentials, Description, FileKind, Filesystem, Inode, LastComponent,
    StatFs,
};

pub use file::File;
pub use listing::{Entries, LoadedEntries, LoadedEntry};
pub use metadata::Metadata;
pub use names::WHOLE_FILE_BYTES_MAX;
pub use open_options::OpenOptions;
pub use read_dir::{DirEntry, ReadDir};
pub use streams::{NOT_READ_ONLY, SendRequest};

use crate::counting::Counting;
use crate::entries::EntrySource;
use crate::host_file::HostFileId;
use crate::{AsPath, Cause, Error, Result};
use place::Place;

/// Permission bits that new files do not get by default.
const UMASK_DEFAULT: u32 = 0o022;

/// An open filesystem: what [`std::fs`] is for the filesystems of the host.
///
/// Paths are [bytes](AsPath), count from the root of the filesystem with or without a leading slash, and
/// never lead out of it: symbolic links are followed inside. No permission is checked: a caller that can
/// read the image can read all of it. New files belong to the superuser, with the umask `0o022`, unless
/// [`acting_as`](Self::acting_as) says otherwise.
///
/// Clones share the filesystem, and all calls may be made from any number of threads at once. A volume that
/// is dropped, with its clones and [`File`]s, writes all changes to the image and reports a failure of that
/// on standard error; [`close`](Self::close) returns it.
#[derive(Debug, Clone)]
pub struct Volume {
    shared: Arc<Shared>,
    context: Arc<Context>,
}

/// What all clones of a volume share.
#[derive(Debug)]
struct Shared {
    parts: VolumeParts,
    closed: AtomicBool,
    /// Whether the end of the filesystem went well; `None` before it. Held until it is unmounted.
    ended_well: Mutex<Option<bool>, { rank(0, 0) }>,
}

/// What a volume consists of.
#[derive(Debug)]
pub(crate) struct VolumeParts {
    pub(crate) name: Arc<str>,
    pub(crate) fs: Arc<dyn Filesystem>,
    /// In the order in which the filesystem was given them.
    pub(crate) devices: Arc<[Arc<dyn BlockDevice>]>,
    pub(crate) file: Option<Arc<FileDevice>>,
    /// The files of the host below all devices, as far as they are known.
    pub(crate) host_files: Vec<HostFileId>,
    pub(crate) counting: Option<Counting>,
    /// The devices again, where they read together what is announced; else none.
    pub(crate) gathering: Vec<Arc<GatheringDevice>>,
    /// Set once the edit that it is of has ended.
    pub(crate) ended: Option<Arc<AtomicBool>>,
    /// The devices of a volume that ends its filesystem itself.
    pub(crate) revocable: Option<Vec<Arc<RevocableDevice>>>,
}

impl VolumeParts {
    /// A filesystem that its mounter unmounts.
    pub(crate) fn new(name: impl Into<Arc<str>>, fs: Arc<dyn Filesystem>) -> Self {
        Self {
            name: name.into(),
            fs,
            devices: Arc::new([]),
            file: None,
            host_files: Vec::new(),
            counting: None,
            gathering: Vec::new(),
            ended: None,
            revocable: None,
        }
    }

    pub(crate) fn volume(self) -> Volume {
        let closed = AtomicBool::new(false);
        let context = Context {
            umask: UMASK_DEFAULT,
            ..Context::root()
        };
        Volume {
            shared: Arc::new(Shared {
                parts: self,
                closed,
                ended_well: Mutex::default(),
            }),
            context: Arc::new(context),
        }
    }
}

impl Shared {
    /// Unmounts, once, and releases the devices.
    fn close(&self) -> Result<()> {
        let parts = &self.parts;
        let mut ended_well = self.ended_well.lock();
        match *ended_well {
            Some(true) => return Ok(()),
            Some(false) => return Err(Error::new(&parts.name, Cause::Closed)),
            None => self.closed.store(true, Ordering::Release),
        }
        let unmounted = parts.fs.unmount();
        for device in parts.revocable.iter().flatten() {
            device.revoke();
        }
        *ended_well = Some(unmounted.is_ok());
        unmounted.map_err(|error| Error::new(&parts.name, error))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.parts.revocable.is_none() || self.ended_well.get_mut().is_some() {
            return;
        }
        if let Err(error) = self.close() {
            // Unlike `eprintln!`, this does not panic where standard error is closed.
            let _ = writeln!(
                std::io::stderr(),
                "platter: {error}: changes are lost; the volume was dropped, not closed"
            );
        }
    }
}

impl Volume {
    /// A volume of a filesystem that is mounted already, and that its mounter unmounts; `name` is what
    /// errors call it.
    pub fn new(name: impl Into<Arc<str>>, fs: Arc<dyn Filesystem>) -> Self {
        VolumeParts::new(name, fs).volume()
    }

    /// Writes all changes to the image, marks the filesystem clean and releases the image. Clones and
    /// [`File`]s that are still there fail with [`Cause::Closed`] from then on.
    ///
    /// # Errors
    /// Those of the device; the next mount recovers the filesystem then. [`Cause::Closed`] after a clone that
    /// could not be closed, or whose filesystem was taken. [`Cause::Busy`] for the volume of an
    /// [`Edit`](crate::Edit), which is committed instead.
    pub fn close(self) -> Result<()> {
        if self.shared.parts.ended.is_some() {
            return Err(Error::new(self.name(), Cause::Busy));
        }
        self.shared.close()
    }

    /// The filesystem alone, which the caller unmounts: it outlives the volume, whose clones and [`File`]s
    /// fail with [`Cause::Closed`] from then on.
    #[must_use]
    pub fn into_filesystem(self) -> Arc<dyn Filesystem> {
        self.shared.ended_well.lock().get_or_insert(false);
        self.shared.closed.store(true, Ordering::Release);
        Arc::clone(self.filesystem())
    }

    /// Returns the same volume, on which new files belong to this user, without the permission bits of `umask`.
    #[must_use]
    pub fn acting_as(&self, credentials: Credentials, umask: u32) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            context: Arc::new(Context { credentials, umask }),
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Refuses what has no image any more.
    pub(crate) fn check_live(&self) -> Result<(), Cause> {
        match &self.shared.parts.ended {
            Some(ended) if ended.load(Ordering::Relaxed) => Err(Cause::Ended),
            _ if self.shared.closed.load(Ordering::Relaxed) => Err(Cause::Closed),
            _ => Ok(()),
        }
    }

    /// The number of requests that have reached the image, if it was opened to count them.
    #[must_use]
    pub fn request_counts(&self) -> Option<Counts> {
        self.shared.parts.counting.as_ref().map(Counting::counts)
    }

    /// The name of the volume in errors: the image and the partition, escaped.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.shared.parts.name
    }

    /// The filesystem below, for what has no path, such as inode numbers. It ends with the volume.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<dyn Filesystem> {
        &self.shared.parts.fs
    }

    /// The devices below, as far as they are known, in the order in which they were given.
    #[must_use]
    pub fn devices(&self) -> &[Arc<dyn BlockDevice>] {
        &self.shared.parts.devices
    }

    /// The open image file below, if it is known.
    #[must_use]
    pub fn image_file(&self) -> Option<&Arc<FileDevice>> {
        self.shared.parts.file.as_ref()
    }

    /// Whether the filesystem lies in this open file or block device of the host, be it in a part of it: to write
    /// there overwrites what is read here.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn lies_in(&self, file: impl AsFd) -> std::io::Result<bool> {
        Ok(HostFileId::of_open(file)?.changes(self.host_files()))
    }

    /// The files of the host below all devices, as far as they are known.
    pub(crate) fn host_files(&self) -> &[HostFileId] {
        &self.shared.parts.host_files
    }

    /// Returns the description of the filesystem: its label, UUID, sizes and features.
    #[must_use]
    pub fn describe(&self) -> Description {
        self.filesystem().describe()
    }

    /// Returns the total and free blocks and inodes (`statfs(2)`).
    pub fn stat_fs(&self) -> Result<StatFs> {
        let stat = self.filesystem().stat_fs();
        stat.map_err(|error| Error::new(self.name(), error))
    }

    /// Opens the file that `path` names, following symbolic links.
    pub fn open(&self, path: impl AsPath) -> Result<File> {
        let path = path.path_bytes();
        let inode = self.walker().resolve(or_root(path));
        self.file(path, inode)
    }

    /// Opens what `path` names, and a symbolic link itself.
    pub fn open_no_follow(&self, path: impl AsPath) -> Result<File> {
        let path = path.path_bytes();
        let inode = self.walker().resolve_no_follow(or_root(path));
        self.file(path, inode)
    }

    /// The attributes of what `path` names, following symbolic links.
    pub fn metadata(&self, path: impl AsPath) -> Result<Metadata> {
        Ok(self.open(path)?.attr()?.into())
    }

    /// The attributes of what `path` names, or of the symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsPath) -> Result<Metadata> {
        Ok(self.open_no_follow(path)?.attr()?.into())
    }

    /// The entries of a directory but `.` and `..`, in the filesystem's order.
    ///
    /// # Errors
    /// `NotDirectory` for what is none; those of the listing come from the iterator.
    pub fn read_dir(&self, path: impl AsPath) -> Result<ReadDir> {
        let dir = self.open(path)?;
        if dir.attr()?.kind != FileKind::Directory {
            return Err(dir.error(Condition::NotDirectory));
        }
        Ok(ReadDir::new(dir))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsPath) -> Result<Vec<u8>> {
        self.open_no_follow(path)?.read_link()
    }

    /// Writes the read-only subvolume at `path` to `out` as a send stream, which `btrfs receive` and
    /// [`receive`](Self::receive) make a subvolume of.
    ///
    /// # Errors
    /// `NotSupported` where the filesystem has no subvolumes, `InvalidArgument` for a path that is not one's root,
    /// `NotPermitted` for one that is not read-only.
    pub fn send(
        &self,
        path: impl AsPath,
        request: &SendRequest,
        out: &mut dyn Write,
    ) -> Result<()> {
        streams::send(self, path.path_bytes(), request, out)
    }

    /// Receives the subvolumes of send streams into the directory `dir`. Each is read-only and durable when it is
    /// complete; after an error, the one that was begun is deleted.
    ///
    /// # Errors
    /// `NotSupported` where the filesystem has no subvolumes, `NotFound` where a subvolume is not there that
    /// a stream was made from.
    pub fn receive(&self, dir: impl AsPath, input: &mut dyn Read) -> Result<Vec<Received>> {
        streams::receive(self, dir.path_bytes(), input)
    }

    /// Makes everything done so far durable.
    pub fn sync(&self) -> Result<()> {
        self.of_all(|| self.filesystem().sync())
    }

    /// Makes everything done so far durable, and has changes wait until it is [thawed](Self::thaw). Nothing on
    /// the devices is to be recovered meanwhile: they can be copied.
    ///
    /// # Errors
    /// `Busy` where it is frozen; `ReadOnly` where nothing is written.
    pub fn freeze(&self) -> Result<()> {
        self.of_all(|| self.filesystem().freeze())
    }

    /// Has changes go on. Closing the volume does, too.
    ///
    /// # Errors
    /// `InvalidArgument` where it is not frozen.
    pub fn thaw(&self) -> Result<()> {
        self.of_all(|| self.filesystem().thaw())
    }

    fn of_all(&self, call: impl FnOnce() -> platter_vfs::Result<()>) -> Result<()> {
        self.check_live().map_err(|cause| self.error(b"", cause))?;
        call().map_err(|error| Error::new(self.name(), error))
    }

    /// Where directory entries come from; `contents` says that their contents will be read.
    pub(crate) fn entry_source(&self, contents: bool) -> EntrySource<'_> {
        EntrySource {
            fs: &**self.filesystem(),
            devices: self.devices(),
            gathering: &self.shared.parts.gathering,
            contents,
        }
    }

    pub(crate) fn walker(&self) -> PathWalk<'_> {
        PathWalk::new(&**self.filesystem()).with_long_paths()
    }

    pub(crate) fn error(&self, path: &[u8], cause: impl Into<Cause>) -> Error {
        Error::at_path(self.name(), path, cause)
    }

    pub(crate) fn named<T>(&self, path: &[u8], result: platter_vfs::Result<T>) -> Result<T> {
        // After the fact, since it may be closed meanwhile.
        self.check_live().map_err(|cause| self.error(path, cause))?;
        result.map_err(|error| self.error(path, error))
    }

    pub(crate) fn file(
        &self,
        path: &[u8],
        inode: platter_vfs::Result<Arc<dyn Inode>>,
    ) -> Result<File> {
        self.check_live()
            .map_err(|cause| Error::at_path(self.name(), path, cause))?;
        match inode {
            Ok(inode) => Ok(File::new(self, path, inode)),
            Err(error) => Err(Error::at_path(self.name(), path, error)),
        }
    }

    /// Where the last component of a path is; `otherwise` is what its absence means.
    pub(crate) fn place(&self, path: &[u8], otherwise: Condition) -> Result<Place> {
        let located = self.walker().resolve_parent(path);
        let located = self.named(path, located)?;
        match located.last {
            LastComponent::Name(name) => Ok(Place {
                dir: located.parent,
                name,
                is_directory: located.trailing_slash,
                path: path.to_vec(),
            }),
            LastComponent::Dot | LastComponent::DotDot | LastComponent::Root => {
                Err(self.error(path, platter_vfs::Error::from(otherwise)))
            }
        }
    }

    /// The directory that a path names, if it names one.
    pub(crate) fn directory(&self, path: &[u8]) -> Option<Arc<dyn Inode>> {
        let inode = self.walker().resolve(path).ok()?;
        let is_directory = inode.attr().ok()?.kind == FileKind::Directory;
        is_directory.then_some(inode)
    }
}

/// No path is the root: `IMAGE:` reads like `IMAGE:/`.
fn or_root(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}
