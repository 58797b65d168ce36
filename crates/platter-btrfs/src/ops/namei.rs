//! What [`platter_vfs::namei`] asks for.

use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::inode::{InodeLock, RenameLock};
use platter_vfs::namei::{LinkState, NamedInode, NewInode, Rename};
use platter_vfs::{Condition, Context, Error, FileKind, InodeId, Name, NameBuf, Result};

use super::names::{self, refused};
use super::{BtrfsInode, SuperBlock, create, remove, rename, subvolumes};
use crate::context::TreesRule;
use crate::directory;
use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;

/// The most names of one file (`BTRFS_LINK_MAX`).
const LINKS_MAX: u32 = 65_535;

impl NamedInode for BtrfsInode {
    type Slot = NameBuf;
    type Vacancy = ();
    type Space = SuperBlock;

    fn id(&self) -> InodeId {
        self.id
    }

    fn kind(&self) -> FileKind {
        self.kind
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn rename_lock(&self) -> &RenameLock {
        &self.fs.renames
    }

    fn link_state(&self) -> LinkState {
        let state = self.state.read();
        let flags = inode::attr(&state.item, 0, self.context().sector_bytes()).flags;
        state.link_state(flags)
    }

    fn space(&self) -> Result<&SuperBlock> {
        if !self.can_change() {
            return Err(Condition::ReadOnly.into());
        }
        Ok(&self.fs)
    }

    fn links_max(&self) -> u32 {
        LINKS_MAX
    }

    fn in_use(&self, id: InodeId) -> Result<Option<Arc<Self>>> {
        if let Some(inode) = self.fs.inodes.get(id) {
            return Ok(Some(inode));
        }
        self.fs.load(id)
    }

    fn child(&self, name: Name<'_>) -> Result<(Arc<Self>, NameBuf)> {
        names::refuse_without_names(self)?;
        let found = directory::lookup(self.context(), self.tree(), self.id.number, name)?;
        let id = match found.ok_or(Condition::NotFound)?.location {
            Location::Inode(number) => InodeId { number, ..self.id },
            Location::Subvolume(child) => {
                let root = subvolumes::names::find_root(self, TreeId(child), name)?;
                root.ok_or_else(|| refused("renaming the name of a subvolume in a snapshot"))?
            }
        };
        if id == self.id {
            return Err(self.own_ancestor());
        }
        let child = self.fs.load(id)?;
        let child = child.ok_or_else(|| inode::missing(self.tree(), id.number))?;
        Ok((child, name.to_owned()))
    }

    fn vacancy(&self, name: Name<'_>) -> Result<()> {
        names::refuse_without_names(self)?;
        match directory::lookup(self.context(), self.tree(), self.id.number, name)? {
            Some(_) => Err(Condition::Exists.into()),
            None => Ok(()),
        }
    }

    fn is_root(&self) -> bool {
        self.id == self.fs.root
    }

    fn parent(&self) -> Result<Arc<Self>> {
        let id = names::parent(self)?;
        let parent = self.fs.load(id)?;
        Ok(parent.ok_or_else(|| inode::missing(self.tree(), id.number))?)
    }

    fn own_ancestor(&self) -> Error {
        let locus = Locus::tree(self.id.tree).of_inode(self.id.number);
        Corrupt::new(locus, TreesRule::Parent).into()
    }

    fn is_empty_directory(&self) -> Result<bool> {
        let mut is_empty = true;
        let (context, tree) = (self.context(), self.tree());
        directory::list(context, tree, self.id.number, 0, &mut |_, _, _| {
            is_empty = false;
            Ok(false)
        })?;
        Ok(is_empty)
    }

    fn create_child(&self, name: Name<'_>, (): (), new: NewInode<'_>) -> Result<Arc<Self>> {
        create::new_inode(self, Some(name), new)
    }

    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>> {
        create::new_inode(self, None, new)
    }

    fn link_child(&self, _: &Context, name: Name<'_>, (): (), target: &Arc<Self>) -> Result<()> {
        create::link(self, name, target)
    }

    fn remove_child(&self, slot: &NameBuf, victim: &Arc<Self>) -> Result<()> {
        if victim.is_subvolume_root() {
            return subvolumes::delete::delete_subvolume(self, slot.as_name(), victim);
        }
        remove::unlink(self, slot, victim)
    }

    fn rename_child(rename: &Rename<'_, Self>) -> Result<()> {
        rename::apply(rename)
    }
}
