//! The facade's error: which image, which path in it, and what went wrong, in one line.

use std::fmt;
use std::io;
use std::sync::Arc;

use platter_block::partition::{Corruption, Fault};
use platter_block::{IoError, Operation};
use platter_vfs::Condition;
use platter_vfs::error::code_of_errno;
use rustix::io::Errno;

use crate::options::{MountOption, OptionError};
use crate::spec::SpecError;
use crate::{Escaped, Format};

/// What an [error of a dead mount](is_of_dead_mount) means: a mount of FUSE lost its server.
pub const DEAD_MOUNT: &str = "the server of what is mounted there was killed; unmount it";

/// Whether `error`, of a path of the host, comes from a mount of FUSE without a server: `ENOTCONN`, or `ECONNABORTED` of a
/// request that waited while the connection was torn down.
#[must_use]
pub fn is_of_dead_mount(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The result of a facade operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the facade: what went wrong, and in which image and file.
///
/// Shown as `IMAGE[@PARTITION][:PATH]: CAUSE`, escaped so that it stays one printable line.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Error {
    /// The image and partition, already escaped; empty where no image is concerned.
    pub image: Arc<str>,
    /// The path in the filesystem, where one is concerned.
    pub path: Option<Vec<u8>>,
    /// What went wrong.
    pub cause: Cause,
}

/// The cause of an [`Error`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The filesystem's own answer.
    #[error(transparent)]
    Filesystem(#[from] platter_vfs::Error),
    /// The text names no image.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The image is something no driver serves.
    #[error("holds {format}, which is not supported{}", .format.advice().map_or(String::new(), |advice| format!(": {advice}")))]
    UnsupportedFormat {
        /// What it is.
        format: Format,
    },
    /// Nothing known was found.
    #[error("no filesystem and no partition table was recognised")]
    Unrecognised,
    /// Nothing known was found, but for a copy of a superblock.
    #[error(
        "no filesystem was recognised, but a valid copy of its superblock: try --superblock {kib}"
    )]
    SuperblockGone {
        /// Where the copy is, in units of 1 KiB.
        kib: u64,
    },
    /// The superblock, or a structure next to it, is corrupt, and a copy of it is not.
    #[error("{error}; there is a valid copy: try --superblock {kib}")]
    SuperblockCorrupt {
        /// What is wrong with the first one.
        error: platter_vfs::Error,
        /// Where the copy is, in units of 1 KiB.
        kib: u64,
    },
    /// The image is a partitioned disk, and no partition was asked for.
    #[error("is a partitioned disk; name a partition as in {example}: {partitions}")]
    Partitioned {
        /// The image with a partition that can be opened, if there is one.
        example: String,
        /// The partitions and what they hold, in a few words.
        partitions: String,
    },
    /// A partition was asked for, and there is no partition table.
    #[error("has no partition table")]
    NotPartitioned,
    /// There is no such partition.
    #[error("has no such partition; there are: {partitions}")]
    NoSuchPartition {
        /// The partitions and what they hold, in a few words.
        partitions: String,
    },
    /// The partition table is corrupt beyond use.
    #[error("{}", .corruption.iter().map(Corruption::to_string).collect::<Vec<_>>().join("; "))]
    CorruptTable {
        /// Everything that is wrong with it.
        corruption: Vec<Corruption>,
    },
    /// The entry of a partition does not describe a part of the disk.
    #[error("partition {number} {fault}")]
    UnusablePartition {
        /// The partition's number.
        number: u32,
        /// What is wrong with its entry.
        fault: Fault,
    },
    /// Something is there that would be overwritten.
    #[error("holds {found}, which would be overwritten")]
    Occupied {
        /// What is there.
        found: String,
    },
    /// It is too short for a filesystem with the options that were given.
    #[error(
        "{len_bytes} bytes are too few for a filesystem with these options; at least {needed_bytes} \
         are needed ({} KiB)",
        .needed_bytes.div_ceil(1024)
    )]
    TooSmall {
        /// Its length in bytes.
        len_bytes: u64,
        /// The smallest length that is enough.
        needed_bytes: u64,
    },
    /// The offset that was given is not in the image.
    #[error("the offset {offset} is beyond its {len_bytes} bytes")]
    OffsetBeyondEnd {
        /// The offset in bytes.
        offset: u64,
        /// The length of the image in bytes.
        len_bytes: u64,
    },
    /// A name of a file in an image was given for a device.
    #[error("names a file in an image, where a device is asked for")]
    NotADevice,
    /// The filesystem does not have a mount option, or not with this value.
    #[error("mount option {option} {error}{}", if *error == OptionError::Unknown { format!(" for {format}") } else { String::new() })]
    Option {
        /// The option.
        option: Box<MountOption>,
        /// The filesystem.
        format: Format,
        /// Why.
        error: OptionError,
    },
    /// The edit that a file or volume is of was committed or dropped.
    #[error("the edit that it belongs to has ended")]
    Ended,
    /// The volume was closed.
    #[error("the volume was closed")]
    Closed,
    /// The operation was cancelled.
    #[error("operation canceled")]
    Cancelled,
    /// It is in use, and cannot be ended here.
    #[error("device or resource busy")]
    Busy,
    /// The file is not open for this.
    #[error("not open for {access}")]
    NotOpenFor {
        /// `reading` or `writing`.
        access: &'static str,
    },
    /// A file was to be copied or moved onto itself.
    #[error("is the same file as its target")]
    SameFile,
    /// A directory was to be copied into itself.
    #[error("would be copied into itself")]
    IntoItself,
    /// A name that the image does not give to a user.
    #[error("'{}' is no user of the image", Escaped(.0))]
    NoSuchUser(Vec<u8>),
    /// A name that the image does not give to a group.
    #[error("'{}' is no group of the image", Escaped(.0))]
    NoSuchGroup(Vec<u8>),
    /// An archive or an OCI image layout that is read is corrupt, is of a kind that is not supported, unpacks to too
    /// much, or does not contain what was asked for.
    #[error("{problem}")]
    BadArchive {
        /// What is wrong with it.
        problem: String,
    },
    /// Something on the host, not in the image: a target file, the archive being written.
    #[error("{}", Bare(.0))]
    Host(Arc<io::Error>),
}

impl Error {
    /// An error about the image as a whole.
    pub fn new(image: &Arc<str>, cause: impl Into<Cause>) -> Self {
        Self {
            image: Arc::clone(image),
            path: None,
            cause: cause.into(),
        }
    }

    /// An error about a file in the image.
    pub fn at_path(image: &Arc<str>, path: &[u8], cause: impl Into<Cause>) -> Self {
        Self {
            path: Some(path.to_vec()),
            ..Self::new(image, cause)
        }
    }

    /// Whether it is this answer of the filesystem.
    #[must_use]
    pub fn is(&self, condition: Condition) -> bool {
        let Cause::Filesystem(error) = &self.cause else {
            return false;
        };
        match error {
            platter_vfs::Error::Condition(found) => *found == condition,
            platter_vfs::Error::Refused(refused) => refused.condition == condition,
            platter_vfs::Error::Unsupported(_)
            | platter_vfs::Error::Corrupt(_)
            | platter_vfs::Error::Io(_) => false,
        }
    }

    /// What is corrupt in the image, where that is the cause.
    #[must_use]
    pub fn corruption(&self) -> Option<&platter_ondisk::Corruption> {
        let (Cause::Filesystem(error) | Cause::SuperblockCorrupt { error, .. }) = &self.cause
        else {
            return None;
        };
        match error {
            platter_vfs::Error::Corrupt(corruption) => Some(corruption),
            platter_vfs::Error::Condition(_)
            | platter_vfs::Error::Refused(_)
            | platter_vfs::Error::Unsupported(_)
            | platter_vfs::Error::Io(_) => None,
        }
    }

    /// The kind that the standard library has for its errno.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from(self.errno()).kind()
    }

    /// The errno that Linux would give.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        self.errno().raw_os_error()
    }

    /// The errno that Linux would give.
    pub(crate) fn errno(&self) -> Errno {
        match &self.cause {
            Cause::Filesystem(error) | Cause::SuperblockCorrupt { error, .. } => error.errno(),
            Cause::Spec(_)
            | Cause::NoSuchPartition { .. }
            | Cause::OffsetBeyondEnd { .. }
            | Cause::NotADevice
            | Cause::Option { .. }
            | Cause::SameFile
            | Cause::IntoItself
            | Cause::NoSuchUser(_)
            | Cause::NoSuchGroup(_)
            | Cause::BadArchive { .. } => Errno::INVAL,
            Cause::CorruptTable { .. } | Cause::UnusablePartition { .. } => Errno::UCLEAN,
            Cause::UnsupportedFormat { .. } => Errno::OPNOTSUPP,
            Cause::Unrecognised
            | Cause::SuperblockGone { .. }
            | Cause::Partitioned { .. }
            | Cause::NotPartitioned => {
                // What mount(2) answers for a wrong superblock.
                Errno::INVAL
            }
            Cause::Occupied { .. } => Errno::EXIST,
            Cause::Ended | Cause::Closed | Cause::NotOpenFor { .. } => Errno::BADF,
            Cause::Busy => Errno::BUSY,
            Cause::Cancelled => Errno::CANCELED,
            Cause::TooSmall { .. } => Errno::NOSPC,
            Cause::Host(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
        }
    }

    /// The stable name of the cause for programs, in `snake_case`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.cause {
            Cause::Filesystem(error) | Cause::SuperblockCorrupt { error, .. } => error.code(),
            Cause::Spec(_) => "bad_image_name",
            Cause::UnsupportedFormat { .. } => "unsupported_format",
            Cause::Unrecognised | Cause::SuperblockGone { .. } => "unrecognised",
            Cause::Partitioned { .. } => "partitioned",
            Cause::NotPartitioned => "not_partitioned",
            Cause::NoSuchPartition { .. } => "no_such_partition",
            Cause::CorruptTable { .. } => "corrupt_partition_table",
            Cause::UnusablePartition { .. } => "unusable_partition",
            Cause::Occupied { .. } => "occupied",
            Cause::TooSmall { .. } => "too_small",
            Cause::Ended => "edit_ended",
            Cause::Closed => "closed",
            Cause::Busy => "busy",
            Cause::Cancelled => "cancelled",
            Cause::NotOpenFor { .. } => "not_open",
            Cause::OffsetBeyondEnd { .. } => "offset_beyond_end",
            Cause::NotADevice => "not_a_device",
            Cause::Option { .. } => "bad_option",
            Cause::SameFile => "same_file",
            Cause::IntoItself => "into_itself",
            Cause::NoSuchUser(_) => "no_such_user",
            Cause::NoSuchGroup(_) => "no_such_group",
            Cause::BadArchive { .. } => "bad_archive",
            Cause::Host(_) => code_of_errno(self.errno()),
        }
    }

    /// The device failed, in the words of its error without the name that stands before anyway.
    fn device_failure(&self) -> Option<&IoError> {
        if let Cause::Filesystem(platter_vfs::Error::Io(error)) = &self.cause {
            return Some(error);
        }
        None
    }
}

impl From<Error> for io::Error {
    /// Keeps the kind that programs look at, and the text that people read.
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self::Host(Arc::new(error))
    }
}

impl From<IoError> for Cause {
    fn from(error: IoError) -> Self {
        Self::Filesystem(error.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.image)?;
        if let Some(path) = &self.path {
            if !self.image.is_empty() {
                out.write_str(":")?;
            }
            write!(out, "{}", Escaped(path))?;
        }
        if !self.image.is_empty() || self.path.is_some() {
            out.write_str(": ")?;
        }
        let Some(io) = self.device_failure() else {
            return self.cause.fmt(out);
        };
        let device = Escaped(io.device.as_bytes()).to_string();
        if !self.image.starts_with(&device) {
            write!(out, "{device}: ")?;
        }
        let source = Bare(&io.source);
        let operation = io.operation;
        if operation == Operation::Open {
            source.fmt(out)?;
            if is_of_dead_mount(&io.source) {
                write!(out, ": {DEAD_MOUNT}")?;
            }
            return Ok(());
        }
        if io.length == 0 {
            return write!(out, "{operation}: {source}");
        }
        let (length, offset) = (io.length, io.offset);
        write!(
            out,
            "{operation} of {length} bytes at byte {offset}: {source}"
        )
    }
}

/// An I/O error without the number that Rust adds to its text.
struct Bare<'a>(&'a io::Error);

impl fmt::Display for Bare<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let number = self
            .0
            .raw_os_error()
            .map(|number| format!(" (os error {number})"));
        let bare = number.and_then(|number| text.strip_suffix(&number));
        out.write_str(bare.unwrap_or(&text))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.cause)
    }
}

#[cfg(test)]
mod tests {
    use platter_ondisk::{Corruption, Locus};

    use super::{Arc, Cause, Condition, Errno, Error, Format, IoError, Operation, io};

    #[test]
    fn one_line_names_image_structure_place_and_rule() {
        let image: Arc<str> = "disk.img@2".into();
        let locus = Locus::inode(12).at_block(99);
        let corruption = Corruption::new("extent node", locus, "magic is not 0xf30a");
        let error = Error::new(&image, platter_vfs::Error::from(corruption));
        assert_eq!(
            error.to_string(),
            "disk.img@2: extent node at inode 12, block 99: magic is not 0xf30a"
        );
        let error = Error::at_path(
            &image,
            b"/a\nb",
            platter_vfs::Error::from(Condition::NotFound),
        );
        assert_eq!(
            error.to_string(),
            "disk.img@2:/a\\nb: no such file or directory"
        );
        assert_eq!(error.errno(), Errno::NOENT);
    }

    #[test]
    fn errors_of_a_dead_mount_are_known() {
        let image: Arc<str> = "disk.img".into();
        let opened = |errno: Errno| {
            let io = IoError::new(&image, Operation::Open, 0, 0, io::Error::from(errno));
            Error::new(&"mnt".into(), io).to_string()
        };
        for errno in [Errno::NOTCONN, Errno::CONNABORTED] {
            assert!(opened(errno).ends_with(super::DEAD_MOUNT));
        }
        assert!(!opened(Errno::IO).contains(super::DEAD_MOUNT));
    }

    #[test]
    fn a_device_is_not_named_twice() {
        let image: Arc<str> = "disk.img".into();
        let source = io::Error::from_raw_os_error(Errno::IO.raw_os_error());
        let io = IoError::new(&image, Operation::Read, 4096, 1024, source);
        let text = Error::new(&image, io).to_string();
        assert!(
            text.starts_with("disk.img: read of 1024 bytes at byte 4096: "),
            "{text}"
        );
    }

    #[test]
    fn the_unsupported_are_named_with_advice() {
        let cause = Cause::UnsupportedFormat {
            format: Format::Luks,
        };
        let text = Error::new(&"d".into(), cause).to_string();
        assert!(
            text.starts_with("d: holds crypto_LUKS, which is not supported: open it"),
            "{text}"
        );
    }
}
