//! Moving names within a directory and between two.

use std::ops::Deref;

use platter_vfs::namei::{self, NewInode, Rename};
use platter_vfs::{CreateKind, FileKind, RenameMode, Result, Timestamp, file};

use super::create::{self, Blueprint};
use super::names::{NAME_COST, change_directory};
use super::remove::drop_link;
use super::state::{States, Times, set_links, touch};
use super::{Inode, parents};
use crate::change::{Change, Cost};
use crate::directory::change::NewEntry;
use crate::ondisk::InodeNr;

type Place<'a> = namei::Place<'a, Inode>;

/// What is renamed.
struct Move<'r, 'a>(&'r Rename<'a, Inode>);

impl<'a> Deref for Move<'_, 'a> {
    type Target = Rename<'a, Inode>;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

/// Makes a rename that is allowed, as one transaction.
pub(super) fn apply(rename: &Rename<'_, Inode>) -> Result<()> {
    Move(rename).apply()
}

impl Move<'_, '_> {
    fn apply(&self) -> Result<()> {
        let superblock = &self.from.dir.superblock;
        let mut inodes: Vec<&Inode> = vec![self.from.dir, self.to.dir, &self.moved];
        inodes.extend(self.there.as_deref());
        if self.replaces_contents() {
            // An error is reported by the next sync of the file.
            let _ = file::write_back(&*self.moved);
        }
        // Two names, and `..` of two directories.
        let mut cost = NAME_COST.and(NAME_COST).and(Cost {
            directory_blocks: 2,
            inodes: 5,
            ..parents::cost(&superblock.context, 5)
        });
        let mut whiteout = None;
        if self.mode == RenameMode::Whiteout {
            let blueprint = create::plan(
                self.from.dir,
                NewInode {
                    context: self.context,
                    kind: &CreateKind::WHITEOUT,
                    permissions: 0,
                },
            )?;
            cost = cost.and(blueprint.cost(self.from.dir));
            whiteout = Some(blueprint);
        }
        let now = superblock.clock.now();
        let is_gone = superblock.change(&cost, &inodes, |changing, states| {
            let is_gone = if self.mode == RenameMode::Exchange {
                self.exchange(changing, states)?;
                false
            } else {
                self.replace(changing, states, whiteout.as_ref(), now)?
            };
            for place in [self.from, self.to] {
                touched(changing, place.dir, Times::of_contents(now))?;
            }
            touched(changing, &self.moved, Times::of_attributes(now))?;
            if let Some(there) = &self.there {
                touched(changing, there, Times::of_attributes(now))?;
            }
            Ok(is_gone)
        })?;
        if let (true, Some(there)) = (is_gone, &self.there) {
            superblock.drop_unnamed(there);
        }
        Ok(())
    }

    /// Makes each of two names name what the other did.
    fn exchange(&self, changing: &mut Change<'_>, states: &States<'_>) -> Result<()> {
        let Some(there) = &self.there else {
            return Ok(());
        };
        name(changing, states, self.to, (&self.moved, true))?;
        name(changing, states, self.from, (there, true))?;
        parents::remove(changing, self.moved.number, named(&self.from))?;
        parents::remove(changing, there.number, named(&self.to))?;
        parents::add(changing, self.moved.number, named(&self.to))?;
        parents::add(changing, there.number, named(&self.from))?;
        self.set_parent(changing, states, &self.moved, self.to)?;
        self.set_parent(changing, states, there, self.from)?;
        // Of two directories that trade places, none is one more anywhere.
        if self.moved.kind != there.kind {
            self.count_move(changing, &self.moved, self.from, self.to)?;
            self.count_move(changing, there, self.to, self.from)?;
        }
        Ok(())
    }

    /// Moves the name. Returns whether what had the new one lost its last.
    fn replace(
        &self,
        changing: &mut Change<'_>,
        states: &States<'_>,
        whiteout: Option<&Blueprint<'_>>,
        now: Timestamp,
    ) -> Result<bool> {
        let superblock = &self.from.dir.superblock;
        let whiteout = match whiteout {
            Some(blueprint) => Some(create::make(
                superblock,
                changing,
                states.inode(self.from.dir),
                blueprint,
                1,
            )?),
            None => None,
        };
        name(
            changing,
            states,
            self.to,
            (&self.moved, self.there.is_some()),
        )?;
        let old = self.from.name;
        let from = (&**self.from.dir, states.map(self.from.dir));
        change_directory(changing, from, |dir| match whiteout {
            Some(inode) => dir.replace(&NewEntry {
                name: &old,
                inode,
                kind: FileKind::CharDevice,
            }),
            None => dir.remove(&old),
        })?;
        parents::remove(changing, self.moved.number, named(&self.from))?;
        if let Some(whiteout) = whiteout {
            parents::add(changing, whiteout, named(&self.from))?;
        }
        let mut is_gone = false;
        if let Some(there) = &self.there {
            parents::remove(changing, there.number, named(&self.to))?;
            if there.kind == FileKind::Directory {
                add_links(changing, self.to.dir, -1)?;
            }
            is_gone = drop_link(changing, there, now)?;
        }
        parents::add(changing, self.moved.number, named(&self.to))?;
        self.set_parent(changing, states, &self.moved, self.to)?;
        self.count_move(changing, &self.moved, self.from, self.to)?;
        Ok(is_gone)
    }

    /// Makes `..` of a directory that moved name its new parent.
    fn set_parent(
        &self,
        changing: &mut Change<'_>,
        states: &States<'_>,
        inode: &Inode,
        to: Place<'_>,
    ) -> Result<()> {
        if !self.moves_directory(inode) {
            return Ok(());
        }
        let entry = NewEntry {
            name: b"..",
            inode: to.dir.number,
            kind: FileKind::Directory,
        };
        change_directory(changing, (inode, states.map(inode)), |dir| {
            dir.replace(&entry)
        })
    }

    /// Counts a directory that moved where it came, and where it left.
    fn count_move(
        &self,
        changing: &mut Change<'_>,
        inode: &Inode,
        from: Place<'_>,
        to: Place<'_>,
    ) -> Result<()> {
        if self.moves_directory(inode) {
            add_links(changing, from.dir, -1)?;
            add_links(changing, to.dir, 1)?;
        }
        Ok(())
    }
}

/// The directory and the name of a place.
fn named<'p>(place: &'p Place<'_>) -> (InodeNr, &'p [u8]) {
    (place.dir.number, &place.name)
}

fn touched(changing: &mut Change<'_>, inode: &Inode, times: Times) -> Result<()> {
    let mut edit = changing.inode_at(&inode.place()?)?;
    touch(&mut edit, times)?;
    changing.put(edit);
    Ok(())
}

fn add_links(changing: &mut Change<'_>, inode: &Inode, change: i32) -> Result<()> {
    let mut edit = changing.inode_at(&inode.place()?)?;
    let links = edit.inode().links.saturating_add_signed(change);
    set_links(&mut edit, links)?;
    changing.put(edit);
    Ok(())
}

/// Makes the name at a place, which may be there, name an inode.
fn name(
    changing: &mut Change<'_>,
    states: &States<'_>,
    place: Place<'_>,
    (inode, is_there): (&Inode, bool),
) -> Result<()> {
    let entry = NewEntry {
        name: &place.name,
        inode: inode.number,
        kind: inode.kind,
    };
    change_directory(changing, (place.dir, states.map(place.dir)), |dir| {
        if is_there {
            dir.replace(&entry)
        } else {
            dir.insert(&entry)
        }
    })
}
