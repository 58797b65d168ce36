//! Removing names.

use std::sync::Arc;

use platter_vfs::{FileKind, NameBuf, Result, Timestamp};

use super::names::{NAME_COST, change_directory};
use super::state::{Times, set_links, touch};
use super::{Inode, SuperBlock, parents};
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
            ..parents::cost(&superblock.context, 1)
        });
        let now = superblock.clock.now();
        let name = name.as_name();
        let is_gone = superblock.change(&cost, &[self, victim], |changing, _| {
            change_directory(changing, self.number, |dir| dir.remove(&name))?;
            let mut edit = changing.inode(self.number)?;
            touch(&mut edit, Times::of_contents(now))?;
            if victim.kind == FileKind::Directory {
                let links = edit.inode().links.saturating_sub(1);
                set_links(&mut edit, links)?;
            }
            changing.put(edit);
            parents::remove(changing, victim.number, (self.number, &name))?;
            drop_link(changing, victim.number, now)
        })?;
        if is_gone {
            superblock.drop_unnamed(victim);
        }
        Ok(())
    }
}

impl SuperBlock {
    /// Frees the inodes without a name that a crash left. Once, before anything else is changed. What cannot be
    /// freed stays on its list, and the log dirty at the end, since Linux reads the lists only then.
    pub fn finish_unlinked(self: &Arc<Self>) -> Result<u64> {
        let mut count = 0;
        for ag in self.context.geometry().groups() {
            let found = self.change(&Cost::default(), &[], |change, _| change.unlinked(ag));
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    self.go_on_after(error)?;
                    continue;
                }
            };
            for number in found {
                match self.finish_one(number) {
                    Ok(()) => count += 1,
                    Err(error) => self.go_on_after(error)?,
                }
            }
        }
        Ok(count)
    }

    fn finish_one(self: &Arc<Self>, number: InodeNr) -> Result<()> {
        let id = number.id();
        let object = self.inodes.get_or_load(id, |seat| {
            self.object(inode::read(&self.context, number)?, seat)
        })?;
        self.inodes.release(id);
        object.evict()
    }

    /// What concerns one inode does not keep the others from being freed.
    fn go_on_after(&self, error: platter_vfs::Error) -> Result<()> {
        if self.can_write() { Ok(()) } else { Err(error) }
    }
}
