//! `renameat2(2)` in the memory filesystem.

use super::change::NewNode;
use super::inode::MemInode;
use super::node::{Nodes, Number};
use platter_vfs::attr::DeviceNumber;
use platter_vfs::namei::Rename;
use platter_vfs::{CreateKind, Name, RenameMode, Result, Timestamp};

/// A name in a directory.
type Place<'a> = (Number, Name<'a>);

impl Nodes {
    /// Makes a rename that is allowed.
    pub(super) fn rename(&mut self, rename: &Rename<'_, MemInode>, now: Timestamp) -> Result<()> {
        let from = (rename.from.dir.number(), rename.from.name);
        let to = (rename.to.dir.number(), rename.to.name);
        let moved = rename.moved.number();
        let there = rename.there.as_ref().map(|there| there.number());
        if let (RenameMode::Exchange, Some(there)) = (rename.mode, there) {
            self.exchange((from, moved), (to, there), now);
            return Ok(());
        }
        if rename.mode == RenameMode::Whiteout {
            let number = self.reserve_number();
            let new = NewNode {
                number,
                kind: CreateKind::CharDevice(DeviceNumber::default()),
                permissions: 0,
            };
            self.create(from.0, None, new, rename.context, now)?;
            let node = self.get_mut(number);
            (node.links, node.may_get_first_name) = (1, false);
            self.touch_names(from.0, now).replace(from.1, number);
        } else {
            self.touch_names(from.0, now).remove(from.1);
        }
        if let Some(there) = there {
            self.touch_names(to.0, now).replace(to.1, moved);
            if self.get(there).is_directory() {
                self.get_mut(to.0).links -= 1;
            }
            self.drop_link(there, now);
        } else {
            self.touch_names(to.0, now).insert(to.1, moved);
        }
        self.get_mut(moved).changed = now;
        self.set_parent(moved, from.0, to.0);
        Ok(())
    }

    fn exchange(
        &mut self,
        (from, moved): (Place<'_>, Number),
        (to, there): (Place<'_>, Number),
        now: Timestamp,
    ) {
        self.touch_names(from.0, now).replace(from.1, there);
        self.touch_names(to.0, now).replace(to.1, moved);
        self.set_parent(moved, from.0, to.0);
        self.set_parent(there, to.0, from.0);
        self.get_mut(moved).changed = now;
        self.get_mut(there).changed = now;
    }

    /// Updates `..` of a directory that moved, and the links that come with it.
    fn set_parent(&mut self, moved: Number, from: Number, to: Number) {
        if from == to {
            return;
        }
        let Ok(directory) = self.get_mut(moved).directory_mut() else {
            return;
        };
        directory.parent = to;
        self.get_mut(from).links -= 1;
        self.get_mut(to).links += 1;
    }
}
