//! The FUSE protocol, version 7.45, in the byte order of the machine.
//! Follows `linux/fuse.h`.

mod structures;
mod files;

pub(super) use self::files::{ALWAYS, attr_valid, decode_device};
pub(super) use self::structures::{
    AttrOut, BatchForgetIn, CopyFileRangeIn, CopyFileRangeOut, CreateIn, DeleteOut, Dirent,
    EntryOut, FallocateIn, FileAttr, ForgetIn, ForgetOne, FsyncIn, GetXattrIn, GetXattrOut,
    InHeader, InitIn, InitOut, InvalidateEntryOut, InvalidateOut, IoctlIn, IoctlOut, LinkIn,
    LseekIn, LseekOut, MkDirIn, MkNodIn, OpenIn, OpenOut, OutHeader, ReadIn, ReleaseIn, Rename2In,
    RenameIn, RingCommand, RingHeader, SetAttrIn, SetXattrIn, ShortSetXattrIn, StatFsOut, Statx,
    StatxOut, StatxTime, WriteIn, WriteOut,
};

/// The protocol's major version.
pub(super) const MAJOR: u32 = 7;
/// The newest supported minor version.
pub(super) const MINOR: u32 = 45;
/// The oldest supported minor version: Linux 5.4.
pub(super) const MINOR_MIN: u32 = 31;

/// Length of the header of every answer.
pub(super) const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// Maximum length of a request without the data of a write.
pub(super) const REQUEST_OVERHEAD_BYTES: usize = 4096 + 256;

macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// The operation of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Opcode {
            $($name,)*
        }

        impl Opcode {
            pub(super) fn decode(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    Symlink = 6,
    MkNod = 8,
    MkDir = 9,
    Unlink = 10,
    RmDir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    Fsync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    Init = 26,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FsyncDir = 30,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Destroy = 38,
    Ioctl = 39,
    BatchForget = 42,
    Fallocate = 43,
    ReadDirPlus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    TmpFile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

bitflags::bitflags! {
    /// Capabilities of `FUSE_INIT`; the upper half has separate fields.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const HAS_IOCTL_DIR = 1 << 11;
        const DO_READDIRPLUS = 1 << 13;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
    }

    /// The valid fields of a `SETATTR`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct SetAttrFlags: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const CTIME = 1 << 10;
    }
}

/// `FUSE_WRITE_CACHE`: the write is a writeback of cached pages.
pub(super) const WRITE_CACHE: u32 = 1 << 0;
/// `FUSE_WRITE_KILL_SUIDGID`.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_FSYNC_FDATASYNC`.
pub(super) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `FUSE_SETXATTR_ACL_KILL_SGID`.
pub(super) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FUSE_NOTIFY_INVAL_INODE`, where an answer has its errno.
pub(super) const NOTIFY_INVALIDATE: i32 = 2;
/// `FUSE_NOTIFY_INVAL_ENTRY`.
pub(super) const NOTIFY_INVALIDATE_ENTRY: i32 = 3;
/// `FUSE_EXPIRE_ONLY`, which kernels before 6.2 take for a removal: they drop the entry.
pub(super) const EXPIRE_ONLY: u32 = 1 << 0;
/// `FUSE_NOTIFY_DELETE`.
pub(super) const NOTIFY_DELETE: i32 = 6;
/// `FOPEN_KEEP_CACHE`.
pub(super) const FOPEN_KEEP_CACHE: u32 = 1 << 1;

/// `FUSE_IO_URING_CMD_REGISTER`: registers an entry of a ring, to receive a request.
pub(super) const RING_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: submits an answer, and frees the entry for the next
/// request.
pub(super) const RING_COMMIT_AND_FETCH: u32 = 2;
