//! Changes of the form of a filesystem: the block group tree.

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Result, Unsupported};

use super::{WriteContext, roots};
use crate::context::TreesRule;
use crate::ondisk::features::{CompatRo, Incompat};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, TreeId};

/// Moves the items of block groups to a tree of their own, in one transaction.
///
/// # Errors
/// `Unsupported` without the features that the kernel asks for.
pub fn to_block_group_tree(fs: &mut WriteContext) -> Result<()> {
    let features = *fs.features.lock();
    let has_all = features.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
        && features.incompat.contains(Incompat::NO_HOLES);
    if !has_all {
        let unsupported = Unsupported {
            filesystem: "btrfs",
            feature: "a block group tree without free-space-tree and no-holes".to_owned(),
            reason: None,
        };
        return Err(unsupported.into());
    }
    if features.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        return Ok(());
    }
    let handle = fs.begin(64)?;
    let generation = handle.generation();
    let moved = move_group_items(fs, generation);
    // Before the handle ends, as in `prepare`.
    let moved = moved.inspect_err(|error| fs.abort(error));
    drop(handle);
    moved?;
    fs.sync()
}

fn move_group_items(fs: &WriteContext, generation: Generation) -> Result<()> {
    roots::create_tree(fs, generation, TreeId::BLOCK_GROUP)?;
    for group in fs.groups.iter() {
        let (start, len_bytes) = (group.start().0, group.len_bytes());
        let key = Key::new(start, ItemKind::BLOCK_GROUP_ITEM, len_bytes);
        let item = fs.edit(generation, TreeId::EXTENT, |editor| {
            let item = editor.get(key)?;
            editor.remove(key)?;
            Ok(item)
        })?;
        let missing = || Corrupt::new(Locus::tree(TreeId::EXTENT.0), TreesRule::MissingTree);
        let item = item.ok_or_else(missing)?;
        fs.edit(generation, TreeId::BLOCK_GROUP, |editor| {
            editor.insert(key, &item)
        })?;
    }
    fs.features.lock().compat_ro |= CompatRo::BLOCK_GROUP_TREE;
    Ok(())
}
