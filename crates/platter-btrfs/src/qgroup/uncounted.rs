//! Why usage is not counted.

use std::fmt;

use platter_ondisk::{Corrupt, Rule};
use platter_vfs::Error;

use crate::ondisk::Generation;
use crate::ondisk::qgroup::{QgroupFlags, QgroupStatus};

/// Why usage is not counted.
#[derive(Debug, Clone)]
pub enum Uncounted {
    /// The state says that usage is inconsistent.
    Inconsistent,
    /// A rescan has not reached its end.
    Rescan,
    /// The state is of another transaction than the last.
    Generation,
    /// Pointers of a tree lead to blocks that the kernel dropped.
    PartlyDropped,
    /// A transaction changed references of too many extents.
    Extents,
    /// The source of a snapshot has too many blocks or extents.
    Snapshot,
    /// There are too many references to follow.
    References,
    /// There are too many sets of subvolumes.
    Subvolumes,
    /// There are too many groups above subvolumes.
    Groups,
    /// More was to be taken off usage than there was.
    Usage,
    /// A tree could not be read, or contradicts itself.
    Unreadable(Error),
}

impl Uncounted {
    /// Why usage is not right by its state; `None` if it is. `last` is the last transaction.
    #[must_use]
    pub fn by_status(status: &QgroupStatus, last: Generation) -> Option<Self> {
        if status.flags.contains(QgroupFlags::RESCAN) {
            return Some(Self::Rescan);
        }
        if status.flags.contains(QgroupFlags::INCONSISTENT) {
            return Some(Self::Inconsistent);
        }
        (status.generation != last).then_some(Self::Generation)
    }
}

impl fmt::Display for Uncounted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Inconsistent => "marked as inconsistent on disk",
            Self::Rescan => "a rescan was interrupted",
            Self::Generation => "qgroup generation mismatch",
            Self::PartlyDropped => "the kernel has dropped a part of a deleted subvolume",
            Self::Extents => "a transaction changed references of too many extents",
            Self::Snapshot => "the source of a snapshot has too many blocks or extents",
            Self::References => "extents have too many references",
            Self::Subvolumes => "too many subvolumes share extents",
            Self::Groups => "too many relations of quota groups",
            Self::Usage => "usage was too small",
            Self::Unreadable(error) => return error.fmt(out),
        };
        out.write_str(text)
    }
}

impl From<Error> for Uncounted {
    fn from(error: Error) -> Self {
        Self::Unreadable(error)
    }
}

impl<R: Rule> From<Corrupt<R>> for Uncounted {
    fn from(corrupt: Corrupt<R>) -> Self {
        Self::Unreadable(corrupt.into())
    }
}
