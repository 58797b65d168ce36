//! `renameat2(2)` in the memory filesystem.

use super::change::NewNode;
use super::inode::MemInode;
use super::node::{Nodes, Number};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::namei::Rename;
use platter_vfs::{CreateKind, Name, RenameMode, Result, Timestamp};

/// A name in a directory.
type Place<'a> = (Number, Name<'a>);

/// Makes a rename that is allowed.
pub(super) fn rename(
    nodes: &mut Nodes,
    rename: &Rename<'_, MemInode>,
    now: Timestamp,
) -> Result<()> {
    let from = (rename.from.dir.number(), rename.from.name);
    let to = (rename.to.dir.number(), rename.to.name);
    let moved = rename.moved.number();
    let there = rename.there.as_ref().map(|there| there.number());
    if let (RenameMode::Exchange, Some(there)) = (rename.mode, there) {
        exchange(nodes, (from, moved), (to, there), now);
        return Ok(());
    }
    if rename.mode == RenameMode::Whiteout {
        let number = nodes.reserve_number();
        let new = NewNode {
            number,
            kind: CreateKind::CharDevice(DeviceNumber::default()),
            permissions: 0,
        };
        nodes.create(from.0, None, new, rename.context, now)?;
        let node = nodes.get_mut(number);
        (node.links, node.may_get_first_name) = (1, false);
        nodes.touch_names(from.0, now).replace(from.1, number);
    } else {
        nodes.touch_names(from.0, now).remove(from.1);
    }
    if let Some(there) = there {
        nodes.touch_names(to.0, now).replace(to.1, moved);
        if nodes.get(there).is_directory() {
            nodes.get_mut(to.0).links -= 1;
        }
        nodes.drop_link(there, now);
    } else {
        nodes.touch_names(to.0, now).insert(to.1, moved);
    }
    nodes.get_mut(moved).changed = now;
    set_parent(nodes, moved, from.0, to.0);
    Ok(())
}

fn exchange(
    nodes: &mut Nodes,
    (from, moved): (Place<'_>, Number),
    (to, there): (Place<'_>, Number),
    now: Timestamp,
) {
    nodes.touch_names(from.0, now).replace(from.1, there);
    nodes.touch_names(to.0, now).replace(to.1, moved);
    set_parent(nodes, moved, from.0, to.0);
    set_parent(nodes, there, to.0, from.0);
    nodes.get_mut(moved).changed = now;
    nodes.get_mut(there).changed = now;
}

/// Updates `..` of a directory that moved, and the links that come with it.
fn set_parent(nodes: &mut Nodes, moved: Number, from: Number, to: Number) {
    if from == to {
        return;
    }
    let Ok(directory) = nodes.get_mut(moved).directory_mut() else {
        return;
    };
    directory.parent = to;
    nodes.get_mut(from).links -= 1;
    nodes.get_mut(to).links += 1;
}
