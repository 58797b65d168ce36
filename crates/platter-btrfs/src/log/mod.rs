//! Replay of log trees, in memory and on the devices: what was made durable by `fsync` since the last commit, as changes
//! over the items of the trees.
//!
//! A log tree has, of each inode it is about, the item, all names and attributes, and the extents that
//! changed; of a directory, entries, and the ranges of indices that it covers: an entry in such a range
//! that the log does not have was removed. Spec: `btrfs/dir_log`.

mod replay;
mod extents;
mod names;
mod apply;
pub mod write;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use platter_vfs::Result;

use crate::context::FsContext;
use crate::items::Overlay;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Key, TreeId};
use crate::tree::Tree;
pub use apply::apply;
use replay::Replay;

/// The log tree of one subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogTree {
    subvolume: TreeId,
    log: Tree,
}

/// The changes that the log trees make, by tree.
pub fn replay(context: &FsContext, log_root: RootPointer) -> Result<BTreeMap<TreeId, Overlay>> {
    let mut overlays = BTreeMap::new();
    let mut checksums = Overlay::default();
    for tree in log_trees(context, log_root)? {
        // The log of a subvolume that was deleted is of no use.
        let Some(subvolume) = context.subvolume(tree.subvolume)? else {
            continue;
        };
        let mut replay = Replay::new(context, subvolume.tree(), tree.log);
        replay.run(&mut checksums)?;
        overlays.insert(tree.subvolume, replay.into_overlay());
    }
    if !checksums.is_empty() {
        overlays.insert(TreeId::CSUM, checksums);
    }
    Ok(overlays)
}

/// The log trees, by the tree of their roots.
fn log_trees(context: &FsContext, log_root: RootPointer) -> Result<Vec<LogTree>> {
    let roots = Tree {
        id: TreeId::TREE_LOG,
        root: log_root,
    };
    let mut found = Vec::new();
    let mut cursor = context.cursor(roots);
    cursor.seek(Key::new(TreeId::TREE_LOG.0, ItemKind::ROOT_ITEM, 0))?;
    while let Some((key, data)) = cursor.item() {
        if key.object != TreeId::TREE_LOG.0 || key.kind != ItemKind::ROOT_ITEM {
            break;
        }
        let item = RootItem::decode(data, context.sector_bytes(), roots.locus(key))?;
        found.push(LogTree {
            subvolume: TreeId(key.offset),
            log: Tree {
                id: TreeId::TREE_LOG,
                root: item.root,
            },
        });
        cursor.step()?;
    }
    Ok(found)
}
