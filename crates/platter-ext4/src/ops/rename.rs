//! Moving names within a directory and between two.

use std::ops::Deref;

use platter_vfs::namei::{self, NewInode, Rename};
use platter_vfs::{CreateKind, FileKind, RenameMode, Result, Timestamp};

use super::create::{self, new_inode_credits};
use super::names::Cores;
use super::new_inode::{self, Blueprint};
use super::quotas::{self, Limited};
use super::{Ext4Inode, InodeState, data, sync};
use crate::FsContext;
use crate::alloc::Portion;
use crate::directory::{CHANGE_CREDITS, DirectoryMut, ParentSlot, insert_credits};
use crate::inode::{self, STORE_CREDITS};
use crate::orphan::ORPHAN_CREDITS;
use crate::txn::Handle;

/// Blocks that a rename changes at most, in addition to adding a name and making a whiteout: the old name,
/// `..` of two directories that move, and four inodes.
const RENAME_CREDITS: u32 = 3 * CHANGE_CREDITS + 4 * STORE_CREDITS + ORPHAN_CREDITS;

type Place<'a> = namei::Place<'a, Ext4Inode>;

/// Makes a rename that is allowed, as one transaction.
pub(super) fn apply(rename: &Rename<'_, Ext4Inode>) -> Result<()> {
    let dir = rename.from.dir;
    let space = dir.sb.space()?.portion(dir.reserve_of(rename.context));
    Move(rename).apply(space)
}

/// Locations of `..` in the directories that get another parent.
struct Parents {
    moved: Option<ParentSlot>,
    there: Option<ParentSlot>,
}

/// What is renamed.
struct Move<'r, 'a>(&'r Rename<'a, Ext4Inode>);

impl<'a> Deref for Move<'_, 'a> {
    type Target = Rename<'a, Ext4Inode>;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl Move<'_, '_> {
    fn apply(&self, space: Portion<'_>) -> Result<()> {
        let sb = &self.from.dir.sb;
        let fs = &sb.fs;
        let mut nodes: Vec<&Ext4Inode> = vec![self.from.dir, self.to.dir, &self.moved];
        nodes.extend(self.there.as_deref());
        for node in &nodes {
            inode::read_slot(fs, node.number)?;
        }
        if self.replaces_contents() {
            // An error is reported by the next sync of the file.
            let _ = data::write_back(&self.moved);
        }
        let mut credits = RENAME_CREDITS + insert_credits(&self.to.dir.state.read().map);
        let (mut blueprint, mut _held) = (None, None);
        if self.mode == RenameMode::Whiteout {
            let whiteout = NewInode {
                context: self.context,
                kind: &CreateKind::WHITEOUT,
                permissions: 0,
            };
            let (whiteout, held) = new_inode::plan_counted(self.from.dir, space, &whiteout)?;
            _held = held;
            credits += new_inode_credits(fs, &whiteout);
            blueprint = Some(whiteout);
        }
        let mut handle = fs.begin(credits)?;
        let mut cores = Cores::lock(&nodes);
        let parents = self.locate_parents(fs, &mut cores)?;
        let to = self.to.dir;
        let limited = quotas::limited(to, space, cores.of(to), self.context);
        let now = sb.clock.now();
        let is_gone = match self.mode {
            RenameMode::Exchange => {
                self.exchange(space, &mut handle, &mut cores, &parents)?;
                false
            }
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Whiteout => {
                self.put_new_name((space, &limited), &mut handle, &mut cores, blueprint)?;
                let finished = self.finish(space, &mut handle, &mut cores, &parents, now);
                finished.map_err(|error| handle.abort(error))?
            }
        };
        for place in [self.from, self.to] {
            cores.of(place.dir).touch_names(now);
        }
        cores.of(&self.moved).touch(now);
        if let Some(there) = &self.there {
            cores.of(there).touch(now);
        }
        cores.store(fs, &mut handle)?;
        drop(cores);
        drop(handle);
        if let (true, Some(there)) = (is_gone, &self.there) {
            sync::drop_unnamed(sb, there);
        }
        Ok(())
    }

    /// Locates the parents of the directories that move, before the first change.
    fn locate_parents(&self, fs: &FsContext, cores: &mut Cores<'_>) -> Result<Parents> {
        let mut locate = |node: &Ext4Inode| {
            let directory = cores.of(node).directory(fs)?;
            directory.locate_parent()
        };
        let is_exchange = self.mode == RenameMode::Exchange;
        let there = self.there.as_deref().filter(|_| is_exchange);
        let moves = |node: &&Ext4Inode| self.moves_directory(node);
        Ok(Parents {
            moved: Some(&*self.moved)
                .filter(moves)
                .map(&mut locate)
                .transpose()?,
            there: there.filter(moves).map(&mut locate).transpose()?,
        })
    }

    /// Makes each of two names name what the other did.
    fn exchange(
        &self,
        space: Portion<'_>,
        handle: &mut Handle<'_>,
        cores: &mut Cores<'_>,
        parents: &Parents,
    ) -> Result<()> {
        let Some(there) = &self.there else {
            return Ok(());
        };
        replace(space, handle, cores, self.to, &self.moved)?;
        let rest = replace(space, handle, cores, self.from, there)
            .and_then(|()| set_parent(space, handle, cores, (&self.moved, parents.moved), self.to))
            .and_then(|()| set_parent(space, handle, cores, (there, parents.there), self.from));
        rest.map_err(|error| handle.abort(error))?;
        // Of two directories that trade places, none is one more anywhere.
        if self.moved.kind != there.kind {
            self.count_move(cores, &self.moved, self.from, self.to);
            self.count_move(cores, there, self.to, self.from);
        }
        Ok(())
    }

    /// The first change: the new name names what is moved. A whiteout is made before.
    ///
    /// # Errors
    /// With an error, nothing was changed.
    fn put_new_name(
        &self,
        (space, limited): (Portion<'_>, &Limited<'_>),
        handle: &mut Handle<'_>,
        cores: &mut Cores<'_>,
        blueprint: Option<Blueprint<'_>>,
    ) -> Result<()> {
        let fs = self.from.dir.fs();
        let mut whiteout = match blueprint {
            Some(blueprint) => {
                let dir = cores.of(self.from.dir);
                Some(create::take_inode(
                    self.from.dir,
                    space,
                    handle,
                    dir,
                    blueprint,
                )?)
            }
            None => None,
        };
        let named = match self.there {
            Some(_) => replace(space, handle, cores, self.to, &self.moved),
            None => cores
                .of(self.to.dir)
                .directory_mut(fs, limited, handle)
                .and_then(|mut directory| {
                    directory.insert(self.to.name, self.moved.number, self.moved.kind)
                }),
        };
        if let Err(error) = named {
            if let Some((inode, map)) = &mut whiteout {
                new_inode::undo(self.from.dir, space, handle, (inode, map))?;
            }
            return Err(error);
        }
        let old_name = match whiteout {
            Some((mut inode, _)) => {
                inode.links = 1;
                let (number, kind) = (inode.number, inode.kind);
                create::initialize(self.from.dir, handle, &inode).and_then(|()| {
                    let mut directory =
                        cores.of(self.from.dir).directory_mut(fs, &space, handle)?;
                    directory.replace(self.from.name, number, kind)
                })
            }
            None => cores
                .of(self.from.dir)
                .directory_mut(fs, &space, handle)
                .and_then(|mut directory| directory.remove(self.from.name)),
        };
        old_name.map(|_| ()).map_err(|error| handle.abort(error))
    }

    /// Updates the link counts of the directories and of the replaced inode after the new name is set.
    /// Returns whether the replaced inode lost its last name.
    fn finish(
        &self,
        space: Portion<'_>,
        handle: &mut Handle<'_>,
        cores: &mut Cores<'_>,
        parents: &Parents,
        now: Timestamp,
    ) -> Result<bool> {
        let sb = &self.from.dir.sb;
        let mut is_gone = false;
        if let Some(there) = &self.there {
            if there.kind == FileKind::Directory {
                cores.of(self.to.dir).discount_directory();
            }
            is_gone = cores.of(there).drop_link(now);
            if is_gone {
                let register = sb.register()?;
                register.add(&sb.fs, handle, there.number)?;
            }
        }
        set_parent(space, handle, cores, (&self.moved, parents.moved), self.to)?;
        self.count_move(cores, &self.moved, self.from, self.to);
        Ok(is_gone)
    }

    /// Counts a directory that moved where it came, and where it left.
    fn count_move(&self, cores: &mut Cores<'_>, node: &Ext4Inode, from: Place<'_>, to: Place<'_>) {
        if self.moves_directory(node) {
            cores.of(from.dir).discount_directory();
            cores.of(to.dir).count_directory();
        }
    }
}

/// Makes `..` of a directory that moved name its new parent. That takes no key: `..` is not encrypted.
fn set_parent(
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    cores: &mut Cores<'_>,
    (node, slot): (&Ext4Inode, Option<ParentSlot>),
    to: Place<'_>,
) -> Result<()> {
    let Some(slot) = slot else {
        return Ok(());
    };
    let InodeState { inode, map, .. } = cores.of(node);
    let mut directory = DirectoryMut::open_without_key(node.fs(), &space, handle, inode, map)?;
    directory.set_parent(&slot, to.dir.number)
}

/// Makes the name at `place` name `node`.
fn replace(
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    cores: &mut Cores<'_>,
    place: Place<'_>,
    node: &Ext4Inode,
) -> Result<()> {
    let fs = place.dir.fs();
    let mut directory = cores.of(place.dir).directory_mut(fs, &space, handle)?;
    directory.replace(place.name, node.number, node.kind)?;
    Ok(())
}
