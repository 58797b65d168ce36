//! What [`platter_vfs::namei`] asks of a directory, and of the files that it names.

use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::inode::{InodeLock, RenameLock};
use platter_vfs::namei::{LinkState, NamedInode, NewInode, Rename};
use platter_vfs::{Context, Error, FileKind, InodeId, Name, Result};

use super::{Ext4Inode, SuperBlock, create, link, names, remove, rename};
use crate::directory::{LINKS_MAX, Slot, Vacancy};
use crate::inode::InodeNumberRule;
use crate::ondisk::features::RoCompat;
use crate::ondisk::{InodeFlags, InodeNr};

impl NamedInode for Ext4Inode {
    type Slot = Slot;
    type Vacancy = Vacancy;
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
        &self.sb.renames
    }

    fn link_state(&self) -> LinkState {
        self.state.read().link_state()
    }

    fn space(&self) -> Result<&SuperBlock> {
        self.sb.space()?;
        Ok(&self.sb)
    }

    fn links_max(&self) -> u32 {
        LINKS_MAX
    }

    /// With `dir_nlink`, a directory with an index may have more than can be counted.
    fn takes_directory(&self) -> bool {
        let state = self.state.read();
        let ro_compat = self.fs().geometry.features.ro_compat;
        let may_lose_count = ro_compat.contains(RoCompat::DIR_NLINK)
            && state.inode.flags.contains(InodeFlags::INDEX);
        state.inode.links < LINKS_MAX || may_lose_count
    }

    fn in_use(&self, id: InodeId) -> Result<Option<Arc<Self>>> {
        self.sb.in_use(id)
    }

    fn child(&self, name: Name<'_>) -> Result<(Arc<Self>, Slot)> {
        child(self, name)
    }

    fn vacancy(&self, name: Name<'_>) -> Result<Vacancy> {
        self.state.read().directory(self.fs())?.vacancy(name)
    }

    fn is_root(&self) -> bool {
        self.number == InodeNr::ROOT
    }

    fn parent(&self) -> Result<Arc<Self>> {
        names::lookup(self, Name::new(b"..")?)
    }

    fn own_ancestor(&self) -> Error {
        let locus = Locus::inode(u64::from(self.number.get()));
        Corrupt::new(locus, InodeNumberRule::Itself).into()
    }

    fn is_empty_directory(&self) -> Result<bool> {
        self.state.read().directory(self.fs())?.is_empty()
    }

    fn create_child(
        &self,
        name: Name<'_>,
        vacancy: Vacancy,
        new: NewInode<'_>,
    ) -> Result<Arc<Self>> {
        create::named(self, name, vacancy, new)
    }

    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>> {
        create::unnamed(self, new)
    }

    fn link_child(
        &self,
        context: &Context,
        name: Name<'_>,
        vacancy: Vacancy,
        target: &Arc<Self>,
    ) -> Result<()> {
        link::add(self, context, name, vacancy, target)
    }

    fn remove_child(&self, slot: &Slot, victim: &Arc<Self>) -> Result<()> {
        remove::unlink(self, slot, victim)
    }

    fn rename_child(rename: &Rename<'_, Self>) -> Result<()> {
        rename::apply(rename)
    }
}

/// What `name`, which is neither `.` nor `..`, names in this directory, and its slot.
fn child(node: &Ext4Inode, name: Name<'_>) -> Result<(Arc<Ext4Inode>, Slot)> {
    let slot = node.state.read().directory(node.fs())?.locate(name)?;
    let number = slot.found().inode;
    if number == node.number {
        return Err(node.own_ancestor());
    }
    Ok((node.sb.named(number)?, slot))
}

const _: () = assert!(LINKS_MAX < u16::MAX as u32);
