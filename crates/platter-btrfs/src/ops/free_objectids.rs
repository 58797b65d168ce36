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
    /// The numbers of the next inodes, of subvolumes that got some.
    next: Mutex<BTreeMap<TreeId, u64>>,
}

impl FreeObjectIds {
    /// The number of a new inode: none of this mount has it, be it that it was deleted.
    pub(super) fn take(&self, tree: TreeId, editor: &Editor<'_, '_>) -> Result<u64> {
        // The caller has the tree locked: no other thread gives numbers in it.
        let known = self.next.lock().get(&tree).copied();
        let next = match known {
            Some(next) => next,
            None => inode::change::next_number(editor)?,
        };
        if next > LAST_FREE_OBJECT {
            return Err(Condition::NoSpace.into());
        }
        self.next.lock().insert(tree, next + 1);
        Ok(next)
    }
}
