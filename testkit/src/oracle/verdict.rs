//! What a checker of Linux says about an image.

/// The outcome of `e2fsck -fn`, `btrfs check --readonly` or `xfs_repair -n`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No error was found.
    Clean,
    /// Errors are left; the lines that name them.
    NotClean(Vec<String>),
    /// The checker would not begin, or gave up; the line that says why.
    Refused(String),
}

impl Verdict {
    /// Whether no error was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self::Clean
    }

    /// The lines that name errors, or say why nothing was checked; none of a clean image.
    #[must_use]
    pub fn complaints(self) -> Vec<String> {
        match self {
            Self::Clean => Vec::new(),
            Self::NotClean(lines) => lines,
            Self::Refused(line) => vec![line],
        }
    }
}
