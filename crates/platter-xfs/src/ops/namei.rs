//! What [`platter_vfs::namei`] asks for of directories.

use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::inode::{InodeLock, RenameLock};
use platter_vfs::namei::{LinkState, NamedInode, NewInode, Rename};
use platter_vfs::{Condition, Context, Error, FileKind, InodeId, Name, NameBuf, Result};

use super::{Inode, SuperBlock, create, names, remove, rename};
use crate::directory::NamePlace;
use crate::inode::InodeNumberRule;
use crate::ondisk::InodeNr;

/// The most names of one file (`XFS_MAXLINK`).
const LINKS_MAX: u32 = i32::MAX.unsigned_abs();

impl NamedInode for Inode {
    type Slot = (NameBuf, NamePlace);
    type Vacancy = NamePlace;
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

    fn child(&self, name: Name<'_>) -> Result<(Arc<Self>, (NameBuf, NamePlace))> {
        let (found, place) = self.state.read().directory(self.context())?.locate(name)?;
        let found = found.ok_or(Condition::NotFound)?;
        if found.inode == self.number {
            return Err(self.own_ancestor());
        }
        let inode = self.superblock.named(found.inode)?;
        Ok((inode, (name.to_owned(), place)))
    }

    fn vacancy(&self, name: Name<'_>) -> Result<NamePlace> {
        match self.state.read().directory(self.context())?.locate(name)? {
            (Some(_), _) => Err(Condition::Exists.into()),
            (None, place) => Ok(place),
        }
    }

    fn is_root(&self) -> bool {
        self.number == self.context().superblock.root_inode
    }

    fn parent(&self) -> Result<Arc<Self>> {
        names::lookup(self, Name::new(b"..")?)
    }

    fn own_ancestor(&self) -> Error {
        let locus = Locus::inode(self.number.get());
        Corrupt::new(locus, InodeNumberRule::Itself).into()
    }

    fn is_empty_directory(&self) -> Result<bool> {
        self.state.read().directory(self.context())?.is_empty()
    }

    fn create_child(
        &self,
        name: Name<'_>,
        vacancy: NamePlace,
        new: NewInode<'_>,
    ) -> Result<Arc<Self>> {
        create::file(self, Some((name, vacancy)), new)
    }

    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>> {
        create::file(self, None, new)
    }

    fn link_child(
        &self,
        _: &Context,
        name: Name<'_>,
        vacancy: NamePlace,
        target: &Arc<Self>,
    ) -> Result<()> {
        create::link(self, (name, vacancy), target)
    }

    fn remove_child(&self, (name, place): &(NameBuf, NamePlace), victim: &Arc<Self>) -> Result<()> {
        remove::unlink(self, (name.as_name(), place), victim)
    }

    fn rename_child(rename: &Rename<'_, Self>) -> Result<()> {
        rename::apply(rename)
    }
}
