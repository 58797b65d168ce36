//! Taking a tree apart, from its end.

use platter_vfs::Result;

use super::{CopyOnWrite, TreeEditor};
use crate::ondisk::Key;
use crate::tree::TreeBlock;

/// What becomes of a block that is at the end of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The tree's reference to it was dropped, and what followed from that.
    Done,
    /// It is a node that is to be taken apart; a copy of it, if other trees refer to it.
    Enter,
    /// Not now.
    Stop,
}

/// How far a tree was taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pruned {
    /// Blocks are left below the root.
    Partly,
    /// The root is left alone: a leaf, or a node without pointers.
    ToRoot,
}

/// Removes blocks from the end of the tree, which is a valid one in between. `cut` drops a block, or says that it
/// is to be entered. `end` is the first key of what was removed before, kept from one call to the next: what is
/// left ends before it, so that no block is entered a second time, whatever pointers lead to it.
pub fn prune<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    end: &mut Option<Key>,
    mut cut: impl FnMut(&TreeBlock) -> Result<Cut>,
) -> Result<Pruned> {
    if editor.root().level == 0 {
        return Ok(Pruned::ToRoot);
    }
    editor.has_begun = true;
    let (root, root_level) = editor.own_root()?;
    let mut path = vec![root];
    let mut level = root_level;
    while let Some(&logical) = path.last() {
        let block = editor.own_block(logical)?;
        let last = block.node().len().checked_sub(1);
        let pointer = last.and_then(|last| Some((last, block.node().pointer(last)?)));
        drop(block);
        let Some((last, pointer)) = pointer else {
            path.pop();
            let Some(&above) = path.last() else {
                return Ok(Pruned::ToRoot);
            };
            editor.free(logical, level)?;
            remove_last(editor, above)?;
            level = level.saturating_add(1);
            continue;
        };
        let below = level.checked_sub(1).ok_or_else(|| editor.shape())?;
        let child = editor.child(pointer, below, *end)?;
        match cut(&child)? {
            Cut::Done => {
                editor.edit_node(logical, |node| node.remove(last..last + 1))?;
                let node_bytes = u64::from(editor.node_bytes());
                editor.state.used_bytes = editor.state.used_bytes.saturating_sub(node_bytes);
                *end = Some(pointer.key);
            }
            Cut::Enter => {
                drop(child);
                path.push(editor.own_child(logical, last, pointer, below, *end)?);
                level = below;
            }
            Cut::Stop => return Ok(Pruned::Partly),
        }
    }
    Ok(Pruned::ToRoot)
}

/// Removes the last pointer of a node, whose block was freed.
fn remove_last<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    node: crate::ondisk::LogicalAddr,
) -> Result<()> {
    let is_removed = editor.edit_node(node, |node| {
        let count = node.node().len();
        count > 0 && node.remove(count - 1..count)
    })?;
    is_removed.then_some(()).ok_or_else(|| editor.shape())
}
