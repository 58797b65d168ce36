//! A filesystem below its inodes: superblock, tree blocks, the roots of its trees.

mod data_reads;
mod extent_list;
mod subvolumes;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt;

use hashbrown::HashMap;
use platter_block::lock::RwLock;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;

use crate::items::{ItemCursor, Overlay};
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::{Key, Superblock, TreeId};
use crate::tree::{LiveTrees, Tree, TreeBlocks};

pub use data_reads::{DataRead, DataReads, KeptAddresses, MovingExtents};
pub use extent_list::ListedExtent;
pub use subvolumes::{ParentName, Subvolume};

rules! {
    /// The rules of the trees together.
    pub enum TreesRule of "root tree" {
        /// A tree that every filesystem has is there.
        MissingTree => "failed to read tree root: no root item",
        /// A subvolume has a parent, but for the top-level one, and is not its own ancestor.
        Parent => "subvolume without a valid parent",
    }
}

/// What is not verified, for rescue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leniency {
    /// Checksums of data (`rescue=ignoredatacsums`).
    pub ignores_data_checksums: bool,
    /// Trees that are not needed to read files may be unreadable (`rescue=ignorebadroots`).
    pub ignores_bad_roots: bool,
    /// Nothing is ever written, nor reserved for it.
    pub never_writes: bool,
}

/// Root items kept in memory: a filesystem may have any number of subvolumes, and they can be read again.
const ROOTS_MAX: usize = 4096;

/// A filesystem below its inodes.
pub struct FsContext {
    /// Its superblock.
    pub superblock: Superblock,
    /// Its tree blocks.
    pub blocks: TreeBlocks,
    /// What is not verified.
    pub leniency: Leniency,
    /// The trees that transactions change.
    pub live: LiveTrees,
    /// Reads of data in progress.
    pub reads: DataReads,
    root_tree: Tree,
    /// Changes of log trees that were replayed, by tree.
    overlays: BTreeMap<TreeId, Overlay>,
    /// Root items that were read, and those that are not there.
    roots: RwLock<KnownRoots>,
}

/// Root items that were read, and how often any was changed.
#[derive(Default)]
struct KnownRoots {
    items: HashMap<TreeId, Option<RootItem>>,
    changes: u64,
}

impl FsContext {
    /// The filesystem with this superblock.
    #[must_use]
    pub fn new(superblock: Superblock, blocks: TreeBlocks, leniency: Leniency) -> Self {
        let root_tree = Tree {
            id: TreeId::ROOT,
            root: superblock.root,
        };
        Self {
            superblock,
            blocks,
            leniency,
            live: LiveTrees::default(),
            reads: DataReads::default(),
            root_tree,
            overlays: BTreeMap::new(),
            roots: RwLock::default(),
        }
    }

    /// Puts changes over the items of trees.
    pub fn set_overlays(&mut self, overlays: BTreeMap<TreeId, Overlay>) {
        self.overlays = overlays;
    }

    /// Removes and returns the changes over the items of trees.
    #[must_use]
    pub fn take_overlays(&mut self) -> BTreeMap<TreeId, Overlay> {
        std::mem::take(&mut self.overlays)
    }

    /// The size of a sector.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.superblock.sector_bytes
    }

    /// The tree of tree roots.
    #[must_use]
    pub fn root_tree(&self) -> Tree {
        self.root_tree
    }

    /// The chunk tree.
    #[must_use]
    pub fn chunk_tree(&self) -> Tree {
        Tree {
            id: TreeId::CHUNK,
            root: self.superblock.chunk_root,
        }
    }

    /// A cursor over the items of a tree: of one that transactions change, as it is now. It does not change until
    /// the cursor is dropped.
    #[must_use]
    pub fn cursor(&self, tree: Tree) -> ItemCursor<'_> {
        match self.live.read(tree.id) {
            Some(stay) => ItemCursor::of_live(&self.blocks, stay),
            None => ItemCursor::new(&self.blocks, tree, self.overlays.get(&tree.id)),
        }
    }

    /// A cursor over the items of a tree that transactions leave as it is, however long the cursor is kept: no lock is
    /// held meanwhile.
    #[must_use]
    pub fn cursor_of_unchanged(&self, tree: Tree) -> ItemCursor<'_> {
        ItemCursor::new(&self.blocks, tree, self.overlays.get(&tree.id))
    }

    /// The item with this key, given to `use_item` if there is one.
    pub fn find<T>(
        &self,
        tree: Tree,
        key: Key,
        use_item: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut cursor = match self.live.read(tree.id) {
            Some(stay) => {
                if let Some(delayed) = stay.delayed.get(key) {
                    return use_item(delayed).map(Some);
                }
                if let Some(block) = stay.recent.leaf(&self.blocks, tree.id, key)? {
                    let leaf = block.leaf();
                    let item = leaf.item(leaf.lower_bound(key));
                    let item = item.filter(|(found, _)| *found == key);
                    return item.map(|(_, data)| use_item(data)).transpose();
                }
                ItemCursor::of_live(&self.blocks, stay)
            }
            None => self.cursor(tree),
        };
        cursor.seek(key)?;
        match cursor.item() {
            Some((found, data)) if found == key => use_item(data).map(Some),
            Some(_) | None => Ok(None),
        }
    }

    /// The root item of a tree; `None` if there is no such tree.
    pub fn root_item(&self, id: TreeId) -> Result<Option<RootItem>> {
        let changes = {
            let roots = self.roots.read();
            if let Some(known) = roots.items.get(&id) {
                return Ok(*known);
            }
            roots.changes
        };
        let item = self.read_root_item(id)?;
        let mut roots = self.roots.write();
        if roots.items.len() >= ROOTS_MAX {
            roots.items.clear();
        }
        if roots.changes == changes {
            roots.items.insert(id, item);
        }
        Ok(item)
    }

    /// Makes the root item of a tree be read again, after a change of it.
    pub fn forget_root_item(&self, id: TreeId) {
        let mut roots = self.roots.write();
        roots.changes = roots.changes.wrapping_add(1);
        roots.items.remove(&id);
    }

    /// A count that grows with each change of a root item.
    #[must_use]
    pub fn root_item_changes(&self) -> u64 {
        self.roots.read().changes
    }

    /// The root item of a tree as it is now; see [`root_item`](Self::root_item).
    pub fn read_root_item(&self, id: TreeId) -> Result<Option<RootItem>> {
        let mut cursor = self.cursor(self.root_tree);
        // The key's offset is the transaction of a snapshot's creation, 0 for other trees.
        let last = if id.is_subvolume() { u64::MAX } else { 0 };
        let last = Key::new(id.0, ItemKind::ROOT_ITEM, last);
        if !cursor.seek_at_or_before(last)? {
            return Ok(None);
        }
        match cursor.item() {
            Some((key, data)) if key.object == id.0 && key.kind == ItemKind::ROOT_ITEM => {
                let locus = self.root_tree.locus(key);
                let item = RootItem::decode(data, self.sector_bytes(), locus)?;
                Ok(Some(item))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// A tree; `None` if there is no such tree.
    pub fn tree(&self, id: TreeId) -> Result<Option<Tree>> {
        let item = self.root_item(id)?;
        Ok(item.map(|item| Tree {
            id,
            root: item.root,
        }))
    }

    /// A tree that every filesystem has.
    pub fn required_tree(&self, id: TreeId) -> Result<Tree> {
        let missing = || Corrupt::new(Locus::tree(id.0), TreesRule::MissingTree);
        Ok(self.tree(id)?.ok_or_else(missing)?)
    }
}

impl fmt::Debug for FsContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FsContext")
            .field("fsid", &self.superblock.fsid)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
