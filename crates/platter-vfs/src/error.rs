//! The error of every filesystem operation: a condition, something unsupported, corruption, I/O.

use platter_block::IoError;
use platter_cache::BufferError;
use platter_ondisk::Corruption;

/// The result of a filesystem operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The ordinary answers POSIX knows: nothing is wrong with the filesystem.
    #[error(transparent)]
    Condition(#[from] Condition),
    /// The image uses, or the caller asked for, what this program cannot do.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The image breaks a rule of its format.
    #[error(transparent)]
    Corrupt(Box<Corruption>),
    /// The device failed.
    #[error(transparent)]
    Io(Box<IoError>),
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}

impl From<IoError> for Error {
    fn from(error: IoError) -> Self {
        Self::Io(Box::new(error))
    }
}

impl From<BufferError> for Error {
    fn from(error: BufferError) -> Self {
        match error {
            BufferError::Io(error) => error.into(),
            BufferError::Corrupt(corruption) => corruption.into(),
        }
    }
}

/// An ordinary refusal. Each has one errno in [`errno`](crate::errno).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Condition {
    /// ENOENT.
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST.
    #[error("file exists")]
    Exists,
    /// ENOTDIR.
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR.
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY.
    #[error("directory not empty")]
    NotEmpty,
    /// ELOOP.
    #[error("too many levels of symbolic links")]
    TooManyLinksFollowed,
    /// ENAMETOOLONG.
    #[error("file name too long")]
    NameTooLong,
    /// EINVAL.
    #[error("invalid argument")]
    InvalidArgument,
    /// EACCES.
    #[error("permission denied")]
    AccessDenied,
    /// EPERM.
    #[error("operation not permitted")]
    NotPermitted,
    /// EROFS.
    #[error("read-only file system")]
    ReadOnly,
    /// ENOSPC.
    #[error("no space left on device")]
    NoSpace,
    /// EDQUOT.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// EFBIG.
    #[error("file too large")]
    FileTooLarge,
    /// EMLINK.
    #[error("too many links")]
    TooManyLinks,
    /// EXDEV.
    #[error("invalid cross-device link")]
    CrossDevice,
    /// EBUSY.
    #[error("device or resource busy")]
    Busy,
    /// ENODATA.
    #[error("no such attribute")]
    NoAttribute,
    /// ERANGE.
    #[error("result does not fit")]
    OutOfRange,
    /// E2BIG.
    #[error("argument too large")]
    TooBig,
    /// EOVERFLOW.
    #[error("value too large for its type")]
    Overflow,
    /// ESTALE.
    #[error("stale file handle")]
    Stale,
    /// ENXIO: no data or no hole at or after the offset.
    #[error("no such device or address")]
    NoSuchAddress,
    /// ENOKEY: names or contents are encrypted and no key is known.
    #[error("required key not available")]
    NoKey,
    /// EOPNOTSUPP: the file or filesystem has no such operation.
    #[error("operation not supported")]
    NotSupported,
    /// EAGAIN.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// ETXTBSY.
    #[error("text file busy")]
    TextBusy,
}

/// A feature of the image that cannot be served: refused by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{filesystem}: {feature} is not supported{}", reason.map_or(String::new(), |why| format!(" ({why})")))]
pub struct Unsupported {
    /// The filesystem, such as `ext4`.
    pub filesystem: &'static str,
    /// The feature's name in its own tools, or the raw bit of an unknown one.
    pub feature: String,
    /// Why, where there is more to say.
    pub reason: Option<&'static str>,
}
