//! The structures of the FUSE protocol, version 7.45, in the byte order of the machine.
//! Follows `linux/fuse.h`.

use platter_vfs::attr::DeviceNumber;
use platter_vfs::{Attr, Timestamp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version spoken.
pub(super) const MAJOR: u32 = 7;
/// The newest revision of it that is understood.
pub(super) const MINOR: u32 = 45;
/// The oldest: Linux 5.4.
pub(super) const MINOR_MIN: u32 = 31;

/// Bytes in front of every answer.
pub(super) const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// Bytes that a request has besides the data of a write, at most.
pub(super) const REQUEST_OVERHEAD_BYTES: usize = 4096 + 256;

macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// What a request asks for.
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
}

bitflags::bitflags! {
    /// What both sides can do; the upper half travels in fields of its own.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
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
        const OVER_IO_URING = 1 << 41;
    }

    /// Which fields of a `SETATTR` count.
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

/// `FUSE_WRITE_KILL_SUIDGID`.
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_FSYNC_FDATASYNC`.
pub(super) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `FUSE_SETXATTR_ACL_KILL_SGID`.
pub(super) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FUSE_NOTIFY_INVAL_INODE`, where an answer has its errno.
pub(super) const NOTIFY_INVALIDATE: i32 = 2;
/// `FOPEN_KEEP_CACHE`.
pub(super) const FOPEN_KEEP_CACHE: u32 = 1 << 1;

/// `FUSE_IO_URING_CMD_REGISTER`: an entry of a ring, to be filled with a request.
pub(super) const RING_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: an answer, and the entry free for the next request.
pub(super) const RING_COMMIT_AND_FETCH: u32 = 2;

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident[$bytes:literal] {
        $($(#[$field_meta:meta])* $field:ident: $kind:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            pub(super) struct $name {
                $($(#[$field_meta])* pub(super) $field: $kind,)*
            }

            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

structures! {
    /// In front of every request.
    InHeader[40] {
        len: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extensions_len: u16,
        unused: u16,
    }
    /// In front of every answer.
    OutHeader[16] {
        len: u32,
        /// Zero or a negative errno.
        error: i32,
        unique: u64,
    }
    InitIn[16] {
        major: u32,
        minor: u32,
        readahead_max: u32,
        flags: u32,
    }
    InitOut[64] {
        major: u32,
        minor: u32,
        readahead_max: u32,
        flags: u32,
        background_max: u16,
        congestion_threshold: u16,
        write_max: u32,
        time_granularity: u32,
        pages_max: u16,
        map_alignment: u16,
        flags_hi: u32,
        stack_depth_max: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    FileAttr[88] {
        inode: u64,
        size: u64,
        sectors: u64,
        accessed: u64,
        modified: u64,
        changed: u64,
        accessed_ns: u32,
        modified_ns: u32,
        changed_ns: u32,
        mode: u32,
        links: u32,
        uid: u32,
        gid: u32,
        device: u32,
        block_bytes: u32,
        flags: u32,
    }
    EntryOut[128] {
        node: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_ns: u32,
        attr_valid_ns: u32,
        attr: FileAttr,
    }
    AttrOut[104] {
        attr_valid: u64,
        attr_valid_ns: u32,
        unused: u32,
        attr: FileAttr,
    }
    SetAttrIn[88] {
        valid: u32,
        unused: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        accessed: u64,
        modified: u64,
        changed: u64,
        accessed_ns: u32,
        modified_ns: u32,
        changed_ns: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    MkNodIn[16] {
        mode: u32,
        device: u32,
        umask: u32,
        unused: u32,
    }
    MkDirIn[8] {
        mode: u32,
        umask: u32,
    }
    RenameIn[8] {
        new_dir: u64,
    }
    Rename2In[16] {
        new_dir: u64,
        flags: u32,
        unused: u32,
    }
    LinkIn[8] {
        node: u64,
    }
    CreateIn[16] {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    OpenOut[16] {
        handle: u64,
        open_flags: u32,
        backing: u32,
    }
    /// Of `READ`, `READDIR` and `READDIRPLUS`.
    ReadIn[40] {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    WriteIn[40] {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        unused: u32,
    }
    WriteOut[8] {
        size: u32,
        unused: u32,
    }
    StatFsOut[80] {
        blocks: u64,
        blocks_free: u64,
        blocks_available: u64,
        inodes: u64,
        inodes_free: u64,
        block_bytes: u32,
        name_len_max: u32,
        fragment_bytes: u32,
        unused: u32,
        spare: [u32; 6],
    }
    FsyncIn[16] {
        handle: u64,
        flags: u32,
        unused: u32,
    }
    /// With [`InitFlags::SETXATTR_EXT`].
    SetXattrIn[16] {
        size: u32,
        flags: u32,
        more_flags: u32,
        unused: u32,
    }
    /// Without [`InitFlags::SETXATTR_EXT`].
    ShortSetXattrIn[8] {
        size: u32,
        flags: u32,
    }
    GetXattrIn[8] {
        size: u32,
        unused: u32,
    }
    GetXattrOut[8] {
        size: u32,
        unused: u32,
    }
    IoctlIn[32] {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        in_size: u32,
        out_size: u32,
    }
    IoctlOut[16] {
        result: i32,
        flags: u32,
        in_vectors: u32,
        out_vectors: u32,
    }
    /// Behind a header with [`NOTIFY_INVALIDATE`]. Of the pages from an offset on, `len` bytes are
    /// written and dropped; with a negative offset, the attributes only.
    InvalidateOut[24] {
        node: u64,
        offset: i64,
        len: i64,
    }
    FallocateIn[32] {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
        unused: u32,
    }
    LseekIn[24] {
        handle: u64,
        offset: u64,
        whence: u32,
        unused: u32,
    }
    LseekOut[8] {
        offset: u64,
    }
    /// The name follows, filled up to 8 bytes.
    Dirent[24] {
        inode: u64,
        next: u64,
        name_len: u32,
        kind: u32,
    }
    /// The fixed part of an entry of a ring; names and contents lie in another buffer.
    RingHeader[288] {
        /// Of the request, then of the answer.
        header: [u8; 128],
        /// The structure of the request, if it has one.
        structure: [u8; 128],
        flags: u64,
        /// What to name when the answer is given.
        commit: u64,
        /// Bytes in the other buffer.
        payload_bytes: u32,
        unused: u32,
        reserved: u64,
    }
    /// What goes with a command of a ring.
    RingCommand[80] {
        flags: u64,
        commit: u64,
        queue: u16,
        padding: [u16; 3],
        unused: [u64; 7],
    }
    ForgetIn[8] {
        lookups: u64,
    }
    BatchForgetIn[8] {
        count: u32,
        unused: u32,
    }
    ForgetOne[16] {
        node: u64,
        lookups: u64,
    }
    StatxIn[24] {
        getattr_flags: u32,
        unused: u32,
        handle: u64,
        statx_flags: u32,
        mask: u32,
    }
    StatxTime[16] {
        seconds: i64,
        nanoseconds: u32,
        unused: u32,
    }
    StatxOut[288] {
        attr_valid: u64,
        attr_valid_ns: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }
    Statx[256] {
        mask: u32,
        block_bytes: u32,
        attributes: u64,
        links: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        unused: u16,
        inode: u64,
        size: u64,
        sectors: u64,
        attributes_mask: u64,
        accessed: StatxTime,
        created: StatxTime,
        changed: StatxTime,
        modified: StatxTime,
        device_major: u32,
        device_minor: u32,
        filesystem_major: u32,
        filesystem_minor: u32,
        spare: [u64; 14],
    }
}

/// `STATX_BASIC_STATS`.
const STATX_BASIC: u32 = 0x7ff;
/// `STATX_BTIME`.
const STATX_CREATED: u32 = 0x800;

impl FileAttr {
    pub(super) fn new(attr: &Attr) -> Self {
        Self {
            inode: attr.inode,
            size: attr.size_bytes,
            sectors: attr.sectors,
            accessed: attr.accessed.seconds.cast_unsigned(),
            modified: attr.modified.seconds.cast_unsigned(),
            changed: attr.changed.seconds.cast_unsigned(),
            accessed_ns: attr.accessed.nanoseconds,
            modified_ns: attr.modified.nanoseconds,
            changed_ns: attr.changed.nanoseconds,
            mode: attr.kind.mode_bits() | attr.permissions & 0o7777,
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            device: encode_device(attr.device),
            block_bytes: attr.io_block_bytes,
            flags: 0,
        }
    }
}

impl Statx {
    pub(super) fn new(attr: &Attr) -> Self {
        let created = attr.created.map_or(0, |_| STATX_CREATED);
        Self {
            mask: STATX_BASIC | created,
            block_bytes: attr.io_block_bytes,
            attributes: 0,
            links: attr.links,
            uid: attr.uid,
            gid: attr.gid,
            mode: u16::try_from(attr.kind.mode_bits() | attr.permissions & 0o7777).unwrap_or(0),
            unused: 0,
            inode: attr.inode,
            size: attr.size_bytes,
            sectors: attr.sectors,
            attributes_mask: 0,
            accessed: StatxTime::new(attr.accessed),
            created: StatxTime::new(attr.created.unwrap_or_default()),
            changed: StatxTime::new(attr.changed),
            modified: StatxTime::new(attr.modified),
            device_major: attr.device.major,
            device_minor: attr.device.minor,
            filesystem_major: 0,
            filesystem_minor: 0,
            spare: [0; 14],
        }
    }
}

impl StatxTime {
    fn new(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
            unused: 0,
        }
    }
}

/// A device number in the 32 bits of the protocol: the minor's upper bits lie above the major.
pub(super) fn encode_device(device: DeviceNumber) -> u32 {
    let DeviceNumber { major, minor } = device;
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// The inverse of [`encode_device`].
pub(super) fn decode_device(encoded: u32) -> DeviceNumber {
    DeviceNumber {
        major: (encoded >> 8) & 0xfff,
        minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(8, 1), (0, 0), (259, 70_000), (0xfff, 0xf_ffff)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(decode_device(encode_device(device)), device);
        }
        let disk = DeviceNumber { major: 8, minor: 1 };
        assert_eq!(encode_device(disk), 0x801);
    }
}
