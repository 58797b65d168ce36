//! The one table from [`Error`] to Linux errno. FUSE, the C library and Python all use it.

use rustix::io::Errno;

use crate::{Condition, Error};

/// `EUCLEAN`, which Linux filesystems answer for "structure needs cleaning".
const CORRUPTED: Errno = Errno::UCLEAN;

impl Error {
    /// The errno a Linux filesystem answers for this error.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Condition(condition) => condition.errno(),
            Self::Unsupported(_) => Errno::OPNOTSUPP,
            Self::Corrupt(_) => CORRUPTED,
            Self::Io(error) => error
                .source
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error),
        }
    }
}

impl Condition {
    /// The errno of this condition.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotDirectory => Errno::NOTDIR,
            Self::IsDirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::TooManyLinksFollowed => Errno::LOOP,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::InvalidArgument => Errno::INVAL,
            Self::AccessDenied => Errno::ACCESS,
            Self::NotPermitted => Errno::PERM,
            Self::ReadOnly => Errno::ROFS,
            Self::NoSpace => Errno::NOSPC,
            Self::QuotaExceeded => Errno::DQUOT,
            Self::FileTooLarge => Errno::FBIG,
            Self::TooManyLinks => Errno::MLINK,
            Self::CrossDevice => Errno::XDEV,
            Self::Busy => Errno::BUSY,
            Self::NoAttribute => Errno::NODATA,
            Self::OutOfRange => Errno::RANGE,
            Self::TooBig => Errno::TOOBIG,
            Self::Overflow => Errno::OVERFLOW,
            Self::Stale => Errno::STALE,
            Self::NoSuchAddress => Errno::NXIO,
            Self::NoKey => Errno::NOKEY,
            Self::NotSupported => Errno::OPNOTSUPP,
            Self::WouldBlock => Errno::AGAIN,
            Self::TextBusy => Errno::TXTBSY,
        }
    }
}
