//! Pointers of inodes to the directories that name them, which are attributes, one for each name.
//! Spec: `xfs-headers/xfs_da_format.h`.

use platter_ondisk::{Corruption, Locus};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::attr_fork;
use crate::change::{Change, Cost};
use crate::context::FsContext;
use crate::fork::{Attr, AttrEdit};
use crate::ondisk::InodeNr;
use crate::ondisk::attr::{DiskParent, Namespace};

/// What a change of so many pointers takes.
pub(super) fn cost(context: &FsContext, pointers: u32) -> Cost {
    let geometry = context.geometry();
    if !geometry.features.has_parent() {
        return Cost::default();
    }
    // A leaf that is split, and the node above it.
    let blocks = u64::from(pointers) * 3;
    Cost {
        extents: pointers,
        inodes: pointers,
        bytes: blocks * (u64::from(geometry.block_bytes()) + 512),
        ..Cost::default()
    }
}

fn pointer(change: &mut Change<'_>, directory: InodeNr, name: &[u8]) -> Result<Attr> {
    let generation = change.inode(directory)?.inode().generation;
    let parent = DiskParent {
        inode: directory.get().into(),
        generation: generation.into(),
    };
    Ok(Attr {
        namespace: Namespace::Parent,
        name: name.to_vec(),
        value: parent.as_bytes().to_vec(),
    })
}

/// Adds the pointer for a name of an inode in a directory, where the filesystem has them.
pub(super) fn add(
    change: &mut Change<'_>,
    inode: InodeNr,
    (directory, name): (InodeNr, &[u8]),
) -> Result<()> {
    if !change.geometry().features.has_parent() {
        return Ok(());
    }
    let pointer = pointer(change, directory, name)?;
    let mut edit = change.inode(inode)?;
    if edit.inode().attr_format.is_none() {
        attr_fork::add(change, &mut edit)?;
    }
    let mut attrs = AttrEdit::open(&mut change.groups, &mut edit)?;
    attrs.set(&pointer)?;
    attrs.finish()?;
    change.put(edit);
    Ok(())
}

/// Removes the pointer for a name of an inode in a directory, where the filesystem has them.
pub(super) fn remove(
    change: &mut Change<'_>,
    inode: InodeNr,
    (directory, name): (InodeNr, &[u8]),
) -> Result<()> {
    if !change.geometry().features.has_parent() {
        return Ok(());
    }
    let locus = Locus::inode(inode.get());
    let missing = || Corruption::new("parent pointer", locus, "is missing for a name");
    let pointer = pointer(change, directory, name)?;
    let mut edit = change.inode(inode)?;
    if edit.inode().attr_format.is_none() {
        return Err(missing().into());
    }
    let mut attrs = AttrEdit::open(&mut change.groups, &mut edit)?;
    if !attrs.remove(&pointer.key())? {
        return Err(missing().into());
    }
    attrs.finish()?;
    change.put(edit);
    Ok(())
}
