//! Removing names.

use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Name, Result, Timestamp};

use super::data::evict;
use super::inactivation::free_waiting;
use super::names::{NAME_COST, change_directory};
use super::state::{Times, set_links, touch};
use super::{Inode, SuperBlock, parents};
use crate::ag::GroupRule;
use crate::change::{Change, Cost};
use crate::directory::NamePlace;
use crate::inode;
use crate::ondisk::InodeNr;

/// Takes one name from an inode, and puts it on the list of those without a name if that was the last.
/// Returns whether it was.
pub(super) fn drop_link(changing: &mut Change<'_>, inode: &Inode, now: Timestamp) -> Result<bool> {
    let mut edit = changing.inode_at(&inode.place()?)?;
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

/// Takes the name of `victim` out of a directory, where a search for it ended at `place`. The caller holds both inode
/// locks since.
pub(super) fn unlink(
    directory: &Inode,
    (name, place): (Name<'_>, &NamePlace),
    victim: &Arc<Inode>,
) -> Result<()> {
    let superblock = &directory.superblock;
    let cost = NAME_COST.and(Cost {
        inodes: 3,
        ..parents::cost(&superblock.context, 1)
    });
    let now = superblock.clock.now();
    let is_gone = superblock.change(&cost, &[directory, victim], |changing, states| {
        change_directory(changing, (directory, states.map(directory)), |dir| {
            dir.remove_at(&name, place)?;
            let edit = dir.inode_mut();
            if victim.kind == FileKind::Directory {
                let links = edit.inode().links.saturating_sub(1);
                set_links(edit, links)?;
            }
            touch(edit, Times::of_contents(now))
        })?;
        parents::remove(changing, victim.number, (directory.number, &name))?;
        drop_link(changing, victim, now)
    })?;
    if is_gone {
        superblock.drop_unnamed(victim);
    }
    Ok(())
}

/// Frees the inodes without a name that a crash left. Once, before anything else is changed. What cannot be
/// freed stays on its list, and the log dirty at the end, since Linux reads the lists only then.
pub(crate) fn finish_unlinked(superblock: &Arc<SuperBlock>) -> Result<u64> {
    let mut count = 0;
    for ag in superblock.context.geometry().groups() {
        let found = superblock.change(&Cost::default(), &[], |change, _| change.unlinked(ag));
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                go_on_after(superblock, error)?;
                continue;
            }
        };
        for number in found {
            match finish_one(superblock, number) {
                Ok(()) => count += 1,
                Err(error) => go_on_after(superblock, error)?,
            }
        }
    }
    if let Err(error) = free_waiting(superblock) {
        go_on_after(superblock, error)?;
    }
    Ok(count)
}

fn finish_one(superblock: &Arc<SuperBlock>, number: InodeNr) -> Result<()> {
    let id = number.id();
    let object = superblock.inodes.get_or_load(id, |seat| {
        superblock.object(inode::read(&superblock.context, number)?, seat)
    })?;
    superblock.inodes.release(id);
    if object.state.read().inode.links > 0 {
        let (ag, _) = superblock.context.geometry().split_inode(number);
        return Err(Corrupt::new(Locus::group(ag.0.into()), GroupRule::UnlinkedList).into());
    }
    evict::evict(&object)
}

/// What concerns one inode does not keep the others from being freed.
fn go_on_after(superblock: &SuperBlock, error: platter_vfs::Error) -> Result<()> {
    if superblock.can_write() {
        Ok(())
    } else {
        Err(error)
    }
}
