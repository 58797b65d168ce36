//! The error of every filesystem operation: a condition, something unsupported, corruption, I/O.

use std::borrow::Cow;

use platter_block::IoError;
use platter_cache::BufferError;
use platter_ondisk::{Corrupt, Corruption, Rule};

/// The result of a filesystem operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The ordinary answers POSIX knows: nothing is wrong with the filesystem.
    #[error(transparent)]
    Condition(#[from] Condition),
    /// Such an answer, in words that say what is wrong and what to do.
    #[error(transparent)]
    Refused(Box<Refused>),
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

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Refused(Box::new(refused))
    }
}

impl From<Corruption> for Error {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupt(Box::new(corruption))
    }
}

impl<R: Rule> From<Corrupt<R>> for Error {
    fn from(corrupt: Corrupt<R>) -> Self {
        Corruption::from(corrupt).into()
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

impl Condition {
    /// Every condition with its stable name for programs.
    const CODES: [(Self, &'static str); 27] = [
        (Self::NotFound, "not_found"),
        (Self::Exists, "exists"),
        (Self::NotDirectory, "not_directory"),
        (Self::IsDirectory, "is_directory"),
        (Self::NotEmpty, "not_empty"),
        (Self::TooManyLinksFollowed, "too_many_symlinks"),
        (Self::NameTooLong, "name_too_long"),
        (Self::InvalidArgument, "invalid_argument"),
        (Self::AccessDenied, "access_denied"),
        (Self::NotPermitted, "not_permitted"),
        (Self::ReadOnly, "read_only"),
        (Self::NoSpace, "no_space"),
        (Self::QuotaExceeded, "quota_exceeded"),
        (Self::FileTooLarge, "file_too_large"),
        (Self::TooManyLinks, "too_many_links"),
        (Self::CrossDevice, "cross_device"),
        (Self::Busy, "busy"),
        (Self::NoAttribute, "no_attribute"),
        (Self::OutOfRange, "out_of_range"),
        (Self::TooBig, "too_big"),
        (Self::Overflow, "overflow"),
        (Self::Stale, "stale"),
        (Self::NoSuchAddress, "no_such_address"),
        (Self::NoKey, "no_key"),
        (Self::NotSupported, "not_supported"),
        (Self::WouldBlock, "would_block"),
        (Self::TextBusy, "text_busy"),
    ];

    /// The condition that has this errno.
    #[must_use]
    pub fn of_errno(errno: rustix::io::Errno) -> Option<Self> {
        let mut conditions = Self::CODES.iter().map(|&(condition, _)| condition);
        conditions.find(|condition| condition.errno() == errno)
    }

    /// The error of this condition in words that say what is wrong and what to do.
    #[must_use]
    pub fn because(self, text: impl Into<Cow<'static, str>>) -> Error {
        let refused = Refused {
            condition: self,
            text: text.into(),
        };
        refused.into()
    }

    /// The stable name for programs, in `snake_case`.
    #[must_use]
    pub fn code(self) -> &'static str {
        let known = Self::CODES.iter().find(|(known, _)| *known == self);
        known.map_or("io", |(_, code)| code)
    }
}

impl Error {
    /// The stable name for programs, in `snake_case`: that of the condition, `unsupported`, `corrupt`,
    /// or for a failure of the device the condition that has its errno, else `io`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Condition(condition) => condition.code(),
            Self::Refused(refused) => refused.condition.code(),
            Self::Unsupported(_) => "unsupported",
            Self::Corrupt(_) => "corrupt",
            Self::Io(_) => code_of_errno(self.errno()),
        }
    }
}

/// The name of the condition that has this errno; `io` where there is none.
#[must_use]
pub fn code_of_errno(errno: rustix::io::Errno) -> &'static str {
    Condition::of_errno(errno).map_or("io", Condition::code)
}

/// A feature of the image that cannot be served: refused by its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{filesystem}: {feature} is not supported{}", reason.map_or(String::new(), |why| format!(" ({why})")))]
pub struct Unsupported {
    /// The filesystem, such as `btrfs`.
    pub filesystem: &'static str,
    /// The feature's name in its own tools, or the raw bit of an unknown one.
    pub feature: String,
    /// Why, where there is more to say.
    pub reason: Option<&'static str>,
}

/// A refusal in words of its own: see [`Condition::because`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    /// The ordinary answer that it is.
    pub condition: Condition,
    /// What is wrong, and what to do.
    pub text: Cow<'static, str>,
}
