//! Which subvolumes reach an extent, from its references: those of a tree are followed from the tree's root, those by
//! parent through the parent.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::rc::Rc;
use std::vec;

use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use super::sets::{Set, Sets};
use super::uncounted::Uncounted;
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::file_extent::{FileExtent, FileExtentKind};
use crate::ondisk::header::LEVEL_MAX;
use crate::ondisk::key::ItemKind;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::tree::{Cursor, Tree, TreeBlock, TreeBlocks};

/// What a compressed extent holds at most: a file extent begins at most so far in it.
const COMPRESSED_MAX_BYTES: u64 = 128 << 10;
/// What a search from the root of a tree costs, in items that are looked at: it may read a block for each level.
const SEARCH_LOOKS: usize = 256;
/// Blocks, and roots of trees, of which a resolver remembers what it found.
const REMEMBERED_MAX: usize = 1 << 18;

rules! {
    /// The rules of references that are followed back to subvolumes.
    pub enum RootsRule of "back reference" {
        /// What is followed has an item of its kind.
        Item => "an extent that is referred to has no fitting item",
        /// A tree that refers to an extent is there.
        Tree => "a reference is of a tree that does not exist",
        /// What refers is found.
        Missing => "what a reference says is not found in the tree",
    }
}

/// An extent.
struct Extent<'r> {
    len_bytes: u64,
    /// Of a tree block.
    level: Option<u8>,
    flags: ExtentFlags,
    refs: Refs<'r>,
}

/// The references of an extent: those in its item, then those in items of their own.
struct Refs<'r> {
    extent: LogicalAddr,
    inline: vec::IntoIter<ExtentRef>,
    /// At the next item.
    cursor: Cursor<'r>,
}

impl Refs<'_> {
    fn next(&mut self) -> Result<Option<ExtentRef>, Uncounted> {
        if let Some(inline) = self.inline.next() {
            return Ok(Some(inline));
        }
        let is_ref =
            |key: Key| key.object == self.extent.0 && key.kind < ItemKind::BLOCK_GROUP_ITEM;
        let Some((key, data)) = self.cursor.item().filter(|(key, _)| is_ref(*key)) else {
            return Ok(None);
        };
        let keyed = ExtentRef::decode_keyed(key, data, self.cursor.tree().locus(key))?;
        self.cursor.step()?;
        Ok(Some(keyed))
    }
}

/// The subvolumes that reach a tree block.
#[derive(Debug, Clone, Copy)]
struct Reached {
    set: Set,
    /// What it refers to is referred to by parent.
    is_full: bool,
}

/// The file extents that a reference of data stands for.
#[derive(Debug, Clone, Copy)]
struct FileExtents {
    tree: TreeId,
    inode: u64,
    offset: u64,
    count: u32,
}

/// Follows references in one state of the trees, which does not change meanwhile.
pub struct Resolver<'r> {
    blocks: &'r TreeBlocks,
    extents: Tree,
    /// The root of a subvolume in that state.
    find_root: &'r dyn Fn(TreeId) -> Result<Option<RootPointer>>,
    /// Items and references that may still be looked at, by others as well.
    looks_left: &'r Cell<usize>,
    roots: HashMap<TreeId, RootPointer>,
    reached: HashMap<LogicalAddr, Reached>,
}

impl fmt::Debug for Resolver<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Resolver")
            .field("extents", &self.extents)
            .finish_non_exhaustive()
    }
}

impl<'r> Resolver<'r> {
    /// Follows the references of an extent tree. What it looks at is taken off `looks_left`.
    #[must_use]
    pub fn new(
        blocks: &'r TreeBlocks,
        extents: Tree,
        find_root: &'r dyn Fn(TreeId) -> Result<Option<RootPointer>>,
        looks_left: &'r Cell<usize>,
    ) -> Self {
        Self {
            blocks,
            extents,
            find_root,
            looks_left,
            roots: HashMap::new(),
            reached: HashMap::new(),
        }
    }

    fn look_at(&self, count: usize) -> Result<(), Uncounted> {
        let left = self.looks_left.get().checked_sub(count);
        self.looks_left.set(left.ok_or(Uncounted::References)?);
        Ok(())
    }

    /// The subvolumes that reach an extent, and its length; no subvolumes if there is none.
    ///
    /// # Errors
    /// Why that is not known.
    pub fn subvolumes_of(
        &mut self,
        sets: &mut Sets,
        address: LogicalAddr,
    ) -> Result<(Set, u64), Uncounted> {
        if let Some(known) = self.reached.get(&address) {
            return Ok((known.set, self.blocks.format().node_bytes.into()));
        }
        let Some(mut extent) = self.extent(address)? else {
            return Ok((self.union(sets, BTreeSet::new())?, 0));
        };
        let len_bytes = extent.len_bytes;
        if let Some(level) = extent.level {
            let reached = self.block_of(sets, address, level, extent)?;
            return Ok((reached.set, len_bytes));
        }
        let mut parts = BTreeSet::new();
        while let Some(reference) = extent.refs.next()? {
            self.look_at(1)?;
            match reference {
                ExtentRef::SharedData { parent, .. } => {
                    parts.insert(self.block(sets, parent, 0)?.set);
                }
                ExtentRef::Data {
                    tree,
                    inode,
                    offset,
                    count,
                } if tree.is_subvolume() => {
                    let wanted = FileExtents {
                        tree,
                        inode,
                        offset,
                        count,
                    };
                    self.file_extents(sets, address, len_bytes, &wanted, &mut parts)?;
                }
                ExtentRef::TreeBlock { .. } | ExtentRef::SharedBlock { .. } => {
                    return Err(broken(address, RootsRule::Item));
                }
                ExtentRef::Data { .. } | ExtentRef::Owner { .. } => {}
            }
        }
        Ok((self.union(sets, parts)?, len_bytes))
    }

    /// An extent, by its item.
    fn extent(&self, address: LogicalAddr) -> Result<Option<Extent<'r>>, Uncounted> {
        self.look_at(SEARCH_LOOKS)?;
        let mut cursor = Cursor::new(self.blocks, self.extents);
        cursor.seek(Key::new(address.0, ItemKind::EXTENT_ITEM, 0))?;
        let is_item = |key: Key| {
            let kinds = [ItemKind::EXTENT_ITEM, ItemKind::METADATA_ITEM];
            key.object == address.0 && kinds.contains(&key.kind)
        };
        let Some((key, data)) = cursor.item().filter(|(key, _)| is_item(*key)) else {
            return Ok(None);
        };
        let item = ExtentItem::decode(key, data, self.extents.locus(key))?;
        let (level, len_bytes) = match item.kind {
            ExtentKind::Data => (None, key.offset),
            ExtentKind::TreeBlock { level, .. } => {
                (Some(level), self.blocks.format().node_bytes.into())
            }
        };
        cursor.step()?;
        Ok(Some(Extent {
            len_bytes,
            level,
            flags: item.flags,
            refs: Refs {
                extent: address,
                inline: item.inline.into_iter(),
                cursor,
            },
        }))
    }

    /// The subvolumes that reach a tree block of a level.
    fn block(
        &mut self,
        sets: &mut Sets,
        logical: LogicalAddr,
        level: u8,
    ) -> Result<Reached, Uncounted> {
        if let Some(known) = self.reached.get(&logical) {
            return Ok(*known);
        }
        let extent = self.extent(logical)?;
        let extent = extent.ok_or_else(|| broken(logical, RootsRule::Item))?;
        self.block_of(sets, logical, level, extent)
    }

    /// The subvolumes that reach the tree block of an extent. Recurses to parents, each a level higher.
    fn block_of(
        &mut self,
        sets: &mut Sets,
        logical: LogicalAddr,
        level: u8,
        mut extent: Extent<'r>,
    ) -> Result<Reached, Uncounted> {
        if extent.level != Some(level) || level >= LEVEL_MAX {
            return Err(broken(logical, RootsRule::Item));
        }
        let mut parts = BTreeSet::new();
        while let Some(reference) = extent.refs.next()? {
            self.look_at(1)?;
            let part = match reference {
                ExtentRef::TreeBlock { tree } if tree.is_subvolume() => {
                    match self.parent_in(tree, logical, level)? {
                        Some(parent) => self.block(sets, parent, level + 1)?.set,
                        None => sets.of(Rc::new([tree])).ok_or(Uncounted::Subvolumes)?,
                    }
                }
                ExtentRef::SharedBlock { parent } => self.block(sets, parent, level + 1)?.set,
                ExtentRef::TreeBlock { .. } | ExtentRef::Owner { .. } => continue,
                ExtentRef::Data { .. } | ExtentRef::SharedData { .. } => {
                    return Err(broken(logical, RootsRule::Item));
                }
            };
            parts.insert(part);
        }
        let reached = Reached {
            set: self.union(sets, parts)?,
            is_full: extent.flags.contains(ExtentFlags::FULL_BACKREF),
        };
        if self.reached.len() >= REMEMBERED_MAX {
            self.reached.clear();
        }
        self.reached.insert(logical, reached);
        Ok(reached)
    }

    fn union(&self, sets: &mut Sets, parts: BTreeSet<Set>) -> Result<Set, Uncounted> {
        let parts: Vec<Set> = parts.into_iter().collect();
        if let Some(known) = sets.known_union(&parts) {
            return Ok(known);
        }
        self.look_at(parts.iter().map(|part| sets.members(*part).len()).sum())?;
        sets.union_of(&parts).ok_or(Uncounted::Subvolumes)
    }

    /// The parent of a block in a tree that refers to it; `None` if it is the root.
    fn parent_in(
        &mut self,
        tree: TreeId,
        logical: LogicalAddr,
        level: u8,
    ) -> Result<Option<LogicalAddr>, Uncounted> {
        let root = self.root(tree, logical)?;
        if root.logical == logical {
            return Ok(None);
        }
        self.look_at(SEARCH_LOOKS)?;
        let missing = || broken(logical, RootsRule::Missing);
        let expected = Expected {
            level: Some(level),
            ..Expected::default()
        };
        let block = self.blocks.read(logical, &expected)?;
        let first = first_key(&block).ok_or_else(missing)?;
        let mut expected = Expected {
            level: Some(root.level),
            generation: Some(root.generation),
            ..Expected::default()
        };
        let mut at = root.logical;
        loop {
            let above = self.blocks.read(at, &expected)?;
            let below = above.level().checked_sub(1);
            let below = below.filter(|below| *below >= level).ok_or_else(missing)?;
            let node = above.node();
            let pointer = node.pointer(node.index_for(first)).ok_or_else(missing)?;
            if below == level {
                let is_it = pointer.logical == logical;
                return is_it.then_some(Some(at)).ok_or_else(missing);
            }
            at = pointer.logical;
            expected = Expected {
                level: Some(below),
                generation: Some(pointer.generation),
                first_key: Some(pointer.key),
                ..Expected::default()
            };
        }
    }

    /// Adds the subvolumes that reach the leaves with these file extents.
    fn file_extents(
        &mut self,
        sets: &mut Sets,
        address: LogicalAddr,
        len_bytes: u64,
        wanted: &FileExtents,
        parts: &mut BTreeSet<Set>,
    ) -> Result<(), Uncounted> {
        let tree = Tree {
            id: wanted.tree,
            root: self.root(wanted.tree, address)?,
        };
        let span = len_bytes.max(COMPRESSED_MAX_BYTES);
        let is_before_the_file = wanted.offset.cast_signed() < 0;
        let first = if is_before_the_file { 0 } else { wanted.offset };
        let sector_bytes = self.blocks.format().sector_bytes;
        self.look_at(SEARCH_LOOKS)?;
        let mut cursor = Cursor::new(self.blocks, tree);
        cursor.seek(Key::new(wanted.inode, ItemKind::EXTENT_DATA, first))?;
        let mut found = 0;
        while found < wanted.count
            && let Some((key, data)) = cursor.item()
            && (key.object, key.kind) == (wanted.inode, ItemKind::EXTENT_DATA)
            && key.offset.wrapping_sub(wanted.offset) < span
        {
            self.look_at(1)?;
            let extent = FileExtent::decode(data, key.offset, sector_bytes, tree.locus(key))?;
            if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) = extent.kind
                && place.logical == address
                && key.offset.wrapping_sub(place.offset) == wanted.offset
                && let Some(leaf) = cursor.path().last()
            {
                let reached = self.block(sets, leaf.logical(), 0)?;
                parts.insert(reached.set);
                // Those in leaves of other trees, and in leaves that are parents, are other references.
                let is_owned = leaf.header().is_some_and(|it| it.owner == wanted.tree);
                found += u32::from(is_owned && !reached.is_full);
            }
            cursor.step()?;
        }
        if found < wanted.count {
            return Err(broken(address, RootsRule::Missing));
        }
        Ok(())
    }

    /// The root of a tree that refers to an extent.
    fn root(&mut self, tree: TreeId, extent: LogicalAddr) -> Result<RootPointer, Uncounted> {
        if let Some(root) = self.roots.get(&tree) {
            return Ok(*root);
        }
        self.look_at(SEARCH_LOOKS)?;
        let root = (self.find_root)(tree)?;
        let root = root.ok_or_else(|| broken(extent, RootsRule::Tree))?;
        if self.roots.len() >= REMEMBERED_MAX {
            self.roots.clear();
        }
        self.roots.insert(tree, root);
        Ok(root)
    }
}

fn broken(extent: LogicalAddr, rule: RootsRule) -> Uncounted {
    Corrupt::new(Locus::block(extent.0), rule).into()
}

fn first_key(block: &TreeBlock) -> Option<Key> {
    match block.level() {
        0 => block.leaf().key(0),
        _ => block.node().pointer(0).map(|pointer| pointer.key),
    }
}
