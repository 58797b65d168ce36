//! B-trees under change: lookups, insertion and removal, over whatever has their blocks.
//!
//! # Invariants
//! - The key of a pointer is that of the block below it.
//! - Blocks other than the root are at least half full, unless they were not before.
//! - Blocks of a level are linked in order.

mod node;
mod record;

use std::collections::HashSet;

use platter_vfs::{Error, Result};

use crate::ondisk::btree::BtreeKind;

pub use node::Node;
pub use record::{Order, TreeRecord};

rules! {
    /// What a B-tree must hold to when it changes.
    pub enum TreeRule of "B-tree" {
        /// The blocks of a tree fit each other.
        Shape => "B-tree is inconsistent",
        /// A record that is to be changed exists.
        Missing => "record is missing in a B-tree",
        /// A record that is to be inserted does not exist.
        Exists => "record exists in a B-tree",
    }
}

/// What has the blocks of B-trees: an allocation group, or a fork.
pub trait TreeBlocks {
    /// The error for a tree that breaks a rule.
    fn broken(&self, rule: TreeRule) -> Error;

    /// Allocates a block.
    fn alloc(&mut self, kind: BtreeKind) -> Result<u64>;

    /// Frees a block.
    fn free(&mut self, kind: BtreeKind, at: u64) -> Result<()>;
}

/// A B-tree of such records.
pub trait TreeHost<R: TreeRecord>: TreeBlocks {
    /// The root.
    fn load_root(&self, kind: BtreeKind) -> Result<Node<R>>;

    /// A block below the root.
    fn load(&self, kind: BtreeKind, at: u64, level: u16) -> Result<Node<R>>;

    /// Stores a block, or the root.
    fn store(&mut self, kind: BtreeKind, node: &Node<R>) -> Result<()>;

    /// The most entries of a block, or of the root.
    fn entries_max(&self, kind: BtreeKind, node: &Node<R>) -> usize;

    /// Stores a root that has one entry more than fits: the tree gets a level more.
    fn grow_root(&mut self, kind: BtreeKind, root: Node<R>) -> Result<()>;

    /// Stores a root that may have a single pointer left: the tree may lose a level.
    fn shrink_root(&mut self, kind: BtreeKind, root: Node<R>) -> Result<()>;
}

/// The blocks from the root to a leaf, each with the index of the entry that leads on.
type Path<R> = Vec<(Node<R>, usize)>;

fn path<R: TreeRecord>(host: &impl TreeHost<R>, kind: BtreeKind, order: Order) -> Result<Path<R>> {
    let mut path: Path<R> = Vec::new();
    let mut node = host.load_root(kind)?;
    loop {
        if node.level == 0 {
            let index = node
                .records
                .partition_point(|record| record.order(kind) < order);
            path.push((node, index));
            return Ok(path);
        }
        let after = node
            .keys
            .partition_point(|key| R::key_order(key, kind) <= order);
        let index = after.saturating_sub(1);
        let next = node.pointers.get(index).copied();
        let next = next.ok_or_else(|| host.broken(TreeRule::Shape))?;
        let below = host.load(kind, next, node.level - 1)?;
        path.push((node, index));
        node = below;
    }
}

/// The first record at or after a place.
pub fn lookup_ge<R: TreeRecord>(
    host: &impl TreeHost<R>,
    kind: BtreeKind,
    order: Order,
) -> Result<Option<R>> {
    let mut path = path::<R>(host, kind, order)?;
    let Some((leaf, index)) = path.pop() else {
        return Ok(None);
    };
    if let Some(record) = leaf.records.get(index) {
        return Ok(Some(*record));
    }
    let Some(right) = leaf.right else {
        return Ok(None);
    };
    let first = host.load(kind, right, 0)?.records.first().copied();
    if first.is_some_and(|first| first.order(kind) < order) {
        return Err(host.broken(TreeRule::Shape));
    }
    Ok(first)
}

/// The last record before a place.
pub fn lookup_lt<R: TreeRecord>(
    host: &impl TreeHost<R>,
    kind: BtreeKind,
    order: Order,
) -> Result<Option<R>> {
    let mut path = path::<R>(host, kind, order)?;
    let Some((leaf, index)) = path.pop() else {
        return Ok(None);
    };
    let before = index.checked_sub(1);
    if let Some(record) = before.and_then(|index| leaf.records.get(index)) {
        return Ok(Some(*record));
    }
    let Some(left) = leaf.left else {
        return Ok(None);
    };
    let last = host.load(kind, left, 0)?.records.last().copied();
    if last.is_some_and(|last| last.order(kind) >= order) {
        return Err(host.broken(TreeRule::Shape));
    }
    Ok(last)
}

/// Inserts a record.
pub fn insert<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    record: R,
) -> Result<()> {
    let mut path = path::<R>(host, kind, record.order(kind))?;
    let mut inserted = 0;
    if let Some((leaf, index)) = path.last_mut() {
        let found = leaf.records.get(*index);
        if found.is_some_and(|found| found.order(kind) == record.order(kind)) {
            return Err(host.broken(TreeRule::Exists));
        }
        leaf.records.insert(*index, record);
        inserted = *index;
    }
    let mut added: Option<(R::Key, u64)> = None;
    let mut below: Option<R::Key> = None;
    while let Some((mut node, index)) = path.pop() {
        if node.level > 0 {
            if let Some(key) = below {
                node.set_key(index, key);
            }
            if let Some((key, at)) = added.take() {
                inserted = index + 1;
                node.keys.insert(inserted, key);
                node.pointers.insert(inserted, at);
            }
        }
        if node.len() > host.entries_max(kind, &node) {
            let Some((parent, index)) = path.last_mut() else {
                return host.grow_root(kind, node);
            };
            added = make_space(host, kind, (parent, *index), &mut node, inserted)?;
        }
        host.store(kind, &node)?;
        below = node.key();
    }
    Ok(())
}

/// Takes one entry from a block that has one too many: to a neighbour with space, as long as that is not the
/// new entry, else the block is split. Returns the key and place of a new block.
fn make_space<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    (parent, index): (&mut Node<R>, usize),
    node: &mut Node<R>,
    inserted: usize,
) -> Result<Option<(R::Key, u64)>> {
    let before = node.len() - 1;
    if let Some(&right) = parent
        .pointers
        .get(index + 1)
        .filter(|_| inserted + 2 <= before)
    {
        let mut right = host.load(kind, right, node.level)?;
        if right.len() < before {
            node.move_last(&mut right);
            host.store(kind, &right)?;
            if let Some(key) = right.key() {
                parent.set_key(index + 1, key);
            }
            return Ok(None);
        }
    }
    let left = index.checked_sub(1).filter(|_| inserted > 0);
    if let Some(&left) = left.and_then(|left| parent.pointers.get(left)) {
        let mut left = host.load(kind, left, node.level)?;
        if left.len() < before {
            node.move_first(&mut left);
            host.store(kind, &left)?;
            if let Some(key) = left.key() {
                parent.set_key(index - 1, key);
            }
            return Ok(None);
        }
    }
    split(host, kind, node, inserted)
}

/// Moves the upper half of a block's entries to a new block, which is stored. Returns its key and place.
pub(crate) fn split<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    node: &mut Node<R>,
    inserted: usize,
) -> Result<Option<(R::Key, u64)>> {
    let before = node.len() - 1;
    // Of an odd number of entries, the half that gets the new one has the smaller share.
    let moved = if inserted <= before / 2 {
        before.div_ceil(2)
    } else {
        before / 2
    };
    let kept = before - moved;
    let at = host.alloc(kind)?;
    let right = node.split_off(kept + usize::from(inserted <= kept), at);
    node.right = Some(at);
    relink(host, kind, right.right, right.level, at)?;
    host.store(kind, &right)?;
    Ok(right.key().map(|key| (key, at)))
}

/// Makes `left` the left sibling of the block `right`.
fn relink<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    right: Option<u64>,
    level: u16,
    left: u64,
) -> Result<()> {
    if let Some(right) = right {
        let mut node = host.load(kind, right, level)?;
        node.left = Some(left);
        host.store(kind, &node)?;
    }
    Ok(())
}

/// Changes a record whose place in the tree stays between those of its neighbours.
pub fn replace<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    order: Order,
    record: R,
) -> Result<()> {
    let mut path = path::<R>(host, kind, order)?;
    let slot = path
        .last_mut()
        .and_then(|(leaf, index)| leaf.records.get_mut(*index))
        .filter(|found| found.order(kind) == order);
    *slot.ok_or_else(|| host.broken(TreeRule::Missing))? = record;
    let mut below: Option<R::Key> = None;
    while let Some((mut node, index)) = path.pop() {
        if let Some(key) = below {
            node.set_key(index, key);
        }
        host.store(kind, &node)?;
        below = node.key();
    }
    Ok(())
}

/// Removes a record.
pub fn remove<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    order: Order,
) -> Result<()> {
    let mut path = path::<R>(host, kind, order)?;
    let found = path.last_mut().filter(|(leaf, index)| {
        let record = leaf.records.get(*index);
        record.is_some_and(|record| record.order(kind) == order)
    });
    match found {
        Some((leaf, index)) => drop(leaf.records.remove(*index)),
        None => return Err(host.broken(TreeRule::Missing)),
    }
    let mut current = path.pop();
    while let Some((mut node, _)) = current.take() {
        let Some((mut parent, index)) = path.pop() else {
            return host.shrink_root(kind, node);
        };
        let max = host.entries_max(kind, &node);
        if node.len() >= max / 2 || parent.len() < 2 {
            if node.len() == 0 {
                return Err(host.broken(TreeRule::Shape));
            }
            host.store(kind, &node)?;
            if let Some(key) = node.key() {
                parent.set_key(index, key);
            }
        } else {
            rebalance(host, kind, &mut parent, &mut node, (index, max))?;
        }
        current = Some((parent, index));
    }
    Ok(())
}

/// Takes an entry for a block that is less than half full from a neighbour that can spare one, else joins it
/// with one, if that is possible.
fn rebalance<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    parent: &mut Node<R>,
    node: &mut Node<R>,
    (index, max): (usize, usize),
) -> Result<()> {
    let neighbour = |at: Option<usize>| at.and_then(|at| parent.pointers.get(at).copied());
    let (left, right) = (neighbour(index.checked_sub(1)), neighbour(Some(index + 1)));
    let load = |at: Option<u64>| at.map(|at| host.load(kind, at, node.level)).transpose();
    let (mut left, mut right) = (load(left)?, load(right)?);
    let can_spare = |other: &&mut Node<R>| other.len() > max / 2;
    if let Some(right) = right.as_mut().filter(can_spare) {
        right.move_first(node);
        return store_pair(host, kind, parent, (node, right), index);
    }
    if let Some(left) = left.as_mut().filter(can_spare) {
        left.move_last(node);
        return store_pair(host, kind, parent, (left, node), index - 1);
    }
    let count = node.len();
    let fits = |other: &&mut Node<R>| other.len() + count <= max;
    if let Some(left) = left.as_mut().filter(fits) {
        return join(host, kind, parent, (left, node), index - 1);
    }
    if let Some(right) = right.as_mut().filter(fits) {
        return join(host, kind, parent, (node, right), index);
    }
    if count == 0 {
        return Err(host.broken(TreeRule::Shape));
    }
    host.store(kind, node)?;
    if let Some(key) = node.key() {
        parent.set_key(index, key);
    }
    Ok(())
}

/// Stores two neighbours, of which the left one has an index in its parent.
fn store_pair<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    parent: &mut Node<R>,
    (left, right): (&Node<R>, &Node<R>),
    index: usize,
) -> Result<()> {
    for (node, index) in [(left, index), (right, index + 1)] {
        host.store(kind, node)?;
        if let Some(key) = node.key() {
            parent.set_key(index, key);
        }
    }
    Ok(())
}

/// Moves all entries of a block to its left neighbour, and frees it.
fn join<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    parent: &mut Node<R>,
    (left, right): (&mut Node<R>, &mut Node<R>),
    index: usize,
) -> Result<()> {
    left.append(right);
    left.right = right.right;
    relink(host, kind, right.right, left.level, left.at)?;
    host.store(kind, left)?;
    host.free(kind, right.at)?;
    parent.keys.remove(index + 1);
    parent.pointers.remove(index + 1);
    if let Some(key) = left.key() {
        parent.set_key(index, key);
    }
    Ok(())
}

/// Passes the root, and all blocks below it whose keys are `wanted`, to `visit`, each once; `most` are more
/// than there can be.
pub fn walk<R: TreeRecord>(
    host: &impl TreeHost<R>,
    kind: BtreeKind,
    most: u64,
    wanted: impl Fn(&R::Key) -> bool,
    visit: &mut dyn FnMut(&Node<R>) -> Result<()>,
) -> Result<()> {
    let root = host.load_root(kind)?;
    let mut seen = HashSet::new();
    let mut level = root.level;
    let mut nodes = root.children(&wanted);
    visit(&root)?;
    while level > 0 {
        level -= 1;
        let mut below = Vec::new();
        for at in nodes {
            if !seen.insert(at) || seen.len() as u64 > most {
                return Err(host.broken(TreeRule::Shape));
            }
            let node = host.load(kind, at, level)?;
            below.extend(node.children(&wanted));
            visit(&node)?;
        }
        nodes = below;
    }
    Ok(())
}
