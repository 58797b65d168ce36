//! The UUID tree against the subvolumes. The kernel repairs it by itself.

use std::collections::BTreeSet;

use platter_ondisk::{Locus, Uuid};
use platter_vfs::Result;
use platter_vfs::check::Checking as _;

use super::{Checker, Flow, RootUseRule};
use crate::ondisk::key::ItemKind;
use crate::ondisk::uuid_item::UuidItem;
use crate::ondisk::{Key, TreeId};
use crate::tree::{Cursor, Tree};

/// A UUID, its kind, and the subvolume.
type Entry = (Uuid, ItemKind, TreeId);

/// Compares the UUID tree with the subvolumes, unless it is to be made anew anyway.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let superblock = &checker.context.superblock;
    if superblock.uuid_tree_generation != superblock.generation.0 {
        return Ok(());
    }
    let Some(item) = checker.roots.item(TreeId::UUID) else {
        return Ok(());
    };
    let tree = Tree {
        id: TreeId::UUID,
        root: item.root,
    };
    // What cannot be read was reported.
    let Ok(stored) = read(checker, tree) else {
        return Ok(());
    };
    let mut expected = BTreeSet::new();
    for (id, item) in checker.roots.live() {
        for (uuid, kind) in [
            (item.history.uuid, ItemKind::UUID_SUBVOL),
            (item.history.received_uuid, ItemKind::UUID_RECEIVED_SUBVOL),
        ] {
            if uuid != Uuid::default() && *id != TreeId::FS {
                expected.insert((uuid, kind, *id));
            }
        }
    }
    let missing = expected.difference(&stored);
    let missing: Vec<Entry> = missing.copied().collect();
    for (uuid, kind, tree) in missing {
        let locus = Locus::tree(tree.0).at_key(UuidItem::key(uuid, kind).into());
        checker.noticed(locus, RootUseRule::NotInUuidTree)?;
    }
    let is_stray = |entry: &&Entry| entry.2 != TreeId::FS;
    let stray: Vec<Entry> = stored
        .difference(&expected)
        .filter(is_stray)
        .copied()
        .collect();
    for (uuid, kind, _) in stray {
        let locus = Locus::tree(TreeId::UUID.0).at_key(UuidItem::key(uuid, kind).into());
        checker.noticed(locus, RootUseRule::StrayUuid)?;
    }
    Ok(())
}

fn read(checker: &Checker<'_>, tree: Tree) -> Result<BTreeSet<Entry>> {
    let mut entries = BTreeSet::new();
    let mut cursor = Cursor::new(&checker.context.blocks, tree);
    cursor.seek(Key::MIN)?;
    while let Some((key, data)) = cursor.item() {
        if matches!(
            key.kind,
            ItemKind::UUID_SUBVOL | ItemKind::UUID_RECEIVED_SUBVOL
        ) {
            let item = UuidItem::decode(key, data, tree.locus(key))?;
            entries.extend(item.trees.iter().map(|id| (item.uuid, key.kind, *id)));
        }
        cursor.step()?;
    }
    Ok(entries)
}
