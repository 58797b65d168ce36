//! The blocks next to one on its level, of the same parent or of another one.

use platter_vfs::Result;

use super::{Node, Path, TreeHost, TreeRecord, TreeRule};
use crate::ondisk::btree::BtreeKind;

/// Where a neighbour is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl Side {
    /// The index next to one.
    fn of(self, index: usize) -> Option<usize> {
        match self {
            Self::Left => index.checked_sub(1),
            Self::Right => index.checked_add(1),
        }
    }
}

/// A neighbour of the block that a path leads to.
pub(super) struct Neighbour<R: TreeRecord> {
    pub(super) node: Node<R>,
    /// The blocks that lead to it, from below the last one of the path that leads to both.
    branch: Path<R>,
    /// The index of that one in the path.
    fork: usize,
    /// The index of the entry in that one that leads to the neighbour.
    index: usize,
}

impl<R: TreeRecord> Neighbour<R> {
    pub(super) fn find(
        host: &impl TreeHost<R>,
        kind: BtreeKind,
        path: &Path<R>,
        of: &Node<R>,
        side: Side,
    ) -> Result<Option<Self>> {
        let forks = path.iter().enumerate().rev();
        let found = forks.filter_map(|(fork, (node, index))| {
            let index = side.of(*index)?;
            let at = *node.pointers.get(index)?;
            Some((fork, index, node.level, at))
        });
        let Some((fork, index, mut level, mut at)) = { found }.next() else {
            return Ok(None);
        };
        let broken = || host.broken(TreeRule::Shape);
        let mut branch = Path::new();
        loop {
            level = level.checked_sub(1).ok_or_else(broken)?;
            let node = host.load(kind, at, level)?;
            if level == of.level {
                let back = match side {
                    Side::Left => node.right,
                    Side::Right => node.left,
                };
                if back != Some(of.at) {
                    return Err(broken());
                }
                return Ok(Some(Self {
                    node,
                    branch,
                    fork,
                    index,
                }));
            }
            let next = match side {
                Side::Left => node.len().checked_sub(1).ok_or_else(broken)?,
                Side::Right => 0,
            };
            at = *node.pointers.get(next).ok_or_else(broken)?;
            branch.push((node, next));
        }
    }

    /// Stores the neighbour, and its key in the blocks that lead to it.
    pub(super) fn store(
        self,
        host: &mut impl TreeHost<R>,
        kind: BtreeKind,
        path: &mut Path<R>,
    ) -> Result<()> {
        host.store(kind, &self.node)?;
        let key = store_branch(host, kind, self.branch, self.node.key())?;
        if let (Some((node, _)), Some(key)) = (path.get_mut(self.fork), key) {
            node.set_key(self.index, key);
        }
        Ok(())
    }

    /// Stores the block that the path leads to, with its key in the blocks above, and makes the path lead to
    /// this neighbour.
    pub(super) fn lead(
        self,
        host: &mut impl TreeHost<R>,
        kind: BtreeKind,
        path: &mut Path<R>,
        from: &Node<R>,
    ) -> Result<()> {
        host.store(kind, from)?;
        let branch = path.split_off(path.len().min(self.fork + 1));
        let key = store_branch(host, kind, branch, from.key())?;
        if let Some((node, index)) = path.last_mut() {
            if let Some(key) = key {
                node.set_key(*index, key);
            }
            *index = self.index;
        }
        path.extend(self.branch);
        Ok(())
    }
}

/// Stores the blocks of a path, of which the last one leads to a block with such a key. Returns the key of the
/// first one.
fn store_branch<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    branch: Path<R>,
    mut key: Option<R::Key>,
) -> Result<Option<R::Key>> {
    for (mut node, index) in branch.into_iter().rev() {
        if let Some(key) = key {
            node.set_key(index, key);
        }
        host.store(kind, &node)?;
        key = node.key();
    }
    Ok(key)
}
