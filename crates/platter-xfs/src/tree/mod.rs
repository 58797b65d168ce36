//! B-trees under change: lookups, insertion and removal, over whatever has their blocks.
//!
//! # Invariants
//! - The key of a pointer is that of the block below it.
//! - Blocks other than the root are at least half full, unless they were not before.
//! - Blocks of a level are linked in order.

mod record;
mod node;
mod search;
mod neighbour;

use std::collections::HashSet;

use platter_ondisk::rules;
use platter_vfs::{Error, Result};

use crate::ondisk::btree::BtreeKind;

use neighbour::{Neighbour, Side};
pub use node::Node;
pub use record::{Order, TreeRecord};
pub use search::{Around, Found};

rules! {
    /// What a B-tree must hold to when it changes.
    pub enum TreeRule of "B-tree" {
        /// The blocks of a tree fit each other.
        Shape => "B-tree is inconsistent",
        /// A record that is to be changed exists.
        Missing => "record is missing in a B-tree",
        /// A record that is to be inserted does not exist.
        Exists => "record exists in a B-tree",
        /// Records of a leaf ascend and do not overlap, and none is empty.
        Order => "records out of order",
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

    /// What a search finds in the root, and the root's level.
    fn search_root(&self, kind: BtreeKind, order: Order) -> Result<(u16, Found<R>)> {
        let root = self.load_root(kind)?;
        let found = Found::in_node(&root, kind, order);
        Ok((
            root.level,
            found.ok_or_else(|| self.broken(TreeRule::Shape))?,
        ))
    }

    /// What a search finds in a block below the root.
    fn search(&self, kind: BtreeKind, at: u64, level: u16, order: Order) -> Result<Found<R>> {
        let node = self.load(kind, at, level)?;
        let found = Found::in_node(&node, kind, order);
        found.ok_or_else(|| self.broken(TreeRule::Shape))
    }

    /// The leaf that a search ends at, which is not looked at; `None` where blocks are stored as a whole only.
    fn leaf_for(&self, _kind: BtreeKind, _order: Order) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Stores a record in a leaf instead of the one at the same place of the tree with the same key; false, and nothing
    /// stored, where the leaf has none, or blocks are stored as a whole only.
    ///
    /// # Errors
    /// For a record that does not [fit](TreeRecord::fits) between those next to it.
    fn replace_in_leaf(&mut self, _kind: BtreeKind, _leaf: u64, _record: &R) -> Result<bool> {
        Ok(false)
    }

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

/// Checks that the record with this index of a leaf fits between those next to it: what the verifier of the leaf
/// would find is an error of this change alone.
fn check_record<R: TreeRecord>(
    host: &impl TreeBlocks,
    kind: BtreeKind,
    leaf: &Node<R>,
    index: usize,
) -> Result<()> {
    let before = index.checked_sub(1).and_then(|at| leaf.records.get(at));
    let after = leaf.records.get(index + 1);
    let record = leaf.records.get(index);
    if record.is_some_and(|record| record.fits(before, after, kind)) {
        Ok(())
    } else {
        Err(host.broken(TreeRule::Order))
    }
}

/// Checks that the records of a leaf may follow those of its left neighbour in one block.
fn check_neighbours<R: TreeRecord>(
    host: &impl TreeBlocks,
    kind: BtreeKind,
    left: &Node<R>,
    right: &Node<R>,
) -> Result<()> {
    let first = right.records.first();
    if first.is_none_or(|first| first.follows(left.records.last(), kind)) {
        Ok(())
    } else {
        Err(host.broken(TreeRule::Order))
    }
}

/// What there is next to a place in the leaf that a search for it ends at.
pub fn leaf_around<R: TreeRecord>(
    host: &impl TreeHost<R>,
    kind: BtreeKind,
    order: Order,
) -> Result<Around<R>> {
    let (mut level, mut found) = host.search_root(kind, order)?;
    loop {
        let below = match found {
            Found::Leaf(around) => return Ok(around),
            Found::Below(below) => below,
        };
        let next = level.checked_sub(1);
        level = next.ok_or_else(|| host.broken(TreeRule::Shape))?;
        found = host.search(kind, below, level, order)?;
    }
}

/// The first record at or after a place.
pub fn lookup_ge<R: TreeRecord>(
    host: &impl TreeHost<R>,
    kind: BtreeKind,
    order: Order,
) -> Result<Option<R>> {
    let leaf = leaf_around::<R>(host, kind, order)?;
    if leaf.after.is_some() {
        return Ok(leaf.after);
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
    let leaf = leaf_around::<R>(host, kind, order)?;
    if leaf.before.is_some() {
        return Ok(leaf.before);
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
        check_record(host, kind, leaf, *index)?;
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
            if path.is_empty() {
                return host.grow_root(kind, node);
            }
            added = make_space(host, kind, &mut path, &mut node, inserted)?;
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
    path: &mut Path<R>,
    node: &mut Node<R>,
    inserted: usize,
) -> Result<Option<(R::Key, u64)>> {
    let before = node.len() - 1;
    if inserted + 2 <= before {
        let right = Neighbour::find(host, kind, path, node, Side::Right)?;
        if let Some(mut right) = right.filter(|right| right.node.len() < before) {
            check_neighbours(host, kind, node, &right.node)?;
            node.move_last(&mut right.node);
            right.store(host, kind, path)?;
            return Ok(None);
        }
    }
    if inserted > 0 {
        let left = Neighbour::find(host, kind, path, node, Side::Left)?;
        if let Some(mut left) = left.filter(|left| left.node.len() < before) {
            check_neighbours(host, kind, &left.node, node)?;
            node.move_first(&mut left.node);
            left.store(host, kind, path)?;
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
    // If the key stays, nothing but the record changes.
    if record.order(kind) == order
        && let Some(leaf) = host.leaf_for(kind, order)?
        && host.replace_in_leaf(kind, leaf, &record)?
    {
        return Ok(());
    }
    let mut path = path::<R>(host, kind, order)?;
    let found = path.last_mut().filter(|(leaf, index)| {
        let record = leaf.records.get(*index);
        record.is_some_and(|record| record.order(kind) == order)
    });
    let (leaf, index) = found.ok_or_else(|| host.broken(TreeRule::Missing))?;
    if let Some(slot) = leaf.records.get_mut(*index) {
        *slot = record;
    }
    check_record(host, kind, leaf, *index)?;
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
    let mut has_lost = true;
    while let Some((node, _)) = path.pop() {
        if path.is_empty() {
            return host.shrink_root(kind, node);
        }
        has_lost = if has_lost && node.len() < host.entries_max(kind, &node) / 2 {
            rebalance(host, kind, &mut path, node)?
        } else {
            store_below(host, kind, &mut path, &node)?;
            false
        };
    }
    Ok(())
}

/// Stores a block below the last one of a path.
fn store_below<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    path: &mut Path<R>,
    node: &Node<R>,
) -> Result<()> {
    if node.len() == 0 {
        return Err(host.broken(TreeRule::Shape));
    }
    host.store(kind, node)?;
    if let (Some((parent, index)), Some(key)) = (path.last_mut(), node.key()) {
        parent.set_key(*index, key);
    }
    Ok(())
}

/// Takes an entry for a block that is less than half full from a neighbour that can spare one, else joins it
/// with one, if that is possible. Returns whether the last block of the path, which leads to another block
/// afterwards if that one is gone, has lost an entry.
fn rebalance<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    path: &mut Path<R>,
    mut node: Node<R>,
) -> Result<bool> {
    let max = host.entries_max(kind, &node);
    let can_spare = |other: &Neighbour<R>| other.node.len() > max / 2;
    let mut right = Neighbour::find(host, kind, path, &node, Side::Right)?;
    if let Some(mut right) = right.take_if(|right| can_spare(right)) {
        check_neighbours(host, kind, &node, &right.node)?;
        right.node.move_first(&mut node);
        right.store(host, kind, path)?;
        store_below(host, kind, path, &node)?;
        return Ok(false);
    }
    let mut left = Neighbour::find(host, kind, path, &node, Side::Left)?;
    if let Some(mut left) = left.take_if(|left| can_spare(left)) {
        check_neighbours(host, kind, &left.node, &node)?;
        left.node.move_last(&mut node);
        left.store(host, kind, path)?;
        store_below(host, kind, path, &node)?;
        return Ok(false);
    }
    let fits = |other: &Neighbour<R>| other.node.len() + node.len() <= max;
    if let Some(mut left) = left.filter(fits) {
        join(host, kind, &mut left.node, &mut node)?;
        left.store(host, kind, path)?;
    } else if let Some(mut right) = right.filter(fits) {
        join(host, kind, &mut node, &mut right.node)?;
        right.lead(host, kind, path, &node)?;
    } else {
        store_below(host, kind, path, &node)?;
        return Ok(false);
    }
    if let Some((parent, index)) = path.last_mut() {
        parent.remove(*index);
    }
    Ok(true)
}

/// Moves all entries of a block to its left neighbour, which is not stored yet, and frees it.
fn join<R: TreeRecord>(
    host: &mut impl TreeHost<R>,
    kind: BtreeKind,
    left: &mut Node<R>,
    right: &mut Node<R>,
) -> Result<()> {
    check_neighbours(host, kind, left, right)?;
    left.append(right);
    left.right = right.right;
    relink(host, kind, right.right, left.level, left.at)?;
    host.free(kind, right.at)
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

#[cfg(test)]
mod tests;
