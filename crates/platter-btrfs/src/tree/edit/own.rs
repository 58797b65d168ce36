//! Making blocks the transaction's own, from the root down.

use platter_vfs::Result;
use zerocopy::{FromBytes, IntoBytes};

use super::{CopyOnWrite, Path, Purpose, ROUNDS_MAX, Step, TreeEditRule, TreeEditor, split};
use crate::ondisk::header::{DiskHeader, HEADER_BYTES, Header, HeaderFlags, LEVEL_MAX};
use crate::ondisk::leaf_edit::{self, LeafMut};
use crate::ondisk::node::KeyPointer;
use crate::ondisk::node_edit::{self, NodeMut};
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr};
use crate::tree::TreeBlock;

impl<C: CopyOnWrite> TreeEditor<'_, C> {
    /// Finds the way to `key`: to the first item at or after it in the leaf that it belongs to. Returns the step to
    /// that leaf, and the leaf. All blocks on the way, which becomes the [current one](Self::path), belong to the
    /// transaction.
    pub(super) fn descend(&mut self, key: Key, purpose: Purpose) -> Result<(Step, TreeBlock)> {
        self.has_begun = true;
        if let Some(found) = self.descend_recent(key, purpose)? {
            return Ok(found);
        }
        for _ in 0..ROUNDS_MAX {
            if let Some(found) = self.try_descend(key, purpose)? {
                return Ok(found);
            }
        }
        Err(self.broken(key, TreeEditRule::TooHigh))
    }

    /// The way that was found last.
    pub(super) fn path(&self) -> Result<Path> {
        let path = self.recent.current().copied();
        path.ok_or_else(|| self.shape())
    }

    /// The way to `key`, if it leads to a leaf that was changed before, and has the space for what is inserted.
    fn descend_recent(&mut self, key: Key, purpose: Purpose) -> Result<Option<(Step, TreeBlock)>> {
        let Some(mut step) = self.follow(key) else {
            return Ok(None);
        };
        let block = self.own_block(step.logical)?;
        if let Purpose::Insert { needed } = purpose
            && needed > leaf_edit::free_bytes(block.bytes())
        {
            return Ok(None);
        }
        step.index = block.leaf().lower_bound(key);
        self.recent.set_index(step.index);
        Ok(Some((step, block)))
    }

    /// The step to the leaf that `key` belongs to, if it was changed before, with any index. The way to it becomes the
    /// current one.
    pub(super) fn follow(&mut self, key: Key) -> Option<Step> {
        let step = self.recent.follow(key)?;
        self.recent.current().filter(|path| self.owns(path))?;
        Some(step)
    }

    /// Whether all blocks of a path belong to the transaction.
    fn owns(&self, path: &Path) -> bool {
        let generation = self.cow.generation();
        let mut steps = path.steps().iter();
        steps.all(|step| self.cow.owns(step.logical, generation))
    }

    /// The leaf that `key` belongs to, if it was changed before.
    pub(super) fn recent_leaf(&self, key: Key) -> Result<Option<TreeBlock>> {
        let path = self.recent.find(key).filter(|path| self.owns(path));
        let leaf = path.and_then(Path::leaf);
        leaf.map(|leaf| self.own_block(leaf.logical)).transpose()
    }

    /// `None` if a node had to be split, so that the way is another one.
    fn try_descend(&mut self, key: Key, purpose: Purpose) -> Result<Option<(Step, TreeBlock)>> {
        self.count_search();
        let mut path = Path::EMPTY;
        let (mut logical, mut level) = self.own_root()?;
        let mut block = self.own_block(logical)?;
        let (mut low, mut end) = (Key::MIN, None);
        loop {
            let index = match level {
                0 => block.leaf().lower_bound(key),
                _ => block.node().index_for(key),
            };
            let step = Step {
                logical,
                index,
                end,
            };
            path.push(step).ok_or_else(|| self.shape())?;
            if level == 0 {
                self.recent.add(low, &path);
                return Ok(Some((step, block)));
            }
            let node = block.node();
            let is_full = node.len() + 2 > node_edit::capacity(self.node_bytes());
            if is_full && matches!(purpose, Purpose::Insert { .. }) {
                drop(block);
                split::split_node(self, &path)?;
                return Ok(None);
            }
            let pointer = node.pointer(index).ok_or_else(|| self.shape())?;
            let next = node.pointer(index + 1).map(|next| next.key);
            drop(block);
            if index > 0 {
                low = pointer.key;
            }
            end = next.or(end);
            level = level.checked_sub(1).ok_or_else(|| self.shape())?;
            (logical, block) = self.own_child_block(logical, index, pointer, level, end)?;
        }
    }

    /// Changes a leaf that belongs to the transaction.
    pub(super) fn edit_leaf<R>(
        &self,
        logical: LogicalAddr,
        change: impl FnOnce(&mut LeafMut<'_>) -> R,
    ) -> Result<R> {
        self.count_leaf_change();
        let generation = self.cow.generation();
        self.blocks.edit(logical, generation, |bytes| {
            change(&mut LeafMut::new(bytes))
        })
    }

    /// Changes a leaf that belongs to the transaction; `None` if `change` leaves it as it is.
    pub(super) fn try_edit_leaf<R>(
        &self,
        logical: LogicalAddr,
        change: impl FnOnce(&mut LeafMut<'_>) -> Option<R>,
    ) -> Result<Option<R>> {
        self.count_leaf_change();
        let generation = self.cow.generation();
        let edited = self.blocks.try_edit(logical, generation, |bytes| {
            let header = DiskHeader::ref_from_prefix(bytes).ok();
            let is_own = header.is_some_and(|(header, _)| {
                header.generation.get() == generation.0 && header.level == 0
            });
            is_own.then(|| change(&mut LeafMut::new(bytes)))?
        })?;
        Ok(edited)
    }

    /// Adds or removes pointers of a node that belongs to the transaction.
    pub(super) fn edit_node<R>(
        &mut self,
        logical: LogicalAddr,
        change: impl FnOnce(&mut NodeMut<'_>) -> R,
    ) -> Result<R> {
        self.recent.forget_all();
        let generation = self.cow.generation();
        self.blocks.edit(logical, generation, |bytes| {
            change(&mut NodeMut::new(bytes))
        })
    }

    /// A block that belongs to the transaction.
    pub(super) fn own_block(&self, logical: LogicalAddr) -> Result<TreeBlock> {
        let expected = Expected {
            generation: Some(self.cow.generation()),
            tree: Some(self.state.id()),
            ..Expected::default()
        };
        self.blocks.read(logical, &expected)
    }

    /// Makes the root belong to the transaction.
    pub(super) fn own_root(&mut self) -> Result<(LogicalAddr, u8)> {
        let root = self.root();
        if self.cow.owns(root.logical, root.generation) {
            return Ok((root.logical, root.level));
        }
        let expected = Expected {
            level: Some(root.level),
            generation: Some(root.generation),
            tree: Some(self.state.id()),
            ..Expected::default()
        };
        let block = self.blocks.read(root.logical, &expected)?;
        let logical = self.copy(&block, true)?;
        self.state.tree.root = RootPointer {
            logical,
            generation: self.cow.generation(),
            level: root.level,
        };
        Ok((logical, root.level))
    }

    /// The child that a pointer of a node leads to.
    pub(super) fn child(
        &self,
        pointer: KeyPointer,
        level: u8,
        end: Option<Key>,
    ) -> Result<TreeBlock> {
        let expected = Expected {
            level: Some(level),
            generation: Some(pointer.generation),
            tree: Some(self.state.id()),
            first_key: Some(pointer.key),
            end_key: end,
        };
        self.blocks.read(pointer.logical, &expected)
    }

    /// Makes a child of a node belong to the transaction.
    pub(super) fn own_child(
        &mut self,
        parent: LogicalAddr,
        index: usize,
        pointer: KeyPointer,
        level: u8,
        end: Option<Key>,
    ) -> Result<LogicalAddr> {
        let owned = self.own_child_block(parent, index, pointer, level, end)?;
        Ok(owned.0)
    }

    fn own_child_block(
        &mut self,
        parent: LogicalAddr,
        index: usize,
        pointer: KeyPointer,
        level: u8,
        end: Option<Key>,
    ) -> Result<(LogicalAddr, TreeBlock)> {
        let block = self.child(pointer, level, end)?;
        let generation = self.cow.generation();
        if self.cow.owns(pointer.logical, pointer.generation) {
            return Ok((pointer.logical, block));
        }
        let logical = self.copy(&block, false)?;
        let pointer = KeyPointer {
            key: pointer.key,
            logical,
            generation,
        };
        // No recent path leads through the child.
        self.blocks.edit(parent, generation, |bytes| {
            NodeMut::new(bytes).set(index, pointer);
        })?;
        Ok((logical, self.own_block(logical)?))
    }

    /// Copies a block. Returns where the copy is.
    fn copy(&mut self, block: &TreeBlock, is_root: bool) -> Result<LogicalAddr> {
        let first_key = first_key(block).unwrap_or(Key::MIN);
        let level = block.level();
        let near = block.logical();
        let logical = self.cow.allocate(self.state, level, first_key, near)?;
        let mut bytes: Box<[u8]> = block.bytes().into();
        let old = block.header().ok_or_else(|| self.shape())?;
        let header = self.header(&old, logical);
        write_header(&mut bytes, &header);
        self.cow.copied(self.state, block, &bytes, is_root)?;
        self.blocks.create(logical, bytes)?;
        Ok(logical)
    }

    /// The header of a new block at `logical`, with what `other` has in common with it.
    fn header(&self, other: &Header, logical: LogicalAddr) -> Header {
        Header {
            logical,
            flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
            generation: self.cow.generation(),
            owner: self.state.id(),
            ..*other
        }
    }

    /// Allocates a block next to `other`, of `level`. Returns its header and empty bytes.
    pub(super) fn new_block(
        &mut self,
        other: LogicalAddr,
        level: u8,
        first_key: Key,
    ) -> Result<(Header, Box<[u8]>)> {
        let sibling = self.own_block(other)?;
        let old = sibling.header().ok_or_else(|| self.shape())?;
        let len = sibling.bytes().len();
        drop(sibling);
        let logical = self.cow.allocate(self.state, level, first_key, other)?;
        self.state.used_bytes = self
            .state
            .used_bytes
            .saturating_add(self.node_bytes().into());
        let header = Header {
            level,
            ..self.header(&old, logical)
        };
        Ok((header, vec![0; len].into()))
    }

    /// Frees a block of the transaction.
    pub(super) fn free(&mut self, logical: LogicalAddr, level: u8) -> Result<()> {
        self.recent.forget_all();
        let node_bytes = u64::from(self.node_bytes());
        self.state.used_bytes = self.state.used_bytes.saturating_sub(node_bytes);
        self.cow.freed(self.state, logical, level)
    }

    /// Puts a node above the root.
    pub(super) fn grow(&mut self) -> Result<()> {
        self.recent.forget_all();
        let root = self.root();
        let level = root.level + 1;
        let block = self.own_block(root.logical)?;
        let first = first_key(&block);
        drop(block);
        let key = first.ok_or_else(|| self.shape())?;
        if level >= LEVEL_MAX {
            return Err(self.broken(key, TreeEditRule::TooHigh));
        }
        let (header, mut bytes) = self.new_block(root.logical, level, key)?;
        let pointer = KeyPointer {
            key,
            logical: root.logical,
            generation: root.generation,
        };
        if !crate::ondisk::node::encode(&mut bytes, &header, &[pointer]) {
            return Err(self.shape());
        }
        self.blocks.create(header.logical, bytes)?;
        self.state.tree.root = RootPointer {
            logical: header.logical,
            generation: header.generation,
            level,
        };
        Ok(())
    }

    /// Changes the key of the pointers to a block whose first key changed: in the node above it, and further
    /// up as long as that is the first of its node. `depth` is that of the block.
    pub(super) fn set_first_key(&mut self, path: &Path, depth: usize, key: Key) -> Result<()> {
        let generation = self.cow.generation();
        let above = path.steps().iter().take(depth).rev();
        for (distance, step) in above.enumerate() {
            let old = self.blocks.edit(step.logical, generation, |bytes| {
                NodeMut::new(bytes).set_key(step.index, key)
            })?;
            if step.index == 0 {
                continue;
            }
            // The block left of it ends where it begins.
            match (path.leaf(), old) {
                (Some(leaf), Some(old)) if distance == 0 && depth == path.depth() => {
                    self.recent.move_bound(leaf.logical, old, key);
                }
                _ => self.recent.forget_all(),
            }
            break;
        }
        Ok(())
    }
}

/// The first key of a block.
pub(super) fn first_key(block: &TreeBlock) -> Option<Key> {
    match block.level() {
        0 => block.leaf().key(0),
        _ => block.node().pointer(0).map(|pointer| pointer.key),
    }
}

fn write_header(bytes: &mut [u8], header: &Header) {
    if let Some(front) = bytes.get_mut(..HEADER_BYTES) {
        front.copy_from_slice(header.encode().as_bytes());
    }
}
