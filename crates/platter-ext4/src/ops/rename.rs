//! Moving names within a directory and between two.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::MutexGuard;
use parking_lot::RwLockWriteGuard;
use platter_vfs::lock_rank::Ranked;
use platter_vfs::{
    Condition, Context, CreateKind, FileKind, InodeId, Name, RenameMode, Result, Timestamp,
};

use super::create::new_inode_credits;
use super::names::Cores;
use super::new_inode::Blueprint;
use super::{Node, Tree};
use crate::alloc::Portion;
use crate::directory::{CHANGE_CREDITS, insert_credits};
use crate::inode::{self, STORE_CREDITS};
use crate::ondisk::InodeNr;
use crate::orphan::ORPHAN_CREDITS;
use crate::txn::Handle;

/// Blocks that a rename changes at most, beside adding a name and making a whiteout: the old name,
/// `..` of two directories that move, and four inodes.
const RENAME_CREDITS: u32 = 3 * CHANGE_CREDITS + 4 * STORE_CREDITS + ORPHAN_CREDITS;

/// A whiteout: a character device without a number.
const WHITEOUT: CreateKind =
    CreateKind::CharDevice(platter_vfs::attr::DeviceNumber { major: 0, minor: 0 });

/// A name in a directory.
#[derive(Clone, Copy)]
struct Place<'a> {
    dir: &'a Arc<Node>,
    name: Name<'a>,
}

/// What is moved where, proven to be possible as far as names tell. All order locks that it needs
/// are held.
struct Move<'a> {
    context: &'a Context,
    from: Place<'a>,
    to: Place<'a>,
    moved: Arc<Node>,
    /// What the new name names so far.
    there: Option<Arc<Node>>,
    mode: RenameMode,
}

/// The order locks of two directories, or one, and what is above each of two.
struct Parents<'a> {
    above_from: HashSet<InodeNr>,
    above_to: HashSet<InodeNr>,
    _first: Ranked<RwLockWriteGuard<'a, ()>>,
    second: Option<Ranked<RwLockWriteGuard<'a, ()>>>,
    _renames: Option<MutexGuard<'a, ()>>,
}

impl Node {
    pub(super) fn rename_name(
        &self,
        context: &Context,
        name: Name<'_>,
        new_parent: InodeId,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        self.with_room(|| self.try_rename(context, name, new_parent, new_name, mode))
    }

    fn try_rename(
        &self,
        context: &Context,
        name: Name<'_>,
        new_parent: InodeId,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        if name.is_dot_or_dotdot() || new_name.is_dot_or_dotdot() {
            return Err(Condition::Busy.into());
        }
        let tree = &self.tree;
        let from = tree.directory(self.number.id())?;
        let to = tree.directory(new_parent)?;
        let (from, to) = (
            Place { dir: &from, name },
            Place {
                dir: &to,
                name: new_name,
            },
        );
        let parents = tree.lock_parents(from.dir, to.dir)?;
        let moved = from.dir.child(name)?;
        let there = match to.dir.child(new_name) {
            Ok(there) => Some(there),
            Err(platter_vfs::Error::Condition(Condition::NotFound)) => None,
            Err(error) => return Err(error),
        };
        let rename = Move {
            context,
            from,
            to,
            moved,
            there,
            mode,
        };
        if rename.prove_mode(&parents)? {
            return Ok(());
        }
        let first_child = if parents.second.is_some() { 2 } else { 1 };
        let children = rename.children_to_lock();
        let _orders: Vec<_> = (first_child..)
            .zip(&children)
            .map(|(nth, child)| child.order.write_nth(nth))
            .collect();
        if let (Some(there), true) = (&rename.there, mode != RenameMode::Exchange)
            && there.kind == FileKind::Directory
        {
            // As in Linux, what must not change is refused first.
            for kept in [rename.from.dir, rename.to.dir, &rename.moved, there] {
                kept.core.read().refuse_append_only()?;
            }
            there.prove_empty()?;
        }
        rename.apply(tree.space()?.portion(self.reserve_of(context)))
    }
}

impl Tree {
    fn directory(self: &Arc<Self>, id: InodeId) -> Result<Arc<Node>> {
        let node = self.in_use(id)?.ok_or(Condition::NotFound)?;
        if node.kind != FileKind::Directory {
            return Err(Condition::NotDirectory.into());
        }
        Ok(node)
    }

    /// Locks two directories: the one above first, and of two unrelated ones that with the smaller
    /// number. Meanwhile no directory moves to another.
    fn lock_parents<'a>(&'a self, from: &'a Arc<Node>, to: &'a Arc<Node>) -> Result<Parents<'a>> {
        if from.number == to.number {
            return Ok(Parents {
                above_from: HashSet::new(),
                above_to: HashSet::new(),
                _first: from.order.write(),
                second: None,
                _renames: None,
            });
        }
        let renames = self.renames.lock();
        let (above_from, above_to) = (from.ancestors()?, to.ancestors()?);
        let from_is_first = if above_to.contains(&from.number) {
            true
        } else if above_from.contains(&to.number) {
            false
        } else {
            from.number < to.number
        };
        let (first, second) = if from_is_first {
            (from, to)
        } else {
            (to, from)
        };
        Ok(Parents {
            above_from,
            above_to,
            _first: first.order.write(),
            second: Some(second.order.write_nth(1)),
            _renames: Some(renames),
        })
    }
}

impl Move<'_> {
    fn is_across(&self) -> bool {
        self.from.dir.number != self.to.dir.number
    }

    /// Whether the names allow the move. `true` says that there is nothing to do.
    fn prove_mode(&self, parents: &Parents<'_>) -> Result<bool> {
        match (self.mode, &self.there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Condition::Exists.into()),
            (RenameMode::Exchange, None) => return Err(Condition::NotFound.into()),
            _ => {}
        }
        // A directory cannot come to lie in itself.
        if parents.above_to.contains(&self.moved.number) {
            return Err(Condition::InvalidArgument.into());
        }
        let Some(there) = &self.there else {
            return Ok(false);
        };
        let holds_source = parents.above_from.contains(&there.number);
        if self.mode == RenameMode::Exchange {
            if holds_source {
                return Err(Condition::InvalidArgument.into());
            }
            return Ok(there.number == self.moved.number);
        }
        if there.number == self.moved.number {
            return Ok(true);
        }
        if holds_source {
            return Err(Condition::NotEmpty.into());
        }
        let is_directory = |node: &Node| node.kind == FileKind::Directory;
        match (is_directory(&self.moved), is_directory(there)) {
            (true, false) => Err(Condition::NotDirectory.into()),
            (false, true) => Err(Condition::IsDirectory.into()),
            (true, true) | (false, false) => Ok(false),
        }
    }

    /// The directories among what is moved and replaced, in the order of their locks.
    fn children_to_lock(&self) -> Vec<&Node> {
        let mut children: Vec<&Node> = Vec::new();
        if self.moves_directory(&self.moved) {
            children.push(&self.moved);
        }
        if let Some(there) = &self.there
            && there.kind == FileKind::Directory
        {
            children.push(there);
        }
        children.sort_by_key(|child| child.number);
        children
    }

    /// Whether it is a directory that gets another parent.
    fn moves_directory(&self, node: &Node) -> bool {
        self.is_across() && node.kind == FileKind::Directory
    }

    /// Writes the contents of a file that takes the place of another: many programs expect that after
    /// a crash there is one or the other. An error is told to whoever syncs the file.
    fn write_replacement(&self) {
        let replaces = self.mode == RenameMode::Replace
            && self
                .there
                .as_ref()
                .is_some_and(|there| there.kind == FileKind::Regular);
        if replaces && self.moved.kind == FileKind::Regular {
            let _ = self.moved.write_back();
        }
    }

    /// Makes the move as one transaction.
    fn apply(&self, space: Portion<'_>) -> Result<()> {
        let tree = &self.from.dir.tree;
        let volume = &tree.volume;
        let mut nodes: Vec<&Node> = vec![self.from.dir, self.to.dir, &self.moved];
        nodes.extend(self.there.as_deref());
        for node in &nodes {
            inode::read_slot(volume, node.number)?;
        }
        self.write_replacement();
        let mut credits = RENAME_CREDITS + insert_credits(&self.to.dir.core.read().map);
        let mut blueprint = None;
        if self.mode == RenameMode::Whiteout {
            let whiteout = self.from.dir.draw_up(space, self.context, &WHITEOUT, 0)?;
            credits += new_inode_credits(volume, &whiteout);
            blueprint = Some(whiteout);
        }
        let mut handle = volume.begin(credits)?;
        let mut cores = Cores::lock(&nodes);
        self.prove_allowed(&mut cores)?;
        let now = tree.clock.now();
        let is_gone = match self.mode {
            RenameMode::Exchange => {
                self.exchange(space, &mut handle, &mut cores)?;
                false
            }
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Whiteout => {
                self.put_new_name(space, &mut handle, &mut cores, blueprint)?;
                let settled = self.settle(space, &mut handle, &mut cores, now);
                settled.map_err(|error| handle.abort(error))?
            }
        };
        for place in [self.from, self.to] {
            cores.of(place.dir).touch_names(now);
        }
        cores.of(&self.moved).touch(now);
        if let Some(there) = &self.there {
            cores.of(there).touch(now);
        }
        cores.store(volume, &mut handle)?;
        drop(cores);
        drop(handle);
        if let (true, Some(there)) = (is_gone, &self.there) {
            tree.drop_unnamed(there);
        }
        Ok(())
    }

    /// Whether flags, projects and numbers of links allow the move, and the new directory is still
    /// there.
    fn prove_allowed(&self, cores: &mut Cores<'_>) -> Result<()> {
        let geometry = &self.from.dir.volume().geometry;
        let is_exchange = self.mode == RenameMode::Exchange;
        cores.of(self.from.dir).refuse_append_only()?;
        cores.of(self.to.dir).refuse_immutable()?;
        cores.of(&self.moved).refuse_append_only()?;
        if cores.of(self.to.dir).inode.links == 0 {
            return Err(Condition::NotFound.into());
        }
        if let Some(there) = &self.there {
            cores.of(self.to.dir).refuse_append_only()?;
            cores.of(there).refuse_append_only()?;
            if is_exchange {
                cores.refuse_other_project(self.from.dir, there)?;
            }
        }
        cores.refuse_other_project(self.to.dir, &self.moved)?;
        if !self.is_across() {
            return Ok(());
        }
        let is_directory =
            |node: Option<&Node>| node.is_some_and(|node| node.kind == FileKind::Directory);
        let comes = is_directory(Some(&self.moved));
        let goes = is_directory(self.there.as_deref());
        if comes && !goes {
            cores.of(self.to.dir).prove_room_for_directory(geometry)?;
        }
        if is_exchange && goes && !comes {
            cores.of(self.from.dir).prove_room_for_directory(geometry)?;
        }
        Ok(())
    }

    /// Makes each of two names name what the other did.
    fn exchange(
        &self,
        space: Portion<'_>,
        handle: &mut Handle<'_>,
        cores: &mut Cores<'_>,
    ) -> Result<()> {
        let Some(there) = &self.there else {
            return Ok(());
        };
        replace(space, handle, cores, self.to, &self.moved)?;
        let rest = replace(space, handle, cores, self.from, there)
            .and_then(|()| self.set_parent(space, handle, cores, &self.moved, self.to))
            .and_then(|()| self.set_parent(space, handle, cores, there, self.from));
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
        space: Portion<'_>,
        handle: &mut Handle<'_>,
        cores: &mut Cores<'_>,
        blueprint: Option<Blueprint<'_>>,
    ) -> Result<()> {
        let volume = self.from.dir.volume();
        let mut whiteout = match blueprint {
            Some(blueprint) => {
                let dir = cores.of(self.from.dir);
                Some(self.from.dir.take_inode(space, handle, dir, blueprint)?)
            }
            None => None,
        };
        let named = match self.there {
            Some(_) => replace(space, handle, cores, self.to, &self.moved),
            None => cores
                .of(self.to.dir)
                .directory_mut(volume, &space, handle)
                .and_then(|mut directory| {
                    directory.insert(self.to.name, self.moved.number, self.moved.kind)
                }),
        };
        if let Err(error) = named {
            if let Some((inode, map)) = &mut whiteout {
                self.from.dir.undo(space, handle, (inode, map))?;
            }
            return Err(error);
        }
        let old_name = match whiteout {
            Some((mut inode, _)) => {
                inode.links = 1;
                let (number, kind) = (inode.number, inode.kind);
                inode::initialize(volume, handle, &inode).and_then(|()| {
                    let mut directory = cores
                        .of(self.from.dir)
                        .directory_mut(volume, &space, handle)?;
                    directory.replace(self.from.name, number, kind)
                })
            }
            None => cores
                .of(self.from.dir)
                .directory_mut(volume, &space, handle)
                .and_then(|mut directory| directory.remove(self.from.name)),
        };
        old_name.map(|_| ()).map_err(|error| handle.abort(error))
    }

    /// What follows from the new name: links of the directories, and of what was replaced. Tells
    /// whether that lost its last name.
    fn settle(
        &self,
        space: Portion<'_>,
        handle: &mut Handle<'_>,
        cores: &mut Cores<'_>,
        now: Timestamp,
    ) -> Result<bool> {
        let tree = &self.from.dir.tree;
        let mut is_gone = false;
        if let Some(there) = &self.there {
            if there.kind == FileKind::Directory {
                cores.of(self.to.dir).discount_directory();
            }
            is_gone = cores.of(there).drop_link(now);
            if is_gone {
                let register = tree.register()?;
                register.add(&tree.volume, handle, there.number)?;
            }
        }
        self.set_parent(space, handle, cores, &self.moved, self.to)?;
        self.count_move(cores, &self.moved, self.from, self.to);
        Ok(is_gone)
    }

    /// Makes `..` of a directory that moved name its new parent.
    fn set_parent(
        &self,
        space: Portion<'_>,
        handle: &mut Handle<'_>,
        cores: &mut Cores<'_>,
        node: &Node,
        to: Place<'_>,
    ) -> Result<()> {
        if !self.moves_directory(node) {
            return Ok(());
        }
        let volume = node.volume();
        let mut directory = cores.of(node).directory_mut(volume, &space, handle)?;
        directory.set_parent(to.dir.number)
    }

    /// Counts a directory that moved where it came, and where it left.
    fn count_move(&self, cores: &mut Cores<'_>, node: &Node, from: Place<'_>, to: Place<'_>) {
        if self.moves_directory(node) {
            cores.of(from.dir).discount_directory();
            cores.of(to.dir).count_directory();
        }
    }
}

/// Makes the name at `place` name `node`.
fn replace(
    space: Portion<'_>,
    handle: &mut Handle<'_>,
    cores: &mut Cores<'_>,
    place: Place<'_>,
    node: &Node,
) -> Result<()> {
    let volume = place.dir.volume();
    let mut directory = cores.of(place.dir).directory_mut(volume, &space, handle)?;
    directory.replace(place.name, node.number, node.kind)?;
    Ok(())
}
