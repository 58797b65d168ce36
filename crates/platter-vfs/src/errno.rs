//! The one table from [`Error`] to Linux errno. FUSE, the C library and Python all use it.

use std::io;

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
            Self::Refused(refused) => refused.condition.errno(),
            Self::Unsupported(_) => Errno::OPNOTSUPP,
            Self::Corrupt(_) => CORRUPTED,
            Self::Io(error) => io_errno(&error.source),
        }
    }
}

/// The errno of a device's failure: the host's own, or the one of a refusal by a layer above it.
fn io_errno(source: &io::Error) -> Errno {
    const REFUSALS: [(io::ErrorKind, Errno); 6] = [
        (io::ErrorKind::ReadOnlyFilesystem, Errno::ROFS),
        (io::ErrorKind::StorageFull, Errno::NOSPC),
        (io::ErrorKind::ResourceBusy, Errno::BUSY),
        (io::ErrorKind::IsADirectory, Errno::ISDIR),
        (io::ErrorKind::InvalidInput, Errno::INVAL),
        (io::ErrorKind::Unsupported, Errno::OPNOTSUPP),
    ];
    if let Some(code) = source.raw_os_error() {
        return Errno::from_raw_os_error(code);
    }
    let refusal = REFUSALS.iter().find(|(kind, _)| *kind == source.kind());
    refusal.map_or(Errno::IO, |&(_, errno)| errno)
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

#[cfg(test)]
mod tests {
    use platter_block::{BlockDevice, IoError, MemoryDevice, Operation};

    use super::*;

    #[test]
    fn device_errors_keep_the_most_specific_errno() {
        let device = MemoryDevice::new("memory", Vec::new());
        let errno = |source: io::Error| {
            let error = IoError::new(device.name(), Operation::Write, 0, 0, source);
            Error::from(error).errno()
        };
        assert_eq!(errno(Errno::NXIO.into()), Errno::NXIO);
        assert_eq!(errno(io::ErrorKind::StorageFull.into()), Errno::NOSPC);
        assert_eq!(errno(io::ErrorKind::UnexpectedEof.into()), Errno::IO);
        let refused = IoError::read_only(device.name(), Operation::Write, 0, 0);
        assert_eq!(Error::from(refused).errno(), Errno::ROFS);
    }

    /// Every condition with the number of its errno on Linux.
    const CONDITIONS: [(Condition, i32); 27] = [
        (Condition::NotFound, 2),
        (Condition::Exists, 17),
        (Condition::NotDirectory, 20),
        (Condition::IsDirectory, 21),
        (Condition::NotEmpty, 39),
        (Condition::TooManyLinksFollowed, 40),
        (Condition::NameTooLong, 36),
        (Condition::InvalidArgument, 22),
        (Condition::AccessDenied, 13),
        (Condition::NotPermitted, 1),
        (Condition::ReadOnly, 30),
        (Condition::NoSpace, 28),
        (Condition::QuotaExceeded, 122),
        (Condition::FileTooLarge, 27),
        (Condition::TooManyLinks, 31),
        (Condition::CrossDevice, 18),
        (Condition::Busy, 16),
        (Condition::NoAttribute, 61),
        (Condition::OutOfRange, 34),
        (Condition::TooBig, 7),
        (Condition::Overflow, 75),
        (Condition::Stale, 116),
        (Condition::NoSuchAddress, 6),
        (Condition::NoKey, 126),
        (Condition::NotSupported, 95),
        (Condition::WouldBlock, 11),
        (Condition::TextBusy, 26),
    ];

    #[test]
    fn every_condition_has_its_own_errno() {
        for (condition, number) in CONDITIONS {
            assert_eq!(condition.errno().raw_os_error(), number, "{condition:?}");
            assert_eq!(Error::from(condition).errno(), condition.errno());
            assert_eq!(
                crate::error::code_of_errno(condition.errno()),
                condition.code()
            );
            assert_ne!(condition.code(), "io", "{condition:?} has no code");
        }
        let mut numbers = CONDITIONS.map(|(_, number)| number);
        numbers.sort_unstable();
        assert!(
            numbers.is_sorted_by(|left, right| left < right),
            "two share one"
        );
    }

    #[test]
    fn corruption_and_unknown_features_have_errnos_of_their_own() {
        let corruption = crate::Corruption::new("inode", crate::Locus::inode(1), "is corrupt");
        assert_eq!(Error::from(corruption).errno().raw_os_error(), 117);
        let unsupported = crate::Unsupported {
            filesystem: "btrfs",
            feature: "a_new_one".to_owned(),
            reason: None,
        };
        assert_eq!(Error::from(unsupported).errno(), Errno::OPNOTSUPP);
    }
}
