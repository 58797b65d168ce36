//! The UUIDs of subvolumes, in the tree of UUIDs. A filesystem without that tree gets it from the kernel, which
//! looks at all subvolumes then.

use platter_ondisk::Uuid;
use platter_vfs::{Condition, Result};

use crate::context::FsContext;
use crate::ondisk::TreeId;
use crate::ondisk::key::ItemKind;
use crate::ondisk::uuid_item::UuidItem;
use crate::txn::{Editor, Handle};

/// Says that a subvolume has a UUID: its own, or that of what was received into it.
///
/// # Errors
/// `Overflow` where too many have it. Then nothing was changed.
pub fn add_uuid(
    handle: &Handle<'_>,
    context: &FsContext,
    uuid: Uuid,
    kind: ItemKind,
    id: TreeId,
) -> Result<()> {
    change(handle, context, uuid, kind, |trees| {
        if !trees.contains(&id) {
            trees.push(id);
        }
    })
}

/// Says that it has not.
pub fn remove_uuid(
    handle: &Handle<'_>,
    context: &FsContext,
    uuid: Uuid,
    kind: ItemKind,
    id: TreeId,
) -> Result<()> {
    change(handle, context, uuid, kind, |trees| {
        trees.retain(|tree| *tree != id);
    })
}

fn change(
    handle: &Handle<'_>,
    context: &FsContext,
    uuid: Uuid,
    kind: ItemKind,
    change: impl FnOnce(&mut Vec<TreeId>),
) -> Result<()> {
    if uuid.is_nil() || context.tree(TreeId::UUID)?.is_none() {
        return Ok(());
    }
    let key = UuidItem::key(uuid, kind);
    handle.edit(TreeId::UUID, |editor: &mut Editor<'_, '_>| {
        let mut item = match editor.get(key)? {
            Some(data) => UuidItem::decode(key, &data, editor.tree().locus(key))?,
            None => UuidItem {
                uuid,
                trees: Vec::new(),
            },
        };
        let was = item.trees.clone();
        change(&mut item.trees);
        if was == item.trees {
            return Ok(());
        }
        if item.trees.is_empty() {
            return editor.remove(key).map(drop);
        }
        let data = item.encode();
        if data.len() > editor.item_bytes_max() {
            return Err(Condition::Overflow.into());
        }
        editor.set(key, &data)
    })
}
