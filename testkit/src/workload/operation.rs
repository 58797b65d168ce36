//! One operation by path, as a program would ask for it.

use std::ops::Range;

use platter_vfs::{CreateKind, FallocateMode, Filesystem, RenameMode, Result};

use super::session::Session;
use crate::prng::Prng;

/// Bytes to write: where, how many, and what makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fill {
    /// First byte in the file.
    pub offset: u64,
    /// How many.
    pub len: usize,
    /// Equal seeds give equal bytes. Those of an odd one can be compressed, those of an even one cannot.
    pub seed: u64,
}

/// In bytes that can be compressed, so many are repeated until the next `UNIT_BYTES` begin.
const REPEATED_BYTES: usize = 16;
/// No longer than what a power failure writes whole: each sector shows which write it is of.
const UNIT_BYTES: usize = 512;

impl Fill {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut prng = Prng::new(self.seed);
        if self.seed.is_multiple_of(2) {
            return prng.bytes(self.len);
        }
        let mut bytes = Vec::with_capacity(self.len + UNIT_BYTES);
        while bytes.len() < self.len {
            bytes.extend(
                prng.bytes(REPEATED_BYTES)
                    .repeat(UNIT_BYTES / REPEATED_BYTES),
            );
        }
        bytes.truncate(self.len);
        bytes
    }
}

/// Bytes of one file, and where they go in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The file they are taken from.
    pub from: String,
    /// Which they are.
    pub range: Range<u64>,
    /// The file they go to.
    pub to: String,
    /// The first byte in it.
    pub offset: u64,
}

/// What is done. Paths go from the root, without a leading slash; the root's is empty. `#7` is the
/// file that is kept open as number 7, whether it has a name or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Makes a file of any kind.
    Create(String, CreateKind, u32),
    /// Makes a regular file without a name in a directory's filesystem, and keeps it open as that
    /// number (`O_TMPFILE`).
    CreateUnnamed(String, u32),
    /// Keeps a file open as that number.
    Open(String, u32),
    /// Closes a file that was kept open.
    Close(u32),
    /// Writes into a file.
    Write(String, Fill),
    /// Sets the size of a file.
    Truncate(String, u64),
    /// Takes, frees or moves space of a file.
    Fallocate(String, Range<u64>, FallocateMode),
    /// Copies bytes between files, or within one (`copy_file_range`).
    CopyRange(Span),
    /// Shares blocks of a file with another (`FICLONERANGE`).
    CloneRange(Span),
    /// Shares blocks of equal contents (`FIDEDUPERANGE`).
    DedupeRange(Span),
    /// Exchanges the contents of two files.
    Exchange(String, String),
    /// Creates an empty subvolume.
    CreateSubvolume(String),
    /// Creates a snapshot of a subvolume.
    Snapshot(String, String),
    /// Deletes a subvolume with what is in it.
    DeleteSubvolume(String),
    /// Moves a name.
    Rename(String, String, RenameMode),
    /// Links a file, possibly one without a name.
    Link(String, String),
    /// Removes a name.
    Unlink(String),
    /// Removes a directory.
    RemoveDir(String),
    /// Sets an attribute to a value of that many bytes.
    SetXattr(String, &'static str, Fill),
    /// Removes an attribute.
    RemoveXattr(String, &'static str),
    /// Sets the permission bits.
    SetPermissions(String, u32),
    /// Sets owner and group.
    SetOwner(String, u32, u32),
    /// `fsync`, or `fdatasync`.
    Fsync(String, bool),
    /// `sync` of everything.
    Sync,
}

impl Operation {
    /// Does it where no file is kept open, for the superuser.
    pub fn apply(&self, fs: &dyn Filesystem) -> Result<()> {
        Session::new(fs).apply(self)
    }

    /// Whether its return is a durability guarantee.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        matches!(self, Self::Sync | Self::Fsync(..))
    }

    /// The paths whose files, and whose directories, it changes more than the contents of.
    pub(super) fn touched_paths(&self) -> Vec<&str> {
        match self {
            Self::Create(path, ..)
            | Self::Unlink(path)
            | Self::RemoveDir(path)
            | Self::CreateSubvolume(path)
            | Self::Snapshot(_, path)
            | Self::DeleteSubvolume(path) => vec![path, parent_of(path)],
            Self::Rename(from, to, _) => vec![from, parent_of(from), to, parent_of(to)],
            Self::Link(from, to) => vec![from, to, parent_of(to)],
            Self::SetXattr(path, ..)
            | Self::RemoveXattr(path, _)
            | Self::SetPermissions(path, _)
            | Self::SetOwner(path, ..) => vec![path],
            Self::CreateUnnamed(..)
            | Self::Open(..)
            | Self::Close(_)
            | Self::Write(..)
            | Self::Truncate(..)
            | Self::Fallocate(..)
            | Self::CopyRange(_)
            | Self::CloneRange(_)
            | Self::DedupeRange(_)
            | Self::Exchange(..)
            | Self::Fsync(..)
            | Self::Sync => Vec::new(),
        }
    }
}

/// The path that means the file kept open as `number`.
pub(super) fn open_path(number: u32) -> String {
    format!("#{number}")
}

/// The number of the open file that a path means, if it means one.
pub(super) fn open_number(path: &str) -> Option<u32> {
    path.strip_prefix('#')?.parse().ok()
}

/// The path of the directory that holds a path's last name.
pub(super) fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}
