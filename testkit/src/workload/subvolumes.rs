//! Subvolumes in a session: by the filesystem, or by ordinary operations on a model that has none.

use std::collections::BTreeMap;

use platter_vfs::inode::read_dir_all;
use platter_vfs::{
    Condition, Context, CreateKind, FileKind, Filesystem, Inode, InodeId, PathWalk, Result,
    SetAttr, XattrMode,
};

use super::session::resolve;

/// How deep directories may lie.
const DEPTH_MAX: usize = 64;

/// What a new subvolume's root directory may be, before the umask.
const PERMISSIONS: u32 = 0o777;

/// Creates an empty subvolume.
pub(super) fn create(fs: &dyn Filesystem, path: &str) -> Result<()> {
    let context = Context::root();
    let located = PathWalk::new(fs).resolve_parent(path.as_bytes())?;
    let name = located.name_to_create()?;
    match fs.subvolumes() {
        Some(subvolumes) => subvolumes.create(&context, located.parent.id(), name)?,
        None => located
            .parent
            .create(&context, name, CreateKind::Directory, PERMISSIONS)?,
    };
    Ok(())
}

/// Creates a snapshot of the subvolume at `source`.
pub(super) fn snapshot(fs: &dyn Filesystem, source: &str, path: &str) -> Result<()> {
    let context = Context::root();
    let located = PathWalk::new(fs).resolve_parent(path.as_bytes())?;
    let name = located.name_to_create()?;
    let source = resolve(fs, source)?;
    if let Some(subvolumes) = fs.subvolumes() {
        let tree = source.id().tree;
        subvolumes.snapshot(&context, tree, located.parent.id(), name, false)?;
        return Ok(());
    }
    let target = located
        .parent
        .create(&context, name, CreateKind::Directory, PERMISSIONS)?;
    copy_attributes(&*source, &*target)?;
    copy_entries(&*source, &*target, &mut BTreeMap::new(), 0)
}

/// Deletes a subvolume with all that is in it.
pub(super) fn delete(fs: &dyn Filesystem, path: &str) -> Result<()> {
    let context = Context::root();
    let located = PathWalk::new(fs).resolve_parent(path.as_bytes())?;
    let name = located.name_to_remove_dir()?;
    if let Some(subvolumes) = fs.subvolumes() {
        return subvolumes.delete(&context, located.parent.id(), name, None);
    }
    remove_entries(&*located.parent.lookup(name)?, 0)?;
    located.parent.remove_dir(&context, name)
}

fn remove_entries(dir: &dyn Inode, depth: usize) -> Result<()> {
    demand_depth(depth)?;
    let context = Context::root();
    for entry in read_dir_all(dir)? {
        let name = entry.name.as_name();
        let inode = dir.lookup(name)?;
        if inode.attr()?.kind == FileKind::Directory {
            remove_entries(&*inode, depth + 1)?;
            dir.remove_dir(&context, name)?;
        } else {
            dir.unlink(&context, name)?;
        }
    }
    Ok(())
}

/// Copies what `from` names into `to`; `copies` has the copies of files of several names.
fn copy_entries(
    from: &dyn Inode,
    to: &dyn Inode,
    copies: &mut BTreeMap<InodeId, InodeId>,
    depth: usize,
) -> Result<()> {
    demand_depth(depth)?;
    let context = Context::root();
    for entry in read_dir_all(from)? {
        let name = entry.name.as_name();
        let source = from.lookup(name)?;
        let attr = source.attr()?;
        if let Some(copy) = copies.get(&source.id()) {
            to.link(&context, name, *copy)?;
            continue;
        }
        let kind = match attr.kind {
            FileKind::Regular => CreateKind::Regular,
            FileKind::Directory => CreateKind::Directory,
            FileKind::Symlink => CreateKind::Symlink(source.read_link()?),
            FileKind::CharDevice => CreateKind::CharDevice(attr.device),
            FileKind::BlockDevice => CreateKind::BlockDevice(attr.device),
            FileKind::Fifo => CreateKind::Fifo,
            FileKind::Socket => CreateKind::Socket,
        };
        let copy = to.create(&context, name, kind, attr.permissions)?;
        if attr.kind == FileKind::Regular {
            let len = usize::try_from(attr.size_bytes).map_err(|_| Condition::FileTooLarge)?;
            let mut bytes = vec![0; len];
            let count = source.read_at(0, &mut bytes)?;
            copy.write_at(0, &bytes[..count])?;
        }
        copy_attributes(&*source, &*copy)?;
        if attr.kind == FileKind::Directory {
            copy_entries(&*source, &*copy, copies, depth + 1)?;
        } else {
            copies.insert(source.id(), copy.id());
        }
    }
    Ok(())
}

fn copy_attributes(from: &dyn Inode, to: &dyn Inode) -> Result<()> {
    let (context, attr) = (Context::root(), from.attr()?);
    let owner = SetAttr {
        uid: Some(attr.uid),
        gid: Some(attr.gid),
        ..SetAttr::default()
    };
    to.set_attr(&context, &owner)?;
    if attr.kind != FileKind::Symlink {
        let permissions = SetAttr {
            permissions: Some(attr.permissions),
            ..SetAttr::default()
        };
        to.set_attr(&context, &permissions)?;
    }
    for name in from.list_xattrs()? {
        let value = from.get_xattr(&name)?;
        to.set_xattr(&context, &name, &value, XattrMode::Set)?;
    }
    Ok(())
}

fn demand_depth(depth: usize) -> Result<()> {
    if depth < DEPTH_MAX {
        Ok(())
    } else {
        Err(Condition::TooManyLinksFollowed.into())
    }
}
