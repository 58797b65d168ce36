//! Trees in the running transaction, and their root items.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use platter_block::lock::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard, rank};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::{FromZeros, IntoBytes};

use super::WriteContext;
use crate::block_group::{BlockGroup, FreeSpaceForm, Ranges, load_free_space};
use crate::context::TreesRule;
use crate::ondisk::features::CompatRo;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::{DiskRootItem, RootItem};
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Generation, Key, TreeId};
use crate::tree::edit::{RecentPaths, TreeState};
use crate::tree::{Cursor, DelayedInodes, Tree, Versions};

/// A tree that is in use, under its lock.
#[derive(Debug)]
pub struct OpenTree {
    /// The tree, and its root.
    versions: Arc<RwLock<Versions, { rank(9, 1) }>>,
    /// As the last closed transaction left it: known without the lock, as a tree allocates while it is locked.
    commit_root: Mutex<RootPointer>,
    is_extent_tree: bool,
}

/// The place of the extent tree in the order of trees: others look it up while they are locked.
const EXTENT_TREE: u64 = 2;

impl OpenTree {
    fn new(now: TreeState, item: Option<Key>) -> Self {
        Self {
            versions: Arc::new(RwLock::new(Versions {
                now,
                stored: now,
                item,
                recent: RecentPaths::default(),
                delayed: DelayedInodes::default(),
            })),
            commit_root: Mutex::new(now.tree.root),
            is_extent_tree: now.tree.id == TreeId::EXTENT,
        }
    }

    /// Its root in the transaction before the running one.
    pub(super) fn commit_root(&self) -> RootPointer {
        *self.commit_root.lock()
    }

    /// Says that the transaction is closed: the next one does not change what the tree is now.
    pub(super) fn switch_commit_root(&self) {
        let root = self.view().now.tree.root;
        *self.commit_root.lock() = root;
    }

    /// Records that the root item was removed: the tree is not stored any more.
    pub(super) fn set_removed(&self) {
        self.lock().item = None;
    }

    /// The key of its root item.
    pub(super) fn item_key(&self) -> Option<Key> {
        self.view().item
    }

    /// Looks at the tree. Readers are not waited for, as they may come without end.
    pub(super) fn view(&self) -> RwLockReadGuard<'_, Versions> {
        self.versions.read_recursive()
    }

    /// Locks the tree.
    pub(super) fn lock(&self) -> RwLockWriteGuard<'_, Versions> {
        let nth = if self.is_extent_tree { EXTENT_TREE } else { 0 };
        self.versions.write_nth(nth)
    }
}

/// Lets readers follow what transactions change of a tree: from now on.
///
/// # Errors
/// Those of reading its root item.
pub(crate) fn follow(fs: &WriteContext, id: TreeId) -> Result<()> {
    fs.tree(id).map(drop)
}

/// Looks at a tree as it is now, with what is to be changed in it, which stays so meanwhile, and at what the transaction
/// before has.
///
/// # Errors
/// Those of `look`.
pub(crate) fn look_at<R>(
    fs: &WriteContext,
    id: TreeId,
    look: impl FnOnce((Tree, &DelayedInodes), Tree) -> Result<R>,
) -> Result<R> {
    let open = fs.tree(id)?;
    let versions = open.view();
    let root = open.commit_root();
    look((versions.now.tree, &versions.delayed), Tree { id, root })
}

/// The tree of [`WriteContext::tree`], as the transaction has it.
pub(super) fn lookup(fs: &WriteContext, id: TreeId) -> Result<Arc<OpenTree>> {
    if let Some(open) = fs.trees.lock().get(&id) {
        return Ok(Arc::clone(open));
    }
    let tree = open(fs, id)?;
    match fs.trees.lock().entry(id) {
        Entry::Occupied(open) => Ok(Arc::clone(open.get())),
        Entry::Vacant(place) => {
            fs.context.live.add(id, Arc::clone(&tree.versions));
            Ok(Arc::clone(place.insert(Arc::new(tree))))
        }
    }
}

/// Replaces the state of a removed tree that readers may still have open by that of the new tree with its ID.
pub(super) fn renew(fs: &WriteContext, now: TreeState, item: Key) {
    let open = fs.trees.lock().get(&now.id()).map(Arc::clone);
    let Some(open) = open else { return };
    *open.lock() = Versions {
        now,
        stored: now,
        item: Some(item),
        recent: RecentPaths::default(),
        delayed: DelayedInodes::default(),
    };
    *open.commit_root.lock() = now.tree.root;
}

/// The root of a tree as it is now, if it is open.
pub(super) fn root_of_open(fs: &WriteContext, id: TreeId) -> Option<RootPointer> {
    let open = fs.trees.lock().get(&id).map(Arc::clone);
    Some(open?.view().now.tree.root)
}

/// Forgets a tree that is gone.
pub(super) fn forget(fs: &WriteContext, id: TreeId) {
    fs.trees.lock().remove(&id);
}

fn open(fs: &WriteContext, id: TreeId) -> Result<OpenTree> {
    let superblock = &fs.context.superblock;
    let in_superblock = |root| TreeState {
        tree: Tree { id, root },
        last_snapshot: Generation(0),
        is_shareable: false,
        used_bytes: 0,
    };
    if id == TreeId::ROOT {
        return Ok(OpenTree::new(in_superblock(superblock.root), None));
    }
    if id == TreeId::CHUNK {
        return Ok(OpenTree::new(in_superblock(superblock.chunk_root), None));
    }
    let missing = || Corrupt::new(Locus::tree(id.0), TreesRule::MissingTree);
    let root_tree = fs.tree(TreeId::ROOT)?;
    let root_tree = root_tree.view();
    let mut cursor = Cursor::new(&fs.context.blocks, root_tree.now.tree);
    // As for readers: only subvolumes have other offsets than 0.
    let last = if id.is_subvolume() { u64::MAX } else { 0 };
    let last = Key::new(id.0, ItemKind::ROOT_ITEM, last);
    if !cursor.seek_at_or_before(last)? {
        return Err(missing().into());
    }
    let found = cursor.item();
    let is_it = |key: &Key| key.object == id.0 && key.kind == ItemKind::ROOT_ITEM;
    let (key, data) = found.filter(|(key, _)| is_it(key)).ok_or_else(missing)?;
    let locus = root_tree.now.tree.locus(key);
    let item = RootItem::decode(data, superblock.sector_bytes, locus)?;
    let state = TreeState {
        tree: Tree {
            id,
            root: item.root,
        },
        last_snapshot: item.last_snapshot,
        is_shareable: id.is_subvolume(),
        used_bytes: item.bytes_used,
    };
    Ok(OpenTree::new(state, Some(key)))
}

/// The tree that the items of block groups are in.
pub(super) fn block_group_tree(fs: &WriteContext) -> TreeId {
    if fs.features().compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    }
}

/// Whether free space is kept in a tree.
pub(super) fn has_free_space_tree(fs: &WriteContext) -> bool {
    fs.features().compat_ro.contains(CompatRo::FREE_SPACE_TREE)
}

/// Where the free space of the transaction before is found.
fn free_space_form(fs: &WriteContext) -> Result<FreeSpaceForm> {
    let committed = |id| -> Result<Tree> {
        let open = fs.trees.lock().get(&id).map(Arc::clone);
        let open = open.ok_or_else(|| Corrupt::new(Locus::tree(id.0), TreesRule::MissingTree))?;
        Ok(Tree {
            id,
            root: open.commit_root(),
        })
    };
    if has_free_space_tree(fs) {
        let tree = committed(TreeId::FREE_SPACE)?;
        // One that the running transaction builds says nothing of the one before.
        if tree.root.generation < fs.running() {
            return Ok(FreeSpaceForm::Tree(tree));
        }
    }
    Ok(FreeSpaceForm::Extents(committed(TreeId::EXTENT)?))
}

/// The free ranges of a group in the transaction before, which are those of now if it has not changed since.
pub(super) fn read_free_space(fs: &WriteContext, group: &BlockGroup) -> Result<Ranges> {
    load_free_space(fs.blocks(), free_space_form(fs)?, group)
}

/// Stores the roots of all trees that changed in their root items. Returns how many did.
pub(super) fn store_roots(fs: &WriteContext, generation: Generation) -> Result<usize> {
    let open: Vec<_> = fs.trees.lock().values().map(Arc::clone).collect();
    let mut count = 0;
    for tree in open {
        let versions = tree.view();
        let (now, stored, item) = (versions.now, versions.stored, versions.item);
        drop(versions);
        let Some(key) = item.filter(|_| stored != now) else {
            continue;
        };
        fs.edit(generation, TreeId::ROOT, |editor| {
            let missing = || Corrupt::new(Locus::tree(key.object), TreesRule::MissingTree);
            let old = editor.get(key)?.ok_or_else(missing)?;
            let item = root_item(fs, &now, &old, editor.tree().locus(key))?;
            editor.set(key, item.as_bytes())
        })?;
        tree.lock().stored = now;
        count += 1;
    }
    Ok(count)
}

/// Makes the copy of a tree's root its root, which changes nothing in the tree: its history stays as it is. What was
/// changed before is [stored](store_roots).
pub(super) fn move_root(
    fs: &WriteContext,
    generation: Generation,
    id: TreeId,
    root: RootPointer,
) -> Result<()> {
    let missing = || Corrupt::new(Locus::tree(id.0), TreesRule::MissingTree);
    let tree = fs.tree(id)?;
    let key = tree.item_key().ok_or_else(missing)?;
    let mut versions = tree.lock();
    versions.now.tree.root = root;
    versions.stored.tree.root = root;
    versions.recent.forget_all();
    drop(versions);
    let sector_bytes = fs.context.superblock.sector_bytes;
    fs.edit(generation, TreeId::ROOT, |editor| {
        let old = editor.get(key)?.ok_or_else(missing)?;
        let item = RootItem::decode(&old, sector_bytes, editor.tree().locus(key))?;
        let item = RootItem { root, ..item }.encode(Some(&disk_of(&old)));
        editor.set(key, item.as_bytes())
    })?;
    fs.context.forget_root_item(id);
    Ok(())
}

/// An item that may be shorter, as old kernels wrote it.
fn disk_of(old: &[u8]) -> DiskRootItem {
    let mut disk = DiskRootItem::new_zeroed();
    if let Some(place) = disk.as_mut_bytes().get_mut(..old.len()) {
        place.copy_from_slice(old);
    }
    disk
}

/// The root item of a tree as it is now. What does not change stays as in `old`.
fn root_item(fs: &WriteContext, now: &TreeState, old: &[u8], locus: Locus) -> Result<DiskRootItem> {
    let item = RootItem::decode(old, fs.context.superblock.sector_bytes, locus)?;
    let mut history = item.history;
    if now.id().is_subvolume() && item.root != now.tree.root {
        history.change_transaction = now.tree.root.generation;
        history.changed = fs.clock.now();
    }
    let item = RootItem {
        root: now.tree.root,
        bytes_used: now.used_bytes,
        last_snapshot: now.last_snapshot,
        history,
        ..item
    };
    Ok(item.encode(Some(&disk_of(old))))
}
