//! Names in directories, of subvolumes too.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_vfs::{
    Condition, DirCursor, DirEntry, DirSink, Error, FileKind, InodeId, Name, Result, Unsupported,
};

use super::stub::StubPlace;
use super::{BtrfsInode, subvolumes};
use crate::directory::{self, FIRST_INDEX};
use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;

/// Refuses what is asked of the names in a directory where there are none.
pub(super) fn refuse_without_names(dir: &BtrfsInode) -> Result<()> {
    if dir.kind == FileKind::Directory {
        return Ok(());
    }
    Err(Condition::NotDirectory.into())
}

/// See [`platter_vfs::Inode::lookup`].
pub(super) fn lookup(dir: &BtrfsInode, name: Name<'_>) -> Result<Arc<dyn platter_vfs::Inode>> {
    refuse_without_names(dir)?;
    let _order = dir.order.read();
    let tree = dir.tree();
    match name.as_bytes() {
        b"." => return dir.fs.named(tree, dir.id),
        b".." => return dir.fs.named(tree, parent(dir)?),
        _ => {}
    }
    let found = directory::lookup(dir.context(), tree, dir.id.number, name)?;
    let found = found.ok_or(Condition::NotFound)?;
    let id = entry_id(dir, found.location, name)?;
    dir.fs.named(tree, id)
}

/// What an entry of a directory names.
fn entry_id(dir: &BtrfsInode, location: Location, name: Name<'_>) -> Result<InodeId> {
    let child = match location {
        Location::Inode(number) => {
            let tree = dir.id.tree;
            return Ok(InodeId { tree, number });
        }
        Location::Subvolume(child) => TreeId(child),
    };
    if let Some(root) = subvolumes::names::find_root(dir, child, name)? {
        return Ok(root);
    }
    // A snapshot has the entries of the subvolumes in it, but not the subvolumes.
    Ok(dir.fs.stubs.id(StubPlace { dir: dir.id, child }))
}

/// The directory that holds this one; itself for the root.
pub(super) fn parent(dir: &BtrfsInode) -> Result<InodeId> {
    if dir.id == dir.fs.root {
        return Ok(dir.id);
    }
    if dir.is_subvolume_root() {
        let name = dir.context().parent_name(dir.subvolume.id())?;
        return Ok(name.map_or(dir.id, |name| InodeId {
            tree: name.parent.0,
            number: name.dir,
        }));
    }
    let number = inode::parent(dir.context(), dir.tree(), dir.id.number)?;
    Ok(InodeId {
        tree: dir.id.tree,
        number,
    })
}

/// See [`platter_vfs::Inode::read_dir`].
pub(super) fn list(dir: &BtrfsInode, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
    refuse_without_names(dir)?;
    let _order = dir.order.read();
    if dir.item().links == 0 {
        // It was removed, and has not even the two names that all have.
        return Ok(());
    }
    let dots: [(u64, &[u8]); 2] = [(0, b"."), (1, b"..")];
    for (index, name) in dots.into_iter().filter(|(index, _)| *index >= from.0) {
        let id = if index == 0 { dir.id } else { parent(dir)? };
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
    let (context, tree) = (dir.context(), dir.tree());
    directory::list(
        context,
        tree,
        dir.id.number,
        first,
        &mut |index, name, found| {
            let entry = DirEntry {
                name,
                id: entry_id(dir, found.location, name)?,
                kind: found.kind,
                next: DirCursor(index.saturating_add(1)),
            };
            Ok(sink(entry) == ControlFlow::Continue(()))
        },
    )
}

/// The error for what is not written.
pub(super) fn refused(feature: &str) -> Error {
    let unsupported = Unsupported {
        filesystem: "btrfs",
        feature: feature.to_owned(),
        reason: None,
    };
    unsupported.into()
}
