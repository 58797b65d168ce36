//! Directories: a name looked up, names listed, and what all changes of names share.

use platter_vfs::inode::{InodeLock, RenameLock};
use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::namei::{LinkState, NamedInode, NewInode, Rename};
use platter_vfs::{
    Condition, Context, DirCursor, DirSink, Error, FileKind, InodeId, Name, NameBuf, Result,
};

use super::{Inode, InodeState, SuperBlock, rename};
use crate::change::{Change, Cost};
use crate::context::FsContext;
use crate::directory::{self, Directory};
use crate::directory::change::DirectoryChange;
use crate::inode::InodeNumberRule;
use crate::ondisk::InodeNr;

/// The most names of one file (`XFS_MAXLINK`).
const LINKS_MAX: u32 = i32::MAX.unsigned_abs();

/// What a change of one name in a directory takes: a path of the hash tree that splits, blocks of entries
/// and of free regions, and their space.
pub(super) const NAME_COST: Cost = Cost {
    extents: 4,
    forks: 1,
    directory_blocks: 10,
    inodes: 1,
    bytes: 0,
};

impl Inode {
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<Self>> {
        let _order = self.order.read();
        let found = self.state.read().directory(self.context())?.lookup(name)?;
        let named = self.superblock.named(found.inode);
        if named.is_err() && self.state.read().inode.links == 0 {
            // What was above a directory that was removed may be gone as well.
            return Err(Condition::NotFound.into());
        }
        named
    }

    pub(super) fn list_names(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        let _order = self.order.read();
        let state = self.state.read();
        let directory = state.directory(self.context())?;
        if state.inode.links == 0 {
            // It was removed, and has not even the two names that all have.
            return Ok(());
        }
        directory::list::read(&directory, from, sink)
    }
}

impl InodeState {
    fn directory<'s>(&'s self, context: &'s FsContext) -> Result<Directory<'s>> {
        Directory::open(context, &self.inode, &self.map)
    }
}

/// Changes a directory.
pub(super) fn change_directory(
    change: &mut Change<'_>,
    directory: InodeNr,
    work: impl FnOnce(&mut DirectoryChange<'_, '_>) -> Result<()>,
) -> Result<()> {
    let edit = change.inode(directory)?;
    let mut directory = DirectoryChange::open(change, edit)?;
    work(&mut directory)?;
    directory.finish()
}

impl NamedInode for Inode {
    type Slot = NameBuf;
    type Vacancy = ();
    type Space = SuperBlock;

    fn id(&self) -> InodeId {
        self.number.id()
    }

    fn kind(&self) -> FileKind {
        self.kind
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn rename_lock(&self) -> &RenameLock {
        &self.superblock.renames
    }

    fn link_state(&self) -> LinkState {
        self.state.read().link_state(self.context())
    }

    fn space(&self) -> Result<&SuperBlock> {
        if !self.superblock.can_write() {
            return Err(Condition::ReadOnly.into());
        }
        Ok(&self.superblock)
    }

    fn links_max(&self) -> u32 {
        LINKS_MAX
    }

    fn in_use(&self, id: InodeId) -> Result<Option<Arc<Self>>> {
        if let Some(inode) = self.superblock.inodes.get(id) {
            return Ok(Some(inode));
        }
        match InodeNr::new(id.number).filter(|_| id.tree == 0) {
            Some(number) => self.superblock.find(number),
            None => Ok(None),
        }
    }

    fn child(&self, name: Name<'_>) -> Result<(Arc<Self>, NameBuf)> {
        let found = self.state.read().directory(self.context())?.lookup(name)?;
        if found.inode == self.number {
            return Err(self.own_ancestor());
        }
        Ok((self.superblock.named(found.inode)?, name.to_owned()))
    }

    fn vacancy(&self, name: Name<'_>) -> Result<()> {
        match self.state.read().directory(self.context())?.lookup(name) {
            Ok(_) => Err(Condition::Exists.into()),
            Err(Error::Condition(Condition::NotFound)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn is_root(&self) -> bool {
        self.number == self.context().superblock.root_inode
    }

    fn parent(&self) -> Result<Arc<Self>> {
        self.lookup_name(Name::new(b"..")?)
    }

    fn own_ancestor(&self) -> Error {
        let locus = Locus::inode(self.number.get());
        Corrupt::new(locus, InodeNumberRule::Itself).into()
    }

    fn is_empty_directory(&self) -> Result<bool> {
        self.state.read().directory(self.context())?.is_empty()
    }

    fn create_child(&self, name: Name<'_>, (): (), new: NewInode<'_>) -> Result<Arc<Self>> {
        self.create_named(Some(name), new)
    }

    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>> {
        self.create_named(None, new)
    }

    fn link_child(&self, _: &Context, name: Name<'_>, (): (), target: &Arc<Self>) -> Result<()> {
        self.add_link(name, target)
    }

    fn remove_child(&self, slot: &NameBuf, victim: &Arc<Self>) -> Result<()> {
        self.take_name(slot, victim)
    }

    fn rename_child(rename: &Rename<'_, Self>) -> Result<()> {
        rename::apply(rename)
    }
}
