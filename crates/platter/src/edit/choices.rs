//! What the methods of an edit are asked to do where a command has a flag.

use platter_vfs::SetTime;

/// What to do where something has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Refuse.
    #[default]
    Refuse,
    /// Replace it.
    Replace,
    /// Leave it as it is, and go on.
    Keep,
}

/// What to do where nothing has the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// Refuse.
    #[default]
    Refuse,
    /// Go on.
    PassOver,
}

/// Whether a file that is not there is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Creation {
    /// Create it.
    #[default]
    IfMissing,
    /// Do nothing.
    Never,
}

/// What a path names that ends in a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symlinks {
    /// What it leads to.
    #[default]
    Follow,
    /// The link itself (`AT_SYMLINK_NOFOLLOW`).
    NoFollow,
}

/// How much of a tree a change is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// The file, or the directory alone.
    #[default]
    File,
    /// The directory with all below it.
    Tree,
}

/// What may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Removal {
    /// What is no directory.
    #[default]
    File,
    /// An empty directory, too.
    EmptyDirectory,
    /// A directory with all below it, too.
    Tree,
}

/// What a target means that is a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Target {
    /// The new name itself.
    #[default]
    Name,
    /// Where something goes under its own name.
    Into,
}

/// Whether a subvolume refuses changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubvolumeAccess {
    /// It takes changes.
    ReadWrite,
    /// It refuses them.
    ReadOnly,
}

/// How a size changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeChange {
    /// To so many bytes.
    Set(u64),
    /// By so many bytes.
    Grow(u64),
    /// By so many bytes, to nothing at most.
    Shrink(u64),
    /// To so many bytes, if there are more.
    AtMost(u64),
    /// To so many bytes, if there are less.
    AtLeast(u64),
    /// To the next smaller multiple.
    RoundDown(u64),
    /// To the next larger multiple.
    RoundUp(u64),
}

impl SizeChange {
    /// The size after the change of one of `size_bytes`; `None` where there is no such size.
    pub(super) fn apply(self, size_bytes: u64) -> Option<u64> {
        match self {
            Self::Set(bytes) => Some(bytes),
            Self::Grow(bytes) => size_bytes.checked_add(bytes),
            Self::Shrink(bytes) => Some(size_bytes.saturating_sub(bytes)),
            Self::AtMost(bytes) => Some(size_bytes.min(bytes)),
            Self::AtLeast(bytes) => Some(size_bytes.max(bytes)),
            Self::RoundDown(unit) => Some(size_bytes - size_bytes.checked_rem(unit)?),
            Self::RoundUp(0) => None,
            Self::RoundUp(unit) => size_bytes.checked_next_multiple_of(unit),
        }
    }
}

/// Which times change, and to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The time of the last read (`atime`); `None` leaves it.
    pub accessed: Option<SetTime>,
    /// The time of the last change of the contents (`mtime`); `None` leaves it.
    pub modified: Option<SetTime>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_as_truncate_changes_them() {
        for (change, after) in [
            (SizeChange::Set(5), Some(5)),
            (SizeChange::Grow(5), Some(1005)),
            (SizeChange::Grow(u64::MAX), None),
            (SizeChange::Shrink(1001), Some(0)),
            (SizeChange::AtMost(5), Some(5)),
            (SizeChange::AtMost(5000), Some(1000)),
            (SizeChange::AtLeast(5000), Some(5000)),
            (SizeChange::RoundDown(300), Some(900)),
            (SizeChange::RoundUp(300), Some(1200)),
            (SizeChange::RoundUp(0), None),
            (SizeChange::RoundDown(0), None),
        ] {
            assert_eq!(change.apply(1000), after, "{change:?}");
        }
    }
}
