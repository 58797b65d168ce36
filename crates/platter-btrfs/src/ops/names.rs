//! Names in directories, of subvolumes too.

use platter_vfs::inode::{InodeLock, RenameLock};
use std::ops::ControlFlow;
use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::namei::{LinkState, NamedInode, NewInode, Rename};
use platter_vfs::{
    Condition, Context, DirCursor, DirEntry, DirSink, Error, FileKind, InodeId, Name, NameBuf,
    RenameMode, Result, Unsupported,
};

use super::stub::StubPlace;
use super::subvolumes::in_use::root_of;
use super::{BtrfsInode, SuperBlock, rename};
use crate::context::TreesRule;
use crate::directory::{self, FIRST_INDEX};
use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;

impl BtrfsInode {
    fn refuse_without_names(&self) -> Result<()> {
        if self.kind == FileKind::Directory {
            return Ok(());
        }
        Err(Condition::NotDirectory.into())
    }

    /// See [`platter_vfs::Inode::lookup`].
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        self.refuse_without_names()?;
        let _order = self.order.read();
        let tree = self.tree();
        match name.as_bytes() {
            b"." => return self.fs.named(tree, self.id),
            b".." => return self.fs.named(tree, self.parent()?),
            _ => {}
        }
        let found = directory::lookup(self.context(), tree, self.id.number, name)?;
        let found = found.ok_or(Condition::NotFound)?;
        let id = self.named_by(found.location, name)?;
        self.fs.named(tree, id)
    }

    /// What an entry of this directory names.
    fn named_by(&self, location: Location, name: Name<'_>) -> Result<InodeId> {
        let child = match location {
            Location::Inode(number) => {
                let tree = self.id.tree;
                return Ok(InodeId { tree, number });
            }
            Location::Subvolume(child) => TreeId(child),
        };
        if let Some(root) = self.names_subvolume(child, name)? {
            return Ok(root);
        }
        // A snapshot has the entries of the subvolumes in it, but not the subvolumes.
        Ok(self.fs.stubs.id(StubPlace {
            dir: self.id,
            child,
        }))
    }

    /// The root directory of a subvolume that this directory has under a name; `None` if it is elsewhere.
    pub(super) fn names_subvolume(&self, child: TreeId, name: Name<'_>) -> Result<Option<InodeId>> {
        let context = self.context();
        let parent = TreeId(self.id.tree);
        let is_it = context.names_subvolume(parent, child, self.id.number, name.as_bytes())?;
        let subvolume = context.subvolume(child)?;
        Ok(subvolume.filter(|_| is_it).map(|it| root_of(&it)))
    }

    /// Whether a rename concerns subvolumes alone, which may go from one to another.
    pub(super) fn moves_subvolumes(
        &self,
        name: Name<'_>,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<bool> {
        let _ = new_name;
        if mode == RenameMode::Exchange || self.kind != FileKind::Directory {
            return Ok(false);
        }
        let found = directory::lookup(self.context(), self.tree(), self.id.number, name)?;
        Ok(matches!(
            found.map(|found| found.location),
            Some(Location::Subvolume(_))
        ))
    }

    /// The directory that holds this one; itself for the root.
    fn parent(&self) -> Result<InodeId> {
        if self.id == self.fs.root {
            return Ok(self.id);
        }
        if self.is_subvolume_root() {
            let name = self.context().parent_name(self.subvolume.id())?;
            return Ok(name.map_or(self.id, |name| InodeId {
                tree: name.parent.0,
                number: name.dir,
            }));
        }
        let number = inode::parent(self.context(), self.tree(), self.id.number)?;
        Ok(InodeId {
            tree: self.id.tree,
            number,
        })
    }

    /// See [`platter_vfs::Inode::read_dir`].
    pub(super) fn list_names(&self, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
        self.refuse_without_names()?;
        let _order = self.order.read();
        if self.item().links == 0 {
            // It was removed, and has not even the two names that all have.
            return Ok(());
        }
        let dots: [(u64, &[u8]); 2] = [(0, b"."), (1, b"..")];
        for (index, name) in dots.into_iter().filter(|(index, _)| *index >= from.0) {
            let id = if index == 0 { self.id } else { self.parent()? };
            let entry = DirEntry {
                name: Name::new(name)?,
                id,
                kind: Some(FileKind::Directory),
                next: DirCursor(index + 1),
            };
            if sink(entry).is_break() {
                return Ok(());
            }
        }
        let first = from.0.max(FIRST_INDEX);
        let (context, tree) = (self.context(), self.tree());
        directory::list(
            context,
            tree,
            self.id.number,
            first,
            &mut |index, name, found| {
                let entry = DirEntry {
                    name,
                    id: self.named_by(found.location, name)?,
                    kind: found.kind,
                    next: DirCursor(index.saturating_add(1)),
                };
                Ok(sink(entry) == ControlFlow::Continue(()))
            },
        )
    }
}

/// The most names of one file (`BTRFS_LINK_MAX`).
const LINKS_MAX: u32 = 65_535;

/// The error for what is not written.
pub(super) fn refused(feature: &str) -> Error {
    let unsupported = Unsupported {
        filesystem: "btrfs",
        feature: feature.to_owned(),
        reason: None,
    };
    unsupported.into()
}

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
        self.refuse_without_names()?;
        let found = directory::lookup(self.context(), self.tree(), self.id.number, name)?;
        let id = match found.ok_or(Condition::NotFound)?.location {
            Location::Inode(number) => InodeId { number, ..self.id },
            Location::Subvolume(child) => {
                let root = self.names_subvolume(TreeId(child), name)?;
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
        self.refuse_without_names()?;
        match directory::lookup(self.context(), self.tree(), self.id.number, name)? {
            Some(_) => Err(Condition::Exists.into()),
            None => Ok(()),
        }
    }

    fn is_root(&self) -> bool {
        self.id == self.fs.root
    }

    fn parent(&self) -> Result<Arc<Self>> {
        let id = BtrfsInode::parent(self)?;
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
        self.create_named(Some(name), new)
    }

    fn create_without_name(&self, new: NewInode<'_>) -> Result<Arc<Self>> {
        self.create_named(None, new)
    }

    fn link_child(&self, _: &Context, name: Name<'_>, (): (), target: &Arc<Self>) -> Result<()> {
        self.add_link(name, target)
    }

    fn remove_child(&self, slot: &NameBuf, victim: &Arc<Self>) -> Result<()> {
        if victim.is_subvolume_root() {
            return self.delete_subvolume(slot.as_name(), victim);
        }
        self.take_name(slot, victim)
    }

    fn rename_child(rename: &Rename<'_, Self>) -> Result<()> {
        rename::apply(rename)
    }
}
