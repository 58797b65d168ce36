//! Removing names.

use std::sync::Arc;

use platter_vfs::{FileKind, NameBuf, Result, Timestamp};

use super::names::{NAME_COST, change_directory};
use super::state::{States, Times, set_links, touch};
use super::{Inode, SuperBlock};
use crate::change::{Change, Cost};
use crate::inode;
use crate::ondisk::InodeNr;

/// Takes one name from an inode, and puts it on the list of those without a name if that was the last.
/// Returns whether it was.
pub(super) fn drop_link(
    changing: &mut Change<'_>,
    number: InodeNr,
    now: Timestamp,
) -> Result<bool> {
    let mut edit = changing.inode(number)?;
    let links = if edit.inode().kind == FileKind::Directory {
        0
    } else {
        edit.inode().links.saturating_sub(1)
    };
    set_links(&mut edit, links)?;
    touch(&mut edit, Times::of_attributes(now))?;
    if links == 0 {
        changing.add_unlinked(&mut edit)?;
    }
    changing.put(edit);
    Ok(links == 0)
}

impl Inode {
    /// Takes the name of `victim` out of this directory. The caller holds both inode locks.
    pub(super) fn take_name(&self, name: &NameBuf, victim: &Arc<Self>) -> Result<()> {
        let superblock = &self.superblock;
        let cost = NAME_COST.and(Cost {
            inodes: 3,
            ..Cost::default()
        });
        let begun = superblock.begin(&cost)?;
        let mut states = States::lock(&[self, victim]);
        let mut changing = begun.enter();
        let now = superblock.clock.now();
        let name = name.as_name();
        change_directory(&mut changing, self.number, |dir| dir.remove(&name))?;
        let mut edit = changing.inode(self.number)?;
        touch(&mut edit, Times::of_contents(now))?;
        if victim.kind == FileKind::Directory {
            let links = edit.inode().links.saturating_sub(1);
            set_links(&mut edit, links)?;
        }
        changing.put(edit);
        let is_gone = drop_link(&mut changing, victim.number, now)?;
        let sequence = changing.commit()?;
        states.committed(self.context(), sequence)?;
        drop(states);
        if is_gone {
            superblock.drop_unnamed(victim);
        }
        Ok(())
    }
}

impl SuperBlock {
    /// Frees the inodes without a name that a crash left. Once, before anything else is changed.
    pub fn finish_unlinked(self: &Arc<Self>) -> Result<u64> {
        let mut count = 0;
        for ag in self.context.geometry().groups() {
            let begun = self.begin(&Cost::default())?;
            let found = begun.enter().unlinked(ag)?;
            for number in found {
                let id = number.id();
                let object = self.inodes.get_or_load(id, |seat| {
                    self.object(inode::read(&self.context, number)?, seat)
                })?;
                self.inodes.release(id);
                object.evict()?;
                count += 1;
            }
        }
        Ok(count)
    }
}
