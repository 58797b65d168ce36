//! Results of changes of blocks.

/// What a look at a block, to change it, came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit<R> {
    /// It was changed.
    Changed(R),
    /// It stays as it is.
    Kept(R),
}

/// The same, and whether it is the first change of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edited<R> {
    /// It was changed, after other changes in the same round or as the first.
    Changed {
        /// What the change gave.
        result: R,
        /// No change of this round came before.
        is_first: bool,
    },
    /// It stays as it is.
    Kept(R),
}
