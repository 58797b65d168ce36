//! Names in directories, of subvolumes too.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_vfs::{Condition, DirCursor, DirEntry, DirSink, FileKind, InodeId, Name, Result};

use super::stub::StubPlace;
use super::{BtrfsInode, root_of};
use crate::directory::{self, FIRST_INDEX};
use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;

impl BtrfsInode {
    fn refuse_without_names(&self) -> Result<()> {
        if self.item.kind == FileKind::Directory {
            return Ok(());
        }
        Err(Condition::NotDirectory.into())
    }

    /// See [`platter_vfs::Inode::lookup`].
    pub(super) fn lookup_name(&self, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
        self.refuse_without_names()?;
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
        let context = self.context();
        let parent = TreeId(self.id.tree);
        let is_it = context.names_subvolume(parent, child, self.id.number, name.as_bytes())?;
        if let Some(subvolume) = context.subvolume(child)?
            && is_it
        {
            return Ok(root_of(&subvolume));
        }
        // A snapshot has the entries of the subvolumes in it, but not the subvolumes.
        Ok(self.fs.stubs.id(StubPlace {
            dir: self.id,
            child,
        }))
    }

    /// The directory that holds this one; itself for the root.
    fn parent(&self) -> Result<InodeId> {
        if self.id == self.fs.root {
            return Ok(self.id);
        }
        if self.is_subvolume_root() {
            let name = self.context().parent_name(self.subvolume.id)?;
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
