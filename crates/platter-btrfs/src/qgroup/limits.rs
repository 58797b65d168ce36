//! How much a transaction counts of quota groups.

/// How much a transaction counts of quota groups. With more, usage becomes inconsistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountingLimits {
    /// Groups and relations. More are not opened for writing.
    pub items_max: usize,
    /// Traced extents from which on a commit is due.
    pub traced_many: usize,
    /// Traced extents, and those of the source of a snapshot.
    pub traced_max: usize,
    /// Tree blocks of the source of a snapshot.
    pub walk_blocks_max: usize,
    /// Items and references that a commit looks at to follow those of extents; a search from the root of a tree
    /// counts as 256 of them.
    pub looks_max: usize,
    /// Subvolumes and groups that a commit looks at to change their usage.
    pub group_looks_max: usize,
    /// Groups that a commit remembers as those above subvolumes.
    pub group_ids_max: usize,
}

impl CountingLimits {
    /// Those of mounts. What they come to in memory is in ARCHITECTURE.md.
    pub const DEFAULT: Self = Self {
        items_max: 1 << 20,
        traced_many: 1 << 16,
        traced_max: 1 << 20,
        walk_blocks_max: 1 << 15,
        looks_max: 1 << 26,
        group_looks_max: 1 << 26,
        group_ids_max: 1 << 22,
    };
}

impl Default for CountingLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
