//! The B-tree of a fork: its root is in the inode, its blocks may be in any allocation group.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, Result};

use super::{ForkEdit, Form, ROOT};
use crate::ag::{BlockRole, Group, Groups, alloc, rmap, space};
use crate::ondisk::btree::{BtreeBlock, BtreeKind, BtreeRule, DiskMapping, Owner, RmapOwner};
use crate::ondisk::{
    AgBlock, AgNr, BlockKind, BlockVerifier, ForkKind, FsBlock, Geometry, InodeNr, Site,
};
use crate::tree::{Found, Node, Order, TreeBlocks, TreeHost, TreeRule};

/// Size of the header of a root.
const ROOT_HEADER: usize = size_of::<crate::ondisk::btree::DiskRootHeader>();

/// The tree of a fork, with the groups that have its blocks.
pub(super) struct ForkTree<'a> {
    fork: &'a mut ForkEdit,
    groups: &'a mut Groups,
}

/// The blocks that a block of the tree leads to.
pub(super) fn pointers(
    block: &BtreeBlock<'_>,
    owner: InodeNr,
    geometry: &Geometry,
) -> Result<Vec<u64>, BtreeRule> {
    let count = if block.level > 0 { block.count } else { 0 };
    (0..count)
        .map(|index| Ok(block.child(index, geometry, owner.get())?.0))
        .collect()
}

impl ForkEdit {
    pub(super) fn tree<'a>(&'a mut self, groups: &'a mut Groups) -> ForkTree<'a> {
        ForkTree { fork: self, groups }
    }

    /// The owner of a block of the tree.
    fn tree_owner(&self, start: AgBlock) -> Owner {
        Owner {
            is_attr_fork: self.kind == ForkKind::Attr,
            is_btree: true,
            ..Owner::special(start, 1, RmapOwner(self.owner.get()))
        }
    }
}

/// Allocates blocks in a row, at most so many, in the group of an inode or the next one that has free
/// space; without an owner yet.
pub(super) fn alloc(
    groups: &mut Groups,
    inode: InodeNr,
    most: u32,
) -> Result<(AgNr, AgBlock, u32)> {
    alloc_by(groups, inode, most, space::alloc_extent)
}

/// The same, where `take` allocates blocks of a group.
pub(crate) fn alloc_by(
    groups: &mut Groups,
    inode: InodeNr,
    most: u32,
    take: impl Fn(&mut Group<'_>, u32) -> Result<Option<(AgBlock, u32)>>,
) -> Result<(AgNr, AgBlock, u32)> {
    let count = groups.geometry().ag_count();
    let (own_ag, _) = groups.geometry().split_inode(inode);
    for step in 0..count {
        let ag = AgNr(own_ag.0.wrapping_add(step) % count);
        let mut group = groups.get(ag)?;
        let most = most.min(alloc::available(&group));
        if most == 0 {
            continue;
        }
        if let Some((start, count)) = take(&mut group, most)? {
            return Ok((ag, start, count));
        }
    }
    groups.note_full();
    Err(Condition::NoSpace.into())
}

impl ForkTree<'_> {
    /// Calls `look` with a block of the tree on this level, verified.
    fn look_at<T>(
        &self,
        kind: BtreeKind,
        at: u64,
        level: u16,
        look: impl FnOnce(&BtreeBlock<'_>) -> Result<T, BtreeRule>,
    ) -> Result<T> {
        let geometry = self.groups.geometry();
        let block = FsBlock(at);
        let offset = geometry.byte_offset(block);
        let owner = self.fork.owner;
        let verifier = BlockVerifier::new(geometry, BlockKind::Btree(kind), owner.get());
        let blocks = self.groups.blocks();
        let bytes = blocks.verified(offset, geometry.block_bytes(), &verifier)?;
        let rule = |rule: BtreeRule| {
            let locus = geometry.locus(geometry.basic_block(block));
            Corrupt::new(locus, rule)
        };
        let site = Site::verified(geometry, owner.get());
        let found = BtreeBlock::decode(&bytes, kind, &site).map_err(rule)?;
        if found.level != level {
            return Err(rule(BtreeRule::Level).into());
        }
        Ok(look(&found).map_err(rule)?)
    }
}

impl TreeBlocks for ForkTree<'_> {
    fn broken(&self, rule: TreeRule) -> Error {
        Corrupt::new(Locus::inode(self.fork.owner.get()), rule).into()
    }

    fn alloc(&mut self, _kind: BtreeKind) -> Result<u64> {
        let (ag, start, _) = alloc(self.groups, self.fork.owner, 1)?;
        let owner = self.fork.tree_owner(start);
        rmap::add(&mut self.groups.get(ag)?, &owner)?;
        self.fork.blocks += 1;
        let geometry = self.groups.geometry().clone();
        let block = geometry.fs_block(ag, start);
        let zeros = vec![0; geometry.block_bytes() as usize];
        let blocks = self.groups.blocks_mut();
        blocks.create(geometry.byte_offset(block), zeros);
        Ok(block.0)
    }

    fn free(&mut self, _kind: BtreeKind, at: u64) -> Result<()> {
        let geometry = self.groups.geometry().clone();
        let (ag, start) = geometry.split(FsBlock(at));
        let offset = geometry.byte_offset(FsBlock(at));
        let len = geometry.block_bytes();
        self.groups.blocks_mut().forget(offset, len);
        let owner = self.fork.tree_owner(start);
        let mut group = self.groups.get(ag)?;
        space::fill_free_list(&mut group)?;
        rmap::remove(&mut group, &owner)?;
        space::free_extent(&mut group, start, 1)?;
        self.fork.blocks -= 1;
        Ok(())
    }
}

impl TreeHost<DiskMapping> for ForkTree<'_> {
    fn load_root(&self, _kind: BtreeKind) -> Result<Node<DiskMapping>> {
        match &self.fork.form {
            Form::Tree(root) => Ok(root.clone()),
            Form::Extents(_) => Err(self.broken(TreeRule::Shape)),
        }
    }

    fn load(&self, kind: BtreeKind, at: u64, level: u16) -> Result<Node<DiskMapping>> {
        self.look_at(kind, at, level, |block| {
            let pointers = pointers(block, self.fork.owner, self.groups.geometry())?;
            Ok(Node::new(at, block, pointers))
        })
    }

    fn search(
        &self,
        kind: BtreeKind,
        at: u64,
        level: u16,
        order: Order,
    ) -> Result<Found<DiskMapping>> {
        let (geometry, owner) = (self.groups.geometry(), self.fork.owner.get());
        self.look_at(kind, at, level, |block| {
            Found::in_block(block, at, order, |index| {
                Ok(block.child(index, geometry, owner)?.0)
            })
        })
    }

    fn store(&mut self, kind: BtreeKind, node: &Node<DiskMapping>) -> Result<()> {
        if node.at == ROOT {
            self.fork.form = Form::Tree(node.clone());
            return Ok(());
        }
        let geometry = self.groups.geometry().clone();
        let at = FsBlock(node.at);
        let offset = geometry.byte_offset(at);
        let block = super::built(self.fork.owner, node);
        let blocks = self.groups.blocks_mut();
        let seals_later = blocks.seals_later();
        let role = BlockRole {
            kind: BlockKind::Btree(kind),
            owner: self.fork.owner.get(),
        };
        let bytes = blocks.edit(offset, geometry.block_bytes(), role)?;
        let encoded = if seals_later {
            block.encode_unsealed(at, &geometry, bytes)
        } else {
            block.encode(at, &geometry, bytes)
        };
        encoded.ok_or_else(|| self.broken(TreeRule::Shape))
    }

    fn entries_max(&self, kind: BtreeKind, node: &Node<DiskMapping>) -> usize {
        if node.at == ROOT {
            return kind.capacity(node.level, self.fork.len.saturating_sub(ROOT_HEADER));
        }
        kind.records_max(node.level, self.groups.geometry())
    }

    fn grow_root(&mut self, kind: BtreeKind, root: Node<DiskMapping>) -> Result<()> {
        let below = Node {
            at: self.alloc(kind)?,
            ..root
        };
        self.store(kind, &below)?;
        let children = below.key().map(|key| (key, below.at));
        let level = below.level.saturating_add(1);
        let root = Node::above(ROOT, level, children.into_iter().collect());
        self.store(kind, &root)
    }

    fn shrink_root(&mut self, kind: BtreeKind, root: Node<DiskMapping>) -> Result<()> {
        let (2.., [only]) = (root.level, root.pointers.as_slice()) else {
            return self.store(kind, &root);
        };
        let below = self.load(kind, *only, root.level - 1)?;
        let raised = Node {
            at: ROOT,
            left: None,
            right: None,
            ..below
        };
        if raised.len() > self.entries_max(kind, &raised) {
            return self.store(kind, &root);
        }
        self.store(kind, &raised)?;
        self.free(kind, *only)
    }
}
