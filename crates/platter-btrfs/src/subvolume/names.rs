//! The name of a subvolume in its parent, in the root tree: from the parent, and back.

use platter_vfs::Result;

use crate::ondisk::key::ItemKind;
use crate::ondisk::root_ref::RootRef;
use crate::ondisk::{Key, TreeId};
use crate::txn::Handle;

fn keys(parent: TreeId, child: TreeId) -> [Key; 2] {
    [
        Key::new(parent.0, ItemKind::ROOT_REF, child.0),
        Key::new(child.0, ItemKind::ROOT_BACKREF, parent.0),
    ]
}

/// Says that `parent` names a subvolume so.
pub fn add_name(
    handle: &Handle<'_>,
    parent: TreeId,
    child: TreeId,
    name: RootRef<'_>,
) -> Result<()> {
    let item = name.encode();
    handle.edit(TreeId::ROOT, |editor| {
        let [forth, back] = keys(parent, child);
        editor.insert(forth, &item)?;
        editor.insert(back, &item)
    })
}

/// Says that `parent` does not name a subvolume any more.
pub fn remove_name(handle: &Handle<'_>, parent: TreeId, child: TreeId) -> Result<()> {
    handle.edit(TreeId::ROOT, |editor| {
        for key in keys(parent, child) {
            editor.remove(key)?;
        }
        Ok(())
    })
}

/// Whether a subvolume names others.
pub fn has_children(handle: &Handle<'_>, id: TreeId) -> Result<bool> {
    handle.edit(TreeId::ROOT, |editor| {
        let first = editor.at_or_after(Key::new(id.0, ItemKind::ROOT_REF, 0))?;
        Ok(first.is_some_and(|(key, _)| key.object == id.0 && key.kind == ItemKind::ROOT_REF))
    })
}
