//! Deletions of subvolumes that the kernel began and did not finish.
//!
//! The kernel drops a tree from its beginning, block by block, and leaves the pointers of nodes as they are. The root
//! item says how far it has come: `drop_progress` is the key of the first pointer to a block that is still there,
//! `drop_level` the level of the node that has this pointer. Here the nodes on the way to it are copied without the
//! pointers before it, and nodes further down without those to blocks that old kernels dropped after they had stored
//! the key. What is left is a valid tree, which [`prune`](super::prune) drops.

use std::sync::atomic::Ordering;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use super::cow::RefCountRule;
use super::{Cow, Handle, extents, refs};
use crate::delayed_refs::{Action, RefKey};
use crate::ondisk::extent_item::ExtentFlags;
use crate::ondisk::header::{Header, HeaderFlags};
use crate::ondisk::node::{self, KeyPointer};
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::tree::edit::{CopyOnWrite, TreeEditRule, TreeState};
use crate::tree::{Tree, TreeBlock};

rules! {
    /// The rules of a tree that is partly dropped.
    pub(super) enum ProgressRule of "root item" {
        /// The key is of a pointer of a node.
        Level => "drop_level is not that of a node",
        /// Nodes on the way to it belong to the tree alone.
        Shared => "other trees refer to a node that was partly dropped",
    }
}

/// Removes the pointers to blocks that an interrupted deletion dropped from a tree. `start` and `level` are the
/// progress of the deletion: the key of a pointer in a node at that level. Returns whether nothing is left of the tree;
/// its root item is still there.
///
/// # Errors
/// `Corrupt` if no deletion can have left this tree with that progress, and errors of reading the nodes: nothing has
/// changed. Later errors abort the transaction.
pub(crate) fn cut(handle: &Handle<'_>, id: TreeId, start: Key, level: u8) -> Result<bool> {
    let fs = handle.fs;
    let tree = fs.tree(id)?;
    let mut versions = tree.lock();
    versions.recent.forget_all();
    let state = versions.now;
    let extent_tree = fs.tree(TreeId::EXTENT)?;
    let cutting = Cutting {
        cow: Cow::new(fs, handle.generation),
        state,
        extents: Tree {
            id: TreeId::EXTENT,
            root: extent_tree.commit_root(),
        },
    };
    let mut way = cutting.way(start, level)?;
    for (node, _) in &way {
        cutting.flags_of(node)?;
    }
    cutting.go_on(&mut way)?;
    handle.has_changed.store(true, Ordering::Relaxed);
    let kept = cutting
        .take_off(&way)
        .inspect_err(|error| fs.abort(error))?;
    let root = state.tree.root;
    let Some(pointer) = kept else {
        return Ok(true);
    };
    versions.now.tree.root = RootPointer {
        logical: pointer.logical,
        generation: pointer.generation,
        level: root.level,
    };
    Ok(false)
}

/// A tree while pointers are taken off it.
struct Cutting<'f> {
    cow: Cow<'f>,
    state: TreeState,
    /// The extent tree of the last commit, which shows what the interrupted deletion dropped. With references that
    /// other trees have queued since then, a shared block would look like one of this tree alone.
    extents: Tree,
}

impl Cutting<'_> {
    fn broken(&self, key: Key, rule: ProgressRule) -> platter_vfs::Error {
        Corrupt::new(self.state.tree.locus(key), rule).into()
    }

    fn misshapen(&self, key: Key) -> platter_vfs::Error {
        Corrupt::new(self.state.tree.locus(key), TreeEditRule::Shape).into()
    }

    /// The nodes from the root to that at `level`, and the pointers in them that lead to `start`.
    fn way(&self, start: Key, level: u8) -> Result<Vec<(TreeBlock, usize)>> {
        let level_rule = || self.broken(start, ProgressRule::Level);
        if level == 0 || level > self.state.tree.root.level {
            return Err(level_rule());
        }
        let mut block = self.cow.fs.blocks().read_root(self.state.tree)?;
        let mut way = Vec::new();
        while block.level() > level {
            let index = block.node().index_for(start);
            way.push((block, index));
            block = self.child_of(&way)?.ok_or_else(level_rule)?;
        }
        let index = block.node().index_for(start);
        way.push((block, index));
        Ok(way)
    }

    /// The block that the last pointer of a way leads to. Its keys are before that of the next pointer, be it in a node
    /// above; `None` if there is no pointer.
    fn child_of(&self, way: &[(TreeBlock, usize)]) -> Result<Option<TreeBlock>> {
        let Some((block, index)) = way.last() else {
            return Ok(None);
        };
        let Some(pointer) = block.node().pointer(*index) else {
            return Ok(None);
        };
        let next = |(block, index): &(TreeBlock, usize)| block.node().pointer(index + 1);
        let expected = Expected {
            level: block.level().checked_sub(1),
            generation: Some(pointer.generation),
            tree: Some(self.state.tree.id),
            first_key: Some(pointer.key),
            end_key: way.iter().rev().find_map(next).map(|next| next.key),
        };
        let child = self.cow.fs.blocks().read(pointer.logical, &expected)?;
        Ok(Some(child))
    }

    /// Extends the way down to the first block that the tree still refers to, through nodes that belong to the tree
    /// alone. Kernels before 5.0 stored no key while they changed the references of a shared block: blocks between the
    /// stored key and that block were dropped, on any level below.
    fn go_on(&self, way: &mut Vec<(TreeBlock, usize)>) -> Result<()> {
        while let Some((block, start)) = way.last().cloned() {
            let below = block.level().saturating_sub(1);
            if below == 0 {
                return Ok(());
            }
            let (node, old) = (block.node(), self.reference_by(&block)?);
            let mut left = node.iter().enumerate().skip(start);
            let first = loop {
                let Some((at, pointer)) = left.next() else {
                    return Ok(());
                };
                if self.is_referred_to(&pointer, below, old)? {
                    break (at, pointer);
                }
            };
            let (at, pointer) = first;
            if self.extent_info(pointer.logical, below)?.0 != 1 {
                return Ok(());
            }
            if let Some((_, index)) = way.last_mut() {
                *index = at;
            }
            let Some(child) = self.child_of(way)? else {
                return Ok(());
            };
            way.push((child, 0));
        }
        Ok(())
    }

    /// The form of the references to the children of a node: by the node if it is `FULL_BACKREF`, else by the tree.
    fn reference_by(&self, block: &TreeBlock) -> Result<RefKey> {
        let is_full = self.flags_of(block)?.contains(ExtentFlags::FULL_BACKREF);
        Ok(if is_full {
            RefKey::SharedBlock {
                parent: block.logical(),
            }
        } else {
            RefKey::TreeBlock {
                tree: self.state.id(),
            }
        })
    }

    /// References and flags of a tree block in the last commit.
    fn extent_info(&self, logical: LogicalAddr, level: u8) -> Result<(u64, ExtentFlags)> {
        let found = extents::find_tree_block(self.cow.fs, &self.extents, logical, level)?;
        let missing = || Corrupt::new(Locus::block(logical.0), RefCountRule::NoRefs);
        let (_, item) = found.ok_or_else(missing)?;
        Ok((item.refs, item.flags))
    }

    /// The flags of the extent of a node on the way, which belongs to the tree alone.
    fn flags_of(&self, block: &TreeBlock) -> Result<ExtentFlags> {
        let (references, flags) = self.extent_info(block.logical(), block.level())?;
        if references != 1 {
            let first = block.node().pointer(0).map_or(Key::MIN, |first| first.key);
            return Err(self.broken(first, ProgressRule::Shared));
        }
        Ok(flags)
    }

    /// Shortens all nodes on the way, the lowest first, and drops the root. Returns the pointer to the new root; `None`
    /// if it has no pointers.
    fn take_off(&self, way: &[(TreeBlock, usize)]) -> Result<Option<KeyPointer>> {
        let mut kept = None;
        let mut is_last = true;
        for (node, index) in way.iter().rev() {
            kept = self.shorten(node, *index, kept, is_last)?;
            is_last = false;
        }
        let Tree { id, root } = self.state.tree;
        let by_tree = RefKey::TreeBlock { tree: id };
        self.queue(root.logical, root.level, by_tree, Action::Drop)?;
        Ok(kept)
    }

    /// Makes a node without its pointers before `index`. The one there leads to the node that was shortened before,
    /// which `kept` leads to now, unless this is the `last` node on the way. Returns the pointer to the new node;
    /// `None` if it has no pointers.
    fn shorten(
        &self,
        block: &TreeBlock,
        index: usize,
        kept: Option<KeyPointer>,
        is_last: bool,
    ) -> Result<Option<KeyPointer>> {
        let id = self.state.id();
        let (logical, level) = (block.logical(), block.level());
        let pointers: Vec<KeyPointer> = block.node().iter().collect();
        let pointer = pointers.get(index).copied();
        let first = pointer.map_or(Key::MIN, |pointer| pointer.key);
        let shape = || self.misshapen(first);
        let below = level.checked_sub(1).ok_or_else(shape)?;
        let old = self.reference_by(block)?;
        let new = RefKey::TreeBlock { tree: id };
        let mut rest = pointers.get(index..).unwrap_or_default();
        if is_last {
            // The kernel stores a key before it drops shared blocks: references that come next may be gone.
            while let Some((pointer, others)) = rest.split_first()
                && !self.is_referred_to(pointer, below, old)?
            {
                rest = others;
            }
        } else {
            let (pointer, others) = rest.split_first().ok_or_else(shape)?;
            self.queue(pointer.logical, below, old, Action::Drop)?;
            rest = others;
        }
        if old != new {
            for pointer in rest {
                self.queue(pointer.logical, below, new, Action::Add)?;
                self.queue(pointer.logical, below, old, Action::Drop)?;
            }
        }
        let pointers: Vec<KeyPointer> = kept.into_iter().chain(rest.iter().copied()).collect();
        let Some(first) = pointers.first() else {
            return Ok(None);
        };
        let fs = self.cow.fs;
        let new = self.cow.allocate(&self.state, level, first.key, logical)?;
        let generation = self.cow.generation();
        let header = Header {
            logical: new,
            flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
            generation,
            owner: id,
            ..block.header().ok_or_else(shape)?
        };
        let mut bytes = vec![0; block.bytes().len()].into_boxed_slice();
        if !node::encode(&mut bytes, &header, &pointers) {
            return Err(shape());
        }
        fs.blocks().create(new, bytes)?;
        Ok(Some(KeyPointer {
            key: first.key,
            logical: new,
            generation,
        }))
    }

    /// Whether the last commit has a reference to the block that a pointer leads to.
    fn is_referred_to(&self, pointer: &KeyPointer, level: u8, reference: RefKey) -> Result<bool> {
        let block = (pointer.logical, level);
        extents::has_ref(self.cow.fs, &self.extents, block, reference)
    }

    fn queue(&self, logical: LogicalAddr, level: u8, key: RefKey, action: Action) -> Result<()> {
        let change = self.cow.change(logical, level, key, action, false);
        refs::queue(self.cow.fs, &change)?;
        Ok(())
    }
}
