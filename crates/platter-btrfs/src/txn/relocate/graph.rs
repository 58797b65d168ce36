//! All tree blocks that lead to extents, from these up to the roots of trees, by back references.

use std::collections::{BTreeMap, BTreeSet};

use platter_ondisk::Corrupt;
use platter_vfs::Error;

use super::{CopiedData, Moving, WriteContext};
use crate::delayed_refs::RefKey;
use crate::ondisk::extent_item::{ExtentFlags, ExtentItem, ExtentKind, ExtentRef};
use crate::ondisk::file_extent::{COMPRESSED_BYTES_MAX, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::header::{Header, HeaderFlags, LEVEL_MAX};
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::{Cursor, Tree, TreeBlock};

/// Items and references that a commit looks at, or changes.
const LOOKED_AT_MAX: usize = 1 << 20;

/// Why extents do not move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unmoved {
    /// More blocks lead to them than may be copied.
    TooMany,
    /// What refers to them is not found, or cannot be changed.
    Refused,
}

impl From<Error> for Unmoved {
    fn from(_: Error) -> Self {
        Self::Refused
    }
}

impl<R> From<Corrupt<R>> for Unmoved {
    fn from(_: Corrupt<R>) -> Self {
        Self::Refused
    }
}

type Result<T> = std::result::Result<T, Unmoved>;

/// References to data, and how often there is each.
type References = BTreeMap<RefKey, u64>;

/// A tree block that leads to extents.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) block: TreeBlock,
    pub(super) header: Header,
    /// What refers to it.
    pub(super) refs: Vec<ExtentRef>,
    /// What it refers to is referred to by parent.
    pub(super) is_full: bool,
    /// It belongs to the running transaction: it is changed in place, and nothing above it is.
    pub(super) is_own: bool,
    /// Those that refer to it.
    pub(super) parents: Vec<LogicalAddr>,
    /// The tree that it is the root of.
    pub(super) root_of: Option<TreeId>,
    /// The only tree that it is part of, by no shared block; `None` where several trees may have it.
    pub(super) only_in: Option<TreeId>,
}

/// The tree blocks that lead to extents, each of which is complete: with all blocks above it.
///
/// # Invariants
/// - The parents of a block that is copied are in it.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) members: BTreeMap<LogicalAddr, Member>,
    /// The data that leaves refer to, by address.
    pub(super) data: BTreeSet<LogicalAddr>,
}

/// An extent as the extent tree has it.
struct Found {
    generation: Generation,
    len_bytes: u64,
    /// Of a tree block.
    level: Option<u8>,
    flags: ExtentFlags,
    refs: Vec<ExtentRef>,
}

struct Finder<'f> {
    fs: &'f WriteContext,
    generation: Generation,
    extents: Tree,
    trees: BTreeMap<TreeId, RootPointer>,
    members: BTreeMap<LogicalAddr, Member>,
    /// Those whose parents were not looked for.
    waiting: Vec<LogicalAddr>,
    /// Blocks that may still be copied.
    left: usize,
    /// Items and references that may still be looked at.
    looks: usize,
}

impl Graph {
    /// Finds the blocks that lead to extents, of which at most `blocks_max` are copied. No reference is queued, and no
    /// handle is open.
    pub(super) fn find(
        fs: &WriteContext,
        generation: Generation,
        moving: &Moving,
        blocks_max: usize,
    ) -> Result<Self> {
        let mut finder = Finder {
            fs,
            generation,
            extents: fs.tree(TreeId::EXTENT)?.view().now.tree,
            trees: BTreeMap::new(),
            members: BTreeMap::new(),
            waiting: Vec::new(),
            left: blocks_max,
            looks: LOOKED_AT_MAX,
        };
        let mut data = BTreeMap::new();
        match moving {
            Moving::Blocks(blocks) => {
                for block in blocks {
                    finder.add_moving(*block)?;
                }
            }
            Moving::Data(copied) => {
                for copied in copied {
                    if let Some(refs) = finder.add_leaves(copied)? {
                        data.insert(copied.from, refs);
                    }
                }
            }
        }
        while let Some(logical) = finder.waiting.pop() {
            finder.add_parents(logical)?;
        }
        finder.find_only_trees()?;
        let members = finder.members;
        let mut found: BTreeMap<_, _> = data.keys().map(|at| (*at, References::new())).collect();
        count_references(fs, &members, &mut found)?;
        if found != data {
            return Err(Unmoved::Refused);
        }
        Ok(Self {
            members,
            data: data.into_keys().collect(),
        })
    }
}

impl Finder<'_> {
    /// Looks at some more items or references.
    fn look(&mut self, count: usize) -> Result<()> {
        self.looks = self.looks.checked_sub(count).ok_or(Unmoved::TooMany)?;
        Ok(())
    }

    /// Adds a tree block that moves, unless it was freed.
    fn add_moving(&mut self, logical: LogicalAddr) -> Result<()> {
        match self.extent(logical)?.map(|found| found.level) {
            Some(Some(level)) => self.add(logical, level).map(drop),
            Some(None) => Err(Unmoved::Refused),
            None => Ok(()),
        }
    }

    /// Adds the leaves that refer to data. Returns its references; `None` if it was freed.
    fn add_leaves(&mut self, copied: &CopiedData) -> Result<Option<References>> {
        let Some(found) = self.extent(copied.from)? else {
            return Ok(None);
        };
        if found.level.is_some() || found.len_bytes != copied.len_bytes {
            return Err(Unmoved::Refused);
        }
        let mut refs = References::new();
        for reference in &found.refs {
            let key = match *reference {
                ExtentRef::SharedData { parent, .. } => {
                    self.add(parent, 0)?;
                    RefKey::SharedData { parent }
                }
                ExtentRef::Data {
                    tree,
                    inode,
                    offset,
                    ..
                } if tree.is_subvolume() => {
                    self.add_leaves_in((tree, inode, offset), copied)?;
                    RefKey::Data {
                        tree,
                        inode,
                        offset,
                    }
                }
                ExtentRef::Data { .. }
                | ExtentRef::TreeBlock { .. }
                | ExtentRef::SharedBlock { .. }
                | ExtentRef::Owner { .. } => return Err(Unmoved::Refused),
            };
            *refs.entry(key).or_default() += reference.count();
        }
        Ok(Some(refs))
    }

    /// Adds the leaves of a tree in which a file refers to data.
    fn add_leaves_in(
        &mut self,
        (id, inode, offset): (TreeId, u64, u64),
        copied: &CopiedData,
    ) -> Result<()> {
        let root = self.root(id)?;
        let span = copied.len_bytes.max(COMPRESSED_BYTES_MAX);
        let is_before_the_file = offset.cast_signed() < 0;
        let first = if is_before_the_file { 0 } else { offset };
        let fs = self.fs;
        let mut cursor = Cursor::new(fs.blocks(), Tree { id, root });
        cursor.seek(Key::new(inode, ItemKind::EXTENT_DATA, first))?;
        let mut last = None;
        while let Some((key, item)) = cursor.item()
            && (key.object, key.kind) == (inode, ItemKind::EXTENT_DATA)
            && key.offset.wrapping_sub(offset) < span
        {
            self.look(1)?;
            let leaf = cursor.leaf_addr().filter(|leaf| last != Some(*leaf));
            let place = place_of(fs, key, item)?;
            if place.is_some_and(|place| place.logical == copied.from)
                && let Some(leaf) = leaf
            {
                self.add(leaf, 0)?;
                last = Some(leaf);
            }
            cursor.step()?;
        }
        Ok(())
    }

    /// Adds the blocks that refer to one.
    fn add_parents(&mut self, logical: LogicalAddr) -> Result<()> {
        let member = self.members.get(&logical).ok_or(Unmoved::Refused)?;
        let (refs, block) = (member.refs.clone(), member.block.clone());
        let above = block.level() + 1;
        let (mut parents, mut root_of) = (Vec::new(), None);
        for reference in refs {
            let (parent, by_tree) = match reference {
                ExtentRef::SharedBlock { parent } => (parent, None),
                ExtentRef::TreeBlock { tree } if tree.is_subvolume() => {
                    let root = self.root(tree)?;
                    if root.logical == logical {
                        root_of = Some(tree);
                        continue;
                    }
                    (self.parent_in((tree, root), &block)?, Some(tree))
                }
                ExtentRef::TreeBlock { .. }
                | ExtentRef::Data { .. }
                | ExtentRef::SharedData { .. }
                | ExtentRef::Owner { .. } => return Err(Unmoved::Refused),
            };
            let parent_member = self.add(parent, above)?;
            let refers = |member: &Member| {
                let mut pointers = member.block.node().iter();
                pointers.any(|pointer| pointer.logical == logical)
            };
            // As the reference says: by itself, or as part of the tree that owns it.
            let is_right = match by_tree {
                None => parent_member.is_full,
                Some(tree) => !parent_member.is_full && parent_member.header.owner == tree,
            };
            let refers = refers(parent_member);
            let pointers = parent_member.header.item_count as usize;
            self.look(pointers)?;
            if !is_right || !refers || parents.contains(&parent) {
                return Err(Unmoved::Refused);
            }
            parents.push(parent);
        }
        // A root is never shared.
        if root_of.is_some() && !parents.is_empty() {
            return Err(Unmoved::Refused);
        }
        let member = self.members.get_mut(&logical).ok_or(Unmoved::Refused)?;
        (member.parents, member.root_of) = (parents, root_of);
        Ok(())
    }

    /// Adds a block of a level, which is in use.
    fn add(&mut self, logical: LogicalAddr, level: u8) -> Result<&Member> {
        if !self.members.contains_key(&logical) {
            let member = self.read(logical, level)?;
            // What it refers to may get references of another form.
            self.look(member.header.item_count as usize)?;
            if !member.is_own {
                self.left = self.left.checked_sub(1).ok_or(Unmoved::TooMany)?;
                self.waiting.push(logical);
            }
            self.members.insert(logical, member);
        }
        let member = self.members.get(&logical);
        let is_right = |member: &&Member| member.block.level() == level;
        member.filter(is_right).ok_or(Unmoved::Refused)
    }

    fn read(&mut self, logical: LogicalAddr, level: u8) -> Result<Member> {
        let found = self.extent(logical)?.ok_or(Unmoved::Refused)?;
        if found.level != Some(level) || level >= LEVEL_MAX {
            return Err(Unmoved::Refused);
        }
        // A device that missed writes may have an older block there, which is valid by itself.
        let expected = Expected {
            level: Some(level),
            generation: Some(found.generation),
            ..Expected::default()
        };
        let block = self.fs.blocks().read(logical, &expected)?;
        let header = block.header().ok_or(Unmoved::Refused)?;
        let is_full = found.flags.contains(ExtentFlags::FULL_BACKREF);
        let is_own = header.generation >= self.generation;
        if is_own {
            let own = ExtentRef::TreeBlock { tree: header.owner };
            let is_alone = !is_full && found.refs == [own];
            let is_relocated = header.flags.contains(HeaderFlags::RELOC);
            if header.generation > self.generation || !is_alone || is_relocated {
                return Err(Unmoved::Refused);
            }
        }
        if !header.owner.is_subvolume() {
            return Err(Unmoved::Refused);
        }
        Ok(Member {
            block,
            header,
            refs: found.refs,
            is_full,
            is_own,
            parents: Vec::new(),
            root_of: None,
            only_in: None,
        })
    }

    /// The block above another one in a tree.
    fn parent_in(
        &self,
        (id, root): (TreeId, RootPointer),
        block: &TreeBlock,
    ) -> Result<LogicalAddr> {
        let first = match block.level() {
            0 => block.leaf().key(0),
            _ => block.node().pointer(0).map(|pointer| pointer.key),
        };
        let first = first.ok_or(Unmoved::Refused)?;
        let mut at = root.logical;
        let mut expected = Expected {
            level: Some(root.level),
            generation: Some(root.generation),
            tree: Some(id),
            ..Expected::default()
        };
        loop {
            let above = self.fs.blocks().read(at, &expected)?;
            let below = above.level().checked_sub(1);
            let below = below.filter(|below| *below >= block.level());
            let below = below.ok_or(Unmoved::Refused)?;
            let node = above.node();
            let pointer = node.pointer(node.index_for(first));
            let pointer = pointer.ok_or(Unmoved::Refused)?;
            if below == block.level() {
                let is_it = pointer.logical == block.logical();
                return is_it.then_some(at).ok_or(Unmoved::Refused);
            }
            at = pointer.logical;
            expected = Expected {
                level: Some(below),
                generation: Some(pointer.generation),
                first_key: Some(pointer.key),
                tree: Some(id),
                ..Expected::default()
            };
        }
    }

    /// The root of a tree, which its item has, as all roots are stored. Pointers of one that is partly dropped may lead to
    /// nothing.
    fn root(&mut self, id: TreeId) -> Result<RootPointer> {
        if let Some(root) = self.trees.get(&id) {
            return Ok(*root);
        }
        let of_roots = self.fs.tree(TreeId::ROOT)?.view().now.tree;
        let mut cursor = Cursor::new(self.fs.blocks(), of_roots);
        cursor.seek_at_or_before(Key::new(id.0, ItemKind::ROOT_ITEM, u64::MAX))?;
        let is_it = |key: Key| (key.object, key.kind) == (id.0, ItemKind::ROOT_ITEM);
        let item = cursor.item().filter(|(found, _)| is_it(*found));
        let (key, data) = item.ok_or(Unmoved::Refused)?;
        let sector_bytes = self.fs.context.superblock.sector_bytes;
        let item = RootItem::decode(data, sector_bytes, of_roots.locus(key))?;
        if item.drop_progress != Key::MIN {
            return Err(Unmoved::Refused);
        }
        let root = item.root;
        self.trees.insert(id, root);
        Ok(root)
    }

    /// An extent, with all its references; `None` if there is none.
    fn extent(&mut self, address: LogicalAddr) -> Result<Option<Found>> {
        let fs = self.fs;
        let mut cursor = Cursor::new(fs.blocks(), self.extents);
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
            ExtentKind::TreeBlock { level, .. } => (Some(level), fs.node_bytes()),
        };
        let mut refs = item.inline;
        self.look(refs.len() + 1)?;
        refs.retain(|reference| !matches!(reference, ExtentRef::Owner { .. }));
        cursor.step()?;
        while let Some((key, data)) = cursor.item()
            && key.object == address.0
            && key.kind < ItemKind::BLOCK_GROUP_ITEM
        {
            self.look(1)?;
            let locus = self.extents.locus(key);
            refs.push(ExtentRef::decode_keyed(key, data, locus)?);
            cursor.step()?;
        }
        let count: u64 = refs.iter().map(|reference| reference.count()).sum();
        if count == 0 || count != item.refs {
            return Err(Unmoved::Refused);
        }
        Ok(Some(Found {
            generation: item.generation,
            len_bytes,
            level,
            flags: item.flags,
            refs,
        }))
    }

    /// Finds out which blocks are part of one tree alone, from the roots down.
    fn find_only_trees(&mut self) -> Result<()> {
        let mut order: Vec<_> = self.members.iter().collect();
        order.sort_by_key(|(_, member)| std::cmp::Reverse(member.block.level()));
        let order: Vec<LogicalAddr> = order.into_iter().map(|(logical, _)| *logical).collect();
        for logical in order {
            let only_in = |member: &Member| match (&member.parents[..], member.root_of) {
                _ if member.is_own => Some(member.header.owner),
                (_, Some(tree)) => Some(tree),
                ([parent], None) => self.members.get(parent)?.only_in,
                (_, None) => None,
            };
            let only_in = self.members.get(&logical).and_then(only_in);
            let member = self.members.get_mut(&logical).ok_or(Unmoved::Refused)?;
            member.only_in = only_in;
            let is_owned = |tree| member.is_full || member.header.owner == tree;
            if !only_in.is_none_or(is_owned) {
                return Err(Unmoved::Refused);
            }
        }
        Ok(())
    }
}

/// Counts the references to data that leaves have, by its address.
fn count_references(
    fs: &WriteContext,
    members: &BTreeMap<LogicalAddr, Member>,
    found: &mut BTreeMap<LogicalAddr, References>,
) -> Result<()> {
    for member in members.values().filter(|it| it.block.level() == 0) {
        for (key, item) in member.block.leaf().iter() {
            let Some(place) = place_of(fs, key, item)? else {
                continue;
            };
            let Some(refs) = found.get_mut(&place.logical) else {
                continue;
            };
            let reference = if member.is_full {
                RefKey::SharedData {
                    parent: member.block.logical(),
                }
            } else {
                RefKey::Data {
                    tree: member.header.owner,
                    inode: key.object,
                    offset: key.offset.wrapping_sub(place.offset),
                }
            };
            *refs.entry(reference).or_default() += 1;
        }
    }
    Ok(())
}

/// The data that an item of a leaf refers to, if it does.
pub(super) fn place_of(
    fs: &WriteContext,
    key: Key,
    item: &[u8],
) -> platter_vfs::Result<Option<ExtentPlace>> {
    if key.kind != ItemKind::EXTENT_DATA {
        return Ok(None);
    }
    let sector_bytes = fs.context.superblock.sector_bytes;
    let locus = platter_ondisk::Locus::UNKNOWN.at_key(key.into());
    let extent = FileExtent::decode(item, key.offset, sector_bytes, locus)?;
    Ok(match extent.kind {
        FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) => Some(place),
        FileExtentKind::Inline(_) | FileExtentKind::Hole => None,
    })
}
