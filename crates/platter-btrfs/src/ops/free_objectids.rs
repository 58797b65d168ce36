//! The numbers of new inodes.

use std::collections::BTreeMap;

use platter_block::lock::Mutex;
use platter_vfs::{Condition, Result};

use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::types::LAST_FREE_OBJECT;
use crate::txn::Editor;

/// The numbers that new inodes get.
#[derive(Debug, Default)]
pub(super) struct FreeObjectIds {
    /// The next number of each subvolume that got inodes in this mount, or lost some.
    next: Mutex<BTreeMap<TreeId, Next>>,
}

/// The number of the next inode of a subvolume.
#[derive(Debug, Clone, Copy)]
enum Next {
    Is(u64),
    /// At least this one: what is in the tree was not looked at.
    AtLeast(u64),
}

impl FreeObjectIds {
    /// The number of a new inode: none of this mount has it, be it that it was deleted.
    pub(super) fn take(&self, tree: TreeId, editor: &Editor<'_, '_>) -> Result<u64> {
        // The caller has the tree locked: no other thread gives numbers in it.
        let known = self.next.lock().get(&tree).copied();
        let next = match known {
            Some(Next::Is(next)) => next,
            Some(Next::AtLeast(least)) => inode::change::next_number(editor)?.max(least),
            None => inode::change::next_number(editor)?,
        };
        if next > LAST_FREE_OBJECT {
            return Err(Condition::NoSpace.into());
        }
        self.next.lock().insert(tree, Next::Is(next + 1));
        Ok(next)
    }

    /// Records that an inode is deleted, so that no other gets its number in this mount. The caller has the tree locked.
    pub(super) fn note_deleted(&self, tree: TreeId, number: u64) {
        // New inodes get no number beyond that, and do not begin after one.
        if number > LAST_FREE_OBJECT {
            return;
        }
        let mut all = self.next.lock();
        let next = all.entry(tree).or_insert(Next::AtLeast(0));
        if let Next::AtLeast(least) = next {
            *least = (*least).max(number + 1);
        }
    }
}
