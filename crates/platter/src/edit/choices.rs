//! What the methods of an edit are asked to do where a command has a flag.

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
