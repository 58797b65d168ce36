//! What `stat`, `statfs` and `setattr` carry.

use crate::{Condition, Result};

/// A moment: seconds since 1970-01-01 UTC, which may be negative, and nanoseconds after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// 0 to `999_999_999`.
    pub nanoseconds: u32,
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// `S_IFREG`.
    Regular,
    /// `S_IFDIR`.
    Directory,
    /// `S_IFLNK`.
    Symlink,
    /// `S_IFCHR`.
    CharDevice,
    /// `S_IFBLK`.
    BlockDevice,
    /// `S_IFIFO`.
    Fifo,
    /// `S_IFSOCK`.
    Socket,
}

impl FileKind {
    /// The `S_IFMT` bits.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o01_0000,
            Self::CharDevice => 0o02_0000,
            Self::Directory => 0o04_0000,
            Self::BlockDevice => 0o06_0000,
            Self::Regular => 0o10_0000,
            Self::Symlink => 0o12_0000,
            Self::Socket => 0o14_0000,
        }
    }

    /// Refuses what has no contents to be read or written.
    ///
    /// # Errors
    /// `IsDirectory`, and `InvalidArgument` for anything else that is no regular file.
    pub fn refuse_without_contents(self) -> Result<()> {
        match self {
            Self::Regular => Ok(()),
            Self::Directory => Err(Condition::IsDirectory.into()),
            Self::Symlink | Self::CharDevice | Self::BlockDevice | Self::Fifo | Self::Socket => {
                Err(Condition::InvalidArgument.into())
            }
        }
    }

    /// The kind that the `S_IFMT` bits of `mode` name, if they name one.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o17_0000 {
            0o01_0000 => Self::Fifo,
            0o02_0000 => Self::CharDevice,
            0o04_0000 => Self::Directory,
            0o06_0000 => Self::BlockDevice,
            0o10_0000 => Self::Regular,
            0o12_0000 => Self::Symlink,
            0o14_0000 => Self::Socket,
            _ => return None,
        })
    }
}

/// A device number as Linux counts: 12 bits major and 20 bits minor on all formats known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceNumber {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// The attributes of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// The inode number to show, which is unique in the filesystem
    /// ([`shown_number`](crate::Filesystem::shown_number)).
    pub inode: u64,
    /// Distinguishes an inode from earlier ones with its number.
    pub generation: u64,
    /// The type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky: `mode & 0o7777`.
    pub permissions: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project, where the format has one.
    pub project: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Space allocated on disk, in units of 512 bytes.
    pub sectors: u64,
    /// `sectors` may change although the file does not: space that is reserved becomes more or less when it is
    /// allocated, and space beyond the end of the file is freed later.
    pub space_is_estimated: bool,
    /// The preferred unit of I/O in bytes.
    pub io_block_bytes: u32,
    /// Device number of a character or block device.
    pub device: DeviceNumber,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the contents or attributes.
    pub changed: Timestamp,
    /// Creation, where the format keeps it.
    pub created: Option<Timestamp>,
    /// The inode's flags as `FS_IOC_GETFLAGS` and `chattr` know them.
    pub flags: u32,
}

impl Attr {
    /// The type and permission bits together, as `st_mode`.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.permissions
    }
}

/// What only `FS_IOC_FSGETXATTR` shows of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtendedFlags {
    /// `FS_XFLAG_*` that have no counterpart among [`Attr::flags`].
    pub xflags: u32,
    /// `fsx_extsize`: the extent size hint in bytes.
    pub extent_size_bytes: u32,
    /// `fsx_nextents`: the number of extents.
    pub extents: u32,
    /// `fsx_cowextsize`: the extent size hint for copies on write, in bytes.
    pub cow_extent_size_bytes: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The filesystem's now.
    Now,
    /// This moment.
    At(Timestamp),
}

impl SetTime {
    /// Returns the moment, at this time.
    #[must_use]
    pub fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::At(time) => time,
        }
    }
}

/// Which attributes to change, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// New permission bits (`mode & 0o7777`).
    pub permissions: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes: truncation or extension by a hole.
    pub size_bytes: Option<u64>,
    /// New access time.
    pub accessed: Option<SetTime>,
    /// New modification time.
    pub modified: Option<SetTime>,
    /// New change time, which only a front end whose kernel keeps times may set.
    pub changed: Option<Timestamp>,
    /// New inode flags, as `FS_IOC_SETFLAGS`.
    pub flags: Option<u32>,
    /// New project.
    pub project: Option<u32>,
    /// New `FS_XFLAG_*` that have no counterpart among the flags. Filesystems without any ignore them.
    pub xflags: Option<u32>,
    /// New extent size hint in bytes. Filesystems without extent size hints ignore it.
    pub extent_size_bytes: Option<u32>,
    /// New extent size hint for copies on write, in bytes.
    pub cow_extent_size_bytes: Option<u32>,
}

/// Space and inodes of a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// The unit of the block counts, in bytes.
    pub block_bytes: u32,
    /// Blocks for data and metadata together, without the filesystem's own overhead.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that an ordinary user may take.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// The longest name in bytes.
    pub name_len_max: u32,
    /// `f_fsid`.
    pub id: u64,
    /// `f_type`, the magic number of `statfs(2)`.
    pub magic: u32,
}
