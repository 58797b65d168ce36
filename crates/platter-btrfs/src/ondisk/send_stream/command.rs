//! The commands of a stream.

use platter_ondisk::Uuid;
use platter_vfs::attr::DeviceNumber;
use platter_vfs::{FileKind, Timestamp};

use crate::ondisk::file_extent::Compression;
use crate::ondisk::types::Generation;

/// A subvolume as a stream knows it: by its UUID at the sender, or by that of what was received into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The UUID.
    pub uuid: Uuid,
    /// The transaction that changed it last (`ctransid`).
    pub generation: Generation,
}

/// How well a subvolume matches a [`Source`]: whether it was received from that, and not is that itself; whether it is
/// as it was in that transaction; whether it is read-only.
pub type SourceRank = (bool, bool, bool);

impl Source {
    /// How well a subvolume matches, known by itself and by what was received into it. The greatest is the best; `None`
    /// if it does not match.
    #[must_use]
    pub fn rank(&self, own: &Self, received: &Self, is_read_only: bool) -> Option<SourceRank> {
        let was_received = received.uuid == self.uuid;
        let is_it = own.uuid == self.uuid;
        if self.uuid.is_nil() || !(was_received || is_it) {
            return None;
        }
        let found = if was_received { received } else { own };
        let is_same = found.generation == self.generation;
        Some((was_received, is_same, is_read_only))
    }
}

/// The times of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the contents or attributes.
    pub changed: Timestamp,
    /// Creation, in streams from version 2 on.
    pub created: Option<Timestamp>,
}

/// The form of encoded data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodedForm {
    /// The compression.
    pub compression: Compression,
    /// Of LZO, the size of a sector.
    pub sector_bytes: u32,
}

/// Encoded data, and the part of it that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodedData<'a> {
    /// How much of the file is written.
    pub file_bytes: u64,
    /// The length of all data when it is decoded.
    pub ram_bytes: u64,
    /// Where what is written begins in that.
    pub offset: u64,
    /// The number of the compression.
    pub compression: u32,
    /// The number of the encryption.
    pub encryption: u32,
    /// The data.
    pub data: &'a [u8],
}

/// The lowest number of an LZO form, with sectors of 4 KiB; each further one has twice that.
const LZO_FIRST: u32 = 3;
/// The highest, with sectors of 64 KiB.
const LZO_LAST: u32 = 7;
/// The smallest sector.
const SECTOR_BYTES_MIN: u32 = 4096;

impl EncodedForm {
    /// The form of this number; `None` if it is not known.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        let (compression, sector_bytes) = match number {
            0 => (Compression::None, SECTOR_BYTES_MIN),
            1 => (Compression::Zlib, SECTOR_BYTES_MIN),
            2 => (Compression::Zstd, SECTOR_BYTES_MIN),
            LZO_FIRST..=LZO_LAST => {
                let doubled = number.saturating_sub(LZO_FIRST);
                (Compression::Lzo, SECTOR_BYTES_MIN << doubled)
            }
            _ => return None,
        };
        Some(Self {
            compression,
            sector_bytes,
        })
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self.compression {
            Compression::None => 0,
            Compression::Zlib => 1,
            Compression::Zstd => 2,
            Compression::Lzo => {
                let bits = self.sector_bytes.max(SECTOR_BYTES_MIN).trailing_zeros();
                let first = SECTOR_BYTES_MIN.trailing_zeros();
                LZO_FIRST
                    .saturating_add(bits.saturating_sub(first))
                    .min(LZO_LAST)
            }
        }
    }
}

/// A command. Paths are relative to the root of the subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "fields are named as the attributes of the format"
)]
pub enum Command<'a> {
    /// Create a subvolume; what follows is in it.
    Subvolume { path: &'a [u8], source: Source },
    /// Create a snapshot of the subvolume that was received from `parent`; what follows changes it.
    Snapshot {
        path: &'a [u8],
        source: Source,
        parent: Source,
    },
    /// Create a regular file.
    MakeFile { path: &'a [u8], inode: u64 },
    /// Create a directory.
    MakeDir { path: &'a [u8], inode: u64 },
    /// Create a special file: a device, a FIFO or a socket.
    MakeNode {
        path: &'a [u8],
        inode: u64,
        kind: FileKind,
        permissions: u32,
        device: DeviceNumber,
    },
    /// Create a symbolic link.
    Symlink {
        path: &'a [u8],
        inode: u64,
        target: &'a [u8],
    },
    /// Rename a file.
    Rename { path: &'a [u8], to: &'a [u8] },
    /// Give the file `existing` another name.
    Link { path: &'a [u8], existing: &'a [u8] },
    /// Remove a name.
    Unlink { path: &'a [u8] },
    /// Remove an empty directory.
    RemoveDir { path: &'a [u8] },
    /// Set an extended attribute.
    SetXattr {
        path: &'a [u8],
        name: &'a [u8],
        value: &'a [u8],
    },
    /// Remove an extended attribute.
    RemoveXattr { path: &'a [u8], name: &'a [u8] },
    /// Write data.
    Write {
        path: &'a [u8],
        offset: u64,
        data: &'a [u8],
    },
    /// Share extents of another file, or write what it has.
    Clone {
        path: &'a [u8],
        offset: u64,
        len_bytes: u64,
        source: Source,
        source_path: &'a [u8],
        source_offset: u64,
    },
    /// Set the size.
    Truncate { path: &'a [u8], size_bytes: u64 },
    /// Set the permission bits.
    Chmod { path: &'a [u8], permissions: u32 },
    /// Set owner and group.
    Chown { path: &'a [u8], uid: u32, gid: u32 },
    /// Set the times.
    SetTimes { path: &'a [u8], times: Times },
    /// The subvolume is complete.
    End,
    /// Data changed, which is not in the stream.
    UpdateExtent {
        path: &'a [u8],
        offset: u64,
        len_bytes: u64,
    },
    /// Take or free space, with the mode of `fallocate(2)`.
    Fallocate {
        path: &'a [u8],
        mode: u32,
        offset: u64,
        len_bytes: u64,
    },
    /// Set the flags of the inode item.
    SetFlags { path: &'a [u8], flags: u64 },
    /// Write compressed data.
    EncodedWrite {
        path: &'a [u8],
        offset: u64,
        encoded: EncodedData<'a>,
    },
    /// A command of a number that is not known.
    Unknown { kind: u16 },
}

/// Numbers of commands.
pub(super) mod kind {
    pub(in crate::ondisk::send_stream) const SUBVOL: u16 = 1;
    pub(in crate::ondisk::send_stream) const SNAPSHOT: u16 = 2;
    pub(in crate::ondisk::send_stream) const MKFILE: u16 = 3;
    pub(in crate::ondisk::send_stream) const MKDIR: u16 = 4;
    pub(in crate::ondisk::send_stream) const MKNOD: u16 = 5;
    pub(in crate::ondisk::send_stream) const MKFIFO: u16 = 6;
    pub(in crate::ondisk::send_stream) const MKSOCK: u16 = 7;
    pub(in crate::ondisk::send_stream) const SYMLINK: u16 = 8;
    pub(in crate::ondisk::send_stream) const RENAME: u16 = 9;
    pub(in crate::ondisk::send_stream) const LINK: u16 = 10;
    pub(in crate::ondisk::send_stream) const UNLINK: u16 = 11;
    pub(in crate::ondisk::send_stream) const RMDIR: u16 = 12;
    pub(in crate::ondisk::send_stream) const SET_XATTR: u16 = 13;
    pub(in crate::ondisk::send_stream) const REMOVE_XATTR: u16 = 14;
    pub(in crate::ondisk::send_stream) const WRITE: u16 = 15;
    pub(in crate::ondisk::send_stream) const CLONE: u16 = 16;
    pub(in crate::ondisk::send_stream) const TRUNCATE: u16 = 17;
    pub(in crate::ondisk::send_stream) const CHMOD: u16 = 18;
    pub(in crate::ondisk::send_stream) const CHOWN: u16 = 19;
    pub(in crate::ondisk::send_stream) const UTIMES: u16 = 20;
    pub(in crate::ondisk::send_stream) const END: u16 = 21;
    pub(in crate::ondisk::send_stream) const UPDATE_EXTENT: u16 = 22;
    pub(in crate::ondisk::send_stream) const FALLOCATE: u16 = 23;
    pub(in crate::ondisk::send_stream) const FILEATTR: u16 = 24;
    pub(in crate::ondisk::send_stream) const ENCODED_WRITE: u16 = 25;
}
