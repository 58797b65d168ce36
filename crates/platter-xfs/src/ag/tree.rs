//! Insertion into and removal from the B-trees of an allocation group.
//!
//! # Invariants
//! - The key of a pointer is that of the block below it.
//! - Blocks other than the root are at least half full, unless they were not before.
//! - Blocks of a level are linked in order.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::Group;
use super::record::{Order, TreeRecord};
use super::rules::GroupRule;
use crate::ondisk::Site;
use crate::ondisk::btree::{BtreeBlock, BtreeKind, BtreeRule, ShortBlock};
use crate::ondisk::{AgBlock, agf::TreeRoot};

/// A block of a tree in memory.
#[derive(Debug, Clone)]
struct Node<R: TreeRecord> {
    at: AgBlock,
    level: u16,
    left: Option<AgBlock>,
    right: Option<AgBlock>,
    /// Of a leaf.
    records: Vec<R>,
    /// Of a node, with its pointers.
    keys: Vec<R::Key>,
    pointers: Vec<AgBlock>,
}

/// The blocks from the root to a leaf, each with the index of the entry that leads on.
type Path<R> = Vec<(Node<R>, usize)>;

impl<R: TreeRecord> Node<R> {
    fn len(&self) -> usize {
        if self.level == 0 {
            self.records.len()
        } else {
            self.pointers.len()
        }
    }

    fn key(&self) -> Option<R::Key> {
        if self.level == 0 {
            let keys: Vec<R::Key> = self.records.iter().map(R::key).collect();
            return R::joined(&keys);
        }
        R::joined(&self.keys)
    }

    fn set_key(&mut self, index: usize, key: R::Key) {
        if let Some(slot) = self.keys.get_mut(index) {
            *slot = key;
        }
    }

    /// The entries from `index` on, as a block of their own.
    fn split_off(&mut self, index: usize, at: AgBlock) -> Self {
        let (records, keys) = (self.records.len(), self.keys.len());
        Self {
            at,
            level: self.level,
            left: Some(self.at),
            right: self.right,
            records: self.records.split_off(index.min(records)),
            keys: self.keys.split_off(index.min(keys)),
            pointers: self.pointers.split_off(index.min(keys)),
        }
    }

    fn append(&mut self, other: &mut Self) {
        self.records.append(&mut other.records);
        self.keys.append(&mut other.keys);
        self.pointers.append(&mut other.pointers);
    }
}

impl Group<'_> {
    fn broken(&self, rule: GroupRule) -> platter_vfs::Error {
        Corrupt::new(Locus::group(self.ag.0.into()), rule).into()
    }

    fn load<R: TreeRecord>(&self, kind: BtreeKind, at: AgBlock, level: u16) -> Result<Node<R>> {
        let geometry = &self.geometry;
        let block = geometry.fs_block(self.ag, at);
        let bytes = self
            .blocks
            .read(geometry.byte_offset(block), geometry.block_bytes())?;
        let site = Site::new(geometry, geometry.basic_block(block), self.ag.0.into());
        let rule = |rule: BtreeRule| Corrupt::new(site.locus(), rule);
        let found = BtreeBlock::decode(&bytes, kind, &site).map_err(rule)?;
        if found.level != level {
            return Err(rule(BtreeRule::Level).into());
        }
        let sibling = |block: Option<u64>| {
            block
                .and_then(|block| u32::try_from(block).ok())
                .map(AgBlock)
        };
        let mut pointers = Vec::new();
        for index in 0..if level > 0 { found.count } else { 0 } {
            let child = found.child(index, geometry, self.ag.0.into());
            pointers.push(geometry.split(child.map_err(rule)?).1);
        }
        Ok(Node {
            at,
            level,
            left: sibling(found.left),
            right: sibling(found.right),
            records: found.records().to_vec(),
            keys: found.keys().to_vec(),
            pointers,
        })
    }

    fn store<R: TreeRecord>(&mut self, kind: BtreeKind, node: &Node<R>) -> Result<()> {
        let geometry = self.geometry;
        let offset = geometry.byte_offset(geometry.fs_block(self.ag, node.at));
        let mut bytes = self.blocks.read(offset, geometry.block_bytes())?;
        let entries = if node.level == 0 {
            node.records.as_bytes()
        } else {
            node.keys.as_bytes()
        };
        let block = ShortBlock {
            kind,
            ag: self.ag,
            level: node.level,
            left: node.left,
            right: node.right,
            entries,
            count: node.len(),
            pointers: &node.pointers,
        };
        block
            .encode(node.at, &geometry, &mut bytes)
            .ok_or_else(|| self.broken(GroupRule::Tree))?;
        self.blocks.write(offset, bytes);
        Ok(())
    }

    /// Makes `neighbour` the sibling of the block next to it.
    fn relink<R: TreeRecord>(
        &mut self,
        kind: BtreeKind,
        right: Option<AgBlock>,
        level: u16,
        left: AgBlock,
    ) -> Result<()> {
        if let Some(right) = right {
            let mut node = self.load::<R>(kind, right, level)?;
            node.left = Some(left);
            self.store(kind, &node)?;
        }
        Ok(())
    }

    fn path<R: TreeRecord>(&self, kind: BtreeKind, order: Order) -> Result<Path<R>> {
        let root = self.root(kind)?;
        let mut path: Path<R> = Vec::new();
        let mut at = root.block;
        for level in (0..root.levels).rev() {
            let level = u16::try_from(level).unwrap_or(u16::MAX);
            let node = self.load::<R>(kind, at, level)?;
            let index = if level == 0 {
                node.records
                    .partition_point(|record| record.order(kind) < order)
            } else {
                let after = node
                    .keys
                    .partition_point(|key| R::key_order(key, kind) <= order);
                after.saturating_sub(1)
            };
            if level > 0 {
                let next = node.pointers.get(index).copied();
                at = next.ok_or_else(|| self.broken(GroupRule::Tree))?;
            }
            path.push((node, index));
        }
        Ok(path)
    }

    /// The first record at or after a place.
    pub fn lookup_ge<R: TreeRecord>(&self, kind: BtreeKind, order: Order) -> Result<Option<R>> {
        let mut path = self.path::<R>(kind, order)?;
        let Some((leaf, index)) = path.pop() else {
            return Ok(None);
        };
        if let Some(record) = leaf.records.get(index) {
            return Ok(Some(*record));
        }
        match leaf.right {
            Some(right) => Ok(self.load::<R>(kind, right, 0)?.records.first().copied()),
            None => Ok(None),
        }
    }

    /// The last record before a place.
    pub fn lookup_lt<R: TreeRecord>(&self, kind: BtreeKind, order: Order) -> Result<Option<R>> {
        let mut path = self.path::<R>(kind, order)?;
        let Some((leaf, index)) = path.pop() else {
            return Ok(None);
        };
        if let Some(record) = index
            .checked_sub(1)
            .and_then(|index| leaf.records.get(index))
        {
            return Ok(Some(*record));
        }
        match leaf.left {
            Some(left) => Ok(self.load::<R>(kind, left, 0)?.records.last().copied()),
            None => Ok(None),
        }
    }

    /// Inserts a record.
    pub fn insert<R: TreeRecord>(&mut self, kind: BtreeKind, record: R) -> Result<()> {
        let mut path = self.path::<R>(kind, record.order(kind))?;
        if let Some((leaf, index)) = path.last_mut() {
            let exists = leaf
                .records
                .get(*index)
                .is_some_and(|found| found.order(kind) == record.order(kind));
            if exists {
                return Err(self.broken(GroupRule::Exists));
            }
            leaf.records.insert(*index, record);
        }
        let mut added: Option<(R::Key, AgBlock)> = None;
        let mut below: Option<R::Key> = None;
        while let Some((mut node, index)) = path.pop() {
            if node.level > 0 {
                if let Some(key) = below {
                    node.set_key(index, key);
                }
                if let Some((key, at)) = added.take() {
                    node.keys.insert(index + 1, key);
                    node.pointers.insert(index + 1, at);
                }
            }
            if node.len() > kind.records_max(node.level, &self.geometry) {
                let at = self.alloc_tree_block(kind)?;
                let right = node.split_off(node.len() / 2, at);
                node.right = Some(at);
                self.relink::<R>(kind, right.right, right.level, at)?;
                self.store(kind, &right)?;
                added = right.key().map(|key| (key, at));
            }
            self.store(kind, &node)?;
            below = node.key();
            if path.is_empty()
                && let (Some((key, at)), Some(first)) = (added.take(), below)
            {
                let root = Node::<R> {
                    at: self.alloc_tree_block(kind)?,
                    level: node.level + 1,
                    left: None,
                    right: None,
                    records: Vec::new(),
                    keys: vec![first, key],
                    pointers: vec![node.at, at],
                };
                self.store(kind, &root)?;
                self.set_root(kind, root.at, u32::from(root.level) + 1);
            }
        }
        Ok(())
    }

    /// Changes a record whose place in the tree stays between those of its neighbours.
    pub fn replace<R: TreeRecord>(
        &mut self,
        kind: BtreeKind,
        order: Order,
        record: R,
    ) -> Result<()> {
        let mut path = self.path::<R>(kind, order)?;
        let slot = path
            .last_mut()
            .and_then(|(leaf, index)| leaf.records.get_mut(*index))
            .filter(|found| found.order(kind) == order);
        *slot.ok_or_else(|| self.broken(GroupRule::Missing))? = record;
        let mut below: Option<R::Key> = None;
        while let Some((mut node, index)) = path.pop() {
            if let Some(key) = below {
                node.set_key(index, key);
            }
            self.store(kind, &node)?;
            below = node.key();
        }
        Ok(())
    }

    /// Removes a record.
    pub fn remove<R: TreeRecord>(&mut self, kind: BtreeKind, order: Order) -> Result<()> {
        let mut path = self.path::<R>(kind, order)?;
        let found = path.last_mut().filter(|(leaf, index)| {
            let record = leaf.records.get(*index);
            record.is_some_and(|record| record.order(kind) == order)
        });
        match found {
            Some((leaf, index)) => drop(leaf.records.remove(*index)),
            None => return Err(self.broken(GroupRule::Missing)),
        }
        let mut current = path.pop();
        while let Some((mut node, _)) = current.take() {
            let Some((mut parent, index)) = path.pop() else {
                return self.store_root(kind, &node);
            };
            let max = kind.records_max(node.level, &self.geometry);
            if node.len() >= max / 2 || parent.len() < 2 {
                if node.len() == 0 {
                    return Err(self.broken(GroupRule::Tree));
                }
                self.store(kind, &node)?;
                if let Some(key) = node.key() {
                    parent.set_key(index, key);
                }
            } else {
                self.rebalance(kind, &mut parent, &mut node, index, max)?;
            }
            current = Some((parent, index));
        }
        Ok(())
    }

    /// Joins a block that is less than half full with a neighbour, or shares their entries out.
    fn rebalance<R: TreeRecord>(
        &mut self,
        kind: BtreeKind,
        parent: &mut Node<R>,
        node: &mut Node<R>,
        index: usize,
        max: usize,
    ) -> Result<()> {
        let left_index = index.saturating_sub(1);
        let other_index = if index == 0 { 1 } else { left_index };
        let other = parent.pointers.get(other_index).copied();
        let other = other.ok_or_else(|| self.broken(GroupRule::Tree))?;
        let mut other = self.load::<R>(kind, other, node.level)?;
        let (left, right) = if index == 0 {
            (node, &mut other)
        } else {
            (&mut other, node)
        };
        let total = left.len() + right.len();
        left.append(right);
        if total <= max {
            left.right = right.right;
            self.relink::<R>(kind, right.right, left.level, left.at)?;
            self.store(kind, left)?;
            self.free_tree_block(kind, right.at)?;
            parent.keys.remove(left_index + 1);
            parent.pointers.remove(left_index + 1);
        } else {
            let link = right.right;
            *right = left.split_off(total / 2, right.at);
            right.right = link;
            self.store(kind, left)?;
            self.store(kind, right)?;
            if let Some(key) = right.key() {
                parent.set_key(left_index + 1, key);
            }
        }
        if let Some(key) = left.key() {
            parent.set_key(left_index, key);
        }
        Ok(())
    }

    /// Stores the root after a removal: one with a single pointer gives way to what that leads to.
    fn store_root<R: TreeRecord>(&mut self, kind: BtreeKind, root: &Node<R>) -> Result<()> {
        match (root.level, root.pointers.as_slice()) {
            (1.., [only]) => {
                self.set_root(kind, *only, root.level.into());
                self.free_tree_block(kind, root.at)
            }
            _ => self.store(kind, root),
        }
    }

    /// The root of a tree.
    pub(super) fn root(&self, kind: BtreeKind) -> Result<TreeRoot> {
        let root = match kind {
            BtreeKind::Bno => Some(self.agf.bno),
            BtreeKind::Cnt => Some(self.agf.cnt),
            BtreeKind::Rmap => self.agf.rmap,
            BtreeKind::Refcount => self.agf.refcount,
            BtreeKind::Inobt => Some(self.agi.inobt),
            BtreeKind::Finobt => self.agi.finobt,
            BtreeKind::Bmap | BtreeKind::RtRmap | BtreeKind::RtRefcount => None,
        };
        root.ok_or_else(|| self.broken(GroupRule::Tree))
    }

    fn set_root(&mut self, kind: BtreeKind, block: AgBlock, levels: u32) {
        let root = TreeRoot { block, levels };
        match kind {
            BtreeKind::Bno => self.agf.bno = root,
            BtreeKind::Cnt => self.agf.cnt = root,
            BtreeKind::Rmap => self.agf.rmap = Some(root),
            BtreeKind::Refcount => self.agf.refcount = Some(root),
            BtreeKind::Inobt => self.agi.inobt = root,
            BtreeKind::Finobt => self.agi.finobt = Some(root),
            BtreeKind::Bmap | BtreeKind::RtRmap | BtreeKind::RtRefcount => {}
        }
    }
}
