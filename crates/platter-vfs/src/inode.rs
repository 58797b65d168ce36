//! The inode trait: one file of a mounted filesystem, with every operation on it.

use std::fmt::Debug;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use platter_block::lock::{Mutex, RwLock, rank};

use crate::attr::DeviceNumber;
use crate::ranges::{Deduped, Exchange, copy_through_cache};
use crate::{
    AccessTimes, Attr, Condition, Context, Defragment, Error, ExtendedFlags, FileKind, Name,
    NameBuf, Result, SetAttr, Unmade, WholeFile,
};

/// The lock of an inode (`i_rwsem`).
pub type InodeLock = RwLock<(), { rank(2, 2) }>;

/// The lock of renames from one directory to another (`s_vfs_rename_mutex`).
pub type RenameLock = Mutex<(), { rank(2, 1) }>;

/// Identifies an inode while the filesystem is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeId {
    /// The tree it lives in: a btrfs subvolume; 0 where the format has one inode table.
    pub tree: u64,
    /// Its number in that tree.
    pub number: u64,
}

/// A position in a directory that stays valid while the directory changes, as POSIX asks of
/// `telldir`. The driver gives it meaning; [`DirCursor::START`] is before the first entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirCursor(pub u64);

impl DirCursor {
    /// Before the first entry.
    pub const START: Self = Self(0);
}

/// One name in a directory. `.` and `..` are reported like any other.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: Name<'a>,
    /// What it names.
    pub id: InodeId,
    /// The type that the entry stores; `None` where only the inode has it.
    pub kind: Option<FileKind>,
    /// Where to go on after this entry.
    pub next: DirCursor,
}

/// Takes directory entries until it breaks.
pub type DirSink<'a> = dyn FnMut(DirEntry<'_>) -> ControlFlow<()> + 'a;

/// Where data lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Which device of the filesystem, in the order in which it was given them; the image itself is 0.
    pub member: u16,
    /// First byte on that device.
    pub offset: u64,
}

/// A run of file bytes with one kind of backing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags of FIEMAP, which are independent"
)]
pub struct Extent {
    /// Bytes of the file.
    pub file: Range<u64>,
    /// Where its first byte lies: of several copies, the first; `None` where it is not known or lies
    /// inside metadata.
    pub place: Option<Place>,
    /// Where it begins in the space that its filesystem allocates: of a btrfs its logical addresses, as if they were
    /// of the first member (`fe_physical` of `FIEMAP`); of others what `place` is. Extents that share space have bytes
    /// of that in common.
    pub physical: Option<Place>,
    /// Compressed or encrypted: `place` is where the whole encoded extent begins, which is no longer than
    /// the file's bytes (`FIEMAP_EXTENT_ENCODED`).
    pub encoded: bool,
    /// Kept inside metadata (`FIEMAP_EXTENT_DATA_INLINE`).
    pub inline: bool,
    /// Space is taken, but it reads as zeros.
    pub unwritten: bool,
    /// Delayed allocation: space is reserved, but not yet allocated.
    pub delayed: bool,
    /// More than one file uses the space.
    pub shared: bool,
}

impl Extent {
    /// Written data of these bytes, at no known place.
    #[must_use]
    pub fn of(file: Range<u64>) -> Self {
        Self {
            file,
            place: None,
            physical: None,
            encoded: false,
            inline: false,
            unwritten: false,
            delayed: false,
            shared: false,
        }
    }
}

/// Takes extents until it breaks.
pub type ExtentSink<'a> = dyn FnMut(Extent) -> ControlFlow<()> + 'a;

/// What [`Inode::seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// What to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A character device.
    CharDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl CreateKind {
    /// What `RENAME_WHITEOUT` leaves: a character device with the number 0.
    pub const WHITEOUT: Self = Self::CharDevice(DeviceNumber { major: 0, minor: 0 });

    /// Returns the kind of the file.
    #[must_use]
    pub const fn file_kind(&self) -> FileKind {
        match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::CharDevice(_) => FileKind::CharDevice,
            Self::BlockDevice(_) => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }
}

/// The flags of `renameat2(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace the target if there is one.
    #[default]
    Replace,
    /// `RENAME_NOREPLACE`.
    NoReplace,
    /// `RENAME_EXCHANGE`.
    Exchange,
    /// `RENAME_WHITEOUT`: leave a whiteout where the source was.
    Whiteout,
}

/// The flags of `setxattr(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// Create or replace.
    #[default]
    Set,
    /// `XATTR_CREATE`.
    Create,
    /// `XATTR_REPLACE`.
    Replace,
}

/// The modes of `fallocate(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Take space; `keep_size` leaves the size as it is.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// `FALLOC_FL_PUNCH_HOLE`.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`.
    ZeroRange {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// `FALLOC_FL_COLLAPSE_RANGE`.
    CollapseRange,
    /// `FALLOC_FL_INSERT_RANGE`.
    InsertRange,
    /// `FALLOC_FL_UNSHARE_RANGE`: take space, also in the place of blocks that other files use as well.
    UnshareRange {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}

/// What is written of data that there is not enough space for is cut no finer.
const PIECE_BYTES_MIN: usize = 1 << 10;

/// How far a write goes before it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteTo {
    /// Into the cache, but for long ones.
    Cache,
    /// To the device (`O_DIRECT`).
    Device,
}

fn read_only<T>() -> Result<T> {
    Err(Condition::ReadOnly.into())
}

/// One file. There is one object per inode while anyone uses it; it is shared by all users and
/// does its own locking, so operations on different inodes run in parallel.
///
/// No permission is checked here: that is [`credentials`](crate::credentials)' business, done by
/// callers that act for a user. The changing operations default to `ReadOnly`.
pub trait Inode: Send + Sync + Debug {
    /// Its identity.
    fn id(&self) -> InodeId;

    /// Its attributes.
    fn attr(&self) -> Result<Attr>;

    /// The file that `name` names in this directory; `.` and `..` included.
    fn lookup(&self, name: Name<'_>) -> Result<Arc<dyn Inode>>;

    /// Passes the entries after `from` to `sink`, in the driver's order, until it breaks. The
    /// directory is locked meanwhile: `sink` must not use the filesystem.
    ///
    /// What breaks a rule is left out, and the listing goes on where it can: it ends with an error
    /// then, after all that could be given. A listing that is taken up again from
    /// [`DirEntry::next`] ends no differently.
    fn read_dir(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()>;

    /// The target of a symbolic link.
    fn read_link(&self) -> Result<Vec<u8>>;

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// As [`read_at`](Self::read_at), of contents that are read from the beginning to the end once: they need not be
    /// cached.
    fn read_once(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_at(offset, buf)
    }

    /// The first data or hole at or after `offset`. The end of the file counts as a hole.
    ///
    /// # Errors
    /// `NoSuchAddress` at or beyond the end of the file, or where no data follows.
    fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64>;

    /// Passes what backs `range` of the file to `sink` in order; holes are left out.
    fn extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()>;

    /// Passes the written extents of `range` to `sink` in order. Whether they are shared need not be found out.
    fn written_extents(&self, range: Range<u64>, sink: &mut ExtentSink<'_>) -> Result<()> {
        self.extents(range, &mut |extent| {
            if extent.unwritten {
                return ControlFlow::Continue(());
            }
            sink(extent)
        })
    }

    /// The value of an attribute by its full name, such as `user.comment`.
    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>>;

    /// The full names of all attributes, in the driver's order.
    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>>;

    /// Says that a range will be read soon.
    fn will_need(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Says that the file was just read: its time of access becomes now where that is due and can be
    /// kept.
    fn note_access(&self, times: AccessTimes) -> Result<()> {
        let _ = times;
        Ok(())
    }

    /// Makes a file named `name` in this directory. `permissions` come with the umask of `context`
    /// still to be applied, since a default ACL replaces it.
    fn create(
        &self,
        context: &Context,
        name: Name<'_>,
        kind: CreateKind,
        permissions: u32,
    ) -> Result<Arc<dyn Inode>> {
        let _ = (context, name, kind, permissions);
        read_only()
    }

    /// Makes regular files in this directory, in their order, with their final contents: for callers
    /// that make many of them. Each is made for its owner, as by [`create`](Self::create).
    fn create_whole(&self, files: &[WholeFile<'_>]) -> Result<(), Unmade> {
        for (index, file) in files.iter().enumerate() {
            let made = file.make_in(self);
            made.map_err(|error| Unmade { index, error })?;
        }
        Ok(())
    }

    /// Makes a file without a name in this directory's filesystem (`O_TMPFILE`).
    fn create_unnamed(&self, context: &Context, permissions: u32) -> Result<Arc<dyn Inode>> {
        let _ = (context, permissions);
        read_only()
    }

    /// Adds a hard link to the file `target` in this directory.
    fn link(&self, context: &Context, name: Name<'_>, target: InodeId) -> Result<()> {
        let _ = (context, name, target);
        read_only()
    }

    /// Removes a name of a file that is no directory.
    fn unlink(&self, context: &Context, name: Name<'_>) -> Result<()> {
        let _ = (context, name);
        read_only()
    }

    /// Removes an empty directory.
    fn remove_dir(&self, context: &Context, name: Name<'_>) -> Result<()> {
        let _ = (context, name);
        read_only()
    }

    /// Moves `name` of this directory to `new_name` of the directory `new_parent`.
    fn rename(
        &self,
        context: &Context,
        name: Name<'_>,
        new_parent: InodeId,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let _ = (context, name, new_parent, new_name, mode);
        read_only()
    }

    /// Changes attributes; all of `changes` or nothing. Returns the attributes afterwards.
    fn set_attr(&self, context: &Context, changes: &SetAttr) -> Result<Attr> {
        let _ = (context, changes);
        read_only()
    }

    /// Writes all of `data`, or fails.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _ = (offset, data);
        read_only()
    }

    /// Writes all of `data` at the end of the file (`O_APPEND`). Returns the new end.
    fn append(&self, data: &[u8]) -> Result<u64> {
        let end = self.attr()?.size_bytes;
        self.write_at(end, data)?;
        Ok(end.saturating_add(data.len() as u64))
    }

    /// As [`write_at`](Self::write_at), but returns when the device has the data (`O_DIRECT`), where the
    /// driver can do that. What leads to it need not be durable.
    fn write_through(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(offset, data)
    }

    /// Writes `data`, or as much of its beginning as there is space for. Returns how many bytes.
    ///
    /// # Errors
    /// Why nothing was written.
    fn write_some(&self, offset: u64, data: &[u8], to: WriteTo) -> Result<usize> {
        let write = |data: &[u8], done: usize| {
            let at = offset.saturating_add(done as u64);
            match to {
                WriteTo::Cache => self.write_at(at, data),
                WriteTo::Device => self.write_through(at, data),
            }
        };
        let refused = match write(data, 0) {
            Ok(()) => return Ok(data.len()),
            Err(error) => error,
        };
        let is_full = |error: &Error| {
            let Error::Condition(condition) = error else {
                return false;
            };
            matches!(condition, Condition::NoSpace | Condition::QuotaExceeded)
        };
        let (mut done, mut piece) = (0, data.len().next_power_of_two() / 2);
        while is_full(&refused) && piece >= PIECE_BYTES_MIN {
            let end = data.len().min(done + piece);
            match write(&data[done..end], done) {
                Ok(()) if end == data.len() => return Ok(end),
                Ok(()) => done = end,
                Err(error) if is_full(&error) => piece /= 2,
                Err(_) => break,
            }
        }
        if done > 0 { Ok(done) } else { Err(refused) }
    }

    /// Says that a user that had the file open for writing closed it: what was allocated beyond its end for what
    /// might follow may be freed.
    fn closed(&self) {}

    /// Takes, frees or moves space.
    fn fallocate(&self, range: Range<u64>, mode: FallocateMode) -> Result<()> {
        let _ = (range, mode);
        read_only()
    }

    /// What `FS_IOC_FSGETXATTR` shows besides [`attr`](Self::attr).
    fn extended_flags(&self) -> Result<ExtendedFlags> {
        Ok(ExtendedFlags::default())
    }

    /// Copies `range` of the file `source` to `to` in this one, as `copy_file_range(2)` does: by
    /// sharing extents where the format can. Returns how many bytes, which may be fewer; 0 is the end of
    /// the source.
    ///
    /// # Errors
    /// `InvalidArgument` where the ranges are of one file and overlap.
    fn copy_range(&self, source: &dyn Inode, range: Range<u64>, to: u64) -> Result<u64> {
        copy_through_cache(self, source, range, to)
    }

    /// Has this file share the extents of `range` of the file `source`, at `to`, instead of what it has
    /// there (`FICLONERANGE`).
    ///
    /// # Errors
    /// `NotSupported` where the format has no shared extents.
    fn clone_range(&self, source: &dyn Inode, range: Range<u64>, to: u64) -> Result<()> {
        let _ = (source, range, to);
        Err(Condition::NotSupported.into())
    }

    /// As [`clone_range`](Self::clone_range), if the contents are equal (`FIDEDUPERANGE`).
    ///
    /// # Errors
    /// `NotSupported` where the format has no shared extents.
    fn dedupe_range(&self, source: &dyn Inode, range: Range<u64>, to: u64) -> Result<Deduped> {
        let _ = (source, range, to);
        Err(Condition::NotSupported.into())
    }

    /// Exchanges contents with the file `other`, as a whole or not at all (`XFS_IOC_EXCHANGE_RANGE`).
    ///
    /// # Errors
    /// `NotSupported` where the format cannot.
    fn exchange_range(&self, other: &dyn Inode, exchange: &Exchange) -> Result<()> {
        let _ = (other, exchange);
        Err(Condition::NotSupported.into())
    }

    /// Writes short extents that lie next to each other anew as longer ones, or as compressed ones if that is wanted.
    /// Contents and times stay as they are; extents that other files share are theirs alone afterwards. Returns how
    /// many bytes were written anew.
    ///
    /// # Errors
    /// `NotSupported` where the format cannot; `InvalidArgument` for a compression that it has not.
    fn defragment(&self, request: &Defragment) -> Result<u64> {
        let _ = request;
        Err(Condition::NotSupported.into())
    }

    /// Sets an attribute.
    fn set_xattr(
        &self,
        context: &Context,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _ = (context, name, value, mode);
        read_only()
    }

    /// Removes an attribute.
    fn remove_xattr(&self, context: &Context, name: &[u8]) -> Result<()> {
        let _ = (context, name);
        read_only()
    }

    /// Returns when the file's data, and the metadata needed to reach it, survive a crash;
    /// with `data_only`, times may be left out.
    fn sync(&self, data_only: bool) -> Result<()> {
        let _ = data_only;
        Ok(())
    }
}

/// An owned [`DirEntry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedDirEntry {
    /// The name.
    pub name: NameBuf,
    /// What it names.
    pub id: InodeId,
    /// The type that the entry stores.
    pub kind: Option<FileKind>,
}

/// All entries of a directory but `.` and `..`.
pub fn read_dir_all(dir: &dyn Inode) -> Result<Vec<OwnedDirEntry>> {
    let mut entries = Vec::new();
    dir.read_dir(DirCursor::START, &mut |entry| {
        if !entry.name.is_dot_or_dotdot() {
            let (name, id, kind) = (entry.name.to_owned(), entry.id, entry.kind);
            entries.push(OwnedDirEntry { name, id, kind });
        }
        ControlFlow::Continue(())
    })?;
    Ok(entries)
}
