//! Roots of new trees.

use std::sync::atomic::Ordering;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};
use zerocopy::IntoBytes;

use super::{Cow, Handle, WriteContext, quotas, trees};
use crate::context::TreesRule;
use crate::ondisk::header::{Header, HeaderFlags};
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, TreeId, leaf};
use crate::tree::Tree;
use crate::tree::edit::{CopyOnWrite, TreeState};

/// Creates the root of a tree that no item names yet, for a subvolume whose name is in `container`.
///
/// # Errors
/// Those of allocation; the transaction is aborted.
pub(crate) fn create(handle: &Handle<'_>, id: TreeId, container: TreeId) -> Result<RootPointer> {
    handle.has_changed.store(true, Ordering::Relaxed);
    quotas::create_group(handle.fs, id, container);
    let created = create_empty(handle.fs, handle.generation, id);
    created.inspect_err(|error| handle.fs.abort(error))
}

/// Forgets a tree whose root item was removed.
pub(crate) fn forget(handle: &Handle<'_>, id: TreeId) {
    trees::forget(handle.fs, id);
    quotas::drop_group(handle.fs, id);
}

/// Creates an empty tree.
pub(super) fn create_tree(fs: &WriteContext, generation: Generation, id: TreeId) -> Result<()> {
    let root = create_empty(fs, generation, id)?;
    let item = RootItem::of_new_tree(root, fs.node_bytes());
    let key = Key::new(id.0, ItemKind::ROOT_ITEM, 0);
    fs.edit(generation, TreeId::ROOT, |editor| {
        editor.insert(key, item.encode(None).as_bytes())
    })?;
    fs.context.forget_root_item(id);
    trees::renew(fs, new_state(fs, id, root), key);
    Ok(())
}

/// The state of a tree that has only a root.
fn new_state(fs: &WriteContext, id: TreeId, root: RootPointer) -> TreeState {
    TreeState {
        tree: Tree { id, root },
        last_snapshot: Generation(0),
        is_shareable: id.is_subvolume(),
        used_bytes: fs.node_bytes(),
    }
}

/// Creates the root of an empty tree.
fn create_empty(fs: &WriteContext, generation: Generation, id: TreeId) -> Result<RootPointer> {
    let mut root = RootPointer {
        generation,
        ..RootPointer::default()
    };
    let state = new_state(fs, id, root);
    let near = fs.context.superblock.root.logical;
    let cow = Cow::new(fs, generation);
    root.logical = cow.allocate(&state, 0, Key::MIN, near)?;
    let mut bytes = vec![0; fs.blocks().format().node_bytes as usize].into_boxed_slice();
    let header = new_header(fs, generation, id, root)?;
    leaf::encode(&mut bytes, &header, []);
    fs.blocks().create(root.logical, bytes)?;
    Ok(root)
}

/// The header of the first block of a tree, with what all blocks have in common.
pub(super) fn new_header(
    fs: &WriteContext,
    generation: Generation,
    owner: TreeId,
    root: RootPointer,
) -> Result<Header> {
    let other = fs.tree(TreeId::CHUNK)?.view().now.tree.root.logical;
    let other = fs.blocks().read(other, &Expected::default())?;
    let missing = || Error::from(Corrupt::new(Locus::tree(owner.0), TreesRule::MissingTree));
    let other = other.header().ok_or_else(missing)?;
    Ok(Header {
        logical: root.logical,
        flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
        generation,
        owner,
        item_count: 0,
        level: root.level,
        ..other
    })
}
