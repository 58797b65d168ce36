//! `renameat2(2)`: within a directory, and between two.

use std::collections::HashSet;
use std::sync::Arc;

use platter_block::lock::{MutexGuard, RwLockWriteGuard};

use super::NamedInode;
use crate::writing::retry_no_space;
use crate::{Condition, Context, Error, FileKind, InodeId, Name, RenameMode, Result};

/// A name in a directory.
#[derive(Debug)]
pub struct Place<'a, I> {
    /// The directory.
    pub dir: &'a Arc<I>,
    /// The name.
    pub name: Name<'a>,
}

impl<I> Clone for Place<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Place<'_, I> {}

/// What is renamed to what. All inode locks that it needs are held.
#[derive(Debug)]
pub struct Rename<'a, I> {
    /// The caller.
    pub context: &'a Context,
    /// The old name.
    pub from: Place<'a, I>,
    /// The new name.
    pub to: Place<'a, I>,
    /// What the old name names.
    pub moved: Arc<I>,
    /// What the new name names so far.
    pub there: Option<Arc<I>>,
    /// The flags.
    pub mode: RenameMode,
}

/// The locks of one or two directories, and the ancestors of each of two, themselves included.
struct Parents<'a> {
    above_from: HashSet<InodeId>,
    above_to: HashSet<InodeId>,
    _first: RwLockWriteGuard<'a, ()>,
    second: Option<RwLockWriteGuard<'a, ()>>,
    _renames: Option<MutexGuard<'a, ()>>,
}

/// Renames `name` of the directory `dir` to `new_name` of the directory `new_parent`.
///
/// # Errors
/// Those of `renameat2(2)`; else the driver's.
pub fn rename<I: NamedInode>(
    dir: &I,
    context: &Context,
    name: Name<'_>,
    (new_parent, new_name): (InodeId, Name<'_>),
    mode: RenameMode,
) -> Result<()> {
    retry_no_space(dir.space()?, || {
        rename_once(dir, context, name, (new_parent, new_name), mode)
    })
}

fn rename_once<I: NamedInode>(
    dir: &I,
    context: &Context,
    name: Name<'_>,
    (new_parent, new_name): (InodeId, Name<'_>),
    mode: RenameMode,
) -> Result<()> {
    if name.is_dot_or_dotdot() || new_name.is_dot_or_dotdot() {
        return Err(Condition::Busy.into());
    }
    let from_dir = directory(dir, dir.id())?;
    let to_dir = directory(dir, new_parent)?;
    let from = Place {
        dir: &from_dir,
        name,
    };
    let to = Place {
        dir: &to_dir,
        name: new_name,
    };
    let parents = lock_parents(from.dir, to.dir)?;
    let (moved, _) = from.dir.child(name)?;
    let there = match to.dir.child(new_name) {
        Ok((there, _)) => Some(there),
        Err(Error::Condition(Condition::NotFound)) => None,
        Err(error) => return Err(error),
    };
    let rename = Rename {
        context,
        from,
        to,
        moved,
        there,
        mode,
    };
    if rename.is_done(&parents)? {
        return Ok(());
    }
    let first_child = if parents.second.is_some() { 2 } else { 1 };
    let children = rename.children_to_lock();
    let _locks: Vec<_> = (first_child..)
        .zip(&children)
        .map(|(nth, child)| child.inode_lock().write_nth(nth))
        .collect();
    rename.check_replaced_directory()?;
    rename.check_allowed()?;
    I::rename_child(&rename)
}

fn directory<I: NamedInode>(dir: &I, id: InodeId) -> Result<Arc<I>> {
    let inode = dir.in_use(id)?.ok_or(Condition::NotFound)?;
    if inode.kind() != FileKind::Directory {
        return Err(Condition::NotDirectory.into());
    }
    Ok(inode)
}

/// Locks two directories: an ancestor first, and of two unrelated ones that with the smaller number.
/// Meanwhile no directory moves to another.
fn lock_parents<'a, I: NamedInode>(from: &'a Arc<I>, to: &'a Arc<I>) -> Result<Parents<'a>> {
    if from.id() == to.id() {
        return Ok(Parents {
            above_from: HashSet::new(),
            above_to: HashSet::new(),
            _first: from.inode_lock().write(),
            second: None,
            _renames: None,
        });
    }
    let renames = from.rename_lock().lock();
    let (above_from, above_to) = (ancestors(from)?, ancestors(to)?);
    let from_is_first = if above_to.contains(&from.id()) {
        true
    } else if above_from.contains(&to.id()) {
        false
    } else {
        from.id() < to.id()
    };
    let (first, second) = if from_is_first {
        (from, to)
    } else {
        (to, from)
    };
    Ok(Parents {
        above_from,
        above_to,
        _first: first.inode_lock().write(),
        second: Some(second.inode_lock().write_nth(1)),
        _renames: Some(renames),
    })
}

/// A directory and its ancestors. The caller keeps directories where they are.
///
/// # Errors
/// `NotFound` for a directory that was removed.
fn ancestors<I: NamedInode>(dir: &Arc<I>) -> Result<HashSet<InodeId>> {
    let mut all = HashSet::from([dir.id()]);
    let mut at = Arc::clone(dir);
    while !at.is_root() {
        if at.link_state().links == 0 {
            return Err(Condition::NotFound.into());
        }
        let above = at.parent()?;
        if !all.insert(above.id()) {
            return Err(above.own_ancestor());
        }
        at = above;
    }
    Ok(all)
}

impl<I: NamedInode> Rename<'_, I> {
    /// Whether the two names are in different directories.
    #[must_use]
    pub fn is_across(&self) -> bool {
        self.from.dir.id() != self.to.dir.id()
    }

    /// Whether `inode`, one of those that are renamed, is a directory that gets another parent.
    #[must_use]
    pub fn moves_directory(&self, inode: &I) -> bool {
        self.is_across() && inode.kind() == FileKind::Directory
    }

    /// Whether a regular file takes the place of another: many programs expect that after a crash there
    /// is one or the other.
    #[must_use]
    pub fn replaces_contents(&self) -> bool {
        let replaced = self.there.as_ref().map(|there| there.kind());
        self.mode == RenameMode::Replace
            && replaced == Some(FileKind::Regular)
            && self.moved.kind() == FileKind::Regular
    }

    /// Whether there is nothing to do, as far as the names allow the rename.
    fn is_done(&self, parents: &Parents<'_>) -> Result<bool> {
        match (self.mode, &self.there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Condition::Exists.into()),
            (RenameMode::Exchange, None) => return Err(Condition::NotFound.into()),
            _ => {}
        }
        // A directory cannot become its own ancestor.
        if parents.above_to.contains(&self.moved.id()) {
            return Err(Condition::InvalidArgument.into());
        }
        let Some(there) = &self.there else {
            return Ok(false);
        };
        let holds_source = parents.above_from.contains(&there.id());
        if self.mode == RenameMode::Exchange {
            if holds_source {
                return Err(Condition::InvalidArgument.into());
            }
            return Ok(there.id() == self.moved.id());
        }
        if there.id() == self.moved.id() {
            return Ok(true);
        }
        if holds_source {
            return Err(Condition::NotEmpty.into());
        }
        let is_directory = |inode: &I| inode.kind() == FileKind::Directory;
        match (is_directory(&self.moved), is_directory(there)) {
            (true, false) => Err(Condition::NotDirectory.into()),
            (false, true) => Err(Condition::IsDirectory.into()),
            (true, true) | (false, false) => Ok(false),
        }
    }

    /// What is renamed and replaced, in the order of the locks: directories first, since a file may have
    /// a name in one of them. A directory that stays in its parent needs no lock.
    fn children_to_lock(&self) -> Vec<&I> {
        let mut children: Vec<&I> = Vec::with_capacity(2);
        if self.is_across() || self.moved.kind() != FileKind::Directory {
            children.push(&self.moved);
        }
        children.extend(self.there.as_deref());
        children.sort_by_key(|child| (child.kind() != FileKind::Directory, child.id()));
        children
    }

    /// A directory that is replaced is empty; as in Linux, flags are looked at first.
    fn check_replaced_directory(&self) -> Result<()> {
        let Some(there) = &self.there else {
            return Ok(());
        };
        if self.mode == RenameMode::Exchange || there.kind() != FileKind::Directory {
            return Ok(());
        }
        for kept in [self.from.dir, self.to.dir, &self.moved, there] {
            kept.link_state().refuse_append_only()?;
        }
        if there.is_empty_directory()? {
            return Ok(());
        }
        Err(Condition::NotEmpty.into())
    }

    /// Whether flags, projects and link counts allow the rename, and the new directory was not removed.
    fn check_allowed(&self) -> Result<()> {
        let is_exchange = self.mode == RenameMode::Exchange;
        let (from, to) = (self.from.dir.link_state(), self.to.dir.link_state());
        let moved = self.moved.link_state();
        from.refuse_append_only()?;
        to.refuse_immutable()?;
        moved.refuse_append_only()?;
        if to.links == 0 {
            return Err(Condition::NotFound.into());
        }
        if let Some(there) = &self.there {
            let there = there.link_state();
            to.refuse_append_only()?;
            there.refuse_append_only()?;
            if is_exchange {
                from.refuse_other_project(&there)?;
            }
        }
        to.refuse_other_project(&moved)?;
        if !self.is_across() {
            return Ok(());
        }
        let is_directory =
            |inode: Option<&I>| inode.is_some_and(|inode| inode.kind() == FileKind::Directory);
        let comes = is_directory(Some(&self.moved));
        let goes = is_directory(self.there.as_deref());
        let is_full = comes && !goes && !self.to.dir.takes_directory()
            || is_exchange && goes && !comes && !self.from.dir.takes_directory();
        if is_full {
            return Err(Condition::TooManyLinks.into());
        }
        Ok(())
    }
}
