//! Trees: verified blocks, search and iteration, and changes by copy-on-write.

mod blocks;
mod cursor;
mod compare;
mod delayed;
pub mod edit;
mod live;
#[cfg(test)]
pub(crate) mod tests;

use platter_ondisk::Locus;

use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Key, TreeId};

pub use blocks::{TreeBlock, TreeBlocks};
pub use compare::{Difference, compare};
pub use cursor::Cursor;
pub use delayed::DelayedInodes;
pub use live::{LiveTrees, Versions};

/// A tree: its number, and where its root lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree {
    /// Its number: the owner of its blocks.
    pub id: TreeId,
    /// Its root.
    pub root: RootPointer,
}

impl Tree {
    /// The location of an item in reports.
    #[must_use]
    pub fn locus(&self, key: Key) -> Locus {
        Locus::tree(self.id.0).at_key(key.into())
    }
}
