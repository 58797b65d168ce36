//! The trees that are walked, and their blocks.

use crate::ondisk::header::Header;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::tree::Tree;

/// A tree that is walked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walked {
    pub(super) tree: Tree,
    /// A subvolume that is being deleted: up to this key of blocks of this level and above, references
    /// were dropped.
    pub(super) dropped: Option<(Key, u8)>,
    /// A subvolume that was deleted: its inodes are not looked at.
    pub(super) is_dead: bool,
}

/// A block that was read and verified.
pub(super) struct Block<'b> {
    pub(super) logical: LogicalAddr,
    pub(super) header: Header,
    pub(super) bytes: &'b [u8],
}

impl Walked {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            tree,
            dropped: None,
            is_dead: false,
        }
    }

    /// The number of the tree.
    pub(super) fn id(&self) -> TreeId {
        self.tree.id
    }

    /// Whether the tree has inodes that are to be looked at.
    pub(super) fn has_files(&self) -> bool {
        self.id().is_subvolume() || self.id() == TreeId::DATA_RELOC
    }
}
