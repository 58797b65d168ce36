//! The B-trees of an allocation group.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};
use zerocopy::IntoBytes;

use super::{BlockRole, Group, space};
use crate::ondisk::agf::TreeRoot;
use crate::ondisk::btree::{BtreeBlock, BtreeKind, BtreeRule, BuiltBlock, leaf_records_mut};
use crate::ondisk::chunks::Chunks;
use crate::ondisk::{AgBlock, BlockKind, BlockVerifier, FsBlock, Site};
use crate::tree::{self, Around, Found, Node, Order, TreeBlocks, TreeHost, TreeRecord, TreeRule};

/// A pointer of a tree as the block of the group that it is to.
fn ag_block(at: u64) -> AgBlock {
    u32::try_from(at).map_or(AgBlock::NULL, AgBlock)
}

impl TreeBlocks for Group<'_> {
    fn broken(&self, rule: TreeRule) -> Error {
        Corrupt::new(Locus::group(self.ag.0.into()), rule).into()
    }

    fn alloc(&mut self, kind: BtreeKind) -> Result<u64> {
        Ok(space::alloc_tree_block(self, kind)?.0.into())
    }

    fn free(&mut self, kind: BtreeKind, at: u64) -> Result<()> {
        space::free_tree_block(self, kind, ag_block(at))
    }
}

impl<R: TreeRecord> TreeHost<R> for Group<'_> {
    fn load_root(&self, kind: BtreeKind) -> Result<Node<R>> {
        let root = self.root(kind)?;
        let level = u16::try_from(root.levels.saturating_sub(1)).unwrap_or(u16::MAX);
        self.load(kind, root.block.0.into(), level)
    }

    fn load(&self, kind: BtreeKind, at: u64, level: u16) -> Result<Node<R>> {
        self.look_at(kind, at, level, |block| {
            let count = if level > 0 { block.count } else { 0 };
            let pointers = (0..count).map(|index| self.child(block, index));
            Ok(Node::new(at, block, pointers.collect::<Result<_, _>>()?))
        })
    }

    fn search_root(&self, kind: BtreeKind, order: Order) -> Result<(u16, Found<R>)> {
        let root = self.root(kind)?;
        let level = u16::try_from(root.levels.saturating_sub(1)).unwrap_or(u16::MAX);
        let found = self.search(kind, root.block.0.into(), level, order)?;
        Ok((level, found))
    }

    fn search(&self, kind: BtreeKind, at: u64, level: u16, order: Order) -> Result<Found<R>> {
        self.look_at(kind, at, level, |block| {
            Found::in_block(block, at, order, |index| self.child(block, index))
        })
    }

    fn leaf_for(&self, kind: BtreeKind, order: Order) -> Result<Option<u64>> {
        if !self.blocks.seals_later() {
            return Ok(None);
        }
        let root = self.root(kind)?;
        let mut level = u16::try_from(root.levels.saturating_sub(1)).unwrap_or(u16::MAX);
        let mut at: u64 = root.block.0.into();
        while level > 0 {
            let found: Found<R> = self.search(kind, at, level, order)?;
            at = match found {
                Found::Below(below) => below,
                Found::Leaf(_) => return Err(self.broken(TreeRule::Shape)),
            };
            level -= 1;
        }
        Ok(Some(at))
    }

    fn replace_in_leaf(&mut self, kind: BtreeKind, leaf: u64, record: &R) -> Result<bool> {
        if !self.blocks.seals_later() {
            return Ok(false);
        }
        let offset = self.geometry.byte_offset(self.fs_block(leaf));
        let (len, role) = (self.geometry.block_bytes(), self.role(kind));
        let order = record.order(kind);
        let replace = |bytes: &mut [u8], within: &mut Chunks| {
            let records = leaf_records_mut::<R>(bytes, kind).unwrap_or_default();
            let at = records.partition_point(|other| other.order(kind) < order);
            let before = at.checked_sub(1).and_then(|before| records.get(before));
            let fits = record.fits(before, records.get(at + 1), kind);
            let slot = records.get_mut(at);
            let slot = slot.filter(|slot| {
                let same_key = slot.key().as_bytes() == record.key().as_bytes();
                same_key && slot.order(kind) == order
            })?;
            if fits {
                let start = kind.header_bytes(true) + at * size_of::<R>();
                within.add_bytes(start..start + size_of::<R>());
                *slot = *record;
            }
            Some(fits)
        };
        let geometry = self.geometry;
        let replaced = self
            .blocks
            .edit_verified(offset, len, role, geometry, replace)?;
        match replaced {
            Some(false) => Err(self.broken(TreeRule::Order)),
            replaced => Ok(replaced.is_some()),
        }
    }

    fn store(&mut self, kind: BtreeKind, node: &Node<R>) -> Result<()> {
        let at = self.fs_block(node.at);
        let offset = self.geometry.byte_offset(at);
        let block = BuiltBlock {
            kind,
            owner: self.ag.0.into(),
            level: node.level,
            left: node.left,
            right: node.right,
            entries: node.entries(),
            count: node.len(),
            pointers: &node.pointers,
        };
        let seals_later = self.blocks.seals_later();
        let (len, role) = (self.geometry.block_bytes(), self.role(kind));
        let bytes = self.blocks.edit(offset, len, role)?;
        let encoded = if seals_later {
            block.encode_unsealed(at, self.geometry, bytes)
        } else {
            block.encode(at, self.geometry, bytes)
        };
        encoded.ok_or_else(|| self.broken(TreeRule::Shape))
    }

    fn entries_max(&self, kind: BtreeKind, node: &Node<R>) -> usize {
        kind.records_max(node.level, self.geometry)
    }

    fn grow_root(&mut self, kind: BtreeKind, root: Node<R>) -> Result<()> {
        let mut left = root;
        // Which half the new entry goes to does not matter here.
        let inserted = left.len();
        let right = tree::split(self, kind, &mut left, inserted)?;
        self.store(kind, &left)?;
        let first = left.key().map(|key| (key, left.at));
        let children: Vec<_> = first.into_iter().chain(right).collect();
        let level = left.level.saturating_add(1);
        let root = Node::<R>::above(self.alloc(kind)?, level, children);
        self.store(kind, &root)?;
        self.set_root(kind, ag_block(root.at), u32::from(level) + 1);
        Ok(())
    }

    fn shrink_root(&mut self, kind: BtreeKind, root: Node<R>) -> Result<()> {
        match (root.level, root.pointers.as_slice()) {
            (1.., [only]) => {
                self.set_root(kind, ag_block(*only), root.level.into());
                self.free(kind, root.at)
            }
            _ => self.store(kind, &root),
        }
    }
}

impl Group<'_> {
    /// Calls `look` with a block of a tree on this level, verified.
    fn look_at<T>(
        &self,
        kind: BtreeKind,
        at: u64,
        level: u16,
        look: impl FnOnce(&BtreeBlock<'_>) -> Result<T, BtreeRule>,
    ) -> Result<T> {
        let geometry = self.geometry;
        let block = self.fs_block(at);
        let owner = u64::from(self.ag.0);
        let verifier = BlockVerifier::new(geometry, BlockKind::Btree(kind), owner);
        let offset = geometry.byte_offset(block);
        let blocks = &*self.blocks;
        let bytes = blocks.verified(offset, geometry.block_bytes(), &verifier)?;
        let rule = |rule: BtreeRule| {
            let locus = geometry.locus(geometry.basic_block(block));
            Corrupt::new(locus, rule)
        };
        let site = Site::verified(geometry, owner);
        let found = BtreeBlock::decode(&bytes, kind, &site).map_err(rule)?;
        if found.level != level {
            return Err(rule(BtreeRule::Level).into());
        }
        Ok(look(&found).map_err(rule)?)
    }

    /// The block of the group that a pointer of a block is to.
    fn child(&self, block: &BtreeBlock<'_>, index: usize) -> Result<u64, BtreeRule> {
        let child = block.child(index, self.geometry, self.ag.0.into())?;
        Ok(self.geometry.split(child).1.0.into())
    }

    /// What blocks of a tree are.
    fn role(&self, kind: BtreeKind) -> BlockRole {
        BlockRole {
            kind: BlockKind::Btree(kind),
            owner: self.ag.0.into(),
        }
    }

    fn fs_block(&self, at: u64) -> FsBlock {
        self.geometry.fs_block(self.ag, ag_block(at))
    }

    /// What there is next to a place in the leaf that a search for it ends at.
    pub(super) fn leaf_around<R: TreeRecord>(
        &self,
        kind: BtreeKind,
        order: Order,
    ) -> Result<Around<R>> {
        tree::leaf_around(self, kind, order)
    }

    /// The first record at or after a place.
    pub fn lookup_ge<R: TreeRecord>(&self, kind: BtreeKind, order: Order) -> Result<Option<R>> {
        tree::lookup_ge(self, kind, order)
    }

    /// The last record before a place.
    pub fn lookup_lt<R: TreeRecord>(&self, kind: BtreeKind, order: Order) -> Result<Option<R>> {
        tree::lookup_lt(self, kind, order)
    }

    /// Inserts a record.
    pub fn insert<R: TreeRecord>(&mut self, kind: BtreeKind, record: R) -> Result<()> {
        tree::insert(self, kind, record)
    }

    /// Changes a record whose place in the tree stays between those of its neighbours.
    pub fn replace<R: TreeRecord>(
        &mut self,
        kind: BtreeKind,
        order: Order,
        record: R,
    ) -> Result<()> {
        tree::replace(self, kind, order, record)
    }

    /// The same for a record that was found in this leaf, and keeps its key.
    pub(super) fn replace_found<R: TreeRecord>(
        &mut self,
        kind: BtreeKind,
        leaf: u64,
        record: R,
    ) -> Result<()> {
        if self.replace_in_leaf(kind, leaf, &record)? {
            return Ok(());
        }
        self.replace(kind, record.order(kind), record)
    }

    /// Removes a record.
    pub fn remove<R: TreeRecord>(&mut self, kind: BtreeKind, order: Order) -> Result<()> {
        tree::remove::<R>(self, kind, order)
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
        root.ok_or_else(|| self.broken(TreeRule::Shape))
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
